"""What a reader of a topic does with batches that it cannot read: fail, skip them, keep them as dead letters, or hand them
to a function.
"""

import inspect
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.client.cluster import Cluster
from antiphon.errors import UnknownTopicError, WrongKindError
from antiphon.model.body import reply_as
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import AppendBatch, Appended
from antiphon.records.decode import BadBatch, Record, decode_what_can_be
from antiphon.records.unreadable import (
    FAIL,
    HINT,
    DeadLetters,
    UnreadableBatch,
    checked,
    letter,
    letter_shard,
    placed,
    plain_limit,
    unreadable,
)

if TYPE_CHECKING:
    import pyarrow as pa

OnCorrupt = str | DeadLetters | Callable[[UnreadableBatch], Awaitable[None] | None]
"""`fail`: raise CorruptBatchError; `skip`: go on behind the batch; `antiphon.dead_letters(topic)`: append it there, then go
on; a function: call it (and await it), then go on."""


class PassOver:
    """What becomes of the batches of one shard that cannot be read. `count` is called for each that was passed over."""

    def __init__(
        self,
        cluster: Cluster,
        topic: TopicMeta,
        shard: int,
        on_corrupt: OnCorrupt,
        count: Callable[[], None],
        timeout_s: float,
    ) -> None:
        if not callable(on_corrupt):
            checked(on_corrupt, topic.name)
        self._cluster = cluster
        self.topic = topic.name
        self.shard = shard
        self.limit_bytes = plain_limit(topic.config)
        self._on_corrupt = on_corrupt
        self._count = count
        self._timeout_s = timeout_s
        self._producer_id: int | None = (
            None  # of this read's dead letters: a repeated request appends none twice
        )
        self._sent = 0

    async def deal(self, bad: BadBatch) -> None:
        """As it was chosen. Raises CorruptBatchError with topic, shard and offset, what the function or append raises."""
        if self._on_corrupt == FAIL:
            raise placed(self.topic, self.shard, bad.offset, bad.error, HINT) from bad.error
        batch = unreadable(self.topic, self.shard, bad)
        if isinstance(self._on_corrupt, DeadLetters):
            await self._send(batch, self._on_corrupt.topic)
        elif callable(self._on_corrupt):
            told = self._on_corrupt(batch)
            if inspect.isawaitable(told):
                await told
        self._count()

    async def _send(self, batch: UnreadableBatch, topic: str) -> None:
        """Append a dead letter; returns when it is durable."""
        if topic not in self._cluster.topics:
            await self._cluster.refresh()
        meta = self._cluster.topics.get(topic)
        if meta is None:
            raise UnknownTopicError(
                f"there is no topic {topic!r} for dead letters; create it first", name=topic
            )
        if meta.kind is Kind.TABLE:
            raise WrongKindError(f"{topic!r} is a table: dead letters go to a topic", name=topic)
        shard_id = meta.shards[letter_shard(batch, len(meta.shards))].shard_id
        request = AppendBatch(shard_id, None, int(self._timeout_s * 1000))
        if self._producer_id is None:
            self._producer_id = await self._cluster.producer_id(fresh=True)
        now_ms = system.wall_ms()
        data = letter(batch, now_ms, producer_id=self._producer_id, producer_epoch=0, sequence=self._sent)
        reply, _ = await self._cluster.call_shard(shard_id, request, (data,), timeout_s=self._timeout_s)
        reply_as(Appended, reply, "for a dead letter")
        self._sent += 1


class RecordPieces:
    """What is read of one shard, as lists of records."""

    def __init__(self, passing: PassOver) -> None:
        self._passing = passing

    async def decode(self, chunk: memoryview) -> AsyncGenerator[list[Record], None]:
        """The records of a chunk: those before a batch that cannot be read, then what becomes of it, then the others.

        Raises CorruptBatchError with topic, shard and offset.
        """
        records, bad = decode_what_can_be(chunk, self._passing.limit_bytes, self._passing.shard)
        at = 0
        for one in bad:
            until = bisect_left(records, one.offset, at, key=attrgetter("offset"))
            if until > at:
                yield records[at:until]
                at = until
            await self._passing.deal(one)
        yield records[at:] if at else records

    def within(self, records: list[Record], start: int, end: int | None) -> list[Record] | None:
        """Those with start <= offset < end; None without any."""
        if records and (records[0].offset < start or (end is not None and records[-1].offset >= end)):
            records = [r for r in records if r.offset >= start and (end is None or r.offset < end)]
        return records or None

    def archived(self, batch: "pa.RecordBatch") -> list[Record]:
        """Rows of an archived file, as records."""
        from antiphon.archive.files import as_records

        return as_records(batch, self._passing.shard)
