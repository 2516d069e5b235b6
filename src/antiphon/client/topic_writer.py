"""Appends to one topic shard: records of many callers in one batch, batches in the order of their sequences.

Kafka's rules for producers apply: sequences follow each other without a gap, and a shard recognises the last five
batches. An event may break the chain: a batch is refused for good, or abandoned with unknown outcome. The rest then
continues under a fresh producer id. Batches that followed one of unknown outcome, and were refused because of it, fail
with unknown outcome too, because an old copy of them could still be under way.

The first batch of a producer id is sent alone, because a shard accepts any sequence from a producer that it does not
know. A conditional append (KIP-27) is also sent alone: when nothing is in flight, and nothing is sent before its
answer.
"""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon import system
from antiphon.client.cluster import Cluster
from antiphon.client.connection import Connection
from antiphon.client.pipeline import Item, Request, ShardPipeline
from antiphon.client.tasks import begin_task
from antiphon.errors import (
    AntiphonError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ProtocolViolationError,
    TimedOutError,
)
from antiphon.model.body import reply_as
from antiphon.model.requests import AppendBatch, Appended
from antiphon.records.builder import build_batch
from antiphon.wire.frames import Buffer

if TYPE_CHECKING:
    import asyncio

RECORDS_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = 256 * 1024
SEQUENCE_MASK: Final = (1 << 31) - 1

Headers = tuple[tuple[str, bytes | None], ...]
RecordInput = tuple[bytes | None, bytes | None, Headers, int]


class Position(NamedTuple):
    """The position of a record: durable and committed. `term` is the leader's when it acknowledged the record."""

    shard: int
    offset: int
    term: int


class Append(NamedTuple):
    """What an item carries. `alone`: it is a batch of its own."""

    records: list[RecordInput]
    expected_offset: int | None = None
    alone: bool = False
    compression: str = "none"


class TopicWriter(ShardPipeline):
    """Items are `Append`s; futures get the offset of their first record and the term."""

    def __init__(self, cluster: Cluster, shard_id: int, batch_bytes_max: int = BYTES_PER_BATCH) -> None:
        super().__init__(cluster, shard_id)
        self._batch_bytes_max = min(BYTES_PER_BATCH, batch_bytes_max)
        self._fresh_id = False  # the chain of sequences is broken
        self._poisoned = False  # by a batch whose outcome is not known
        self._known = False  # the shard has a batch of this producer id
        self._alone = 0  # batches that are tried again on their own
        self._hastened: set[asyncio.Task[None]] = set()

    def _take(self) -> Request | None:
        queue = self._queue
        while queue and queue[0].future.done():
            self._popped(queue.popleft().size_bytes)
        if not queue or (self._sent and not self._known):
            return None
        if self._fresh_id:
            if not self._sent:
                self._recover()
            return None
        if self._sent and self._sent[-1].items[0].what.expected_offset is not None:
            return None
        if queue[0].what.alone:
            if queue[0].what.expected_offset is not None and self._sent:
                return None
            items = [queue.popleft()]
        else:
            items = self._take_singles()
        self._popped(sum(item.size_bytes for item in items))
        count = sum(len(item.what.records) for item in items)
        sequence = self._next_sequence
        self._next_sequence = (sequence + count) & SEQUENCE_MASK
        request = Request(items, sequence, count)
        for item in items:
            item.request = request
        return request

    def _take_singles(self) -> list[Item]:
        queue = self._queue
        items: list[Item] = []
        size_bytes = 0
        compression = queue[0].what.compression
        while queue and len(items) < RECORDS_PER_BATCH:
            if queue[0].what.alone or queue[0].what.compression != compression:
                break
            size_bytes += queue[0].size_bytes
            if items and size_bytes > self._batch_bytes_max:
                break
            items.append(queue.popleft())
        return items

    def _encode(self, request: Request, producer_id: int | None = None) -> tuple[Any, Sequence[Buffer]]:
        first = request.items[0].what
        records = (
            first.records
            if len(request.items) == 1
            else [r for item in request.items for r in item.what.records]
        )
        batch = build_batch(
            records,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=0,
            base_sequence=request.sequence,
            compression=first.compression,
        )
        left_ms = max(1, int((request.deadline - self._loop.time()) * 1000))
        return AppendBatch(self._shard_id, first.expected_offset, left_ms), (batch,)

    def _resolve(self, request: Request, reply: Any) -> None:
        if type(reply) is not Appended or reply.next_offset - reply.base_offset != request.count:
            request.fail(ProtocolViolationError("the answer to an append does not fit what was asked"))
            return
        self._known = True
        offset = reply.base_offset
        for item in request.items:
            if not item.future.done():
                item.future.set_result((offset, reply.term))
                item.request = None  # nobody tries it again, and no circle is left for the garbage collector
            offset += len(item.what.records)

    def _restart(self, producer_id: int) -> None:
        super()._restart(producer_id)
        self._known = False

    def _resend(self, connection: Connection) -> None:
        if self._known or not self._sent:
            super()._resend(connection)
        else:
            self._send(connection, self._sent[0], None)

    async def again(self, item: Item, deadline: float) -> tuple[int, int]:
        """What became of an item whose caller gave up: offset and term of its first record, which is tried again.

        The batch is sent as it was, under the same sequence, so it is in the log once. Raises TimedOutError where its
        outcome stays unknown, and what the shard refuses it with.
        """
        request = item.request
        under_way = request is not None and request.answer is None and request in self._sent
        if request is None or under_way or not (request.attempts or request.answer):
            item.future, item.deadline = self._loop.create_future(), deadline
            if request is None or not under_way:  # nothing of it was ever sent
                await self.enter(item)
            else:  # it is repeated with those around it
                self._sweeper.plan(min(deadline, self._sweeper.at_s))
                if request.in_flight:  # but its answer may never come
                    self._hasten(request, deadline)
            place: tuple[int, int] = await item.future
            return place
        reply = request.answer
        if reply is None:
            reply = request.answer = await self._send_again(request, deadline)
        if isinstance(reply, AntiphonError):
            raise reply
        before = sum(len(one.what.records) for one in request.items[: request.items.index(item)])
        return reply.base_offset + before, reply.term

    async def _send_again(self, request: Request, deadline: float) -> Appended:
        """A batch on its own, under the sequence that it had."""
        request.attempts += 1
        self._alone += 1  # nothing gets another sequence meanwhile
        body, payload = self._encode(request, request.producer_id)
        left_s = max(0.001, deadline - self._loop.time())
        try:
            reply, _ = await self._cluster.call_shard(self._shard_id, body, payload, timeout_s=left_s)
        except OutOfOrderSequenceError as error:
            raise TimedOutError(
                "an append before this one, whose outcome is not known, is not in the log: try that one again first",
                sent=True,
            ) from error
        except TimedOutError as error:
            raise error.with_unknown_outcome() from error.__cause__  # of the try before, whatever became of this one
        finally:
            self._alone -= 1
        return reply_as(Appended, reply, "for an append")

    def _hasten(self, request: Request, deadline: float) -> None:
        async def work() -> None:
            with contextlib.suppress(AntiphonError):  # the item's own time ends
                reply = await self._send_again(request, deadline)
                if request in self._sent:
                    request.answer = reply
                    self._forget(request)
                    self._resolve(request, reply)
                    self._flush_soon()

        begin_task(work(), self._hastened)

    async def close(self) -> None:
        """Fail what is not answered."""
        for task in list(self._hastened):
            task.cancel()
        await super().close()

    def _refused(self, request: Request, error: AntiphonError) -> bool:
        if not isinstance(error, OutOfOrderSequenceError | ProducerFencedError):
            if request.attempts == 1 and len(self._sent) == 1:
                self._next_sequence = (
                    request.sequence
                )  # nothing of it is anywhere: the sequence is free again
            else:
                self._fresh_id = True
            return False
        if self._poisoned:
            request.fail(_unknown_outcome())
            return False
        if self._sent[0] is not request:
            return True  # one before it has no answer yet: they are sent again in order
        fresh, self._fresh_id = self._fresh_id, True
        # One before it was refused for good, or the shard does not know this producer any more. Only in the latter case an
        # earlier try may have got in; the caller is told then.
        return fresh or request.attempts == 1

    def _abandoned(self) -> None:
        self._fresh_id = self._poisoned = True

    def _before_resend(self) -> bool:
        if not self._fresh_id:
            return False
        if self._poisoned:
            for request in [request for request in self._sent if request.failure and request.attempts > 1]:
                self._sent.remove(request)
                request.fail(_unknown_outcome())
        if self._alone or any(request.failure is None for request in self._sent):
            return False  # only under the old id it can be found out whether they are in the log
        self._fresh_id = self._poisoned = False
        return True


def _unknown_outcome() -> TimedOutError:
    return TimedOutError(
        "an append before this one had no answer in time; whether this one was carried out is not known",
        sent=True,
    )


def now_ms() -> int:
    """Milliseconds since 1970, for records without a timestamp of their own."""
    return system.wall_ms()
