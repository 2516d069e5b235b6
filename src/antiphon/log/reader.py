"""Reads of batches that are no longer in memory. A read is planned on the event loop and may run in any thread.

Every batch that comes from the disk is checked against its own CRC and its index entry, so a flipped bit is never
served.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from antiphon.errors import AntiphonError, DamagedLogError
from antiphon.invariants import invariant
from antiphon.log.aborted import AbortedIndex
from antiphon.log.disk import Disk, File
from antiphon.log.index import SIZE_MASK, IndexEntry, find_entry, iter_entries
from antiphon.log.recovery import DamageReport
from antiphon.log.segments import Segments
from antiphon.log.tail import MemoryTail
from antiphon.records.batch import UNCHECKED_BYTES, BatchHeader, Buffer, read_header
from antiphon.records.decode import decode_records
from antiphon.records.entry_id import TermIndex

_ENTRIES_MAX: Final = 65_536
_REPLAY_BYTES: Final = 4 * 1024 * 1024


class SegmentView(NamedTuple):
    """What a reader needs of a segment, as it was when the read was planned."""

    base_offset: int
    next_offset: int
    batches: int
    data_path: str
    index_path: str
    size_bytes: int
    files: tuple[File, File] | None = None  # where they are about to get their names

    def open_data(self, disk: Disk) -> File:
        """The batches."""
        return disk.open(self.data_path) if self.files is None else self.files[0]

    def open_index(self, disk: Disk) -> File:
        """Their index."""
        return disk.open(self.index_path) if self.files is None else self.files[1]


class AbortedView(NamedTuple):
    """What is `known` of the aborted transactions whose marker is in a segment, with the `path` of the file for it."""

    base_offset: int
    next_offset: int
    path: str
    known: AbortedIndex


class DiskRead:
    """One planned read: call it to carry it out.

    `is_current` says whether the log has been truncated or trimmed since; if so, missing data is no damage. `on_damage`
    is called before `DamagedLogError` is raised. Both are called in the reading thread.
    """

    def __init__(
        self,
        disk: Disk,
        segments: Sequence[SegmentView],
        is_current: Callable[[], bool],
        on_damage: Callable[[DamageReport], None],
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._is_current = is_current
        self._on_damage = on_damage

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool) -> list[memoryview]:
        """Whole batches of the segment that holds `offset`, from the one that holds it; none reaches beyond `end`."""
        for segment in self._segments:
            if segment.base_offset <= offset < segment.next_offset:
                try:
                    return self._read(segment, offset, max_bytes, end, at_least_one)
                except FileNotFoundError:
                    if self._is_current():
                        self._damage(segment, offset, 0, "a file of the segment is gone")
                    return []
        return []

    def _read(
        self, segment: SegmentView, offset: int, max_bytes: int, end: int, at_least_one: bool
    ) -> list[memoryview]:
        index = segment.open_index(self._disk)
        first = find_entry(index, segment.batches, offset, segment.base_offset, segment.next_offset)
        if first < 0:
            self._damage(segment, offset, 0, "the index does not know the offset")
            return []
        entries: list[IndexEntry] = []
        size = 0
        for entry in iter_entries(index, first, min(segment.batches, first + _ENTRIES_MAX)):
            if entry is None:
                if not entries:
                    self._damage(segment, offset, 0, "an index entry is bad")
                break
            next_size = size + (entry.size_flags & SIZE_MASK)
            if entry.base_offset + entry.offset_count > end or (
                next_size > max_bytes and (entries or not at_least_one)
            ):
                break
            entries.append(entry)
            size = next_size
        if not entries:
            return []
        start = entries[0].position
        data = memoryview(segment.open_data(self._disk).pread(size, start))
        found: list[memoryview] = []
        for entry in entries:
            at = entry.position - start
            batch = data[at : at + (entry.size_flags & SIZE_MASK)]
            if not batch_matches(entry, batch):
                self._damage(segment, entry.base_offset, entry.position, "the batch's checksums do not match")
                break
            found.append(batch)
        return found

    def _damage(self, segment: SegmentView, offset: int, position: int, reason: str) -> None:
        if not self._is_current():
            return
        report = DamageReport(offset, segment.data_path, position, reason)
        self._on_damage(report)
        raise DamagedLogError(
            f"the log is damaged at offset {offset} ({segment.data_path}, byte {position}): {reason}; "
            "it is refetched from the other replicas",
            offset=offset,
            position=position,
        )

    def entries(self) -> Iterator[IndexEntry]:
        """All valid index entries, in order of offsets."""
        for segment in self._segments:
            try:
                index = segment.open_index(self._disk)
            except FileNotFoundError:
                continue
            for entry in iter_entries(index, 0, segment.batches):
                if entry is not None:
                    yield entry


class LogReader:
    """Questions about one log that may have to read its disk: offsets by time, headers, a check of all of it.

    `ShardLog.read` is the way to batches. What is found damaged is told to `on_damage`.
    """

    def __init__(
        self,
        disk: Disk,
        terms: TermIndex,
        segments: Segments,
        tail: MemoryTail,
        on_damage: Callable[[DamageReport], None],
    ) -> None:
        self._disk = disk
        self._terms = terms
        self._segments = segments
        self._tail = tail
        self._on_damage = on_damage

    def from_disk(self, since_ms: int = -(1 << 63)) -> DiskRead:
        """A read of the segments as they are now, without those that are known to be older than `since_ms`."""
        views = self.views(since_ms)
        removals = self._segments.removals
        return DiskRead(self._disk, views, lambda: self._segments.removals == removals, self._on_damage)

    def views(self, since_ms: int = -(1 << 63)) -> list[SegmentView]:
        """The segments as they are now, oldest first, without those that are known to be older than `since_ms`."""
        return [
            SegmentView(
                s.base_offset, s.next_offset, s.count, s.data_path, s.index_path, s.size_bytes, s.files
            )
            for s in self._segments.all
            if s.max_timestamp >= since_ms or not s.max_is_exact
        ]

    def aborted_from(self, offset: int) -> AbortedView | None:
        """Of the first segment that begins at `offset` or later and has any, as it is now."""
        for one in self._segments.all:
            if one.base_offset >= offset and len(one.aborted):
                return AbortedView(one.base_offset, one.next_offset, one.aborted_path, one.aborted.copy())
        return None

    @property
    def removals(self) -> int:
        """Changes when what was on disk may be gone."""
        return self._segments.removals

    def _read(self, offset: int, max_bytes: int, end: int) -> list[memoryview]:
        if offset >= self._tail.start:
            return self._tail.read(offset, max_bytes, end, at_least_one=True)
        return self.from_disk().read(offset, max_bytes, min(end, self._tail.start), at_least_one=True)

    def batch_start(self, offset: int) -> int:
        """First offset of the batch that holds `offset`, between the log's start and end; the end for itself.

        Reads a little of the disk where the batch is not in memory. At the log's start, the start.
        """
        log_start, log_end = self._terms.log_start, self._terms.log_end
        if offset in {log_start, log_end}:
            return offset
        if offset >= self._tail.start:
            return read_header(self._tail.read(offset, 1, log_end, at_least_one=True)[0]).base_offset
        return max(self._segments.find(offset)[1].base_offset, log_start)

    def offset_for_timestamp(self, timestamp_ms: int, since: int = 0) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is at least that late; None if there is none. May read the disk.

        Records before offset `since` count for none. In a batch whose records cannot be decoded here (a codec that is not
        installed) it is the batch's first offset, or `since`.
        """
        in_memory, start = self._tail.start, max(since, self._terms.log_start)
        for entry in self.from_disk(timestamp_ms).entries():
            if entry.max_timestamp >= timestamp_ms and start < entry.next_offset <= in_memory:
                batches = self._read(max(entry.base_offset, start), 1, entry.next_offset)
                found = first_record_since(batches[0], timestamp_ms, start)
                if found is not None:
                    return found
        for batch in self._tail.batches():
            header = read_header(batch)
            if header.max_timestamp >= timestamp_ms and header.next_offset > start:
                found = first_record_since(batch, timestamp_ms, start)
                if found is not None:
                    return found
        return None

    def offset_of_max_timestamp(self, since: int = 0) -> tuple[int, int] | None:
        """(offset, timestamp) of the latest record by timestamp, from offset `since` on; None where there is none. May read
        the disk.
        """
        start = max(since, self._terms.log_start)
        newest = max((s.max_timestamp for s in self._segments.all if s.max_is_exact), default=-1)
        begins_inside = any(s.base_offset < start < s.next_offset for s in self._segments.all)
        if begins_inside or not all(s.max_is_exact for s in self._segments.all):
            newest = self._newest_of_batches(start, -1 if begins_inside else newest)
        return self.offset_for_timestamp(newest, start) if newest >= 0 else None

    def _newest_of_batches(self, start: int, known_ms: int) -> int:
        """The latest timestamp from offset `start` on, where it is not `known_ms` or earlier: by the batches."""
        found, in_memory = known_ms, self._tail.start
        for entry in self.from_disk(known_ms).entries():
            if start < entry.next_offset <= in_memory and entry.max_timestamp > found:
                if entry.base_offset >= start:
                    found = entry.max_timestamp
                else:
                    found = max(found, newest_record(self._read(start, 1, entry.next_offset)[0], start))
        for batch in self._tail.batches():
            header = read_header(batch)
            if start < header.next_offset and header.max_timestamp > found:
                is_whole = header.base_offset >= start
                found = header.max_timestamp if is_whole else max(found, newest_record(batch, start))
        return found

    def batches_from(self, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """All batches from the one that holds `offset`, in order, with their headers. Reads the disk."""
        at = max(offset, self._terms.log_start)
        while at < self._terms.log_end:
            batches = self._read(at, _REPLAY_BYTES, self._terms.log_end)
            if not batches:
                return
            for batch in batches:
                header = read_header(batch)
                yield header, batch
                at = header.next_offset

    def verify(self) -> int:
        """Read and check every batch on the disk; returns how many there are. Blocking.

        Raises DamagedLogError at the first bad one, and sets `damaged`.
        """
        checked = 0
        at = self._terms.log_start
        reader = self.from_disk()
        while at < self._tail.start:
            found = reader.read(at, _REPLAY_BYTES, self._tail.start, at_least_one=True)
            invariant(found, f"no batch holds offset {at}")
            checked += len(found)
            at = read_header(found[-1]).next_offset
        return checked


def batch_matches(entry: IndexEntry, batch: memoryview) -> bool:
    """Are these bytes the batch that the index describes, with every bit as it was written?"""
    return (
        len(batch) == entry.size_flags & SIZE_MASK
        and crc32c(batch[:UNCHECKED_BYTES]) == entry.head_crc
        and crc32c(batch[UNCHECKED_BYTES:]) == int.from_bytes(batch[17:21], "big")
    )


def newest_record(batch: Buffer, start: int) -> int:
    """The latest timestamp of a batch's records from offset `start` on; the batch's own where they cannot be decoded."""
    try:
        records = decode_records(batch, include_control=True)
        return max((record.timestamp_ms for record in records if record.offset >= start), default=-1)
    except AntiphonError:
        return read_header(batch).max_timestamp


def first_record_since(batch: Buffer, timestamp_ms: int, log_start: int) -> tuple[int, int] | None:
    """(offset, timestamp) of a batch's first record from `log_start` on that is at least that late, or of the batch.

    None where compaction has taken that record away, or it is before `log_start`.
    """
    header = read_header(batch)
    try:
        for record in decode_records(batch, include_control=True):
            if record.timestamp_ms >= timestamp_ms and record.offset >= log_start:
                return record.offset, record.timestamp_ms
    except AntiphonError:
        return max(header.base_offset, log_start), header.max_timestamp
    if header.record_count <= header.last_offset_delta or header.base_offset < log_start:
        return None
    return header.base_offset, header.max_timestamp
