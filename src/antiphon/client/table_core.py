"""What all handles of a table share: which shard holds which keys, writes on their way, reads of keys."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from antiphon.client.cluster import Cluster
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.handles import Handle
from antiphon.client.handover import Handover
from antiphon.client.key_reads import KeyReads
from antiphon.client.pipeline import Item, Request, fail_items
from antiphon.client.session import TablePlaces
from antiphon.client.table_scan import RangeScan, range_piece
from antiphon.client.table_writer import (
    BYTES_PER_REQUEST,
    OP_OVERHEAD_BYTES,
    TableWriter,
    Together,
    refusal,
    size_of_op,
)
from antiphon.client.tasks import begin_task, end_tasks
from antiphon.client.transaction import Operation, Results
from antiphon.errors import AntiphonError, BatchTooLargeError, InvalidRequestError, WrongShardError
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.metadata import KeyRanges, Kind, TopicMeta
from antiphon.model.requests import DeleteRange, OpResult, OpStatus, TableOp, TableScan

RANGE_PIECE_KEYS: Final = 1000


class TableCore(Handle):
    """A client has one for each table, so writes of all handles of the table go in the order in which they were made."""

    kind: Kind | None = Kind.TABLE

    def __init__(self, cluster: Cluster, name: str, timeout_s: float) -> None:
        super().__init__(cluster, name, timeout_s)
        self._writers: dict[int, TableWriter] = {}
        self._ranges = KeyRanges(())
        self.places = TablePlaces(self.ranges, self.ready, self.write)
        self._handover: Handover | None = None  # while writes to shards that took keys over have to wait
        self._early: list[Item] = []  # made before the table's metadata was known, and those behind them
        self._tasks: set[asyncio.Task[None]] = set()
        self.reads = KeyReads(cluster, self.ranges, self._tasks)

    async def ready(self) -> None:
        """Return when the table's shards are known. Raises UnknownTopicError, WrongKindError."""
        if self._known() is None:
            await self._resolved()

    async def described_by(self) -> TopicMeta:
        """The table's metadata. Raises UnknownTopicError, WrongKindError."""
        return self._known() or await self._resolved()

    @property
    def cluster(self) -> Cluster:
        """The connections to the nodes."""
        return self._cluster

    @property
    def is_known(self) -> bool:
        """Are the table's shards known?"""
        return self._known() is not None

    @property
    def is_ready(self) -> bool:
        """Would a write be sent at once?"""
        return not self._early and self._known() is not None

    def ranges(self) -> KeyRanges:
        """What the shards hold, by the newest metadata."""
        self._known()
        return self._ranges

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
        return None if isinstance(op, DeleteRange | DeleteOrdered) else self._ranges.shard_of(op.key).shard_id

    def bounds_of(self, shard_id: int) -> tuple[int, ...]:
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
            if any(isinstance(op, DeleteRange | DeleteOrdered) for op in ops):
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

    async def together(self, operations: Sequence[Operation], timeout_s: float | None) -> Results:
        """Carry out operations on keys of one shard, all of them or none. See `AsyncTable.write`."""
        deadline = self._deadline(timeout_s)
        await self.ready()
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

    async def delete_range(self, op: DeleteRange, timeout_s: float | None) -> None:
        """Remove a range of keys. See `AsyncTable.delete_range`."""
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        ranges = self._ranges
        await asyncio.gather(
            *(self._delete_range_in(ranges.range_of(shard), op, deadline) for shard in meta.shards)
        )

    async def _delete_range_in(self, hashes: tuple[int, int], op: DeleteRange, deadline: float) -> None:
        """Remove the keys of a range whose hashes are among these, from whatever shards hold them."""

        async def attempt() -> None:
            parts = self.ranges().within(*hashes)
            if len(parts) == 1:
                await self._delete_range_of(parts[0].shard_id, hashes, op, deadline)
                return
            await asyncio.gather(
                *(self._delete_range_in(self._ranges.range_of(part), op, deadline) for part in parts)
            )

        await self._cluster.across_splits(attempt, self._cluster.tries_until(deadline))

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
                self.ranges,
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
            Together((op,), hashes=self.bounds_of(shard_id)),
            OP_OVERHEAD_BYTES,
            deadline,
            self._loop.create_future(),
        )
        item.alone = True
        return self._add_item(shard_id, item)

    def write(self, key: bytes, op: TableOp, timeout_s: float | None) -> "asyncio.Future[Any]":
        """Send one operation on its way."""
        item = Item(op, size_of_op(op), self._deadline(timeout_s), self._loop.create_future())
        if not self._early and self._known() is not None:
            return self._add_item(self._ranges.shard_of(key).shard_id, item)
        self._early.append(item)
        if len(self._early) == 1:
            begin_task(self._send_early(), self._tasks)
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
            if problem is not None:
                fail_items(early, problem)
            else:
                for item in early:
                    self._elsewhere(item)

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

    async def scans(self, request: TableScan, timeout_s: float) -> list[RangeScan]:
        """A scan for each shard that there is now. `request` says what to read; `timeout_s` bounds each page."""
        meta = await self._resolved()
        ranges = self._ranges
        return [
            RangeScan(self._cluster, self.ranges, ranges.range_of(shard), request, timeout_s)
            for shard in meta.shards
        ]

    async def close(self) -> None:
        """Fail what is not answered."""
        await end_tasks(*self._tasks)
        await self.reads.close()
        for writer in list(self._writers.values()):
            await writer.close()
        if self._handover is not None:
            self._handover.fail(ClientClosedError("the client was closed before an answer came"))
