"""A table, asynchronously: put, get, delete, scan, watch."""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any, Final

from antiphon.client.cluster import Cluster
from antiphon.client.handles import Handle, PerShard
from antiphon.client.hashing import as_bytes, shard_of_table_key
from antiphon.client.pipeline import Item
from antiphon.client.table_reader import TableReader
from antiphon.client.table_writer import BYTES_PER_REQUEST, TableWriter
from antiphon.client.watch import Watch
from antiphon.errors import BatchTooLargeError, InvalidRequestError, KeyNotFoundError, ProtocolViolationError
from antiphon.wire.metadata import Kind, TopicMeta
from antiphon.wire.requests import Delete, DeleteRange, Put, Row, TableOp, TableRows, TableScan, Version

ABSENT: Final = -1
"""Expected version of a key that must not be there."""
OP_OVERHEAD_BYTES: Final = 64
SCAN_ROWS: Final = 1000
RANGE_PIECE_KEYS: Final = 1000
RANGE_PIECE_BYTES: Final = 128 * 1024
CONSISTENCIES: Final = ("linearizable", "leader", "local")

Key = str | bytes
Value = str | bytes


class AsyncTable(Handle):
    """Keys, values and versions, cut into shards by key. `await client.table(name)` makes one that exists for sure."""

    kind: Kind | None = Kind.TABLE

    def __init__(self, cluster: Cluster, name: str, timeout_s: float) -> None:
        super().__init__(cluster, name, timeout_s)
        self._writers: dict[int, TableWriter] = {}
        self._readers: dict[str, PerShard[TableReader]] = {
            consistency: PerShard(partial(_reader, cluster, consistency)) for consistency in CONSISTENCIES
        }

    # -- writing ------------------------------------------------------------------------------------------------

    def put(
        self, key: Key, value: Value, *, expected_version: int | None = None, timeout_s: float | None = None
    ) -> "asyncio.Future[Version]":
        """Set a key; the future gets the new version when it is durable and committed.

        With `expected_version` only if the key has that version id, or is not there (`ABSENT`). Puts that are made without
        waiting in between travel together. Repeats after lost connections or fail-overs are recognised by the node: a put is
        never applied twice.

        Raises (when awaited) VersionMismatchError (expected, actual), UnknownTopicError, InvalidRequestError, and
        TimedOutError after `timeout_s` (its text says whether the outcome is unknown).
        """
        key = as_bytes(key, "key")
        return self._write(key, Put(key, as_bytes(value, "value"), expected_version), timeout_s)

    def delete(
        self, key: Key, *, expected_version: int | None = None, timeout_s: float | None = None
    ) -> "asyncio.Future[None]":
        """Remove a key; raises (when awaited) KeyNotFoundError when it is not there, VersionMismatchError."""
        key = as_bytes(key, "key")
        return self._write(key, Delete(key, expected_version), timeout_s)

    async def delete_range(self, start: Key, end: Key, *, timeout_s: float | None = None) -> None:
        """Remove every key with start <= key < end in byte order; an empty end means to the end.

        Each shard does so atomically, the shards each on its own; where the removals do not fit in one batch
        (`max.message.bytes`), the shard does it piece by piece.
        """
        op = DeleteRange(as_bytes(start, "key"), as_bytes(end, "key"))
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        await asyncio.gather(
            *(self._delete_range_in(meta, shard.shard_id, op, deadline) for shard in meta.shards)
        )

    async def _delete_range_in(
        self, meta: TopicMeta, shard_id: int, op: DeleteRange, deadline: float
    ) -> None:
        with contextlib.suppress(BatchTooLargeError, InvalidRequestError):
            await self._add(meta, shard_id, op, deadline, alone=True)
            return
        start: bytes | None = op.start
        while start is not None:
            scan = _ShardScan(
                self._cluster,
                TableScan(shard_id, start, op.end, RANGE_PIECE_KEYS, include_value=False),
                max(0.001, deadline - self._loop.time()),
            )
            await scan.load()
            if not scan.rows:
                return
            end, following = _piece(scan.rows, op.end, more=scan.more)
            await self._add(meta, shard_id, DeleteRange(start, end), deadline, alone=True)
            start = following

    def _write(self, key: bytes, op: TableOp, timeout_s: float | None) -> "asyncio.Future[Any]":
        deadline = self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        meta = self._known()
        if meta is None:
            return self._loop.create_task(self._write_later(key, op, deadline))
        shards = meta.shards
        return self._add(meta, shards[shard_of_table_key(key, len(shards))].shard_id, op, deadline)

    async def _write_later(self, key: bytes, op: TableOp, deadline: float) -> Any:
        meta = await self._resolved()
        shard_id = meta.shards[shard_of_table_key(key, len(meta.shards))].shard_id
        return await self._add(meta, shard_id, op, deadline)

    def _add(
        self, meta: TopicMeta, shard_id: int, op: TableOp, deadline: float, *, alone: bool = False
    ) -> "asyncio.Future[Any]":
        writer = self._writers.get(shard_id)
        if writer is None:
            limit = int(meta.config.get("max.message.bytes", BYTES_PER_REQUEST * 2))
            writer = self._writers[shard_id] = TableWriter(self._cluster, shard_id, limit // 2)
        future: asyncio.Future[Any] = self._loop.create_future()
        item = Item(op, _size_bytes(op), deadline, future)
        item.alone = alone
        if writer.full:
            return self._loop.create_task(_add_later(writer, item))
        writer.add(item)
        return future

    # -- reading ------------------------------------------------------------------------------------------------

    async def get(
        self, key: Key, *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> Row:
        """The row of a key: `value` (bytes) and `version`. Raises KeyNotFoundError when it is not there.

        Consistency: "linearizable" (sees every put that was acknowledged before), "leader" (the same unless the leader was
        just deposed; saves it a round to the others).
        """
        row = await self.find(key, consistency=consistency, timeout_s=timeout_s)
        if row is None:
            raise KeyNotFoundError(f"key {key!r} is not in table {self.name!r}")
        return row

    async def find(
        self, key: Key, *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> Row | None:
        """The row of a key, or None when it is not there."""
        key = as_bytes(key, "key")
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        return await self._ask(meta, key, consistency, deadline)

    async def get_many(
        self, keys: Iterable[Key], *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> list[Row | None]:
        """The rows of several keys in their order, None where a key is not there."""
        wanted = [as_bytes(key, "key") for key in keys]
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        return await asyncio.gather(*(self._ask(meta, key, consistency, deadline) for key in wanted))

    def _ask(
        self, meta: TopicMeta, key: bytes, consistency: str, deadline: float
    ) -> "asyncio.Future[Row | None]":
        readers = self._readers.get(consistency)
        if readers is None:
            raise InvalidRequestError(
                f"consistency is one of {', '.join(CONSISTENCIES)}, not {consistency!r}"
            )
        shards = meta.shards
        shard_id = shards[shard_of_table_key(key, len(shards))].shard_id
        future: asyncio.Future[Row | None] = self._loop.create_future()
        readers[shard_id].add(Item(key, len(key), deadline, future))
        return future

    async def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        include_value: bool = True,
        consistency: str = "linearizable",
        timeout_s: float | None = None,
    ) -> AsyncIterator[Row]:
        """Rows with start <= key < end in byte order over all shards; an empty end means to the end.

        Rows come in pages of up to 1,000 per shard; each page is of one moment, the whole is not. `timeout_s` bounds each
        page.
        """
        first, stop = as_bytes(start, "key"), as_bytes(end, "key")
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        meta = await self._resolved()
        scans = [
            _ShardScan(
                self._cluster,
                TableScan(shard.shard_id, first, stop, SCAN_ROWS, include_value, consistency),
                timeout_s,
            )
            for shard in meta.shards
        ]
        await asyncio.gather(*(scan.load() for scan in scans))
        heads = [(scan.rows[0].key, at) for at, scan in enumerate(scans) if scan.rows]
        heapq.heapify(heads)
        while heads:
            _, at = heads[0]
            yield scans[at].take()
            head = await scans[at].head()
            if head is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (head.key, at))

    async def list(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        timeout_s: float | None = None,
    ) -> "list[bytes]":
        """Keys with start <= key < end in byte order over all shards."""
        rows = self.scan(start, end, include_value=False, consistency=consistency, timeout_s=timeout_s)
        return [row.key async for row in rows]

    def watch(self, *, start: int | Sequence[int] = -1, shard: int | None = None) -> Watch:
        """Follow the table: `async for change in table.watch()`.

        Changes of one shard come in the order of its log, once each, after they are committed; those of different shards in
        any order. `start` is -1 (from now on), -2 (all that is in the log), an offset, or one offset per shard. "From now
        on" is fixed when the first change is asked for, or in `async with table.watch() as changes` when the block begins.
        """
        return Watch(self._cluster, self._resolved, self._start_of, start, shard)

    async def close(self) -> None:
        """Fail what is not answered. The client does this for all its handles."""
        for readers in self._readers.values():
            for reader in list(readers.parts.values()):
                await reader.close()
        for writer in list(self._writers.values()):
            await writer.close()


class _ShardScan:
    """Pages of one shard's rows."""

    def __init__(self, cluster: Cluster, request: TableScan, timeout_s: float) -> None:
        self._cluster = cluster
        self._request = request
        self._timeout_s = timeout_s
        self.more = True
        self._at = 0
        self.rows: Sequence[Row] = ()

    async def load(self) -> None:
        """Get the next page, or none when there is nothing more."""
        request = self._request
        reply, _ = await self._cluster.call_shard(request.shard_id, request, timeout_s=self._timeout_s)
        if not isinstance(reply, TableRows):
            raise ProtocolViolationError(f"asked for rows, got {type(reply).__name__}")
        self.rows = [row for row in reply.rows if row is not None]
        self.more, self._at = reply.more and bool(self.rows), 0
        if self.rows:
            self._request = TableScan(
                request.shard_id,
                self.rows[-1].key + b"\x00",
                request.end,
                request.limit,
                request.include_value,
                request.consistency,
            )

    def take(self) -> Row:
        self._at += 1
        return self.rows[self._at - 1]

    async def head(self) -> Row | None:
        if self._at == len(self.rows) and self.more:
            await self.load()
        return self.rows[self._at] if self._at < len(self.rows) else None


async def _add_later(writer: TableWriter, item: Item) -> Any:
    await writer.room(item.deadline)
    writer.add(item)
    return await item.future


def _piece(rows: Sequence[Row], end: bytes, *, more: bool) -> tuple[bytes, bytes | None]:
    """Where a piece of a range ends that removes some of `rows`, and where the next one starts (None: no next one)."""
    size_bytes = 0
    for row in rows:
        size_bytes += OP_OVERHEAD_BYTES + len(row.key)
        if size_bytes > RANGE_PIECE_BYTES and row is not rows[0]:
            return row.key, row.key
    if more:
        following = rows[-1].key + b"\x00"
        return following, following
    return end, None


def _reader(cluster: Cluster, consistency: str, shard_id: int) -> TableReader:
    return TableReader(cluster, shard_id, consistency)


def _size_bytes(op: TableOp) -> int:
    if type(op) is Put:
        return OP_OVERHEAD_BYTES + len(op.key) + len(op.value)
    return OP_OVERHEAD_BYTES
