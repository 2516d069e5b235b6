"""Opens a shard's log after a clean stop, a kill or a power failure, and distinguishes a torn tail from damage.

- A snapshot whose files match it replaces everything before it; only what follows is read, batch by batch.
- The **torn tail** is the end of a write that was not acknowledged to anybody: it has no index entry, and is truncated.
- **Damage** is a bad batch whose index entry proves that it was durable, a batch that is whole by its CRC and has an offset
  or a term that cannot be (`TermLimit`), a bad batch or a gap before the last segment, or the lack of data that other
  files prove (`lost_files`). Then the log ends before the damage, nothing is removed, and a marker file keeps the report
  across restarts: a replica that lost durable entries must not vote until it has been refetched
  (`ShardLog.clear_damage`).
"""

import contextlib
import os
from typing import Final, NamedTuple

import msgspec

from antiphon.errors import UNDECODABLE, CorruptBatchError
from antiphon.log.aborted import ABORTED_SUFFIX, AbortedIndex, load_aborted
from antiphon.log.compacted_files import forget_clean, forget_swap, recover_swap
from antiphon.log.disk import Disk, File, read_whole, replace_file
from antiphon.log.index import ENTRY_BYTES, entry_position, pack_index_header, read_entry
from antiphon.log.layout import (
    DAMAGE_NAME,
    finish_wipe,
    newest_snapshot,
    producers_before,
    remove_segment,
    remove_segments,
    remove_snapshots,
)
from antiphon.log.lost_files import index_without_data, snapshot_beyond
from antiphon.log.producer_state import ProducerState
from antiphon.log.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    Segment,
    SegmentScan,
    file_of,
    offsets_of,
)
from antiphon.log.snapshot import (
    RESET_NAME,
    START_NAME,
    LogStart,
    Snapshot,
    decode_snapshot,
    frame,
    load_start,
    unframe,
)
from antiphon.records.batch import BatchHeader
from antiphon.records.builder import members_of
from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.records.members import MembersIndex

DAMAGE_MAGIC: Final = b"ANTIPHDM"
DAMAGE_VERSION: Final = 1
REWRITE_BYTES: Final = 4 * 1024 * 1024
FORGOTTEN: Final = -1
JOINING: Final = -2


class DamageReport(NamedTuple):
    """What was durable and is bad now: from `offset` on, at byte `position` of `path`.

    `FORGOTTEN`: all, promises too. `JOINING`: nothing was lost, but the replica began empty in a shard that is older, and
    has not caught up since.
    """

    offset: int
    path: str
    position: int
    reason: str

    @property
    def forgot(self) -> bool:
        """Are the promises (term and vote) lost as well?"""
        return self.position == FORGOTTEN

    @property
    def joins(self) -> bool:
        """Is nothing lost, and only not enough here yet to vote?"""
        return self.position == JOINING


class TermLimit(NamedTuple):
    """No batch of a later term than `term` can have been written here; 0: nothing is known.

    A batch's own CRC does not cover its term, and a power failure may take the index entry that does. A flipped bit would
    then make the log end in a term that never was: the batches behind it would look torn, it would win elections over
    logs that have more, and its terms would become everybody's.

    `is_promise`: the limit is what the replica has promised. Where a batch is beyond it, the promise may as well be what
    is not as it was written.
    """

    term: int
    is_promise: bool


class RecoveryReport(NamedTuple):
    """What opening the log found: where it ended. `scanned_bytes`: read and checked; `torn_bytes`: cut off the end."""

    snapshot_offset: int | None
    scanned_bytes: int
    torn_bytes: int
    torn_reason: str | None
    log_end: int


class RecoveredLog(NamedTuple):
    """The state that `ShardLog` starts from.

    `files_beyond`: files hold more than the log does; cut before appending. `is_blank`: the log begins after offset 0, and
    nothing was found of it, nor a snapshot of what is right before it: its producers are not known.
    """

    terms: TermIndex
    segments: list[Segment]
    members: MembersIndex
    producers: ProducerState
    damaged: DamageReport | None
    files_beyond: bool
    snapshot_bytes: int
    report: RecoveryReport
    is_blank: bool


def save_damage(disk: Disk, directory: str, report: DamageReport) -> None:
    """Write the marker that keeps a replica from voting across restarts."""
    payload = msgspec.msgpack.encode(report)
    replace_file(disk, os.path.join(directory, DAMAGE_NAME), frame(DAMAGE_MAGIC, DAMAGE_VERSION, payload))


def load_damage(disk: Disk, directory: str) -> DamageReport | None:
    """The marker. One that cannot be read still says: damaged."""
    path = os.path.join(directory, DAMAGE_NAME)
    data = read_whole(disk, path)
    if data is None:
        return None
    payload = unframe(DAMAGE_MAGIC, DAMAGE_VERSION, data, path)
    if payload is not None:
        try:
            return msgspec.msgpack.decode(payload, type=DamageReport)
        except UNDECODABLE:
            pass
    return DamageReport(0, path, FORGOTTEN, "the damage marker itself cannot be read")


def forget_start(disk: Disk, directory: str) -> None:
    """Let a damaged log begin at 0 again; `recover` then reads what is left.

    What was trimmed is gone for good, and so is the producer state that was in it. A log that goes on from its old start
    would get the entries after it from its leader, without that state. One that begins at 0 gets all entries, or a
    snapshot, which has the producers.
    """
    disk.remove(os.path.join(directory, START_NAME))
    disk.fsync_dir(directory)


def empty_log(disk: Disk, directory: str, reason: str) -> None:
    """Give up all entries of a closed log, which is marked as damaged first, durably. Term and vote stay. Blocking.

    After a crash in between, or an error, it is to be done again.
    """
    if load_damage(disk, directory) is None:
        save_damage(disk, directory, DamageReport(0, directory, 0, reason))
    forget_swap(disk, directory)
    forget_clean(disk, directory)
    remove_snapshots(disk, directory, -1)
    remove_segments(disk, directory, 0)
    for name in (RESET_NAME, START_NAME):
        disk.remove(os.path.join(directory, name))
    disk.fsync_dir(directory)


def recover(disk: Disk, directory: str, limit: TermLimit) -> RecoveredLog:
    """Open the log in `directory` and repair what a crash may leave. Only reads, and truncates only the torn tail."""
    names = disk.listdir(directory)
    for name in names:
        if name.endswith(".tmp"):
            disk.remove(os.path.join(directory, name))
    if names:
        # A process that was killed may have left names that are not durable; whoever reads them relies on them.
        disk.fsync_dir(directory)
    start = load_start(disk, directory) or LogStart(0, 0, False)
    if start.resetting:
        finish_wipe(disk, directory, start)
    elif RESET_NAME in names:
        disk.remove(os.path.join(directory, RESET_NAME))  # a reset that did not begin, or is done
    recover_swap(disk, directory)
    return _Recovery(disk, directory, start, limit).run()


def write_again(file: File, start: int, end: int) -> None:
    """Write bytes of a file again in place, so that the next sync is a real one, whatever happened to an earlier one.

    An earlier process may have failed to sync them. The kernel then considers the pages clean, although they are only
    in memory, and a sync of them succeeds without doing anything.
    """
    for at in range(start, end, REWRITE_BYTES):
        file.pwritev([file.pread(min(REWRITE_BYTES, end - at), at)], at)


class _Recovery:
    def __init__(self, disk: Disk, directory: str, start: LogStart, limit: TermLimit) -> None:
        self.disk = disk
        self.directory = directory
        self.start = start
        self.limit = limit
        self.bases = self._live_bases()
        self.lost_segment = index_without_data(disk, directory, start.log_start)
        self.segments: list[Segment] = []
        self.terms = TermIndex(start.log_start, start.start_term)
        self.members = MembersIndex(start.members)
        self.producers = ProducerState()
        self.damaged: DamageReport | None = None
        self.snapshot_offset: int | None = None
        self.scanned = self.torn = 0
        self.torn_reason: str | None = None
        self.unreadable: str | None = None  # path of a snapshot that is there and cannot be read

    def run(self) -> RecoveredLog:
        marker = load_damage(self.disk, self.directory)
        # Damage may lie in what a snapshot stands for: then everything is read, to know where.
        found_snapshot = self._best_snapshot(of_start=marker is not None)
        first = self.bases[0] if self.bases else self.start.log_start
        if found_snapshot is None and self.unreadable is not None and first > 0:
            return self._without_producers(self.unreadable, marker)
        if found_snapshot is not None:
            self._load(*found_snapshot)
        elif self.bases and (self.lost_segment is None or self.lost_segment >= self.bases[0]):
            # The term before a segment that was trimmed in its middle is not known, and not needed.
            known = self.bases[0] == self.start.log_start
            self.terms = TermIndex(self.bases[0], self.start.start_term if known else 0)
            self.producers = producers_before(self.disk, self.directory, self.bases[0])
            if self.bases[0] > self.start.log_start:
                self._remember_members()
        done = len(self.segments)
        for number in range(max(0, done - 1), len(self.bases)):
            if self.damaged is None:
                self._scan(number)
        missing = self.start.log_start - self.terms.log_end  # before the log's start, or nothing follows it
        is_blank = self.start.log_start > 0 and missing >= (1 if self.snapshot_offset is not None else 0)
        self._trim()
        if self.damaged is None:
            self._look_for_losses()
        found = self.damaged
        if found is not None and (marker is None or (found.forgot and not marker.forgot)):
            save_damage(self.disk, self.directory, found)
        report = RecoveryReport(
            self.snapshot_offset, self.scanned, self.torn, self.torn_reason, self.terms.log_end
        )
        return RecoveredLog(
            self.terms,
            self.segments,
            self.members,
            self.producers,
            found or marker,
            found is not None,
            self.scanned,
            report,
            is_blank,
        )

    def _look_for_losses(self) -> None:
        """Does something that is left say that the log was longer?"""
        end, path = self.terms.log_end, None
        reason = f"the log ends at {end}, "
        if self.lost_segment is not None:
            path = file_of(self.directory, self.lost_segment, DATA_SUFFIX)
            reason += "and the index of a segment is left whose data is gone"
        else:
            path = snapshot_beyond(self.disk, self.directory, end)
            reason += "and a snapshot of a later offset is left"
        if path is not None:
            self.damaged = DamageReport(end, path, 0, reason)

    def _live_bases(self) -> list[int]:
        """First offsets of the segments that reach beyond the log start; the others are removed."""
        bases = offsets_of(self.disk.listdir(self.directory), DATA_SUFFIX)
        while len(bases) > 1 and bases[1] <= self.start.log_start:
            remove_segment(self.disk, self.directory, bases.pop(0))
        return bases

    def _best_snapshot(self, *, of_start: bool) -> tuple[Snapshot, ProducerState] | None:
        """`of_start`: only one that stands for nothing that is in the log."""
        offsets = offsets_of(self.disk.listdir(self.directory), SNAPSHOT_SUFFIX)
        for offset in reversed(offsets):
            path = file_of(self.directory, offset, SNAPSHOT_SUFFIX)
            snapshot = decode_snapshot(read_whole(self.disk, path), path)
            if snapshot is None:
                self.unreadable = path
            elif not (of_start and offset > self.start.log_start) and self._fits(snapshot):
                with contextlib.suppress(CorruptBatchError):
                    return snapshot, ProducerState.decode(snapshot.producers)
        return None

    def _without_producers(self, path: str, marker: DamageReport | None) -> RecoveredLog:
        """Nothing says who had written what was trimmed: a repeated batch of theirs would be taken for a new one.

        So the log counts as empty, and gets entries from 0, or a snapshot. What is in its files goes when that begins.
        """
        reason = "a snapshot cannot be read, and with it what is known of the producers of what was trimmed"
        found = marker or DamageReport(0, path, 0, reason)
        if marker is None:
            save_damage(self.disk, self.directory, found)
        return RecoveredLog(
            TermIndex(0, 0),
            [],
            MembersIndex(None),
            ProducerState(),
            found,
            bool(self.bases),
            0,
            RecoveryReport(None, 0, 0, None, 0),
            self.start.log_start > 0,
        )

    def _fits(self, snapshot: Snapshot) -> bool:
        """Are the files as the snapshot says? Checks sizes, and the last batch's index entry."""
        kept = [s for s in snapshot.segments if s.next_offset > self.start.log_start]
        if not kept:  # all that it stands for is gone, by a reset or by trimming, but for the producers
            first = self.bases[0] if self.bases else self.start.log_start
            return snapshot.offset == first <= self.start.log_start
        if [s.base_offset for s in kept] != self.bases[: len(kept)]:
            return False
        if self._aborted_of(snapshot) is None:
            return False
        for number, summary in enumerate(kept):
            path = file_of(self.directory, summary.base_offset, DATA_SUFFIX)
            size = self.disk.open(path).size()
            last = number == len(kept) - 1
            if size < summary.size_bytes or (size > summary.size_bytes and not last):
                return False
            try:
                index = self.disk.open(file_of(self.directory, summary.base_offset, INDEX_SUFFIX))
            except FileNotFoundError:
                return False
            if index.size() < entry_position(summary.batches):
                return False
            if last and index.pread(ENTRY_BYTES, entry_position(summary.batches - 1)) != snapshot.last_entry:
                return False
        return read_entry(index, kept[-1].batches - 1) is not None

    def _aborted_of(self, snapshot: Snapshot) -> dict[int, AbortedIndex] | None:
        """The indexes of aborted transactions by their segments; None where one is not as the snapshot says."""
        found = {}
        for summary, count in zip(snapshot.segments, snapshot.aborted, strict=False):
            if not count or summary.next_offset <= self.start.log_start:
                continue
            path = file_of(self.directory, summary.base_offset, ABORTED_SUFFIX)
            index = load_aborted(self.disk, path, snapshot.offset)
            if index is None or len(index) != count:
                return None
            found[summary.base_offset] = index
        return found

    def _load(self, snapshot: Snapshot, producers: ProducerState) -> None:
        self.snapshot_offset = snapshot.offset
        self.terms = TermIndex(snapshot.log_start, snapshot.start_term)
        self.terms.load(snapshot.terms, snapshot.offset)
        kept = (item for item in snapshot.members if item[0] > self.start.log_start)
        self.members = MembersIndex(self.start.members, kept)
        self.producers = producers
        aborted = self._aborted_of(snapshot) or {}
        for summary in snapshot.segments:
            if summary.next_offset <= self.start.log_start:
                continue
            segment = Segment(self.directory, summary.base_offset)
            segment.next_offset = summary.next_offset
            segment.size_bytes = summary.size_bytes
            segment.count = summary.batches
            segment.max_timestamp = summary.max_timestamp
            segment.aborted = aborted.get(summary.base_offset, segment.aborted)
            segment.is_compacted = snapshot.compacted
            self.segments.append(segment)

    def _scan(self, number: int) -> None:
        base = self.bases[number]
        if number == len(self.segments):
            if base != self.terms.log_end:
                path = file_of(self.directory, base, DATA_SUFFIX)
                reason = f"segment starts at {base}, the one before it ends at {self.terms.log_end}"
                self.damaged = DamageReport(self.terms.log_end, path, 0, reason)
                return
            self.segments.append(Segment(self.directory, base))
        segment = self.segments[number]
        before = segment.size_bytes
        scan = SegmentScan(self.disk, segment, self.terms.end.term, self.limit.term)
        scan.run(self._take)
        self.scanned += segment.size_bytes - before
        is_last = number == len(self.bases) - 1
        if scan.problem is not None and (scan.problem_is_damage or not is_last):
            forgot = scan.is_beyond_limit and self.limit.is_promise
            position = FORGOTTEN if forgot else segment.size_bytes
            self.damaged = DamageReport(segment.next_offset, segment.data_path, position, scan.problem)
            self._index_kept(scan)
            return
        if scan.problem is not None:
            self.torn += scan.torn_bytes
            self.torn_reason = scan.problem
        self._mend(scan, is_last=is_last)

    def _index_kept(self, scan: SegmentScan) -> None:
        """Write missing index entries of what comes before damage, which is read; what comes after stays as it is."""
        if not scan.missing_entries:
            return
        segment = scan.segment
        index, data = self.disk.open(segment.index_path, create=True), self.disk.open(segment.data_path)
        write_again(data, scan.unproven_from, segment.size_bytes)
        data.fdatasync()
        index.pwritev([pack_index_header(segment.base_offset)], 0)
        index.pwritev([b"".join(scan.missing_entries)], entry_position(scan.entries_from))
        index.fdatasync()

    def _remember_members(self) -> None:
        """The log starts later than it says: a full disk had segments go first. A snapshot of them knows what they said."""
        snapshot = newest_snapshot(self.disk, self.directory, self.terms.log_start)
        if snapshot is not None:
            self.members = MembersIndex(MembersIndex(self.start.members, snapshot.members).current)

    def _take(self, header: BatchHeader, batch: memoryview) -> None:
        self.terms.append(header.leader_epoch, header.next_offset)
        aborted = self.producers.learn(header, batch)
        if aborted is not None:
            self.segments[-1].aborted.add(aborted)
        said = members_of(batch) if header.is_control else None
        if said is not None:
            self.members.append(header.next_offset, said)

    def _mend(self, scan: SegmentScan, *, is_last: bool) -> None:
        """Cut the torn tail, write missing index entries, and make durable what a plain kill may have left unsynced."""
        segment = scan.segment
        index = self.disk.open(segment.index_path, create=True)
        data = self.disk.open(segment.data_path)
        is_cut = scan.problem is not None or (scan.padding_bytes > 0 and not is_last)
        dirty = bool(scan.missing_entries) or is_cut
        if is_cut:
            data.truncate(segment.size_bytes)
        if scan.missing_entries:
            write_again(data, scan.unproven_from, segment.size_bytes)
        if dirty or self.terms.log_end != self.snapshot_offset:
            data.fdatasync()  # before the index: an entry says that its batch is durable
        if not dirty and index.size() == entry_position(segment.count):
            return
        index.pwritev([pack_index_header(segment.base_offset)], 0)
        if scan.missing_entries:
            index.pwritev([b"".join(scan.missing_entries)], entry_position(scan.entries_from))
        index.truncate(entry_position(segment.count))
        index.fdatasync()

    def _trim(self) -> None:
        """Let the log start where the start file says, not where its first segment does."""
        start = self.start
        if start.log_start > self.terms.log_end:
            self.segments.clear()
            self.terms.reset(EntryId(start.start_term, start.log_start))
            self.members.reset(start.members)
        elif start.log_start > self.terms.log_start:
            self.terms.trim(start.log_start)
            self.members.trim(start.log_start)
