"""What a reader of a topic does with batches that it cannot read: fail, skip them, or hand them to a function."""

import inspect
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import TopicMeta
from antiphon.records.decode import Record, decode_what_can_be
from antiphon.records.unreadable import FAIL, SKIP, UnreadableBatch, placed, plain_limit, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

OnCorrupt = str | Callable[[UnreadableBatch], Awaitable[None] | None]
"""`fail`: raise CorruptBatchError; `skip`: go on behind the batch; a function: call it (and await it), then go on."""


class RecordPieces:
    """What is read of one shard, as lists of records. `count` is called for each batch that was passed over."""

    def __init__(
        self, topic: TopicMeta, shard: int, on_corrupt: OnCorrupt, count: Callable[[], None]
    ) -> None:
        if isinstance(on_corrupt, str) and on_corrupt not in {FAIL, SKIP}:
            raise InvalidRequestError(f"on_corrupt is {FAIL}, {SKIP} or a function, not {on_corrupt!r}")
        self._topic = topic.name
        self._shard = shard
        self._limit_bytes = plain_limit(topic.config)
        self._on_corrupt = on_corrupt
        self._count = count

    async def decode(self, chunk: memoryview) -> AsyncGenerator[list[Record], None]:
        """The records of a chunk: those before a batch that cannot be read, then what becomes of it, then the others.

        Raises CorruptBatchError with topic, shard and offset.
        """
        records, bad = decode_what_can_be(chunk, self._limit_bytes, self._shard)
        at = 0
        for one in bad:
            until = bisect_left(records, one.offset, at, key=attrgetter("offset"))
            if until > at:
                yield records[at:until]
                at = until
            if self._on_corrupt == FAIL:
                raise placed(self._topic, self._shard, one.offset, one.error) from one.error
            if callable(self._on_corrupt):
                told = self._on_corrupt(unreadable(self._topic, self._shard, one))
                if inspect.isawaitable(told):
                    await told
            self._count()
        yield records[at:] if at else records

    def within(self, records: list[Record], start: int, end: int | None) -> list[Record] | None:
        """Those with start <= offset < end; None without any."""
        if records and (records[0].offset < start or (end is not None and records[-1].offset >= end)):
            records = [r for r in records if r.offset >= start and (end is None or r.offset < end)]
        return records or None

    def archived(self, batch: "pa.RecordBatch") -> list[Record]:
        """Rows of an archived file, as records."""
        from antiphon.archive.files import as_records

        return as_records(batch, self._shard)
