"""Transactions that span topics, tables and the offsets of groups: all of it is committed, or none of it.

A producer has a transactional id. Whoever gets the producer of that id last is the only one: any other is fenced. Its
transactions follow each other. Each is carried out by the id's coordinator and the leaders of the shards that take part
(docs/transactions.md). Every step may be repeated: batches have sequences, and the coordinator answers repeats alike.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from antiphon import tracing
from antiphon.client.closing import StartsAndCloses
from antiphon.client.cluster import Cluster
from antiphon.client.coordinated import Coordinators
from antiphon.client.named import AnyTopic, Offsets, flat_offsets, name_of
from antiphon.client.producer_identity import Identity
from antiphon.client.table_steps import LOST, TableSteps
from antiphon.client.tasks import all_ended
from antiphon.client.topic import AsyncTopic, Value
from antiphon.client.topic_writer import BYTES_PER_BATCH, SEQUENCE_MASK, Position
from antiphon.client.waiting_records import Part, Waiting
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    ProtocolViolationError,
    TimedOutError,
)
from antiphon.model.body import reply_as
from antiphon.model.requests import AppendBatch, Appended
from antiphon.model.rows import Version
from antiphon.model.transactions import (
    OFFSETS_MAX,
    FinishTransaction,
    InitializedProducer,
    InitProducer,
    JoinTransaction,
    OffsetOf,
    SendOffsets,
)
from antiphon.records.builder import build_batch

if TYPE_CHECKING:
    from antiphon.client.table import AsyncTable

TRANSACTION_TIMEOUT_S: Final = 60.0
HELD_BYTES_MAX: Final = 4 * 1024 * 1024  # of records of one transaction that wait to be sent


class AsyncProducer(StartsAndCloses):
    """`async with db.producer("my-id") as producer:`, then `async with producer.begin() as transaction:`."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        topic: Callable[[str], AsyncTopic],
        table: "Callable[[str], AsyncTable]",
        name: str,
        timeout_s: float,
        transaction_timeout_s: float,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.transaction_timeout_s = transaction_timeout_s
        self.cluster = cluster
        self.topic = topic
        self.table = table
        self.sequences: dict[int, int] = {}  # by shard id
        self._coordinators = coordinators
        self._identity: Identity | None = None
        self._is_stale = True  # the epoch is to be raised first
        self._left_open: Identity | None = None  # under which a transaction may be open still
        self._fenced: ProducerFencedError | None = None
        self._current: AsyncTransaction | None = None

    async def start(self) -> None:
        """Become the producer of the id: whoever was is fenced, and what that left open is aborted."""
        await self.identity()

    async def close(self) -> None:
        """Abort what is open. Raises what `abort` raises."""
        if self._current is not None and self._current.may_be_aborted:
            await self._current.abort()

    def begin(self) -> "AsyncTransaction":
        """A new transaction: an async context that commits at its end, or aborts if it ends with an error.

        Nothing is sent before its first record or offset. Raises InvalidTxnStateError while another one is open,
        ProducerFencedError for ever once another producer has the id.
        """
        if self._fenced is not None:
            raise self._fenced
        if self._current is not None and self._current.may_be_aborted:
            raise InvalidTxnStateError(
                f"a transaction of {self.name!r} is open: commit or abort it before the next one"
            )
        self._current = AsyncTransaction(self)
        return self._current

    # -- for its transactions -------------------------------------------------------------------------------------

    async def identity(self) -> Identity:
        """Producer id and epoch; asked for where there are none, or where sequences of these are in doubt."""
        if self._identity is None or self._is_stale:
            await self._end_what_is_open()
            had = self._identity or Identity(-1, -1)
            reply = await self.ask(
                InitProducer(self.name, int(self.transaction_timeout_s * 1000), *had), self.name
            )
            reply = reply_as(InitializedProducer, reply, "for a producer")
            self._identity = Identity(reply.producer_id, reply.producer_epoch)
            self.sequences.clear()
            self._is_stale = False
        return self._identity

    async def _end_what_is_open(self) -> None:
        """Abort what the coordinator may not know the end of: else it would fence whoever asks for another epoch."""
        if self._left_open is not None:
            with suppress(InvalidTxnStateError):  # it knew
                await self.ask(FinishTransaction(self.name, *self._left_open, commit=False), self.name)
            self._left_open = None

    def in_doubt(self, left_open: Identity | None = None) -> None:
        """A batch may or may not be in the log, or a transaction be open: the next one has an epoch of its own."""
        self._is_stale = True
        self._left_open = left_open or self._left_open

    async def ask(self, body: Any, name: str, *, is_group: bool = False) -> Any:
        """One step, repeated until it has an answer."""
        return await self._coordinators.ask(name, body, timeout_s=self.timeout_s, is_group=is_group)

    def explained(self, error: AntiphonError, began_s: float | None) -> AntiphonError:
        """A fence says what it may come from; other errors stay. `began_s`: when the transaction began, by the loop."""
        if not isinstance(error, ProducerFencedError):
            return error
        limit_s, now_s = self.transaction_timeout_s, asyncio.get_running_loop().time()
        why = (
            f"the transaction lasted longer than its time-out of {limit_s:g} s and was aborted"
            if began_s is not None and now_s - began_s >= limit_s
            else "another producer has the id now, or an operator aborted the transaction"
        )
        if "earlier_try" in error.details:
            why += "; whether a commit that was asked for before was carried out is not known"
        fenced = ProducerFencedError(f"transactional id {self.name!r}: {why}", **error.details)
        self.fenced(fenced)
        return fenced

    def fenced(self, error: ProducerFencedError) -> None:
        """That is final."""
        self._fenced = error

    async def joining_refused(self, error: AntiphonError) -> Identity:
        """The coordinator refuses the first part of a transaction: who the producer is from now on, or the error."""
        raise error


class AsyncTransaction(TableSteps):
    """One transaction; `AsyncProducer.begin` makes it. `positions`: of its records in order, once it is committed."""

    def __init__(self, producer: AsyncProducer) -> None:
        limit_s, name = producer.timeout_s, producer.name
        super().__init__(producer.cluster, producer.table, limit_s, name, producer.sequences)
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._began_s: float | None = None
        self._state = "open"
        self._broken: AntiphonError | None = None
        self._parts: dict[int, Part] = {}
        self._joined_shards: set[int] = set()
        self._joined_groups: set[str] = set()
        self._identity: Identity | None = None
        self._may_be_known = False  # to the coordinator
        self._is_in_doubt = False  # was a commit asked for whose outcome is not known?
        self._joining = asyncio.Lock()
        self._held_bytes = 0
        self._found: list[Position | None] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._give_up(error)
        elif self.is_open:
            await self.commit()

    @property
    def is_open(self) -> bool:
        """Can it still be written to, committed or aborted?"""
        return self._state in {"open", "committing"}

    @property
    def may_be_aborted(self) -> bool:
        """Was its commit not asked for yet?"""
        return self._state == "open"

    @property
    def positions(self) -> list[Position]:
        """Where its records are. Raises InvalidTxnStateError unless it is committed."""
        if self._state != "committed":
            raise InvalidTxnStateError(f"the transaction of {self._producer.name!r} is {self._state}")
        return [found for found in self._found if found is not None]

    @property
    def versions(self) -> list[Version | None]:
        """The new version of each put, None for deletes and checks, in order. Raises InvalidTxnStateError as `positions`."""
        if self._state != "committed":
            raise InvalidTxnStateError(f"the transaction of {self._producer.name!r} is {self._state}")
        return [self._versions.get(at) for at in range(len(self._operations))]

    # -- what belongs to it ---------------------------------------------------------------------------------------

    async def append(
        self,
        topic: AnyTopic,
        value: Any,
        *,
        key: Value = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        shard: int | None = None,
        expected_offset: int | None = None,
    ) -> None:
        """Append a record to a topic. It is sent with others, at the latest by the commit.

        The value is bytes, text or None, or what the handle's codec takes, if the topic is given as one. With
        `expected_offset` (and `shard`) it is sent at once, and written at exactly that offset or not at all. Raises
        OffsetMismatchError then, UnknownTopicError, UnknownShardError, WrongKindError, BatchTooLargeError,
        TimedOutError; ProducerFencedError and InvalidTxnStateError if the transaction is over. After an error it can only be
        aborted.
        """
        self._check_open()
        if expected_offset is not None and (shard is None or expected_offset < 0):
            raise InvalidRequestError("expected_offset is an offset, and needs shard: offsets belong to one")
        name = name_of(topic, self._producer.cluster)
        handle = topic if isinstance(topic, AsyncTopic) else self._producer.topic(name)
        placed = await handle.placed(value, key, headers, timestamp_ms, shard)
        part = self._parts.setdefault(placed.shard_id, Part(placed.shard_id))
        at = len(self._found)
        self._found.append(None)
        part.add(Waiting(placed, at, expected_offset))
        self._held_bytes += placed.size_bytes
        if expected_offset is not None:
            await self._send(part)
            return
        if part.size_bytes >= min(BYTES_PER_BATCH, placed.batch_bytes_max):
            await self._send(part)
        elif self._held_bytes >= HELD_BYTES_MAX:
            await self.flush()

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """The next offsets that a group is to read: the group's if the transaction is committed.

        They are `{(topic, shard): next offset}` or `{topic: {shard: next offset}}`. Raises UnknownTopicError,
        UnknownShardError, LimitReachedError, and what `append` raises.
        """
        self._check_open()
        flat = flat_offsets(offsets, self._producer.cluster)
        rows = tuple(OffsetOf(topic, shard, offset) for (topic, shard), offset in flat.items())
        try:
            identity = await self._join((), (group,))
            for at in range(0, len(rows), OFFSETS_MAX):
                body = SendOffsets(self._producer.name, *identity, group, rows[at : at + OFFSETS_MAX])
                await self._producer.ask(body, group, is_group=True)
        except AntiphonError as error:
            raise self._failed(error) from error
        except asyncio.CancelledError:
            self._interrupted("offsets were sent")
            raise

    send_offsets = commit_offsets

    async def flush(self) -> None:
        """Send what waits; returns when all of it is durable. It is committed with the transaction only."""
        self._check_open()
        waiting = [part for part in self._parts.values() if part.waiting]
        if not waiting:
            return
        try:
            await self._join([part.shard_id for part in waiting], ())
        except AntiphonError as error:
            raise self._failed(error) from error
        except asyncio.CancelledError:
            self._interrupted("shards were to take part")
            raise
        await all_ended(map(self._send, waiting))

    # -- its end --------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit; returns when that is decided for good. Readers of committed records see it within moments.

        If a step failed, it aborts and raises what that step raised. What it says of tables is judged here: raises
        VersionMismatchError or KeyNotFoundError for a condition that does not hold, or what was read and has changed, and
        KeyLockedError where another transaction was first; nothing is written then. TimedOutError with `earlier_try` in its
        details means that the outcome is not known: call this again to ask for it.
        """
        with nullcontext() if tracing.tracer is None else tracing.tracer.around("transaction"):
            if self._state == "open":
                try:
                    await self.flush()
                    await self._prepared()
                except BaseException as error:
                    await self._give_up(error)
                    raise
                self._state = "committing"
            elif self._state != "committing":
                self._check_open()
            await self._finish(commit=True)
            self._state = "committed"

    async def abort(self) -> None:
        """Abort: readers of committed records never see anything of it."""
        if self._state == "committing":
            raise InvalidTxnStateError(
                f"the commit of {self._producer.name!r} was asked for and has no known outcome: call commit again"
            )
        if self._state == "open":
            self._state = "aborted"
            await self._finish(commit=False)

    async def _give_up(self, error: BaseException) -> None:
        """Abort because of an error, which stays the one that is raised: the coordinator aborts by its time-out anyway."""
        if self._state != "open":
            return
        try:
            await self.abort()
        except AntiphonError as failed:
            if failed is not error:
                error.add_note(f"the transaction could not be aborted at once: {failed.message}")

    async def _finish(self, *, commit: bool) -> None:
        producer, identity = self._producer, self._identity
        if identity is None or not self._may_be_known:
            return  # nothing takes part in it
        try:
            await producer.ask(FinishTransaction(producer.name, *identity, commit), producer.name)
        except asyncio.CancelledError:
            producer.in_doubt(identity)
            raise
        except AntiphonError as error:
            producer.in_doubt(identity)
            if self._is_in_doubt:  # an earlier call may have committed it
                error.with_unknown_outcome()
            final = isinstance(error, ProducerFencedError | InvalidTxnStateError)
            if commit and (isinstance(error, TimedOutError) or (self._is_in_doubt and not final)):
                self._is_in_doubt = True
                raise TimedOutError(
                    f"whether the transaction of {producer.name!r} was committed is not known: {error.message}",
                    earlier_try=True,
                ) from error
            self._state = "aborted"
            if commit or not isinstance(error, InvalidTxnStateError):  # else nothing has joined it
                raise self._producer.explained(error, self._began_s) from error

    # -- inside ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidTxnStateError(
                f"the transaction of {self._producer.name!r} is {self._state}: begin another one"
            )
        if self._broken is not None:
            raise self._broken

    async def _prepared(self) -> None:
        """Have all that it says of tables prepared."""
        try:
            await self._prepare_tables()
        except LOST as error:  # which leaves no trace in its shard: no sequence is in doubt
            self._broken = error
            raise
        except AntiphonError as error:
            raise self._failed(error) from error
        except asyncio.CancelledError:
            self._interrupted("a shard was to prepare its part")
            raise

    async def _join(self, shards: Iterable[int], groups: Iterable[str]) -> Identity:
        """Have the coordinator know what takes part, before anything is sent there."""
        async with self._joining:
            producer = self._producer
            if self._identity is None:
                self._identity = await producer.identity()
                self._began_s = self._loop.time()
            new_shards = tuple(one for one in shards if one not in self._joined_shards)
            new_groups = tuple(one for one in groups if one not in self._joined_groups)
            if new_shards or new_groups:
                self._may_be_known = True
                parts = new_shards, new_groups
                try:
                    await producer.ask(JoinTransaction(producer.name, *self._identity, *parts), producer.name)
                except (ProducerFencedError, InvalidTxnStateError) as error:
                    if self._joined_shards or self._joined_groups:
                        raise
                    self._identity = await producer.joining_refused(error)
                    await producer.ask(JoinTransaction(producer.name, *self._identity, *parts), producer.name)
                self._joined_shards.update(new_shards)
                self._joined_groups.update(new_groups)
            return self._identity

    async def _send(self, part: Part) -> None:
        """Send what waits for a shard, one batch after the other."""
        async with part.lock:
            while part.waiting:
                self._check_open()
                try:
                    if tracing.tracer is None:
                        await self._send_batch(part)
                    else:
                        with tracing.tracer.around("produce", shard=part.shard_id):
                            await self._send_batch(part)
                except AntiphonError as error:
                    raise self._failed(error) from error
                except asyncio.CancelledError:
                    self._interrupted("a batch was sent")
                    raise

    async def _send_batch(self, part: Part) -> None:
        producer = self._producer
        identity = await self._join((part.shard_id,), ())
        items = part.take()
        self._held_bytes -= sum(one.placed.size_bytes for one in items)
        sequence = producer.sequences.get(part.shard_id, 0)
        batch = build_batch(
            [one.placed.record for one in items],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        limit_s, expected = producer.timeout_s, items[0].expected_offset
        body = AppendBatch(part.shard_id, expected, int(limit_s * 1000), transactional_id=producer.name)
        reply, _ = await producer.cluster.call_shard(part.shard_id, body, (batch,), timeout_s=limit_s)
        if not isinstance(reply, Appended) or reply.next_offset - reply.base_offset != len(items):
            raise ProtocolViolationError("the answer to an append does not fit what was asked")
        producer.sequences[part.shard_id] = (sequence + len(items)) & SEQUENCE_MASK
        for number, one in enumerate(items):
            self._found[one.at] = Position(one.placed.shard, reply.base_offset + number, reply.term)

    def _failed(self, error: AntiphonError) -> AntiphonError:
        """A step failed: from here on the transaction can only be aborted."""
        if self._broken is None:
            self._broken = self._producer.explained(error, self._began_s)
            self._producer.in_doubt()
        return self._broken

    def _interrupted(self, when: str) -> None:
        """A step was cancelled: whether it was carried out is not known, so that nothing may build on it."""
        text = f"the transaction of {self._producer.name!r} was interrupted while {when}: begin another one"
        self._failed(InvalidTxnStateError(text))
