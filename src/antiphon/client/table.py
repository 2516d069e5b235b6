"""A table, asynchronously: put, get, delete, scan, watch."""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, Final

from antiphon.client.cluster import Cluster, Pauses
from antiphon.client.connection import ClientClosedError
from antiphon.client.handles import Handle
from antiphon.client.handover import Handover
from antiphon.client.hashing import as_bytes
from antiphon.client.key_reads import KeyReads
from antiphon.client.pipeline import Item, Request
from antiphon.client.session import AsyncSession, TablePlaces, put_under
from antiphon.client.table_scan import SCAN_ROWS, RangeScan, range_piece
from antiphon.client.table_writer import (
    BYTES_PER_REQUEST,
    OP_OVERHEAD_BYTES,
    TableWriter,
    Together,
    refusal,
    size_of_op,
)
from antiphon.client.transaction import Operation, Results, Transaction
from antiphon.client.watch import Watch
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    KeyNotFoundError,
    WrongShardError,
)
from antiphon.model.metadata import KeyRanges, Kind, TopicMeta
from antiphon.model.requests import (
    Delete,
    DeleteRange,
    OpResult,
    OpStatus,
    Put,
    Row,
    TableOp,
    TableScan,
    Version,
)
from antiphon.model.sessions import PutEphemeral

ABSENT: Final = -1
"""Expected version of a key that must not be there."""
RANGE_PIECE_KEYS: Final = 1000

Key = str | bytes
Value = str | bytes


class AsyncTable(Handle):
    """Keys, values and versions, cut into shards by key. `await client.table(name)` checks that it exists."""

    kind: Kind | None = Kind.TABLE

    def __init__(self, cluster: Cluster, name: str, timeout_s: float) -> None:
        super().__init__(cluster, name, timeout_s)
        self._writers: dict[int, TableWriter] = {}
        self._ranges = KeyRanges(())
        self.places = TablePlaces(self._current_ranges, self._resolved, self._write)
        self._handover: Handover | None = None  # while writes to shards that took keys over have to wait
        self._early: list[Item] = []  # made before the table's metadata was known, and those behind them
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads = KeyReads(cluster, self._current_ranges, self._start)

    # -- which shard ----------------------------------------------------------------------------------------------

    def _known(self) -> TopicMeta | None:
        before = self._meta
        meta = super()._known()
        if meta is not None and meta is not before:
            old, self._ranges = self._ranges, KeyRanges(meta.shards)
            if (
                before is not None
                and before.topic_id == meta.topic_id
                and len(before.shards) < len(meta.shards)
            ):
                self._shards_were_split(old, before)
        return meta

    def _shards_were_split(self, old: KeyRanges, before: TopicMeta) -> None:
        """Shards took over keys of others: writes to those keys wait for what is open at the others."""
        known = {shard.shard_id for shard in before.shards}
        handover = self._handover
        if handover is None or handover.done:
            handover = self._handover = Handover(self._elsewhere)
        for shard in before.shards:
            fresh = [one for one in self._ranges.within(*old.range_of(shard)) if one.shard_id not in known]
            writer = self._writers.get(shard.shard_id)
            if fresh:
                open_requests, moved = writer.leave() if writer is not None else ([], [])
                handover.extend((one.shard_id for one in fresh), open_requests, moved)
        handover.finish_if_settled()

    def _request_settled(self, request: Request) -> None:
        if self._handover is not None:
            self._handover.settled(request)

    def _route(self, op: TableOp) -> int | None:
        self._known()
        return None if isinstance(op, DeleteRange) else self._ranges.shard_of(op.key).shard_id

    def _bounds(self, shard_id: int) -> tuple[int, ...]:
        """What the shard holds, to be said to it where the table was ever split."""
        if not self._ranges.is_split or self._meta is None:
            return ()
        shard = next((shard for shard in self._meta.shards if shard.shard_id == shard_id), None)
        return () if shard is None else self._ranges.range_of(shard)

    def _elsewhere(self, item: Item) -> None:
        """Send a write on its way that turned out to be another shard's."""
        what = item.what
        if item.future.done():
            return
        try:
            ops = what.ops if type(what) is Together else (what,)
            if any(isinstance(op, DeleteRange) for op in ops):
                raise WrongShardError(
                    "the shard was split"
                )  # whoever asked starts over with what each part holds
            self._add_item(self._one_shard(ops), item)
        except AntiphonError as error:
            item.future.set_exception(error)

    def _one_shard(self, ops: Sequence[TableOp]) -> int:
        shards = {self._route(op) for op in ops}
        found = shards.pop() if len(shards) == 1 else None
        if found is None:
            raise InvalidRequestError(
                f"the keys of a transaction belong to one shard of table {self.name!r}, these belong to {len(shards)}: a "
                "table with one shard takes any"
            )
        return found

    # -- writing ------------------------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Several puts and deletes that are carried out together or not at all; all keys must belong to one shard.

        Use: `async with table.transaction() as t: t.put(...); t.delete(...)`. See `write` for what it raises.
        """
        return Transaction(self.write, self.places)

    async def write(self, operations: Sequence[Operation], *, timeout_s: float | None = None) -> Results:
        """Carry out puts and deletes of keys of one shard, in order, all of them or none; returns the puts' versions.

        Raises VersionMismatchError or KeyNotFoundError for the first refused operation (`details["operation"]` is its
        place from 0). Nothing was written then, and the order of the operations does not matter. Raises
        InvalidRequestError for keys of different shards. A repeat after a lost connection or a fail-over is recognised:
        it is never carried out twice.
        """
        deadline = self._deadline(timeout_s)
        if self._known() is None:
            await self._resolved()
        ops = tuple(operations)
        shard_id = self._one_shard(ops)
        future: asyncio.Future[Sequence[OpResult]] = self._loop.create_future()
        item = Item(Together(ops, True), sum(map(size_of_op, ops)), deadline, future)
        item.alone = True
        results = await self._add_item(shard_id, item)
        for number, (op, result) in enumerate(zip(ops, results, strict=True)):
            if result.status not in {OpStatus.OK, OpStatus.NOT_CARRIED_OUT}:
                error = refusal(op, result)
                error.details["operation"] = number
                raise error
        return [result.version for result in results]

    def put(
        self,
        key: Key,
        value: Value,
        *,
        expected_version: int | None = None,
        session: AsyncSession | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[Version]":
        """Set a key; the future gets the new version when it is durable and committed.

        With `expected_version` only if the key has that version id, or does not exist (`ABSENT`). Puts that are made
        without waiting in between are sent together (all of them are kept in memory). Puts of one key are carried out
        in the order in which they were made, over fail-overs and splits. The node recognises repeats after lost
        connections or fail-overs: a put is never applied twice.

        Under a `session` the row is removed when the session ends, unless anybody has put the key again. The first put
        under it in a shard waits until it is open there; puts without it may go before that one.

        Raises (when awaited) VersionMismatchError (expected, actual), UnknownTopicError, InvalidRequestError, and
        TimedOutError after `timeout_s` (its text says whether the outcome is unknown). SessionNotFoundError: the
        session has ended, and nothing was put.
        """
        key, value = as_bytes(key, "key"), as_bytes(value, "value")
        if session is None:
            return self._write(key, Put(key, value, expected_version), timeout_s)
        op = PutEphemeral(key, value, session.id, expected_version)
        known = not self._early and self._known() is not None
        return put_under(session, self.places, op, self._timeout_s if timeout_s is None else timeout_s, known)

    def delete(
        self, key: Key, *, expected_version: int | None = None, timeout_s: float | None = None
    ) -> "asyncio.Future[None]":
        """Remove a key; raises (when awaited) KeyNotFoundError when it is not there, VersionMismatchError."""
        key = as_bytes(key, "key")
        return self._write(key, Delete(key, expected_version), timeout_s)

    async def delete_range(self, start: Key, end: Key, *, timeout_s: float | None = None) -> None:
        """Remove every key with start <= key < end in byte order; an empty end means to the end.

        Each shard removes its keys atomically and independently of the others. If the removals do not fit in one batch
        (`max.message.bytes`), the shard removes them piece by piece.
        """
        op = DeleteRange(as_bytes(start, "key"), as_bytes(end, "key"))
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        ranges = self._ranges
        await asyncio.gather(
            *(self._delete_range_in(ranges.range_of(shard), op, deadline) for shard in meta.shards)
        )

    async def _delete_range_in(self, hashes: tuple[int, int], op: DeleteRange, deadline: float) -> None:
        """Remove the keys of a range whose hashes are among these, from whatever shards hold them."""
        pauses = Pauses(deadline)
        while True:
            self._known()
            parts = self._ranges.within(*hashes)
            if len(parts) > 1:
                await asyncio.gather(
                    *(self._delete_range_in(self._ranges.range_of(part), op, deadline) for part in parts)
                )
                return
            try:
                await self._delete_range_of(parts[0].shard_id, hashes, op, deadline)
                return
            except WrongShardError as error:
                await self._cluster.learn(error, pauses)

    async def _delete_range_of(
        self, shard_id: int, hashes: tuple[int, int], op: DeleteRange, deadline: float
    ) -> None:
        with contextlib.suppress(BatchTooLargeError, InvalidRequestError):
            await self._add_range(shard_id, op, deadline)
            return
        start: bytes | None = op.start
        while start is not None:
            scan = RangeScan(
                self._cluster,
                self._current_ranges,
                hashes,
                TableScan(shard_id, start, op.end, RANGE_PIECE_KEYS, include_value=False),
                max(0.001, deadline - self._loop.time()),
            )
            await scan.load()
            if not scan.rows:
                return
            end, following = range_piece(scan.rows, op.end, more=scan.more)
            await self._add_range(shard_id, DeleteRange(start, end), deadline)
            start = following

    def _add_range(self, shard_id: int, op: DeleteRange, deadline: float) -> "asyncio.Future[Any]":
        item = Item(
            Together((op,), hashes=self._bounds(shard_id)),
            OP_OVERHEAD_BYTES,
            deadline,
            self._loop.create_future(),
        )
        item.alone = True
        return self._add_item(shard_id, item)

    def _write(self, key: bytes, op: TableOp, timeout_s: float | None) -> "asyncio.Future[Any]":
        item = Item(op, size_of_op(op), self._deadline(timeout_s), self._loop.create_future())
        if not self._early and self._known() is not None:
            return self._add_item(self._ranges.shard_of(key).shard_id, item)
        self._early.append(item)
        if len(self._early) == 1:
            self._start(self._send_early())
        return item.future

    async def _send_early(self) -> None:
        """Send what was written before it was known where to, in order."""
        problem: AntiphonError | None = ClientClosedError("the client was closed before an answer came")
        try:
            await self._resolved()
            problem = None
        except AntiphonError as error:
            problem = error
        finally:
            early, self._early = self._early, []
            for item in early:
                if problem is None:
                    self._elsewhere(item)
                elif not item.future.done():
                    item.future.set_exception(problem)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_item(self, shard_id: int, item: Item) -> "asyncio.Future[Any]":
        handover = self._handover
        if handover is not None:
            if handover.holds_back(shard_id):
                handover.add(item)
                return item.future
            if handover.done:
                self._handover = None
        writer = self._writers.get(shard_id)
        if writer is None:
            writer = self._writers[shard_id] = self._new_writer(shard_id)
        writer.add(item)
        return item.future

    def _new_writer(self, shard_id: int) -> TableWriter:
        config = self._meta.config if self._meta is not None else {}
        limit = int(config.get("max.message.bytes", BYTES_PER_REQUEST * 2))
        return TableWriter(
            self._cluster, shard_id, self._route, self._elsewhere, self._request_settled, limit // 2
        )

    # -- reading ------------------------------------------------------------------------------------------------

    async def get(
        self, key: Key, *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> Row:
        """The row of a key: `value` (bytes) and `version`. Raises KeyNotFoundError if it does not exist.

        Consistency: "linearizable" (sees every put that was acknowledged before), "leader" (the same unless the leader
        was just deposed; saves the round to the other replicas).
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
        if self._known() is None:
            await self._resolved()
        return await self._reads.ask(key, self._ranges, consistency, deadline)

    async def get_many(
        self, keys: Iterable[Key], *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> list[Row | None]:
        """The rows of several keys in their order, None where a key is not there."""
        wanted = [as_bytes(key, "key") for key in keys]
        deadline = self._deadline(timeout_s)
        if self._known() is None:
            await self._resolved()
        return await asyncio.gather(
            *(self._reads.ask(key, self._ranges, consistency, deadline) for key in wanted)
        )

    def _current_ranges(self) -> KeyRanges:
        self._known()
        return self._ranges

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

        Rows arrive in pages of up to 1,000 per shard. Each page is from one moment; the whole result is not.
        `timeout_s` bounds each page.
        """
        first, stop = as_bytes(start, "key"), as_bytes(end, "key")
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        meta = await self._resolved()
        ranges = self._ranges
        scans = [
            RangeScan(
                self._cluster,
                self._current_ranges,
                ranges.range_of(shard),
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

        Raises OffsetOutOfRangeError (`details`: shard, asked, start) where a log was trimmed before all of it was delivered:
        changes from `asked` to before `start` are gone, and what was delivered comes before them. Scan the table, or go on
        with a new watch at `start` of that shard.
        """
        return Watch(self._cluster, self._resolved, self._start_of, start, shard)

    async def close(self) -> None:
        """Fail what is not answered. The client does this for all its handles."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reads.close()
        for writer in list(self._writers.values()):
            await writer.close()
        if self._handover is not None:
            self._handover.fail(ClientClosedError("the client was closed before an answer came"))
