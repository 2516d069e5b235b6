"""Reads what of a log is durable, a piece at a time, and compares every bit with what was written.

A batch is compared with its own CRC and with its index entry, an entry with its own CRC and its place, a closed segment with
the sizes that its files must have. Nothing is changed: what is found is for the caller to judge.

A piece is planned on the event loop and may run in any thread, while the log grows, is trimmed or is cut. Where a piece ran
into a cut or a trim, what it found counts for nothing, and it is planned anew.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.log.disk import Disk, File
from antiphon.log.index import (
    ENTRY_BYTES,
    IndexEntry,
    entry_position,
    find_entry,
    is_index_header,
    iter_entries,
)
from antiphon.log.reader import SegmentView, batch_matches
from antiphon.log.recovery import DamageReport

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog

BYTES_MAX: Final = 1024 * 1024  # of a piece, where its first batch is not larger
BATCHES_MAX: Final = 512  # the interpreter is busy for about 2 ms with so many


class Checked(NamedTuple):
    """Outcome of a piece: the log was looked at up to `next_offset`; bytes (of data and index) and batches that were read.

    `damage`: what is not as it was written, if anything.
    """

    next_offset: int
    size_bytes: int = 0
    batches: int = 0
    damage: DamageReport | None = None


class _Place(NamedTuple):
    """Where the next batch is. `removals`: of the log, when that was known."""

    segment: int
    number: int
    position: int
    removals: int


class LogCheck:
    """One pass over a log."""

    def __init__(self, log: "ShardLog") -> None:
        self.offset = 0  # everything before it was looked at
        self._log = log
        self._place: _Place | None = None

    def plan(self) -> Callable[[], Checked] | None:
        """The next piece, to be called in any thread; None when all that is durable was looked at."""
        log = self._log
        end = min(log.durable_end, log.log_end)
        views = log.reader.views()
        offset = max(self.offset, views[0].base_offset if views else 0)
        segment = next((view for view in views if view.next_offset > offset), None)
        if offset >= end or segment is None:
            return None
        place = self._place
        removals = log.reader.removals
        if place is not None and (place.segment, place.removals) != (segment.base_offset, removals):
            # The next segment of a log that nothing was taken from begins at its beginning.
            follows = place.removals == removals and offset == segment.base_offset
            place = _Place(segment.base_offset, 0, 0, removals) if follows else None
        # The first batch of the next one is durable after this one's padding is gone.
        closed_bytes = segment.size_bytes if end > segment.next_offset else None
        piece = _Piece(log.disk, segment, closed_bytes, place)

        def run() -> Checked:
            found = piece.run(offset, end)
            if log.reader.removals != removals:
                return Checked(offset)
            self._place = _Place(segment.base_offset, piece.number, piece.position, removals)
            return found

        return run


class _Piece:
    """Some batches of one segment. `closed_bytes`: of the data, where the segment grows no more."""

    def __init__(
        self, disk: Disk, segment: SegmentView, closed_bytes: int | None, place: _Place | None
    ) -> None:
        self._disk = disk
        self._segment = segment
        self._closed_bytes = closed_bytes
        self._is_placed = place is not None
        self.number = 0 if place is None else place.number
        self.position = 0 if place is None else place.position

    def run(self, offset: int, end: int) -> Checked:
        """Look at what begins with the batch that holds `offset`, and ends before `end`."""
        try:
            return self._run(offset, end)
        except FileNotFoundError as error:
            return self._damaged(offset, f"a file of the segment is gone: {error.filename}")

    def _run(self, offset: int, end: int) -> Checked:
        segment = self._segment
        index = segment.open_index(self._disk)
        is_first = not self._is_placed or self.number == 0
        if is_first and not is_index_header(index.pread(ENTRY_BYTES, 0), segment.base_offset):
            return self._damaged(offset, f"the beginning of {segment.index_path} is bad")
        if not self._is_placed:
            self.number = find_entry(index, segment.batches, offset, segment.base_offset, segment.next_offset)
            if self.number < 0:
                return self._damaged(offset, f"{segment.index_path} does not know the offset")
        entries = self._entries(index, end)
        if isinstance(entries, Checked):
            return entries
        if not entries:
            what = f"entry {self.number} of {segment.index_path} is missing or bad"
            return self._damaged(offset, what)
        return self._batches(index, entries)

    def _entries(self, index: File, end: int) -> list[IndexEntry] | Checked:
        """The entries of the piece: each in its place. A bad one ends the piece before it: the next one tells of it."""
        found: list[IndexEntry] = []
        size = 0
        for entry in iter_entries(index, self.number, min(self._segment.batches, self.number + BATCHES_MAX)):
            if entry is None or entry.next_offset > end:
                break
            if found and size + entry.size > BYTES_MAX:
                break
            if not found and not self._is_placed:
                self.position = entry.position
            before = found[-1].next_offset if found else entry.base_offset
            if (entry.base_offset, entry.position) != (before, self.position + size):
                what = f"entry {self.number + len(found)} of {self._segment.index_path} is not in its place"
                return self._damaged(before, what, self.position + size)
            found.append(entry)
            size += entry.size
        return found

    def _batches(self, index: File, entries: list[IndexEntry]) -> Checked:
        file = self._segment.open_data(self._disk)
        start, size = self.position, sum(entry.size for entry in entries)
        data = memoryview(file.pread(size, start))
        for entry in entries:
            at = entry.position - start
            if not batch_matches(entry, data[at : at + entry.size]):
                what = "the batch's checksums do not match"
                return self._damaged(entry.base_offset, what, entry.position)
        self.number += len(entries)
        self.position += size
        read = size + len(entries) * ENTRY_BYTES
        if self.number == self._segment.batches and self._closed_bytes is not None:
            sizes = file.size(), index.size()
            wanted = self._closed_bytes, entry_position(self._segment.batches)
            if sizes != wanted:
                what = f"data and index of a closed segment have {sizes} bytes, and not {wanted}"
                return self._damaged(entries[-1].next_offset, what, self.position)
        return Checked(entries[-1].next_offset, read, len(entries))

    def _damaged(self, offset: int, reason: str, position: int = 0) -> Checked:
        report = DamageReport(offset, self._segment.data_path, position, reason)
        return Checked(offset, damage=report)
