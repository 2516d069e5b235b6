"""Reads of batches that are no longer in memory. A read is planned on the event loop and may run in any thread.

Every batch that comes from the disk is checked against its own CRC and its index entry, so a flipped bit is never
served.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from antiphon.errors import AntiphonError, DamagedLogError
from antiphon.log.disk import Disk
from antiphon.log.index import IndexEntry, find_entry, iter_entries
from antiphon.log.recovery import DamageReport
from antiphon.records.batch import UNCHECKED_BYTES, Buffer, read_header
from antiphon.records.decode import decode_records

_ENTRIES_MAX: Final = 65_536


class SegmentView(NamedTuple):
    """What a reader needs of a segment, as it was when the read was planned."""

    base_offset: int
    next_offset: int
    batches: int
    data_path: str
    index_path: str


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
        index = self._disk.open(segment.index_path)
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
            if entry.next_offset > end:
                break
            if size + entry.size > max_bytes and (entries or not at_least_one):
                break
            entries.append(entry)
            size += entry.size
        if not entries:
            return []
        start = entries[0].position
        data = memoryview(self._disk.open(segment.data_path).pread(size, start))
        found: list[memoryview] = []
        for entry in entries:
            batch = data[entry.position - start : entry.position - start + entry.size]
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
                index = self._disk.open(segment.index_path)
            except FileNotFoundError:
                continue
            for entry in iter_entries(index, 0, segment.batches):
                if entry is not None:
                    yield entry


def batch_matches(entry: IndexEntry, batch: memoryview) -> bool:
    """Are these bytes the batch that the index describes, with every bit as it was written?"""
    return (
        len(batch) == entry.size
        and crc32c(batch[:UNCHECKED_BYTES]) == entry.head_crc
        and crc32c(batch[UNCHECKED_BYTES:]) == int.from_bytes(batch[17:21], "big")
    )


def first_record_since(batch: Buffer, timestamp_ms: int, log_start: int) -> tuple[int, int]:
    """(offset, timestamp) of a batch's first record from `log_start` on that is at least that late, or of the batch."""
    header = read_header(batch)
    try:
        for record in decode_records(batch, include_control=True):
            if record.timestamp_ms >= timestamp_ms and record.offset >= log_start:
                return record.offset, record.timestamp_ms
    except AntiphonError:
        pass
    return header.base_offset, header.max_timestamp
