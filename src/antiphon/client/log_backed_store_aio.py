"""A state machine whose log is a shard of a topic, with several contending writers: KIP-27's recipe (S2.1-S2.17).

A store reads the log to its end and folds it into a state. To change the state it appends operations *on condition*
that the log has not grown since. So an operation is in the log only if its writer had seen everything before it. By
induction the log is always a legal serial history, however many stores write it: no election, no lock.

- Operations that are submitted while an append is in flight are collected. They are judged one after the other, each on
  the state that the ones before it would leave, and sent as one batch. At most one append is in flight (S2.8).
- When the append succeeds, the store adopts the state after it and answers all callers (S2.10).
- When it is refused, the store reads on from its position (S2.11). Its operations fail, or are judged again. If there
  were no operations in between, only a new leader's term start, nothing has changed and they are sent again.
- When no answer arrives, the log itself decides: a batch carries a mark. It is either found at the offset that it
  expected, or can never be there because something else is.

A state is a value: `apply` returns a new one and does not change the old one. So the store can judge ahead of the log
without ever having to undo.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypedDict, TypeVar, Unpack

from antiphon import system
from antiphon.client.closing import StartsAndCloses
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.on_unreadable import OnCorrupt
from antiphon.client.routing.outcomes import end_of_write
from antiphon.client.tasks import all_ended, end_tasks
from antiphon.client.topic import AsyncTopic, Message
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InternalError,
    InvalidRequestError,
    OffsetMismatchError,
    OverloadedError,
    TimedOutError,
)
from antiphon.invariants import invariant
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient

StateT = TypeVar("StateT")

OPERATIONS_PER_BATCH: Final = 1000
BYTES_PER_BATCH: Final = 256 * 1024
QUEUE_OPERATIONS_MAX: Final = 100_000
RECORD_OVERHEAD_BYTES: Final = 24
MARK: Final = "antiphon.batch"  # header of a batch's first record: which store's batch it is, and its number
NOWHERE: Final = 1 << 62  # an offset that no log reaches


class Applied(NamedTuple, Generic[StateT]):
    """Where an operation stands in the log, and the state right after it."""

    offset: int
    state: StateT


class Reads(TypedDict, total=False):
    """How a store reads its log."""

    on_corrupt: OnCorrupt


def _on_corrupt(*, on_corrupt: OnCorrupt = FAIL) -> OnCorrupt:
    return on_corrupt


class _Call(Generic[StateT]):
    """An operation somebody waits for. `deadline` is loop time; `sent`: it may be in the log."""

    __slots__ = ("deadline", "future", "operation", "reevaluate", "sent")

    def __init__(
        self,
        operation: bytes,
        deadline: float,
        future: "asyncio.Future[Applied[StateT]]",
        *,
        reevaluate: bool,
    ) -> None:
        self.operation = operation
        self.deadline = deadline
        self.future = future
        self.reevaluate = reevaluate
        self.sent = False

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Batch(Generic[StateT]):
    """Operations that were judged on the state at offset `expected`, and go there together."""

    def __init__(self, expected: int, state: StateT, seen: int, mark: bytes) -> None:
        self.expected = expected
        self.state = state  # after all that are permitted
        self.seen = seen  # how many operations the store had applied
        self.mark = mark
        self.calls: list[_Call[StateT]] = []
        self.permitted: list[tuple[_Call[StateT], StateT]] = []
        self.refused: list[tuple[_Call[StateT], Exception]] = []
        self.landed = False  # it was found in the log
        self.may_land = False  # a try of it ended without an answer, and what became of that is not known

    def is_wanted(self) -> bool:
        """Does anybody still wait?"""
        return any(not call.future.done() for call in self.calls)

    @property
    def deadline(self) -> float:
        """When the last of those who wait stops."""
        return max(call.deadline for call in self.calls if not call.future.done())

    def messages(self) -> list[Message]:
        """The permitted operations as records; the first one bears the mark."""
        first, *others = (call.operation for call, _ in self.permitted)
        return [(None, first, ((MARK, self.mark),)), *others]

    def answer(self) -> None:
        """It is in the log. A refusal is told only now: that the rest landed proves that it was judged on the log's end."""
        for number, (call, state) in enumerate(self.permitted):
            if not call.future.done():
                call.future.set_result(Applied(self.expected + number, state))
        for call, error in self.refused:
            call.fail(error)

    def fail(self, error: Exception) -> None:
        """Nobody gets what they asked for."""
        for call in self.calls:
            call.fail(error)

    def give_up(self, error: Exception) -> None:
        """The same. Whoever's operation may be in the log is told so, whatever the error says of a later step."""
        if self.may_land:
            unknown = end_of_write(sent=True)
            unknown.__cause__ = error
            for call, _ in self.permitted:
                call.fail(unknown)
        self.fail(error)


class AsyncLogBackedStore(StartsAndCloses, Generic[StateT]):
    """See the module docstring. Belongs to one event loop; start and close it, or use it as an asynchronous context."""

    def __init__(
        self,
        client: "AsyncClient",
        topic: str,
        *,
        initial: StateT,
        apply: Callable[[StateT, bytes], StateT],
        validate: Callable[[StateT, bytes], object] | None = None,
        shard: int = 0,
        start_offset: int = 0,
        timeout_s: float = 30.0,
        **reads: Unpack[Reads],
    ) -> None:
        """A store on one shard of a topic whose records are all kept (`retention.ms=-1`, the default).

        Args:
            client: a connected client, which must outlive the store.
            topic: name of a plain topic. Every record's value is an operation, whoever wrote it.
            initial: the state at `start_offset`.
            apply: the state after an operation. Must be deterministic, must not change the state that it is given, and must
                take every operation that `validate` lets through: an error here on what is in the log ends the store.
            validate: raises to refuse an operation in a state; its exception is what the caller gets. The default
                permits everything. An exception of `apply` refuses too.
            shard: index of the shard.
            start_offset: where to begin to read; with `initial` the way to start from a state that was kept elsewhere.
            timeout_s: how long calls may take when they do not say otherwise.
            reads: `on_corrupt`, as for `AsyncTopic.read`: what becomes of a batch that cannot be read. By default the store
                fails there. The operations of one that is passed over are not applied, so all stores on a shard must choose
                alike. A store that reads from there again tells of the batch again.
        """
        if start_offset < 0:
            raise InvalidRequestError(f"start_offset is an offset, not {start_offset}")
        self._topic: AsyncTopic = client.topic(topic)
        self._on_corrupt = _on_corrupt(**reads)
        self._shard = shard
        self._apply = apply
        self._validate = validate
        self._timeout_s = timeout_s
        self._state = initial
        self._upcoming = start_offset
        self._end = start_offset  # the log is known to reach this far
        self._seen = 0
        self._store_id = system.new_uuid().bytes
        self._batches = 0
        self._bytes_per_batch = BYTES_PER_BATCH
        self._queue: deque[_Call[StateT]] = deque()
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()  # held by whoever moves the state
        self._writer: asyncio.Task[None] | None = None
        self._ended: AntiphonError | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the log to its end; operations are taken from then on (S2.6, S2.7). A second start only catches up.

        Raises UnknownTopicError, UnknownShardError, TimedOutError, and OffsetOutOfRangeError when the log begins after
        `start_offset`.
        """
        await self.catch_up()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_for_ever())

    async def close(self) -> None:
        """Take no more operations, and fail those that wait. What is in flight may land. A second close does nothing."""
        self._end_with(ClientClosedError("the store was closed before an answer came"))
        await end_tasks(self._writer)

    def _end_with(self, error: AntiphonError) -> AntiphonError:
        """No operation is taken after this; the first reason stays."""
        self._ended = self._ended or error
        while self._queue:
            self._queue.popleft().fail(self._ended)
        return self._ended

    # -- callers ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> StateT:
        """The state as this store knows it, which may be behind the log: `catch_up` to be sure."""
        return self._state

    @property
    def upcoming_offset(self) -> int:
        """The next offset to read, or to write: `state` is the fold of everything below."""
        return self._upcoming

    async def catch_up(self, *, timeout_s: float | None = None) -> StateT:
        """Read the log to its end of now and return the state there: a linearizable read.

        What was acknowledged by any store before this call is in it. Raises TimedOutError.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s), self._lock:
                if self._ended is not None:
                    raise self._ended
                self._know(await self._confirmed_end(limit_s))
                await self._read_on(None)
                return self._state
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(f"the end of the log was not reached within {limit_s:.1f} s") from None

    async def submit(
        self, operation: bytes, *, reevaluate: bool = False, timeout_s: float | None = None
    ) -> Applied[StateT]:
        """Append one operation if it is permitted at the end of the log; returns when it is durable and applied.

        If another store was first, the operation fails with OffsetMismatchError and is not in the log. With
        `reevaluate` it is judged again on the state that the other one left, as often as its time allows.

        Raises the exception of `validate` or `apply` (it refers to a state that was the log's end during this call),
        OffsetMismatchError, BatchTooLargeError, OverloadedError, and TimedOutError (with `details["sent"]` the outcome
        is unknown, and `catch_up` shows it).
        """
        if self._ended is not None:
            raise self._ended
        if self._writer is None:
            raise InvalidRequestError("start the store first: await start()")
        if len(self._queue) >= QUEUE_OPERATIONS_MAX:
            raise OverloadedError(f"{QUEUE_OPERATIONS_MAX} operations wait for this store already")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        future: asyncio.Future[Applied[StateT]] = loop.create_future()
        call = _Call(operation, deadline, future, reevaluate=reevaluate)
        self._queue.append(call)
        self._wake.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            if call.sent:
                raise TimedOutError(
                    "no answer in time; whether the operation is in the log is not known", sent=True
                ) from None
            raise TimedOutError(
                "the operation waited in the queue until its time was over; it was not sent", sent=False
            ) from None

    async def submit_many(
        self, operations: Iterable[bytes], *, reevaluate: bool = False, timeout_s: float | None = None
    ) -> list[Applied[StateT]]:
        """Several operations, each on its own, in their order; the first error is raised after all have ended."""
        return await all_ended(
            self.submit(one, reevaluate=reevaluate, timeout_s=timeout_s) for one in operations
        )

    # -- writing ------------------------------------------------------------------------------------------------

    async def _write_for_ever(self) -> None:
        while self._ended is None:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                async with self._lock:
                    await self._turn()

    async def _turn(self) -> None:
        """One batch, from the queue to its callers."""
        try:
            await self._read_on(None)
        except AntiphonError as error:
            while self._queue:
                self._queue.popleft().fail(error)
            return
        batch = self._judge()
        try:
            if not batch.calls:
                return
            if await self._settle(batch):
                batch.answer()
            else:
                self._lost(batch)
        except asyncio.CancelledError:
            batch.fail(self._ended or ClientClosedError("the store was closed before an answer came"))
            raise
        except BatchTooLargeError as error:
            self._too_large(batch, error)
        except AntiphonError as error:
            if batch.landed:  # what went wrong came after it
                batch.answer()
            batch.give_up(error)
        except Exception as error:  # noqa: BLE001 - nobody would be told otherwise
            reason = InternalError(f"the store stopped: {type(error).__name__}: {error}")
            batch.fail(self._end_with(reason))

    def _judge(self) -> _Batch[StateT]:
        """Take operations off the queue; each is judged on the state that the permitted ones before it leave (S2.4)."""
        self._batches += 1
        mark = self._store_id + self._batches.to_bytes(8, "big")
        batch = _Batch(self._upcoming, self._state, self._seen, mark)
        size_bytes = 0
        while self._queue and len(batch.calls) < OPERATIONS_PER_BATCH:
            call = self._queue[0]
            size_bytes += RECORD_OVERHEAD_BYTES + len(call.operation)
            if batch.calls and size_bytes > self._bytes_per_batch:
                break
            self._queue.popleft()
            if call.future.done():
                continue
            batch.calls.append(call)
            try:
                if self._validate is not None:
                    self._validate(batch.state, call.operation)
                batch.state = self._apply(batch.state, call.operation)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's answer
                batch.refused.append((call, error))
            else:
                batch.permitted.append((call, batch.state))
        return batch

    async def _settle(self, batch: _Batch[StateT]) -> bool:
        """Append a batch where it expects to be, until it is there (True), or cannot be any more or nobody waits (False)."""
        loop = asyncio.get_running_loop()
        while batch.is_wanted():
            left_s = max(0.001, batch.deadline - loop.time())
            end: int | None
            try:
                end = await self._try(batch, left_s)
            except OffsetMismatchError as error:
                end = error.actual
            except TimedOutError as error:
                batch.may_land = batch.may_land or error.details.get("sent", True)
                if not batch.is_wanted():
                    break
                # Somewhere a copy may be underway still. Only the log can tell, and a further copy harms nothing (S2.14).
                end = await self._confirmed_end(max(0.001, batch.deadline - loop.time()))
            if end is None:
                return True
            self._know(end)
            if await self._read_on(batch):
                return True
            if self._upcoming > batch.expected:
                return False
        return False

    async def _try(self, batch: _Batch[StateT], timeout_s: float) -> int | None:
        """Send it once. None: it is there, or nothing of it was permitted and the refusals stand; else the log's end."""
        if not batch.permitted:
            end = await self._confirmed_end(timeout_s)
            return None if end == batch.expected else end
        for call, _ in batch.permitted:
            call.sent = True
        positions = await self._topic.append_batch(
            batch.messages(), shard=self._shard, expected_offset=batch.expected, timeout_s=timeout_s
        )
        invariant(positions[0].offset == batch.expected, "a conditional append landed elsewhere")
        invariant(self._upcoming == batch.expected, "the state moved while an append was in flight")
        self._state = batch.state
        self._seen += len(batch.permitted)
        self._upcoming = self._end = batch.expected + len(batch.permitted)
        return None

    def _lost(self, batch: _Batch[StateT]) -> None:
        """Its place is taken: fail what was sent unless it may be judged again. What was not sent is judged again anyway."""
        sent = {id(call) for call, _ in batch.permitted}
        moved = self._seen > batch.seen
        again = []
        for call in batch.calls:
            if not moved or call.reevaluate or id(call) not in sent:
                call.sent = False
                again.append(call)
            else:
                call.fail(
                    OffsetMismatchError(
                        f"the operation was judged on the state at offset {batch.expected}, but another writer appended "
                        "there; it was not carried out",
                        expected=batch.expected,
                        actual=self._upcoming,
                    )
                )
        self._queue.extendleft(reversed(again))

    def _too_large(self, batch: _Batch[StateT], error: BatchTooLargeError) -> None:
        """Go on with smaller batches; an operation that is too large on its own fails."""
        if len(batch.permitted) == 1:
            call = batch.permitted[0][0]
            call.fail(error)
        else:
            sizes = (RECORD_OVERHEAD_BYTES + len(call.operation) for call in batch.calls)
            self._bytes_per_batch = max(1, sum(sizes) // 2)
        self._queue.extendleft(call for call in reversed(batch.calls) if not call.future.done())

    # -- reading ------------------------------------------------------------------------------------------------

    async def _confirmed_end(self, timeout_s: float) -> int:
        """The end of the log, as a leader that was confirmed after now tells it.

        What `offsets` says could come from a deposed leader. A refusal is answered only when leadership was confirmed and
        everything below the end that it names is committed, so one is asked for: nothing is appended by it.
        """
        try:
            await self._topic.append_batch(
                [b""], shard=self._shard, expected_offset=NOWHERE, timeout_s=timeout_s
            )
        except OffsetMismatchError as error:
            return error.actual
        raise InternalError(f"an append landed at {NOWHERE}")

    def _know(self, end: int) -> None:
        """The log ends here."""
        if end < self._upcoming:
            raise self._end_with(
                InvalidRequestError(
                    f"the log ends at {end}, but was read up to {self._upcoming}: is it another topic of the same name?"
                )
            )
        self._end = end

    async def _read_on(self, batch: _Batch[StateT] | None) -> bool:
        """Apply what is in the log up to the known end (S2.6). True: `batch` was found there."""
        if self._end <= self._upcoming:
            return False
        async for records in self._topic.read_chunks(
            self._shard, self._upcoming, self._end, on_corrupt=self._on_corrupt, timeout_s=self._timeout_s
        ):
            self._take_in(records, batch)
        self._upcoming = self._end  # what has no records there is a leader's term start
        return batch is not None and batch.landed

    def _take_in(self, records: Sequence[Record], batch: _Batch[StateT] | None) -> None:
        for record in records:
            try:
                self._state = self._apply(self._state, record.value or b"")
            except Exception as error:
                raise self._end_with(
                    InvalidRequestError(
                        f"the operation at offset {record.offset} cannot be applied: {error!r}"
                    )
                ) from error
            self._seen += 1
            self._upcoming = record.offset + 1
            if batch is not None and record.offset == batch.expected:
                batch.landed = (MARK, batch.mark) in record.headers
