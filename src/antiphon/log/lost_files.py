"""Detects from the remaining files of a shard's log that there was more.

A deliberate removal of part of a log removes the descriptions first: snapshots, then the index, then the data. A new
segment's data is made first. So a snapshot beyond the log's end, or an index whose data is missing, remains only if
files were lost.
"""

import os

from antiphon.log.disk import Disk
from antiphon.log.index import ENTRY_BYTES, is_index_header, iter_entries
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, file_of, offsets_of


def snapshot_beyond(disk: Disk, directory: str, log_end: int) -> str | None:
    """Path of a snapshot file of an offset beyond `log_end`; the data before that offset was synced before it was
    written.
    """
    offsets = offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX)
    return file_of(directory, offsets[-1], SNAPSHOT_SUFFIX) if offsets and offsets[-1] > log_end else None


def index_without_data(disk: Disk, directory: str, log_start: int) -> int | None:
    """First offset of a segment whose data is missing and whose index proves that it existed; the lowest one.

    The index of the newest segment may have no entries although there were batches: a power failure removes entries
    that were not written back yet.
    """
    names = disk.listdir(directory)
    there = set(offsets_of(names, DATA_SUFFIX))
    for base in offsets_of(names, INDEX_SUFFIX):
        if base in there:
            continue
        index = disk.open(os.path.join(file_of(directory, base, INDEX_SUFFIX)))
        if not is_index_header(index.pread(ENTRY_BYTES, 0), base):
            continue
        if base >= log_start:
            return base
        entries = index.size() // ENTRY_BYTES - 1
        for entry in iter_entries(index, 0, entries):
            if entry is not None and entry.synced and entry.next_offset > log_start:
                return base
    return None
