"""The client's side of one shard: appends, table writes and reads that wait for commits and confirmations.

Everything here runs on the event loop and answers by callbacks, because a task per request would cost more than the
request. A callback is called exactly once, with the result or with the error that took its place, in log order
(S1.20).

What may be answered when: an append when it is committed; a duplicate when the original is; a refusal (offset
mismatch, or a table write of which nothing took effect) when the state it was judged against is committed *and*
leadership was confirmed after the request came in, for a deposed leader's "no" could contradict what a newer one has
acknowledged.
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InternalError,
    InvalidRequestError,
    OffsetMismatchError,
    OverloadedError,
    StorageFailedError,
    TimedOutError,
    WrongKindError,
)
from antiphon.log.producer_state import JOB_ID_MIN
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.results import AppendResult
from antiphon.model.sender import Sender
from antiphon.partition.append_queue import NOT_BEGUN, AppendQueue, Done, Waiting
from antiphon.partition.batch_kinds import check_kind
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.expired_records import ExpiredRecords
from antiphon.partition.failures import report_request
from antiphon.partition.waiting_readers import WaitingReaders
from antiphon.partition.write_order import RefusedAppends
from antiphon.records.batch import (
    CONTROL_BIT,
    NO_TIME,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_batch,
    read_header,
    stamp,
)
from antiphon.replication.actions import ReadFailed, ReadReady

if TYPE_CHECKING:
    from antiphon.partition.mode import ReplicationMode
    from antiphon.partition.settings import PartitionSettings

WAITERS_MAX: Final = 100_000
GO_ON_AT_ONCE: Final = 256  # of those in line, in one turn of the event loop
NOT_PLAIN: Final = CONTROL_BIT | TRANSACTIONAL_BIT


class Pending(msgspec.Struct):
    """An append that waits for its commit. Times are of the event loop's clock, in seconds."""

    next_offset: int
    done: Done
    result: Any
    size_bytes: int
    since_s: float
    deadline_s: float


class Waiter(NamedTuple):
    """Something to be done when the log is committed up to `offset`."""

    offset: int
    order: int
    deadline_s: float
    ready: Callable[[], None]
    failed: Done


class PartitionClients:
    """Requests of clients to one shard, on this node."""

    def __init__(
        self,
        driver: ReplicaDriver,
        readers: WaitingReaders,
        mode: "ReplicationMode",
        max_message_bytes: int,
    ) -> None:
        self._state = driver.state
        self._driver = driver
        self._readers = readers
        self._mode = mode
        self.shard_id = driver.shard_id
        self.max_message_bytes = max_message_bytes
        self._gives_time = False  # records get the time at which they are appended
        self._pending: deque[Pending] = deque()
        self.is_looked_after = False  # see `Waiting`
        self.queue = AppendQueue(self.shard_id)
        self._queue_asked = False
        self._waiters: list[Waiter] = []
        self._order = count()
        self._reads_next: list[Waiter] = []
        self._reads: dict[int, list[Waiter]] = {}
        self._read_token = 0
        self._read_asked = False
        self._refused = RefusedAppends()
        self._expired = ExpiredRecords(driver.state)

    def configure(self, settings: "PartitionSettings") -> None:
        """Take over the settings of the topic."""
        self.max_message_bytes = settings.max_message_bytes
        self._gives_time = settings.append_time
        self.queue.set_limit(settings.max_in_flight, [item.next_offset for item in self._pending])
        self._queue_moved()

    @property
    def waiting(self) -> bool:
        """Does anybody wait for an answer that a time-out may have to give?"""
        return bool(
            self._pending or self._waiters or self._reads or self._reads_next or self.queue.waiting.count
        )

    # -- appends ------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: Buffer,
        expected_offset: int | None,
        timeout_s: float,
        done: Done,
        header: BatchHeader | None = None,
        number: int | None = None,
    ) -> None:
        """Append one batch; `done` gets an AppendResult or an error. Raises what is known at once.

        The order of the checks is the one that makes retries of successful conditional appends succeed: leadership, producer
        and duplicate, transaction, expected offset, append (S2.12, S2.14). `header`: of the batch, where it was read
        already. `number`: of the transaction that the batch is part of, where its coordinator was asked.
        """
        state = self._state
        if state.shard_id == CLUSTER_SHARD_ID:
            raise InvalidRequestError(
                "`__cluster` is the cluster's own log: only its coordinator writes there"
            )
        state.check_writable()
        if state.table is not None:
            raise WrongKindError(f"shard {state.shard_id} belongs to a table: use puts and deletes")
        queue = self.queue
        if queue.holds or queue.waiting.count or (queue.limit and queue.is_busy):
            kept = bytes(batch)
            found = header or read_header(kept)

            def go_on(left_s: float) -> None:
                self._append(kept, found, expected_offset, left_s, done, number)

            def not_begun(error: AntiphonError) -> None:
                if error.retriable:
                    self._refused.note(found, state.log.producers)
                done(error)

            self._wait_for_turn(go_on, len(kept), timeout_s, not_begun)
            return
        self._append(batch, header or read_header(batch), expected_offset, timeout_s, done, number)

    def _append(
        self,
        batch: Buffer,
        header: BatchHeader,
        expected_offset: int | None,
        timeout_s: float,
        done: Done,
        number: int | None,
    ) -> None:
        state, refused = self._state, self._refused
        check_batch(header, batch)
        if header.attributes & NOT_PLAIN:
            check_kind(header, state, self._mode)
        if len(batch) > self.max_message_bytes:
            raise self.too_large(len(batch))
        producers = state.log.producers
        transactions = producers.transactions
        if transactions.is_used:
            transactions.check_epoch(header)
        duplicate = producers.check(header, full=state.services.producers_full)
        terms, term = state.log.terms, state.replica.term
        if duplicate is not None:
            state.services.metrics.duplicates += 1
            result = AppendResult(
                duplicate.base_offset,
                duplicate.next_offset,
                term,
                max(terms.log_start, state.deleted_before),
                True,
                duplicate.timestamp if self._gives_time else NO_TIME,
            )
            self.when_committed(duplicate.next_offset, timeout_s, lambda: done(result), done)
            return
        if transactions.is_used or header.attributes & TRANSACTIONAL_BIT:
            transactions.check(header, number)
        if refused.known:
            refused.check(header)
        base = terms.log_end
        if expected_offset is not None and expected_offset != base:
            refused.note(header, producers)
            self._mismatch(expected_offset, base, timeout_s, done)
            return
        if refused.known:
            refused.landed(header)
        if state.log.config.retention_ms >= 0:
            self._expired.look(header)
        owned = bytearray(batch)
        # A batch of a job is recognised by its CRC when it comes again, and stays as it is.
        gives_time = self._gives_time and header.producer_id < JOB_ID_MIN
        time_ms = system.wall_ms() if gives_time else NO_TIME
        stamp(owned, base, term, time_ms)
        next_offset = base + header.last_offset_delta + 1
        start = max(terms.log_start, state.deleted_before)
        result = AppendResult(base, next_offset, term, start, False, time_ms)
        self.stage(owned, header.record_count, next_offset, result, timeout_s, done)

    def stage(
        self, owned: bytearray, records: int, next_offset: int, result: Any, timeout_s: float, done: Done
    ) -> None:
        """Append a stamped batch that ends at `next_offset`; `done(result)` when it is committed."""
        state = self._state
        now = state.services.now_s()
        size = len(owned)
        self._driver.stage(owned, records)
        if not self.is_looked_after:
            state.services.someone_waits(self)
        self._pending.append(Pending(next_offset, done, result, size, now, now + timeout_s))
        if self.queue.limit:
            self.queue.staged(next_offset)
        state.services.in_flight(size)
        metrics = state.services.metrics
        metrics.appends += 1
        metrics.append_bytes += size
        metrics.append_records += records

    def in_turn(
        self,
        run: Callable[[], None],
        timeout_s: float,
        done: Done,
        size_bytes: int = 0,
        sender: Sender | None = None,
        *,
        is_large: bool = False,
    ) -> None:
        """Call `run`, which appends, as soon as the shard takes one more append; or `done` with an error.

        `size_bytes`: about what is kept while it waits. Requests of one `sender` keep their order.
        """
        if self.queue.is_busy:
            self._wait_for_turn(lambda _left_s: run(), size_bytes, timeout_s, done, sender, is_large)
        else:
            run()

    def _wait_for_turn(
        self,
        run: Callable[[float], None],
        size_bytes: int,
        timeout_s: float,
        done: Done,
        sender: Sender | None = None,
        is_large: bool = False,
    ) -> None:
        """Too many appends are in flight for this topic: come back when some are committed (C8)."""
        services = self._state.services
        deadline_s = services.now_s() + timeout_s
        self.queue.wait(Waiting(run, done, size_bytes, deadline_s, sender, is_large))
        services.in_flight(size_bytes)
        services.someone_waits(self)

    def let_go(self) -> None:
        """Who held the log does not any more: go on with who waits."""
        self.queue.holds -= 1
        self.queue.waiting.large_ended()
        self._queue_moved()

    def _queue_moved(self) -> None:
        """Go on with who waits, when all that this event brings about is done: the replica may add entries of its own."""
        if self.queue.may_go_on and not self._queue_asked:
            self._queue_asked = True
            self._state.services.turn.for_shard(self._go_on)

    def _go_on(self) -> None:
        self._queue_asked = False
        services = self._state.services
        for _ in range(GO_ON_AT_ONCE):
            if not self.queue.may_go_on:
                return
            one = self.queue.waiting.pop()
            services.in_flight(-one.size_bytes)
            try:
                if one.is_for_nobody:
                    raise NOT_BEGUN
                self._state.check_writable()
                one.run(one.deadline_s - services.now_s())
            except StorageFailedError as error:
                one.done(self._driver.stopped_by(error))
            except AntiphonError as error:
                one.done(error)
        if self.queue.may_go_on:
            self._queue_asked = True
            services.turn.pieces.add(self, self._go_on)

    def too_large(self, size_bytes: int) -> BatchTooLargeError:
        """The error for a batch above the topic's limit, `max_message_bytes`."""
        return BatchTooLargeError(
            f"a batch of {size_bytes} bytes; this topic takes {self.max_message_bytes} (max.message.bytes)",
            size_bytes=size_bytes,
            limit_bytes=self.max_message_bytes,
        )

    def _mismatch(self, expected: int, actual: int, timeout_s: float, done: Done) -> None:
        """Refuse, once everything that the refusal was judged against is committed (S2.12, S2.15)."""
        self._state.services.metrics.refusals += 1
        error = OffsetMismatchError(
            f"the append expected to land at offset {expected}, the shard's next offset is {actual}: nothing was appended",
            expected=expected,
            actual=actual,
        )
        self.when_confirmed(actual, timeout_s, lambda: done(error), done)

    # -- waiting ------------------------------------------------------------------------------------------------

    def when_committed(self, offset: int, timeout_s: float, ready: Callable[[], None], failed: Done) -> None:
        """Call `ready` when the log is committed (and applied) up to `offset`, at once if it is."""
        state = self._state
        if state.high_watermark >= offset:
            ready()
            return
        if len(self._waiters) >= WAITERS_MAX:
            raise OverloadedError(f"{WAITERS_MAX} requests wait for commits of shard {state.shard_id}")
        deadline = state.services.now_s() + timeout_s
        heapq.heappush(self._waiters, Waiter(offset, next(self._order), deadline, ready, failed))
        state.services.someone_waits(self)

    def when_confirmed(self, offset: int, timeout_s: float, ready: Callable[[], None], failed: Done) -> None:
        """Call `ready` when leadership was confirmed after now, and everything up to `offset` and up to the high watermark
        of now is applied: the moment at which a linearizable answer may be given.
        """
        state = self._state
        if len(self._reads_next) >= WAITERS_MAX:
            raise OverloadedError(f"{WAITERS_MAX} reads wait for the confirmation of shard {state.shard_id}")
        deadline = state.services.now_s() + timeout_s
        self._reads_next.append(Waiter(offset, next(self._order), deadline, ready, failed))
        if not self._read_asked:
            self._read_asked = True
            state.services.turn.for_shard(self._ask_confirmation)
            state.services.someone_waits(self)

    def _ask_confirmation(self) -> None:
        """One question to the followers for all reads of this turn."""
        self._read_asked = False
        reads, self._reads_next = self._reads_next, []
        if not reads:
            return
        self._read_token += 1
        token = self._read_token
        self._reads[token] = reads
        try:
            self._driver.call(self._state.replica.request_read, token, self._state.now_us())
        except AntiphonError as error:
            for read in self._reads.pop(token, []):
                read.failed(error)

    def read_ready(self, action: ReadReady) -> None:
        """Leadership was confirmed for the reads of a turn."""
        applied, reads = self._state.high_watermark, self._reads.pop(action.token, [])
        if action.leased:
            self._state.services.metrics.leased_reads += len(reads)
        for read in reads:
            offset = max(read.offset, action.offset)
            if applied >= offset:
                self._settle(read)
            else:
                heapq.heappush(self._waiters, read._replace(offset=offset))

    def read_failed(self, action: ReadFailed) -> None:
        """Leadership ended first."""
        error = self._state.not_leader()
        for read in self._reads.pop(action.token, []):
            read.failed(error)

    def _settle(self, waiter: Waiter) -> None:
        """Do it. What goes wrong with one client's answer is that client's; only a store that fails ends the replica."""
        state = self._state
        try:
            if state.failed is not None:  # an answer before this one stopped the replica
                raise state.not_leader()
            waiter.ready()
        except StorageFailedError as error:
            waiter.failed(self._driver.stopped_by(error))
        except AntiphonError as error:
            waiter.failed(error)
        except Exception as error:  # noqa: BLE001 - the same, for a bug in reading
            waiter.failed(InternalError(f"the answer could not be made: {type(error).__name__}: {error}"))

    # -- what happens to the shard ------------------------------------------------------------------------------

    def committed(self, high_watermark: int) -> None:
        """Answer what waited for this, oldest first, then wake those who follow the log (S0.20, S0.32).

        Who is answered may do anything at once; so all of them are taken out first, and none is answered twice.
        """
        pending = self._pending
        if pending and pending[0].next_offset <= high_watermark:
            services, ready, freed = self._state.services, [], 0
            now, observe = services.now_s(), services.metrics.commit_latency.observe
            while pending and pending[0].next_offset <= high_watermark:
                item = pending.popleft()
                freed += item.size_bytes
                observe(now - item.since_s)
                ready.append(item)
            for item in ready:
                try:
                    item.done(item.result)
                except Exception as error:  # noqa: BLE001 - a bug in whoever asked: it is not the others' trouble
                    report_request(self.shard_id, error)
            services.in_flight(-freed)
        if self.queue.limit:
            self.queue.committed(high_watermark)
            self._queue_moved()
        while self._waiters and self._waiters[0].offset <= high_watermark:
            self._settle(heapq.heappop(self._waiters))
        if self._readers.followers:
            self._readers.wake(committed=True)

    def fail_all(self, error: AntiphonError) -> None:
        """The replica leads no more, or stopped: nobody may be told of success."""
        pending, self._pending = self._pending, deque()
        waiters, self._waiters = self._waiters, []
        reads = [read for group in self._reads.values() for read in group] + self._reads_next
        self._reads.clear()
        self._reads_next = []
        self._refused.clear()
        queued = self.queue.clear()
        freed = sum(item.size_bytes for item in pending) + sum(one.size_bytes for one in queued)
        self._state.services.in_flight(-freed)
        for done in (
            *(item.done for item in pending),
            *(one.done for one in queued),
            *(waiter.failed for waiter in sorted(waiters) + reads),
        ):
            try:
                done(error)
            except Exception as problem:  # noqa: BLE001 - the same
                report_request(self.shard_id, problem)
        self._readers.wake_all()

    def expire(self, now_s: float) -> None:
        """Answer what waited too long; whether an append was made is not known then."""
        if self._pending and any(item.deadline_s <= now_s for item in self._pending):
            late = [item for item in self._pending if item.deadline_s <= now_s]
            self._pending = deque(item for item in self._pending if item.deadline_s > now_s)
            self._state.services.in_flight(-sum(item.size_bytes for item in late))
            for item in late:
                item.done(self._timed_out())
        for one, error in self.queue.overdue(now_s):
            self._state.services.in_flight(-one.size_bytes)
            one.done(error)
        overdue = [waiter for waiter in self._waiters if waiter.deadline_s <= now_s]
        if overdue:
            self._waiters = [waiter for waiter in self._waiters if waiter.deadline_s > now_s]
            heapq.heapify(self._waiters)
        for token in list(self._reads):
            overdue += [read for read in self._reads[token] if read.deadline_s <= now_s]
            self._reads[token] = [read for read in self._reads[token] if read.deadline_s > now_s]
        for waiter in overdue:
            waiter.failed(self._timed_out())

    def _timed_out(self) -> TimedOutError:
        return TimedOutError(
            f"shard {self._state.shard_id} could not commit in time: {self._mode.waits_for()}? "
            "The outcome of a write is unknown unless it is retried with the same producer and sequence",
            shard_id=self._state.shard_id,
        )
