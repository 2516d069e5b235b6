"""One shard of a table as of an offset, for one answer: what is read and kept of its log is bounded."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from antiphon.errors import InvalidRequestError, KeyNotFoundError, LimitReachedError
from antiphon.http.api.call import Call
from antiphon.http.pages.asking import BEGINNING
from antiphon.model.metadata import ShardMeta, TopicMeta, is_multi
from antiphon.model.past import Bounds, Wanted, bounds_of, rows_as_of
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row, Version
from antiphon.records.batch import iter_batches
from antiphon.records.changes import Change, decode_changes

PIECE_BYTES: Final = 64 * 1024  # decoding it holds the event loop
READ_BYTES_MAX: Final = 16 * 1024 * 1024  # of a log, for one answer
ROWS_MAX: Final = 10_000  # of now, that changes are taken back from
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024  # of changes, for one answer
ELSEWHERE: Final = (
    "read it with the client (table.get(key, as_of=...), table.scan(as_of=...)) or Spark (asOfOffset)"
)


class ShardPast:
    """A `PastSource`. `keys`: from the first to before the second; an empty second: to the end.

    `share`: how many shards are read for the same answer, which have its bytes among them.
    """

    def __init__(
        self, call: Call, topic: TopicMeta, shard: ShardMeta, keys: tuple[bytes, bytes], share: int = 1
    ) -> None:
        self._call = call
        self._topic = topic
        self._shard = shard
        self._keys = keys
        self._read_max = READ_BYTES_MAX // share
        self._left_bytes = self._read_max

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
                    f"the log of {self._topic.name}/{self._shard.index} has more than {self._read_max} bytes to read for "
                    f"this, which is too much for one answer: {ELSEWHERE}",
                    limit=self._read_max,
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


def check_has_past(topic: TopicMeta) -> None:
    """Raise InvalidRequestError for a table that every replica writes: its changes have no one order."""
    if is_multi(topic):
        raise InvalidRequestError(
            f"every replica of table {topic.name!r} writes, so its changes have no one order and its rows no past: look "
            "at its changes",
        )


async def rows_at(
    call: Call, topic: TopicMeta, shard: ShardMeta, keys: tuple[bytes, bytes], as_of: int, share: int = 1
) -> list[Row]:
    """Rows of one shard by key, as they were when its log ended at an offset. `keys`, `share`: see ShardPast."""
    check_has_past(topic)
    start, end = keys
    wanted = Wanted(lambda key: key >= start and (not end or key < end), KEPT_BYTES_MAX // share)
    found = await rows_as_of(ShardPast(call, topic, shard, keys, share), shard.index, as_of, wanted)
    return sorted(found.rows.values(), key=lambda row: row.key)


async def row_of_version(call: Call, topic: TopicMeta, shard: ShardMeta, key: bytes, version: int) -> Row:
    """The row that a key was when it had a version. Raises KeyNotFoundError where the log does not have that any more."""
    check_has_past(topic)
    source = ShardPast(call, topic, shard, (key, key + b"\x00"))
    bounds = await source.bounds()
    async for piece in source.log(bounds.start, bounds.end):
        for change in decode_changes([piece]):
            if change.key == key and change.version_id == version and change.value is not None:
                return _changed(change, change.value)
    raise KeyNotFoundError(
        f"key {key!r} never had version {version} in what the log of {topic.name}/{shard.index} still has, from offset "
        f"{bounds.start} on",
        start=bounds.start,
    )


def _changed(change: Change, value: bytes) -> Row:
    version = Version(change.version_id, change.modifications, change.created_ms, change.modified_ms)
    return Row(change.key, value, version, change.session_id)
