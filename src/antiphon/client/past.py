"""Reading a table as of an offset or a time: the client folds a shard's log, or takes back what has changed since
(`model.past`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Final

from antiphon.client.log_reader import LATEST, list_offset, read_batches
from antiphon.client.table_core import TableCore
from antiphon.client.table_scan import SCAN_ROWS, RangeScan
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import KeyRanges, ShardMeta, TopicMeta, key_hash
from antiphon.model.past import Bounds, PastRows, Wanted, bounds_of, check_whole, rows_as_of
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row

AsOf = int | Mapping[int, int] | datetime
"""An exclusive end of the log of a table with one shard (of the key's shard), one by shard, or a time with a time zone."""

MULTI: Final = "multi"


class _Shard:
    """One shard of a table: a `PastSource`. `keys`: from the first to before the second; an empty second: to the end."""

    def __init__(self, core: TableCore, shard_id: int, keys: tuple[bytes, bytes], timeout_s: float) -> None:
        self._core = core
        self._shard_id = shard_id
        self._keys = keys
        self._timeout_s = timeout_s

    async def _meta(self) -> tuple[TopicMeta, ShardMeta]:
        topic = await self._core.described_by()
        return topic, next(one for one in topic.shards if one.shard_id == self._shard_id)

    async def bounds(self) -> Bounds:
        """See PastSource."""
        found = await list_offset(self._core.cluster, self._shard_id, LATEST, self._timeout_s)
        topic, shard = await self._meta()
        return bounds_of(topic, shard, found.log_start, found.high_watermark)

    def log(self, start: int, end: int) -> AsyncIterator[memoryview]:
        """See PastSource."""
        return read_batches(
            self._core.cluster,
            self._shard_id,
            start,
            end,
            isolation="read_uncommitted",
            timeout_s=self._timeout_s,
        )

    async def now(self) -> Iterable[Row]:
        """See PastSource."""
        topic, shard = await self._meta()
        request = TableScan(-1, *self._keys, SCAN_ROWS)
        hashes = KeyRanges(topic.shards).range_of(shard)
        scan = RangeScan(self._core.cluster, self._core.ranges, hashes, request, self._timeout_s)
        found: list[Row] = []
        while scan.more:
            await scan.load()
            found += scan.rows
        return found


def _check_single_writer(topic: TopicMeta) -> None:
    if topic.config.get("writers") == MULTI:
        raise InvalidRequestError(
            f"every replica of table {topic.name!r} takes writes, so there is no one order of its changes: only its state "
            "of now can be read"
        )


async def row_as_of(core: TableCore, key: bytes, as_of: AsOf, timeout_s: float) -> Row | None:
    """The row of a key as of an offset of its shard, or None. See `AsyncTable.find`."""
    topic = await core.described_by()
    _check_single_writer(topic)
    if isinstance(as_of, datetime):  # the key may have been another shard's then
        rows = await rows_of_table_as_of(core, key, key + b"\x00", as_of, timeout_s)
        return rows[0] if rows else None
    shard = KeyRanges(topic.shards).shard_of(key)
    offset = as_of if isinstance(as_of, int) else as_of.get(shard.index)
    if offset is None:
        raise InvalidRequestError(f"key {key!r} belongs to shard {shard.index}, for which no offset is given")
    _check_offset(topic, shard.index, offset)
    source = _Shard(core, shard.shard_id, (key, key + b"\x00"), timeout_s)
    found = await rows_as_of(source, shard.index, offset, Wanted(key.__eq__))
    first, last = found.hashes
    if not first <= key_hash(key) <= last:
        raise InvalidRequestError(
            f"key {key!r} was another shard's than {shard.index} as of offset {offset}: the table was split; give as_of by "
            "shard, or an offset of the shard that has the key now"
        )
    return found.rows.get(key)


async def rows_of_table_as_of(
    core: TableCore, start: bytes, end: bytes, as_of: AsOf, timeout_s: float
) -> list[Row]:
    """Rows with start <= key < end in the order of keys, as of offsets. See `AsyncTable.scan`."""
    topic = await core.described_by()
    _check_single_writer(topic)
    wanted = Wanted(lambda key: key >= start and (not end or key < end))
    if isinstance(as_of, datetime):
        as_of = await _ends_at(core, topic, as_of, timeout_s)
    offsets = _by_shard(topic, as_of)
    sources = {
        index: _Shard(core, topic.shards[index].shard_id, (start, end), timeout_s) for index in offsets
    }
    found: list[PastRows] = await asyncio.gather(
        *(rows_as_of(sources[index], index, offset, wanted) for index, offset in offsets.items())
    )
    check_whole(dict(zip(offsets, [one.hashes for one in found], strict=True)), topic.name)
    return sorted((row for one in found for row in one.rows.values()), key=lambda row: row.key)


async def _ends_at(core: TableCore, topic: TopicMeta, time: datetime, timeout_s: float) -> dict[int, int]:
    """Where the shards' logs ended at a time: what happened in that millisecond belongs to it.

    A shard that was split off later is left out. Raises InvalidRequestError for a time without a time zone.
    """
    if time.tzinfo is None:
        raise InvalidRequestError(
            f"as_of is a time with a time zone, such as datetime.now(UTC), and {time.isoformat()} has none"
        )
    after_ms = max(0, int(time.timestamp() * 1000) + 1)

    async def end_of(shard: ShardMeta) -> int:
        found = await list_offset(core.cluster, shard.shard_id, after_ms, timeout_s)
        return found.offset if found.offset >= 0 else found.high_watermark

    ends = await asyncio.gather(*(end_of(shard) for shard in topic.shards))
    return {shard.index: end for shard, end in zip(topic.shards, ends, strict=True) if end >= shard.own_start}


def _by_shard(topic: TopicMeta, as_of: int | Mapping[int, int]) -> dict[int, int]:
    if not isinstance(as_of, int | Mapping):
        raise InvalidRequestError(f"as_of is an offset, offsets by shard or a datetime, not {as_of!r}")
    if isinstance(as_of, int):
        if len(topic.shards) > 1:
            raise InvalidRequestError(
                f"table {topic.name!r} has {len(topic.shards)} shards, each with offsets of its own: give an offset for "
                f"each, such as as_of={{0: {as_of}, 1: {as_of}}}"
            )
        as_of = {0: as_of}
    for index, offset in as_of.items():
        _check_offset(topic, index, offset)
    return dict(as_of)


def _check_offset(topic: TopicMeta, index: int, offset: int) -> None:
    if not 0 <= index < len(topic.shards):
        raise InvalidRequestError(f"{topic.name!r} has shards 0 to {len(topic.shards) - 1}, not {index}")
    if offset < 0:
        raise InvalidRequestError(
            f"as_of is an offset of the shard's log, from 0 on, and not {offset}: what is there before it is seen"
        )
