"""One shard of a table as of an offset, for one answer: what is read and kept of its log is bounded."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from antiphon.errors import LimitReachedError
from antiphon.http.api.call import Call
from antiphon.http.pages.asking import BEGINNING
from antiphon.model.metadata import ShardMeta, TopicMeta
from antiphon.model.past import Bounds, bounds_of
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row
from antiphon.records.batch import iter_batches

PIECE_BYTES: Final = 64 * 1024  # decoding it holds the event loop
READ_BYTES_MAX: Final = 16 * 1024 * 1024  # of a log, for one answer
ROWS_MAX: Final = 10_000  # of now, that changes are taken back from
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024  # of changes, for one answer
ELSEWHERE: Final = (
    "read it with the client (table.get(key, as_of=...), table.scan(as_of=...)) or Spark (asOfOffset)"
)


class ShardPast:
    """A `PastSource`. `keys`: from the first to before the second; an empty second: to the end."""

    def __init__(self, call: Call, topic: TopicMeta, shard: ShardMeta, keys: tuple[bytes, bytes]) -> None:
        self._call = call
        self._topic = topic
        self._shard = shard
        self._keys = keys
        self._left_bytes = READ_BYTES_MAX

    async def bounds(self) -> Bounds:
        """See PastSource."""
        found = await self._call.asker.offset_at(self._shard.shard_id, BEGINNING)
        return bounds_of(self._topic, self._shard, found.log_start, found.high_watermark)

    async def log(self, start: int, end: int) -> AsyncIterator[memoryview]:
        """See PastSource. Raises LimitReachedError where that is too much for one answer."""
        at = start
        while at < end:
            piece = await self._call.asker.raw_piece(self._shard.shard_id, at, PIECE_BYTES)
            self._left_bytes -= len(piece.batches)
            if self._left_bytes < 0:
                raise LimitReachedError(
                    f"the log of {self._topic.name}/{self._shard.index} has more than {READ_BYTES_MAX} bytes to read for "
                    f"this, which is too much for one answer: {ELSEWHERE}",
                    limit=READ_BYTES_MAX,
                )
            for header, _ in iter_batches(piece.batches):
                at = header.next_offset
            if not len(piece.batches):
                return
            yield piece.batches
            await asyncio.sleep(0)  # others first

    async def now(self) -> Iterable[Row]:
        """See PastSource. Raises LimitReachedError where there are too many."""
        found: list[Row] = []
        start, end = self._keys
        while True:
            reply = await self._call.asker.rows(TableScan(self._shard.shard_id, start, end))
            some = [row for row in reply.rows if row is not None]
            found += some
            if not reply.more or not some:
                return found
            if len(found) >= ROWS_MAX:
                raise LimitReachedError(
                    f"more than {ROWS_MAX} rows are to be looked at for this: name a key or a longer prefix, or "
                    + ELSEWHERE,
                    limit=ROWS_MAX,
                )
            start = some[-1].key + b"\x00"
