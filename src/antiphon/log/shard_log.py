"""One shard's log: what the event loop sees of it.

The event loop decides and the WAL thread carries out. A change is *staged*: it takes effect in memory at once (so that a
leader sends to followers while its own disk syncs) and returns a `LogOp`. All **must** go to `WalThread.submit`, in order::

    disk = RealDisk()
    log = ShardLog.open(disk, "/data/shards/17", LogConfig())      # blocking; recovers; see log.recovery, log.damaged
    wal = WalThread(disk); wal.start(loop)
    duplicate = log.producers.check(header)                        # leader only, before stamping; may raise
    stamp(batch, log.log_end, term)                                # leader only
    wal.submit(log.stage_append([batch]), on_durable)              # AppendLog: log.log_end has grown, read() sees it
    wal.submit(log.truncate(to), on_durable)                       # TruncateLog
    wal.submit(log.reset(EntryId(term, offset), state), on_durable)  # ResetLog
    wal.submit(log.hard_state.stage(term, voted_for), on_durable)  # PersistTerm (antiphon.log.hard_state)
    wal.submit(log.apply_retention(now_ms, high_watermark))        # now and then, if it is not None

    batches = log.read(offset, max_bytes, end)                     # if log.is_in_memory(offset), else
    batches = await loop.run_in_executor(pool, log.plan_read(offset, max_bytes, end))
    offset, timestamp = log.reader.offset_for_timestamp(ms)        # and other questions that may read the disk
    wal.submit(log.checkpoint()); await wal.stop()                 # a clean stop makes the next open read nothing

`on_durable(error)` runs on the event loop, in the order of submission. `durable_end` is what may be acknowledged; it only
counts what was staged since the last cut. Offsets are exclusive ends everywhere. All methods belong to the event loop; only
what `plan_read` returns may run elsewhere. `log.damaged` stays set, across restarts, until `clear_damage()`: a replica that
lost durable entries must not vote, nor serve, before it is reset or cut and has caught up with its leader again.
"""

import functools
import os
from collections.abc import Callable, Sequence

from antiphon import system
from antiphon.errors import AntiphonError, OffsetOutOfRangeError
from antiphon.invariants import invariant, unreachable
from antiphon.log import layout, recovery
from antiphon.log.compacted_files import Compacting
from antiphon.log.config import STEP_BYTES, LogConfig
from antiphon.log.disk import Disk
from antiphon.log.hard_state import HardState
from antiphon.log.held_check import compare
from antiphon.log.index import pack_entry
from antiphon.log.inventory import Held
from antiphon.log.operations import APPEND, TRIM, CallStep, LogOp, OpQueue, Step, WriteStep
from antiphon.log.producer_state import ProducerState
from antiphon.log.reader import LogReader
from antiphon.log.retention import retained_from
from antiphon.log.segment import Segment
from antiphon.log.segments import Segments
from antiphon.log.snapshot import LogStart, Snapshot, encode_snapshot
from antiphon.log.tail import MemoryTail
from antiphon.log.transactions import Aborted
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer, read_header
from antiphon.records.builder import members_of
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.records.members import Members, MembersIndex


class ShardLog:
    """See the module docstring. Public attributes are read-only for others."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        config: LogConfig,
        found: recovery.RecoveredLog,
        clock_ms: Callable[[], int],
        hard_state: HardState,
    ) -> None:
        self.disk = disk
        self.path = path
        self.terms = found.terms
        self.members: MembersIndex = found.members
        self.producers: ProducerState = found.producers
        self.damaged: recovery.DamageReport | None = found.damaged
        self.recovery = found.report
        self.hard_state, self.queue, self._held = hard_state, hard_state.queue, hard_state.held
        self.durable_end = found.terms.log_end
        self.config = config
        self._is_held = self._held.is_written  # or the first durable thing is still to be noted
        self._clock_ms = clock_ms
        self._segments = Segments(disk, path, found.segments)
        self._tail = MemoryTail(found.terms.log_end)
        self.reader = LogReader(disk, found.terms, self._segments, self._tail, self.note_damage)
        self.compacting = Compacting(disk, path, self.queue, self._segments, self._tail, found.terms.log_end)
        self._files_beyond = found.files_beyond
        self._since_snapshot = found.snapshot_bytes
        self._snapshot_offset = found.report.snapshot_offset
        self._last_entry = b""
        self._generation = 0  # of what is staged: truncate and reset start a new one
        for segment in found.segments:
            segment.created_ms = clock_ms()
        if self._segments.newest is not None:
            self._last_entry = layout.last_entry_bytes(disk, self._segments.newest)

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        config: LogConfig | None = None,
        *,
        held: Held | None = None,
        promises: bool = False,
        only_term: int = 0,
        clock_ms: Callable[[], int] = system.wall_ms,
    ) -> "ShardLog":
        """Open or create the log in directory `path`; blocking.

        A torn tail is cut off (see `recovery`); damage is reported in `damaged` and the log then ends before it.
        `held` is what the node's inventory says of this replica; where that is more than is found here, it is damage too.
        `promises`: a term is promised before its entries are taken, so a log of a later term has lost the promise. Where
        there are no elections, `only_term` is that of all entries.

        Raises NewerFormatError for files of a later version, OSError for a disk that cannot be read.
        """
        made, config, held, damaged = disk.makedirs(path), config or LogConfig(), held or Held(), None
        is_empty, binds = made or not disk.listdir(path), config.flush == "always"
        state = HardState.load(disk, path, OpQueue(path, config.flush, config.flush_interval_ms / 1000), held)
        limit = recovery.TermLimit(state.term if promises else only_term, is_promise=promises)
        while True:
            found = recovery.recover(disk, path, limit)
            log = cls(disk, path, config, found, clock_ms, state)
            damaged = damaged or log.damaged
            log.damaged = damaged = compare(
                disk, path, log.end, state, held, damaged, made=made, promises=promises, hint_binds=binds
            )
            if damaged is None or not found.is_blank:
                break
            recovery.forget_start(disk, path)
        if is_empty:
            # Its name becomes durable with the first thing in it. Of an empty one that was here already it may not be yet.
            log.queue.first_step = CallStep(functools.partial(disk.fsync_dir, os.path.dirname(path)))
        return log

    def configure(self, config: LogConfig) -> None:
        """Other settings from now on."""
        self.config = config
        self.queue.flush, self.queue.flush_interval_s = config.flush, config.flush_interval_ms / 1000

    @property
    def log_start(self) -> int:
        """First offset that can be read."""
        return self.terms.log_start

    @property
    def log_end(self) -> int:
        """The next offset to write, staged entries included."""
        return self.terms.log_end

    @property
    def end(self) -> EntryId:
        """Id of the whole log, staged entries included."""
        return self.terms.end

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches in the log's files, staged ones included."""
        return self._segments.size_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of batches held in memory."""
        return self._tail.held_bytes

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments.all)

    # -- changes --------------------------------------------------------------------------------------------------------

    def stage_append(
        self,
        batches: Sequence[Buffer],
        headers: Sequence[BatchHeader] | None = None,
        op: LogOp | None = None,
    ) -> LogOp:
        """Append whole batches whose base offsets and terms are set; readable at once.

        Args:
            batches: at least one; the first starts at `log_end`, each next where the one before ends. They are kept, not
                copied: nobody may change them afterwards.
            headers: their headers as stamped, where the caller has them.
            op: the append that was staged last, and not submitted yet: it becomes this one, too.

        Raises:
            InvariantError: not contiguous, a term that falls, or a batch that is not whole. Checks of the contents
                (`validate_batch`) are the caller's.
        """
        if not batches:
            unreachable("an append has at least one batch")
        steps: list[Step] = [] if op is None else op.steps
        if self._files_beyond:
            steps.append(self._cut_step())
        last = steps[-1] if steps else None
        write = last if isinstance(last, WriteStep) else None
        total = 0
        now_ms = self._clock_ms()
        terms, segments, config, tail = self.terms, self._segments, self.config, self._tail
        for number, batch in enumerate(batches):
            header = read_header(batch) if headers is None else headers[number]
            size = len(batch)
            if header.base_offset != terms.log_end or header.batch_length + 12 != size:
                unreachable(f"batch of {size} bytes at {header.base_offset} cannot follow {terms.end}")
            segment = segments.newest
            if segment is None or segment.is_full(size, now_ms, config):
                segment, write = self._new_segment(now_ms, steps), None
            if write is None or write.size_bytes >= STEP_BYTES:
                write = WriteStep(segment.data_path, segment.index_path, segment.size_bytes, segment.count)
                steps.append(write)
            self._place(segment, write, header, batch)
            total += size
        if self._since_snapshot >= self.config.snapshot_bytes:
            steps.append(self._snapshot_step())
        if not self._is_held:
            self._is_held = True  # from this append on, that the replica is gone would be noticed
            held = self.terms.end if self.config.flush == "always" else EMPTY
            steps.append(CallStep(functools.partial(self._held.reached, held)))
        if tail.held_bytes > config.tail_bytes_max:
            tail.evict(config.tail_bytes_max, self.durable_end)
        if op is None:
            op = LogOp(self.queue, steps, kind=APPEND)
        op.settle = functools.partial(self._settle, terms.log_end, self._generation)
        op.size_bytes += total
        return op

    def _place(self, segment: Segment, write: WriteStep, header: BatchHeader, batch: Buffer) -> None:
        position, size = segment.size_bytes, len(batch)
        entry = pack_entry(header, batch, position, unsynced=self.config.flush != "always")
        next_offset = header.base_offset + header.last_offset_delta + 1
        self.terms.append(header.leader_epoch, next_offset)
        write.buffers.append(batch)
        write.entries.append(entry)
        write.size_bytes += size
        self._tail.append(header.base_offset, next_offset, batch, (position, segment.count))
        segment.grow(header, size)
        if header.producer_id >= 0:
            self.producers.update(header)
            if header.attributes & TRANSACTIONAL_BIT:
                aborted = self.producers.transactions.took(header, batch)
                if aborted is not None:
                    segment.aborted.add(aborted)
        elif header.attributes & CONTROL_BIT:
            said = members_of(batch)
            if said is not None:
                self.members.append(next_offset, said)
        self._last_entry = entry
        self._since_snapshot += size

    def note_held(self) -> None:
        """Let the inventory know how far the log is durable; written down when it is saved."""
        # While a reset is under way the durable end lies outside of the log.
        is_within = self.log_start <= self.durable_end <= self.log_end
        if self.config.flush == "always" and self._held.is_written and is_within:
            self._held.reached(EntryId(self.terms.term_before(self.durable_end), self.durable_end))

    def _new_segment(self, now_ms: int, steps: list[Step]) -> Segment:
        if self._segments.newest is not None:
            steps += self._closing_steps(self._segments.newest)
        segment = self._segments.begin(self.terms.log_end, now_ms)
        create = functools.partial(layout.create_segment, self.disk, self.path, segment.base_offset)
        steps.append(CallStep(create))
        return segment

    def _settle(self, end: int, generation: int, error: AntiphonError | None) -> None:
        if error is None and generation == self._generation:
            self.durable_end = max(self.durable_end, end)
            if self._tail.held_bytes > self.config.tail_bytes_max:
                self._tail.evict(self.config.tail_bytes_max, self.durable_end)

    def truncate(self, to_offset: int) -> LogOp:
        """Remove everything from `to_offset` on, which must be a batch's start or the log's end.

        May read from the disk. The producers' state is rolled back with it.
        """
        invariant(
            self.log_start <= to_offset <= self.log_end,
            f"cannot cut {self.log_start}..{self.log_end} at {to_offset}",
        )
        if to_offset == self.log_end and not self._files_beyond:
            return LogOp(self.queue, [])
        self._segments.truncate(to_offset, self._tail)
        self._tail.truncate(to_offset)
        self.terms.truncate(to_offset)
        self.members.truncate(to_offset)
        self._start_generation(to_offset)
        if not self.producers.truncate(to_offset):
            self.producers = layout.producers_of(
                self.disk, self.path, self.log_start, self.log_end, self.reader.batches_from
            )
        self._last_entry = self._find_last_entry()
        settle = functools.partial(self._settle, to_offset, self._generation)
        steps = [*self.compacting.cut(to_offset), self._cut_step()]
        return LogOp(self.queue, steps, settle=settle)

    def _start_generation(self, end: int) -> None:
        self._generation += 1
        self.durable_end = min(self.durable_end, end)
        if self._snapshot_offset is not None and self._snapshot_offset > end:
            self._snapshot_offset = None

    def _find_last_entry(self) -> bytes:
        newest, last = self._segments.newest, self._tail.last()
        if newest is None:
            return b""
        if last is None:
            return layout.last_entry_bytes(self.disk, newest)
        batch, (position, _) = last
        return pack_entry(read_header(batch), batch, position, unsynced=self.config.flush != "always")

    def _cut_step(self) -> CallStep:
        self._files_beyond = False
        last = self._segments.newest
        kept = None if last is None else (last.base_offset, last.size_bytes, last.count)
        first = 0 if last is None or self._snapshot_offset is not None else self._segments.all[0].base_offset
        front = layout.front_of(first, self.terms.start, self.producers) if first else None
        cut = functools.partial(layout.cut_files, self.disk, self.path, self.terms.log_end, kept, front)
        return CallStep(functools.partial(self._held.cut, self.terms.end, cut))

    def reset(
        self,
        at: EntryId,
        producers: ProducerState | None = None,
        members: Members | None = None,
        then: Callable[[], None] | None = None,
    ) -> LogOp:
        """Empty the log; it continues after `at` (a snapshot was installed, or a damaged log is fetched anew).

        Args:
            at: what the log is of from now on.
            producers: the leader's, as of `at`; without them a batch from before that comes again is taken for a new one.
            members: the members as of `at`, where replicas vote.
            then: called in the WAL thread when the log is empty, durably, before anything else is written; must be harmless
                to repeat.
        """
        self._segments.clear()
        self._tail.clear(at.offset)
        self.terms.reset(at)
        self.members.reset(members)
        self.producers = ProducerState() if producers is None else producers
        self._start_generation(at.offset)
        self._files_beyond = False
        self._last_entry = b""
        self._since_snapshot = 0
        self._snapshot_offset = None
        wipe = functools.partial(layout.wipe, self.disk, self.path, at, self.producers.encode(), members)
        cut = functools.partial(self._held.cut, at, wipe)
        steps: list[Step] = [*self.compacting.cut(0), CallStep(functools.partial(self._held.extend, at, cut))]
        if then is not None:
            steps.append(CallStep(then))
        settle = functools.partial(self._settle, at.offset, self._generation)
        return LogOp(self.queue, steps, settle=settle)

    def trim(self, log_start: int) -> LogOp | None:
        """Let the log start at `log_start` (at most `durable_end`): whole segments before it are removed.

        None when it starts there or later already. Where nothing is left, a snapshot keeps what is known of producers.
        """
        if log_start <= self.log_start:
            return None
        invariant(log_start <= self.durable_end, f"cannot trim to {log_start}, durable is {self.durable_end}")
        steps: list[Step] = [self._snapshot_step(last=True)] if log_start == self.log_end else []
        self.terms.trim(log_start)
        self.members.trim(log_start)
        gone = self._segments.trim(log_start)
        if self._segments.newest is None:
            self._last_entry = b""
        self._tail.evict(0, log_start)
        start = LogStart(log_start, self.terms.start.term, False, self.members.base)
        steps.append(CallStep(functools.partial(layout.trim_files, self.disk, self.path, start, gone)))
        return LogOp(self.queue, steps, kind=TRIM)

    def apply_retention(self, now_ms: int, high_watermark: int, deleted_before: int = 0) -> LogOp | None:
        """Trim what `retention.ms` and `retention.bytes` no longer keep, or is deleted; never above `high_watermark`."""
        return self.trim(self.retention_start(now_ms, high_watermark, deleted_before))

    def retention_start(self, now_ms: int, high_watermark: int, deleted: int = 0) -> int:
        """Where the log would start if it were trimmed now, as `apply_retention` does."""
        limit = min(high_watermark, self.durable_end)
        views = [(s.next_offset, s.size_bytes, s.max_timestamp) for s in self._segments.all]
        start, config = self.log_start, self.config
        return retained_from(
            views, now_ms=now_ms, config=config, limit_offset=limit, log_start=start, deleted_before=deleted
        )

    def checkpoint(self) -> LogOp:
        """Write a snapshot of the log's end, so that the next `open` has nothing to read. For a clean stop."""
        if self._segments.newest is None or self._snapshot_offset == self.log_end or self._files_beyond:
            return LogOp(self.queue, [])
        return LogOp(self.queue, self._closing_steps(self._segments.newest))

    def mark_forgotten(self) -> None:
        """Record, durably, that this replica may earlier have held and promised anything. Blocking."""
        self._mark(recovery.FORGOTTEN, "the node's directory was replaced")

    def mark_joining(self) -> None:
        """Record, durably, that this replica begins empty in an older shard. Blocking."""
        self._mark(recovery.JOINING, "the shard is older than this replica")

    def _mark(self, kind: int, reason: str) -> None:
        self.note_damage(recovery.DamageReport(self.log_end, self.path, kind, reason))
        self.disk.fsync_dir(os.path.dirname(self.path))  # the replica's directory may be as new as the mark

    def clear_damage(self) -> LogOp:
        """Forget that the log was damaged: it was cut or reset and has caught up with its leader, durably."""
        self.damaged = None
        return LogOp(self.queue, [CallStep(functools.partial(layout.remove_damage, self.disk, self.path))])

    def _closing_steps(self, newest: Segment) -> list[Step]:
        close = functools.partial(layout.close_segment, self.disk, newest.data_path, newest.size_bytes)
        return [CallStep(close), self._snapshot_step()]

    def _snapshot_step(self, *, last: bool = False) -> CallStep:
        newest, start = self._segments.newest, self.terms.start
        if newest is None:
            unreachable("a snapshot is of a log that has a segment")
        self._since_snapshot, self._snapshot_offset = 0, self.terms.log_end
        snapshot = Snapshot(
            self.terms.log_end,
            start.offset,
            start.term,
            self.terms.items(),
            self._segments.summaries(),
            self.producers.encode(),
            self._last_entry,
            tuple(self.members.items()),
            tuple(len(segment.aborted) for segment in self._segments.all),
            any(segment.is_compacted for segment in self._segments.all),
        )
        write_snapshot = layout.write_last_snapshot if last else layout.write_snapshot
        paths, unwritten = (newest.data_path, newest.index_path), self._segments.unwritten()
        files = layout.SnapshotFiles(snapshot.offset, encode_snapshot(snapshot), paths, unwritten)
        write = functools.partial(write_snapshot, self.disk, self.path, files, start.offset)
        # Data and index are synced up to here.
        return CallStep(write if last else functools.partial(self._held.extend, self.terms.end, write))

    # -- reads ----------------------------------------------------------------------------------------------------------

    def is_in_memory(self, offset: int) -> bool:
        """Will `read` from this offset do without the disk?"""
        return offset >= self._tail.start

    def read(self, offset: int, max_bytes: int, end: int, at_least_one: bool = True) -> list[memoryview]:
        """Whole contiguous batches, the first being the one that holds `offset`, none reaching beyond `end`.

        At most `max_bytes`, except that `at_least_one` lets the first batch be larger. Empty when `offset` is at or beyond
        `end` or the log's end. A read from the disk stops at the end of a segment: ask again.

        Raises:
            OffsetOutOfRangeError: before the log's start or beyond its end.
            DamagedLogError: the disk does not give back what was written; `damaged` is set.
        """
        if offset >= self._tail.start and offset < self.terms.log_end:
            return self._tail.read(offset, max_bytes, end, at_least_one=at_least_one)
        return self.plan_read(offset, max_bytes, end, at_least_one)()

    def plan_read(
        self, offset: int, max_bytes: int, end: int, at_least_one: bool = True, *, from_disk: bool = False
    ) -> Callable[[], list[memoryview]]:
        """The same as `read`, as a function that may be called in any thread. Raises OffsetOutOfRangeError here.

        `from_disk`: what is durable is read from the disk also where it is in memory.
        """
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside of the log, which goes from {self.log_start} to {self.log_end}",
                asked=offset,
                start=self.log_start,
                end=self.log_end,
            )
        in_memory_from = max(self._tail.start, self.durable_end) if from_disk else self._tail.start
        if offset >= in_memory_from:
            found = []
            if offset < self.log_end:
                found = self._tail.read(offset, max_bytes, end, at_least_one=at_least_one)
            return lambda: found
        limit = min(end, in_memory_from)
        read = self.reader.from_disk().read
        return functools.partial(read, offset, max_bytes, limit, at_least_one=at_least_one)

    def aborted(self, offset: int, end: int) -> list[Aborted]:
        """The aborted transactions with a batch or the marker within `offset` .. `end`, in order of markers."""
        return self._segments.aborted(offset, end)

    def note_damage(self, report: recovery.DamageReport) -> None:
        """Record, durably, what is not on the disk as it was written. Blocking."""
        if self.damaged is None:
            self.damaged = report
            recovery.save_damage(self.disk, self.path, report)

    def release_memory(self, keep_bytes: int = 0) -> None:
        """Let go of durable batches held in memory: for shards that have been idle for a while."""
        self._tail.evict(keep_bytes, self.durable_end)
