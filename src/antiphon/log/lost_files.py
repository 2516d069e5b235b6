"""Tells from what is left of a shard's log that more was there.

Whoever removes a part of a log on purpose removes first what describes it: snapshots, then the index, then the data. Whoever
makes a segment makes its data first. So a snapshot behind the log's end, or an index whose data is gone, is left only where
files were lost.
"""

import os

from antiphon.log.disk import Disk
from antiphon.log.index import ENTRY_BYTES, is_index_header, iter_entries
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, file_of, offsets_of


def snapshot_beyond(disk: Disk, directory: str, log_end: int) -> str | None:
    """Path of a snapshot file of an offset behind `log_end`; what it stands for was synced before it was written."""
    offsets = offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX)
    return file_of(directory, offsets[-1], SNAPSHOT_SUFFIX) if offsets and offsets[-1] > log_end else None


def index_without_data(disk: Disk, directory: str, log_start: int) -> int | None:
    """First offset of a segment whose data is gone, and whose index proves that it was there once; the lowest one.

    The index of the newest segment may have no entries, though there were batches: a power failure takes those that were
    not written back yet.
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
