"""A table, asynchronously: put, get, delete, scan, watch."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Generic, Literal, overload

import msgspec

from antiphon.client.arrow_calls import TableArrow
from antiphon.client.cluster import Cluster
from antiphon.client.given import Expected, expected_id, key_range
from antiphon.client.hashing import as_bytes
from antiphon.client.past import AsOf, row_as_of, rows_of_table_as_of
from antiphon.client.session import AsyncSession, put_under
from antiphon.client.table_core import TableCore
from antiphon.client.table_scan import SCAN_ROWS
from antiphon.client.transaction import Operation, Results, Transaction
from antiphon.client.values import Values
from antiphon.client.watch import Watch
from antiphon.errors import KeyNotFoundError
from antiphon.model.metadata import Kind
from antiphon.model.requests import Delete, DeleteRange, Put, TableScan
from antiphon.model.rows import Row, Version
from antiphon.model.sessions import PutEphemeral
from antiphon.records.value_type import ValueT

ABSENT: Final = -1
"""Expected version of a key that must not be there."""

Key = str | bytes
Value = str | bytes


class AsyncTable(TableArrow, Generic[ValueT]):
    """Keys, values and versions, cut into shards by key. `await client.table(name)` checks that it exists.

    `AsyncTable` has values of bytes. A table with a codec, `client.table(name, type=Order)`, is an `AsyncTable[Order]`:
    puts take an Order, and rows and changes have one. BadRecordError says key and type where a value cannot be decoded.
    """

    kind: Kind | None = Kind.TABLE

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        timeout_s: float,
        core: TableCore | None = None,
        values: Values[ValueT] | None = None,
    ) -> None:
        """`core`: what the client's handles of this table share. `values` of None: values are bytes."""
        super().__init__(cluster, name, timeout_s)
        self.core = core or TableCore(cluster, name, timeout_s)
        self.places = self.core.places
        self.values = values

    # -- writing ------------------------------------------------------------------------------------------------

    def transaction(self) -> Transaction[ValueT]:
        """Several puts and deletes that are carried out together or not at all; all keys must belong to one shard.

        Use: `async with table.transaction() as t: t.put(...); t.delete(...)`. See `write` for what it raises.
        """
        return Transaction(self.write, self.places, values=self.values)

    async def write(self, operations: Sequence[Operation], *, timeout_s: float | None = None) -> Results:
        """Carry out puts and deletes of keys of one shard, in order, all of them or none; returns the puts' versions.

        Raises VersionMismatchError or KeyNotFoundError for the first refused operation (`details["operation"]` is its
        place from 0). Nothing was written then, and the order of the operations does not matter. Raises
        InvalidRequestError for keys of different shards. A repeat after a lost connection or a fail-over is recognised:
        it is never carried out twice. The operations hold bytes, whatever codec the table has.
        """
        return await self.core.together(operations, timeout_s)

    @overload
    def put(
        self: "AsyncTable[bytes]",
        key: Key,
        value: Value,
        *,
        expected_version: Expected = None,
        session: AsyncSession | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[Version]": ...

    @overload
    def put(
        self,
        key: Key,
        value: ValueT,
        *,
        expected_version: Expected = None,
        session: AsyncSession | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[Version]": ...

    def put(
        self,
        key: Key,
        value: Value | ValueT,
        *,
        expected_version: Expected = None,
        session: AsyncSession | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[Version]":
        """Set a key; the future gets the new version when it is durable and committed.

        With `expected_version` only if the key has that version (`row.version`, or its id), or does not exist (`ABSENT`).
        Puts that are made without waiting in between are sent together (all of them are kept in memory). Puts of one key
        are carried out in the order in which they were made, over fail-overs and splits. The node recognises repeats after
        lost connections or fail-overs: a put is never applied twice.

        Under a `session` the row is removed when the session ends, unless anybody has put the key again. The first put
        under it in a shard waits until it is open there; puts without it may go before that one.

        Raises (when awaited) VersionMismatchError (expected, actual), UnknownTopicError, InvalidRequestError, and
        TimedOutError after `timeout_s` (its text says whether the outcome is unknown). SessionNotFoundError: the
        session has ended, and nothing was put.
        """
        key = as_bytes(key, "key")
        expected = None if expected_version is None else expected_id(expected_version)
        given: Any = value
        data = as_bytes(given, "value") if self.values is None else self.values.encode(key, given)
        if session is None:
            return self.core.write(key, Put(key, data, expected), timeout_s)
        op = PutEphemeral(key, data, session.id, expected)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return put_under(session, self.places, op, limit_s, self.core.is_ready)

    def delete(
        self, key: Key, *, expected_version: Expected = None, timeout_s: float | None = None
    ) -> "asyncio.Future[None]":
        """Remove a key; raises (when awaited) KeyNotFoundError when it is not there, VersionMismatchError."""
        key = as_bytes(key, "key")
        return self.core.write(key, Delete(key, expected_id(expected_version)), timeout_s)

    async def delete_range(self, start: Key, end: Key, *, timeout_s: float | None = None) -> None:
        """Remove every key with start <= key < end in byte order; an empty end means to the end.

        Each shard removes its keys atomically and independently of the others. If the removals do not fit in one batch
        (`max.message.bytes`), the shard removes them piece by piece.
        """
        await self.core.delete_range(DeleteRange(as_bytes(start, "key"), as_bytes(end, "key")), timeout_s)

    # -- reading ------------------------------------------------------------------------------------------------

    async def get(
        self,
        key: Key,
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Row[ValueT]:
        """The row of a key: `value` and `version`. Raises KeyNotFoundError if it does not exist.

        Consistency: "linearizable" (sees every put that was acknowledged before), "leader" (the same unless the leader
        was just deposed; saves the round to the other replicas).

        With `as_of` the row as it was when the log of the key's shard ended at that offset (`offsets(shard)` tells where it
        ends now), or at a time (a `datetime` with a time zone; what happened in that millisecond belongs to it). The client
        reads the part of the log that it takes. Raises OffsetOutOfRangeError where the log ends before that, or does not
        have any more what was there; its details say from which offset on (`start`) it has.
        """
        row = await self.find(key, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        if row is None:
            then = "" if as_of is None else f" as of {'offset ' if isinstance(as_of, int) else ''}{as_of}"
            raise KeyNotFoundError(f"key {key!r} is not in table {self.name!r}{then}")
        return row

    async def find(
        self,
        key: Key,
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Row[ValueT] | None:
        """The row of a key, or None when it is not there. See `get`."""
        key = as_bytes(key, "key")
        row: Any
        if as_of is not None:
            limit_s = self._timeout_s if timeout_s is None else timeout_s
            row = await row_as_of(self.core, key, as_of, limit_s)
            return row if row is None or self.values is None else self.values.row(row)
        deadline = self._deadline(timeout_s)
        if not self.core.is_known:
            await self.core.ready()
        row = await self.core.reads.ask(key, self.core.ranges(), consistency, deadline)
        return row if row is None or self.values is None else self.values.row(row)

    async def get_many(
        self, keys: Iterable[Key], *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> list[Row[ValueT] | None]:
        """The rows of several keys in their order, None where a key is not there."""
        wanted = [as_bytes(key, "key") for key in keys]
        deadline = self._deadline(timeout_s)
        if not self.core.is_known:
            await self.core.ready()
        ask, ranges = self.core.reads.ask, self.core.ranges()
        rows: Any = await asyncio.gather(*(ask(key, ranges, consistency, deadline) for key in wanted))
        if self.values is not None:
            rows = [None if row is None else self.values.row(row) for row in rows]
        found: list[Row[ValueT] | None] = rows
        return found

    @overload
    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        include_value: Literal[True] = True,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Row[ValueT]]: ...

    @overload
    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        include_value: bool,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Row[ValueT | None]]: ...

    async def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        include_value: bool = True,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Row[ValueT | None]]:
        """Rows with start <= key < end in byte order over all shards; an empty end means to the end.

        With `prefix` the rows whose keys begin with it, in place of a start and an end.

        Rows arrive in pages of up to 1,000 per shard. Each page is from one moment; the whole result is not.
        `timeout_s` bounds each page.

        With `as_of` the rows as they were at a time (see `get`), or when the logs ended at these offsets: one, of a table
        with one shard, or one by shard (shards that were split off later left out), which is one moment of the table if the
        offsets are of one. All of them are in memory then; `timeout_s` bounds each request. See `get` for what it reads and
        raises.
        """
        values = self.values
        first, stop = key_range(as_bytes(start, "key"), as_bytes(end, "key"), as_bytes(prefix, "prefix"))
        row: Any
        if as_of is not None:
            limit_s = self._timeout_s if timeout_s is None else timeout_s
            for row in await rows_of_table_as_of(self.core, first, stop, as_of, limit_s):
                row = row if include_value else msgspec.structs.replace(row, value=None)
                yield row if values is None else values.row(row)
            return
        request = TableScan(-1, first, stop, SCAN_ROWS, include_value, consistency)
        scans = await self.core.scans(request, self._timeout_s if timeout_s is None else timeout_s)
        await asyncio.gather(*(scan.load() for scan in scans))
        heads = [(scan.rows[0].key, at) for at, scan in enumerate(scans) if scan.rows]
        heapq.heapify(heads)
        while heads:
            _, at = heads[0]
            row = scans[at].take()
            yield row if values is None else values.row(row)
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
        prefix: Key = b"",
        consistency: str = "linearizable",
        timeout_s: float | None = None,
    ) -> "list[bytes]":
        """Keys with start <= key < end, or that begin with `prefix`, in byte order over all shards."""
        rows = self.scan(
            start, end, prefix=prefix, include_value=False, consistency=consistency, timeout_s=timeout_s
        )
        return [row.key async for row in rows]

    def watch(self, *, start: int | Sequence[int] = -1, shard: int | None = None) -> Watch[ValueT]:
        """Follow the table: `async for change in table.watch()`.

        Changes of one shard come in the order of its log, once each, after they are committed; those of different shards in
        any order. `start` is -1 (from now on), -2 (all that is in the log), an offset, or one offset per shard. "From now
        on" is fixed when the first change is asked for, or in `async with table.watch() as changes` when the block begins.

        Raises OffsetOutOfRangeError (`details`: shard, asked, start) where a log was trimmed before all of it was delivered:
        changes from `asked` to before `start` are gone, and what was delivered comes before them. Scan the table, or go on
        with a new watch at `start` of that shard.
        """
        return Watch(self._cluster, self._resolved, self._start_of, start, shard, values=self.values)

    async def close(self) -> None:
        """Fail what is not answered. The client does this for all its tables."""
        await self.core.close()
