"""Segments: a shard's log is a series of files of whole batches, each with its index, named after their first offset."""

import os
from collections.abc import Callable
from typing import Final

from antiphon.errors import CorruptBatchError
from antiphon.log.aborted import ABORTED_SUFFIX, AbortedIndex
from antiphon.log.config import LogConfig
from antiphon.log.disk import Disk, File
from antiphon.log.index import (
    ENTRY_BYTES,
    IndexEntry,
    entry_position,
    is_index_header,
    iter_entries,
    pack_entry,
    unpack_entry,
)
from antiphon.records.batch import HEADER_BYTES, BatchHeader, check_batch, read_header

DATA_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SEGMENT_BYTES_LIMIT: Final = 1 << 30  # positions in the index are 32 bits
SCAN_BYTES: Final = 4 * 1024 * 1024
_INDEX_CHUNK: Final = 1024

BatchSink = Callable[[BatchHeader, memoryview], None]


def file_of(directory: str, offset: int, suffix: str) -> str:
    """Path of a file that is named after an offset; names sort as the offsets do."""
    return os.path.join(directory, f"{offset:020d}{suffix}")


def offsets_of(names: list[str], suffix: str) -> list[int]:
    """Offsets of the files with that suffix, rising."""
    found = []
    for name in names:
        stem, dot, rest = name.partition(".")
        if dot and "." + rest == suffix and len(stem) == 20 and stem.isascii() and stem.isdigit():
            found.append(int(stem))
    return sorted(found)


def without_padding(data: bytes) -> memoryview:
    """The batches of a segment's file: what stands before the zeros at its end, up to whole batches. Not checked."""
    at = 0
    while len(data) - at >= HEADER_BYTES:
        size = read_header(data, at).size_bytes
        if size < HEADER_BYTES or size > len(data) - at:
            break
        at += size
    return memoryview(data) if any(data[at:]) else memoryview(data)[:at]


class Segment:
    """One segment as the event loop plans it; the files follow by way of the WAL thread."""

    __slots__ = (
        "aborted",
        "aborted_path",
        "base_offset",
        "count",
        "created_ms",
        "data_path",
        "files",
        "index_path",
        "is_compacted",
        "max_is_exact",
        "max_timestamp",
        "next_offset",
        "size_bytes",
    )

    def __init__(self, directory: str, base_offset: int, created_ms: int = 0) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.count = 0  # batches
        self.max_timestamp = -1
        self.max_is_exact = True  # False after a cut: the latest may have been cut off
        self.created_ms = created_ms
        self.data_path = file_of(directory, base_offset, DATA_SUFFIX)
        self.index_path = file_of(directory, base_offset, INDEX_SUFFIX)
        self.aborted_path = file_of(directory, base_offset, ABORTED_SUFFIX)
        self.aborted = AbortedIndex()
        self.is_compacted = False  # has it batches with fewer records than offsets?
        # Data and index, while they are about to take the place, and the names, of others.
        self.files: tuple[File, File] | None = None

    def is_full(self, size: int, now_ms: int, config: LogConfig) -> bool:
        """Does a batch of that many bytes belong in a new segment?"""
        if self.size_bytes == 0:
            return False
        limit = min(config.segment_bytes, SEGMENT_BYTES_LIMIT)
        if self.size_bytes + size > limit or now_ms - self.created_ms >= config.segment_ms:
            return True
        return self.aborted.is_full

    def grow(self, header: BatchHeader, size: int) -> None:
        """Count one more batch."""
        self.size_bytes += size
        self.count += 1
        self.next_offset = header.base_offset + header.last_offset_delta + 1
        if header.record_count:
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if header.record_count <= header.last_offset_delta:
            self.is_compacted = True


class SegmentScan:
    """Reads a segment's batches from some position on and checks each against its CRCs, its neighbours and its index.

    Iterate over it; afterwards `problem` says why it stopped before the end of the file (None: it did not), and
    `problem_is_damage` whether it is no torn write: the index proves that the batch was durable once, or the batch is whole
    by its CRC, and what the CRC does not cover is wrong. `missing_entries` are index entries to be written again, from
    number `entries_from` on. `padding_bytes`: zeros behind the last batch, which is no problem. `torn_bytes`: what else
    stands there.
    """

    def __init__(self, disk: Disk, segment: Segment, last_term: int, term_limit: int) -> None:
        """`term_limit`: nobody can have written a batch of a later term; 0: none."""
        self.segment = segment
        self.problem: str | None = None
        self.problem_is_damage = False
        self.is_beyond_limit = False  # the problem is the batch's term, or the limit
        self.file_bytes = 0
        self.padding_bytes = self.torn_bytes = 0
        self.entries_from = segment.count
        # Where the batches begin that no index entry says were synced
        self.unproven_from = segment.size_bytes
        self.missing_entries: list[bytes] = []
        self._last_term, self._term_limit = last_term, term_limit
        self._file = disk.open(segment.data_path)
        self._index = _open_index(disk, segment)
        self._chunk: list[IndexEntry | None] = []
        self._chunk_at = segment.count

    def run(self, on_batch: BatchSink) -> None:
        """Walk to the end or to the first problem, giving every good batch to `on_batch` and growing the segment."""
        self.file_bytes = self._file.size()
        while self.segment.size_bytes < self.file_bytes and self.problem is None:
            at = self.segment.size_bytes
            data = memoryview(self._file.pread(min(SCAN_BYTES, self.file_bytes - at), at))
            used = self._take_batches(data, on_batch)
            if used == 0 and self.problem is None:
                self._take_large_batch(data, at, on_batch)
        if self.problem is not None and not self.problem_is_damage:
            self.torn_bytes = self._last_byte() - self.segment.size_bytes
            if not self.torn_bytes:
                self.problem, self.padding_bytes = None, self.file_bytes - self.segment.size_bytes
        if self.problem is None and self._indexed_beyond():
            self._stop("the index knows of a batch behind the end of the file")

    def _last_byte(self) -> int:
        """Where what was written behind the last good batch ends; what follows is room that was made for more."""
        last = self.segment.size_bytes
        for at in range(last, self.file_bytes, SCAN_BYTES):
            written = self._file.pread(min(SCAN_BYTES, self.file_bytes - at), at).rstrip(b"\0")
            last = at + len(written) if written else last
        return last

    def _take_batches(self, data: memoryview, on_batch: BatchSink) -> int:
        at = 0
        while self.problem is None and len(data) - at >= HEADER_BYTES:
            header = read_header(data, at)
            size = header.size_bytes
            if size < HEADER_BYTES:
                self._stop(f"impossible batch size {size}")
            elif size > len(data) - at:
                break
            else:
                self._take(header, data[at : at + size], on_batch)
                at += size
        return at

    def _take_large_batch(self, data: memoryview, at: int, on_batch: BatchSink) -> None:
        """A batch that is not whole in a full chunk is read on its own, if the file has that many bytes."""
        if len(data) < HEADER_BYTES:
            self._stop(f"{len(data)} bytes where a batch header takes {HEADER_BYTES}")
            return
        size = read_header(data).size_bytes
        if size > self.file_bytes - at:
            self._stop(f"a batch of {size} bytes where {self.file_bytes - at} are left")
            return
        self._take_batches(memoryview(self._file.pread(size, at)), on_batch)

    def _take(self, header: BatchHeader, batch: memoryview, on_batch: BatchSink) -> None:
        segment = self.segment
        try:
            check_batch(header, batch)
        except CorruptBatchError as error:
            self._stop(error.message)
            return
        if header.base_offset != segment.next_offset or header.leader_epoch < self._last_term:
            self._stop(
                f"offset {header.base_offset} of term {header.leader_epoch} where {segment.next_offset} of term "
                f"{self._last_term} or later belongs",
                is_whole=True,
            )
            return
        entry = self._entry(segment.count)
        packed = pack_entry(header, batch, segment.size_bytes)
        indexed = entry is not None and entry.synced
        if indexed and unpack_entry(packed) != entry:
            self._stop("the batch is not the one that the index describes")
            return
        if not indexed and self._is_beyond_limit(header.leader_epoch):
            self.is_beyond_limit = True
            self._stop(
                f"a batch of term {header.leader_epoch}, which no index entry proves, where no term after "
                f"{self._term_limit} can have been",
                is_whole=True,
            )
            return
        if not indexed and not self.missing_entries:
            self.entries_from, self.unproven_from = segment.count, segment.size_bytes
        if not indexed or self.missing_entries:
            self.missing_entries.append(packed)
        self._last_term = header.leader_epoch
        segment.grow(header, len(batch))
        on_batch(header, batch)

    def _is_beyond_limit(self, term: int) -> bool:
        """Does nothing but the batch itself speak of its term? Batches before it do, where the limit is an old one."""
        return bool(self._term_limit) and term > max(self._term_limit, self._last_term)

    def _stop(self, problem: str, *, is_whole: bool = False) -> None:
        self.problem = problem
        self.problem_is_damage = is_whole or self._indexed_beyond()

    def _indexed_beyond(self) -> bool:
        """Does any entry say that what stands here, or after it, was durable? Entries are few where a scan stops."""
        if self._index is None:
            return False
        entries = (self._index.size() // ENTRY_BYTES) - 1
        return any(
            entry is not None and entry.synced and entry.position >= self.segment.size_bytes
            for entry in iter_entries(self._index, self.segment.count, entries)
        )

    def _entry(self, number: int) -> IndexEntry | None:
        if self._index is None:
            return None
        at = number - self._chunk_at
        if not 0 <= at < len(self._chunk):
            data = self._index.pread(ENTRY_BYTES * _INDEX_CHUNK, entry_position(number))
            self._chunk = [unpack_entry(data, start) for start in range(0, len(data), ENTRY_BYTES)]
            self._chunk_at = number
            at = 0
        return self._chunk[at] if at < len(self._chunk) else None


def _open_index(disk: Disk, segment: Segment) -> File | None:
    try:
        index = disk.open(segment.index_path)
    except FileNotFoundError:
        return None
    return index if is_index_header(index.pread(ENTRY_BYTES, 0), segment.base_offset) else None
