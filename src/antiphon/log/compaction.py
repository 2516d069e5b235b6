"""A pass of compaction over one log: finds the newest record of each key, then writes the log anew without the others.

A pass is a series of pieces. Each is planned on the event loop and may run in any thread, while the log grows, is trimmed or
is cut; in between whoever drives it keeps to its rate. Closed segments are written anew in groups of neighbours that were
together no larger than a segment may be. When a group is written and synced, `staged` gives the operation that lets the new
segment take its place (`compacted_files`). Offsets stay as they are.

What is compacted is settled and decided: below the high watermark, the durable end and the last stable offset. As far as a
log is clean is noted in a file; it is forgotten with all that may bring old records back.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon import system
from antiphon.invariants import unreachable
from antiphon.log.cleaner import UNREADABLE, Cleaner, KeyMap, is_aborted
from antiphon.log.compacted_files import COMPACTED_SUFFIX, Clean, remove_compacted
from antiphon.log.index import entry_position, pack_entry, pack_index_header
from antiphon.log.operations import LogOp
from antiphon.log.segment import Segment
from antiphon.log.snapshot import SegmentSummary
from antiphon.log.transactions import Aborted
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer, read_header

if TYPE_CHECKING:
    from antiphon.log.config import Compaction
    from antiphon.log.disk import Disk
    from antiphon.log.shard_log import ShardLog

PIECE_BYTES: Final = 64 * 1024  # of batches, where the first one is not larger
JOB_RESENDS_MS: Final = 24 * 3_600_000  # for so long after its newest batch came a job may send one again
BATCH_COST_BYTES: Final = 1024  # what a batch costs besides its bytes
Piece = Callable[[], int]
"""Does some of the work, in any thread; returns what it cost, in bytes."""


class Extent(NamedTuple):
    """What of a log may be compacted now: closed segments in a row, and how many bytes of them are not clean."""

    segments: list[Segment]
    size_bytes: int
    dirty_bytes: int


def extent_of(log: "ShardLog", rules: "Compaction", limit: int, now_ms: int) -> Extent:
    """`limit`: where what is settled and decided ends."""
    segments: list[Segment] = []
    for one in log.compacting.closed(min(limit, log.durable_end)):
        if one.max_timestamp > now_ms - rules.min_lag_ms:
            break
        if one.base_offset >= log.log_start:  # what a trim has left of one stays until that goes as well
            segments.append(one)
    dirty = sum(one.size_bytes for one in segments if one.next_offset > log.compacting.clean.end)
    return Extent(segments, sum(one.size_bytes for one in segments), dirty)


def is_due(clean: Clean, rules: "Compaction", extent: Extent, now_ms: int) -> bool:
    """Is there enough to be gained by a pass?"""
    if extent.dirty_bytes and extent.dirty_bytes > rules.dirty_ratio * extent.size_bytes:
        return True
    dirty = next((one for one in extent.segments if one.next_offset > clean.end), None)
    if dirty is not None and now_ms - dirty.max_timestamp >= rules.max_lag_ms:
        return True
    return bool(extent.segments) and clean.tombstones > 0 and _are_old(clean, rules, now_ms)


def _are_old(clean: Clean, rules: "Compaction", now_ms: int) -> bool:
    """Have tombstones below `since_end` been clean for as long as they are to be there?"""
    return clean.since_end > 0 and now_ms - clean.since_ms >= rules.delete_retention_ms


class CompactionPass:
    """See the module's text.

    Attributes:
        given_up: something came in between; what was swapped before stays.
        bytes_in, bytes_out: what the segments had that were written anew, and have.
    """

    def __init__(self, log: "ShardLog", rules: "Compaction", extent: Extent, map_bytes: int) -> None:
        self._log = log
        self._left = extent.segments  # to be written anew
        first = extent.segments[0].base_offset
        self._at = max(log.compacting.clean.end, log.log_start, first)
        self._end = extent.segments[-1].next_offset  # of what is in the map
        is_trimmed = first > log.log_start  # what a trim has left of a segment stays as it is, before them
        self._clean_from = first if is_trimmed else 0
        self._newest = KeyMap(map_bytes, system.secret_bytes(16))
        # What tombstones delete may be in what a trim has left.
        is_old = not is_trimmed and _are_old(log.compacting.clean, rules, system.wall_ms())
        self._drop_before = log.compacting.clean.since_end if is_old else 0
        silent_before = log.compacting.appended_before(system.wall_ms() - JOB_RESENDS_MS)
        self._needed = log.producers.needed(silent_before)
        self._cleaner: Cleaner | None = None
        self._group: list[Segment] = []
        self._output: _Output | None = None
        self._finished: SegmentSummary | None = None
        self.given_up = False
        self.bytes_in = self.bytes_out = 0

    def plan(self) -> Piece | None:
        """The next piece; None when all is done or given up. What `staged` gives is to be done first."""
        if self.given_up:
            return None
        if self._cleaner is None:
            return self._piece(self._left, self._end, self._map) if self._at < self._end else self._begin
        if not self._group and not self._begin_group():
            return None
        end = self._group[-1].next_offset
        return self._piece(self._group, end, self._clean) if self._at < end else self._finish_group

    def _piece(self, segments: list[Segment], end: int, work: "_Work") -> Piece | None:
        """Read some batches and do something with them, while these segments are there."""
        log = self._log
        there = set(map(id, log.compacting.closed(end)))
        if log.log_start > segments[0].base_offset or not there.issuperset(map(id, segments)):
            self.give_up()
        if self.given_up:
            return None
        read = log.plan_read(self._at, PIECE_BYTES, end, from_disk=True)
        aborted = log.aborted(self._at, end) if log.producers.transactions.is_used else []

        def run() -> int:
            batches = read()
            if not batches:
                self.given_up = True  # the log was cut or trimmed meanwhile
            for batch in batches:
                header = read_header(batch)
                self._at = header.next_offset
                work(header, batch, aborted)
            return sum(map(len, batches)) + BATCH_COST_BYTES * len(batches)

        return run

    def give_up(self) -> None:
        """Go no further: see `tidy_up`."""
        self.given_up = True

    def tidy_up(self) -> int:
        """A piece, after one that failed or a pass that was given up: remove what was written and stands for nothing."""
        remove_compacted(self._log.disk, self._log.path)
        return 0

    # -- the newest record of each key ------------------------------------------------------------------------------

    def _map(self, header: BatchHeader, batch: memoryview, aborted: list[Aborted]) -> None:
        if header.base_offset >= self._end or header.attributes & CONTROL_BIT or not header.record_count:
            return
        if header.attributes & TRANSACTIONAL_BIT and is_aborted(header, aborted):
            return
        if not self._newest.has_room(header.record_count):
            self._end = header.base_offset
            return
        with contextlib.suppress(*UNREADABLE):  # which stays as it is
            self._newest.learn(header, batch)

    def _begin(self) -> int:
        """All keys are known, or as many as there is room for."""
        remove_compacted(self._log.disk, self._log.path)
        self._cleaner = Cleaner(self._newest, self._needed(), self._drop_before)
        self._left = [one for one in self._left if one.base_offset < self._end]
        return 0

    # -- what stays -------------------------------------------------------------------------------------------------

    def _begin_group(self) -> bool:
        """The next neighbours that fit in one segment; False where none are left."""
        if self.given_up or not self._left:
            return False
        size, count = 0, 0
        for one in self._left:
            size += one.size_bytes
            if count and size > self._log.config.segment_bytes:
                break
            count += 1
        self._group, self._left = self._left[:count], self._left[count:]
        self._at = self._group[0].base_offset
        self._output = _Output(self._log.disk, self._log.path, self._at)
        return True

    def _clean(self, header: BatchHeader, batch: memoryview, aborted: list[Aborted]) -> None:
        if self._cleaner is None or self._output is None:
            unreachable("keys are known before anything is cleaned")
        self._output.add(self._cleaner.take(header, batch, aborted))

    def _finish_group(self) -> int:
        if self._cleaner is None or self._output is None:
            unreachable("keys are known before anything is cleaned")
        self._output.add(self._cleaner.flush())
        self._finished = self._output.finish()
        return 0

    def staged(self) -> LogOp | None:
        """On the event loop, after each piece: the operation by which a segment that is written takes its place."""
        new, group, output = self._finished, self._group, self._output
        if new is None or output is None:
            return None
        self._finished, self._output, self._group = None, None, []
        there = set(map(id, self._log.compacting.closed(new.next_offset)))
        if self.given_up or not there.issuperset(map(id, group)):
            self.give_up()
            return None
        size = sum(one.size_bytes for one in group)
        self.bytes_in += size
        self.bytes_out += new.size_bytes
        if len(group) == 1 and new.size_bytes == size:
            return None  # nothing had to go
        return self._log.compacting.replace(group, new, output.files, self._clean_from)

    def ended(self) -> LogOp | None:
        """When `plan` has no more: note how far the log is clean now; None where the pass was given up."""
        cleaner, before = self._cleaner, self._log.compacting.clean
        if self.given_up or cleaner is None:
            return None
        now_ms = system.wall_ms()
        end = min(self._end, cleaner.dirty_from)
        since_end, since_ms = before.since_end, before.since_ms
        if self._drop_before or not since_end:
            since_end, since_ms = end, now_ms
        clean = Clean(end, min(since_end, end), since_ms, cleaner.tombstones, now_ms)
        return self._log.compacting.note(clean)


_Work = Callable[[BatchHeader, memoryview, list[Aborted]], None]


class _Output:
    """A new segment that is written beside the old ones."""

    def __init__(self, disk: "Disk", directory: str, base_offset: int) -> None:
        self._segment = Segment(directory, base_offset)
        data = disk.open(self._segment.data_path + COMPACTED_SUFFIX, create=True)
        index = disk.open(self._segment.index_path + COMPACTED_SUFFIX, create=True)
        self.files = data, index
        data.truncate(0)
        index.truncate(0)
        index.pwritev([pack_index_header(base_offset)], 0)

    def add(self, batches: list[Buffer]) -> None:
        """Write batches behind the others."""
        if not batches:
            return
        segment, (data, index) = self._segment, self.files
        entries, at, number = [], segment.size_bytes, segment.count
        for batch in batches:
            header = read_header(batch)
            entries.append(pack_entry(header, batch, segment.size_bytes))
            segment.grow(header, len(batch))
        data.pwritev(batches, at)
        index.pwritev([b"".join(entries)], entry_position(number))

    def finish(self) -> SegmentSummary:
        """All is written: sync it."""
        for file in self.files:
            file.fdatasync()
        one = self._segment
        return SegmentSummary(one.base_offset, one.next_offset, one.size_bytes, one.count, one.max_timestamp)
