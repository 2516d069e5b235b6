"""Bulk writes to tables, beside everybody else's: each acknowledged row is there at the end."""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError
from antiphon.model.loads import LoadRows
from antiphon.model.metadata import KeyRanges, TopicMeta
from antiphon.model.requests import Put, TableWrite
from antiphon.records.packed_rows import packed
from antiphon.simulation.cluster.drawing import MAIN, Drawn, one_of
from antiphon.simulation.cluster.settle import folded
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload, make_table
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

ROWS: Final = (1, 20)  # of a request
VALUE_BYTES: Final = (10, 2_000)
IN_FLIGHT: Final = 3  # requests of one writer
LOADS: Final = 0.7  # of the requests; the others are operations
ORDERED: Final = "bulk-by-depth"
DEEP: Final = 0.1  # of the keys of the table with an order have slashes


@workload("bulk_writers", 9, Drawn(one_of(0, 0, 2), MAIN, 14))
class BulkWorkload(Workload):
    """Bulk writes of rows, as loads and as operations.

    Checked: each acknowledged row is in the tables' logs. That rows and the order of keys go together is checked of every
    store.

    It writes to a table that another workload has made, and to one of its own with an order of keys.
    """

    def __init__(self, cluster: "SimulatedCluster", table: str = "rows") -> None:
        super().__init__(cluster, f"bulk-{table}")
        self._tables = (table, ORDERED)
        self.acknowledged: dict[bytes, bytes] = {}
        self.outcomes = {"ok": 0, "unknown": 0}

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`."""
        await make_table(self.cluster, db, ORDERED, {"key.sorting": "hierarchical"})

    async def _work(self, process: "Process", number: int) -> None:
        db = await self.connected()
        lines = [self._line(db, process, f"{number}-{line}") for line in range(IN_FLIGHT)]
        await asyncio.gather(*lines)
        await db.close()

    async def _line(self, db: AsyncClient, process: "Process", name: str) -> None:
        draw, serial = process.random, 0
        while not self.stopped:
            rows, table = {}, draw.choice(self._tables)
            for _ in range(draw.randint(*ROWS)):
                serial += 1
                slash = "/" if table == ORDERED and draw.random() < DEEP else "-"
                rows[f"bulk-{name}{slash}{serial}".encode()] = draw.randbytes(draw.randint(*VALUE_BYTES))
            is_load = draw.random() < LOADS
            for shard_id, part in (await self._by_shard(db, table, rows)).items():
                await self._write(db, shard_id, part, is_load=is_load)
            if self.operations_per_s:
                await self.think(process, IN_FLIGHT)
            else:
                await asyncio.sleep(draw.uniform(0.0, 0.05))

    async def _by_shard(
        self, db: AsyncClient, table: str, rows: dict[bytes, bytes]
    ) -> dict[int, list[tuple[bytes, bytes]]]:
        topic = await self._meta(db, table)
        found: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
        if topic is not None:
            ranges = KeyRanges(topic.shards)
            for key, value in rows.items():
                found[ranges.shard_of(key).shard_id].append((key, value))
        return found

    async def _meta(self, db: AsyncClient, table: str) -> TopicMeta | None:
        try:
            meta = await db.metadata()
        except AntiphonError:
            await asyncio.sleep(0.1)
            return None
        return next(topic for topic in meta.topics if topic.name == table)

    async def _write(
        self, db: AsyncClient, shard_id: int, rows: list[tuple[bytes, bytes]], *, is_load: bool
    ) -> None:
        timeout_ms = int(PATIENCE_S * 1000)
        try:
            if is_load:
                load = LoadRows(shard_id, len(rows), timeout_ms=timeout_ms)
                payload = (packed(rows),)
                await db._cluster.call_shard(shard_id, load, payload, timeout_s=PATIENCE_S)  # noqa: SLF001 - as Spark's tasks do
            else:
                puts = tuple(Put(key, value) for key, value in rows)
                request = TableWrite(shard_id, puts, bulk=True, timeout_ms=timeout_ms)
                await db.write_raw(request, timeout_s=PATIENCE_S)
        except AntiphonError as error:
            self.outcomes["unknown"] += 1
            self.cluster.tell("bulk-failed", shard_id, error.code)
            await asyncio.sleep(0.05)
            return
        self.outcomes["ok"] += 1
        self.acknowledged.update(rows)

    def check(self) -> None:
        """See `Workload`."""
        found: dict[bytes, bytes] = {}
        for machine in self.cluster.machines:
            if machine.node is None:
                continue
            for topic in machine.node.view.cluster().topics:
                if topic.name in self._tables:
                    for shard in topic.shards:
                        rows = folded(self.cluster, shard.shard_id)
                        found.update({key: value for key, (value, _) in rows.items()})
        for key, value in self.acknowledged.items():
            require(
                found.get(key) == value,
                "acknowledged-kept",
                -1,
                f"the bulk write of {key!r} was acknowledged, and the table's logs do not have it",
            )
