"""Writes to a table that every replica writes, at whichever node: each acknowledged one stays, or lost by the table's rule.

A client asks one node and reads there: what a node acknowledged it knows from then on, so a later read there finds it, or
what won over it. That all replicas come to the same table is checked when everything has settled (`settle_multi`).
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.client.connection import Connection, open_connection
from antiphon.errors import AntiphonError
from antiphon.model.requests import Delete, OpStatus, Put, TableGet, TableOp, TableWrite
from antiphon.model.rows import Row, Version
from antiphon.partition.multi_batches import identity
from antiphon.records.batch import read_header
from antiphon.records.changes import VERSION, effects_of
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.settle_multi import Identity, entries_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Workload,
    insist,
    shards_of,
)
from antiphon.simulation.cluster.world import NATIVE_PORT
from antiphon.simulation.violation import require
from antiphon.table.merge import Cell, unpack_id

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

CLIENTS: Final = 3
KEYS: Final = (b"apple", b"pear")  # few, so that nodes write to one at a time
BEFORE: Final = 4  # puts of a write that are judged before its condition


class Acknowledged(NamedTuple):
    """A put that a node acknowledged, or a row that it showed: version id, and when."""

    node: int
    key: bytes
    value: bytes | None
    version: int
    at_s: float


def identity_of(version_id: int) -> Identity:
    """Origin and LSN of the entry with this version of a row."""
    origin, lsn, _ = unpack_id(version_id)
    return origin, lsn


@workload(
    "multi_tables",
    8,
    Drawn(lambda draw, world: world["profile"] == "multi" and draw.random() < 0.7, "loads", 6),
    switch=True,
)
class MultiTableWorkload(Workload):
    """Writes and reads at any node of a table with `writers=multi`.

    Checked: acknowledged changes are in every log; a node shows nothing older than what it had acknowledged, and all of a
    write to several keys or nothing of it; what is put in the place of a version that was named wins over it.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "carts") -> None:
        super().__init__(cluster, name)
        self.shard_id = -1
        self.puts: list[Acknowledged] = []
        self.reads: list[Acknowledged] = []
        self.deletes: dict[bytes, int] = {}
        self._sent: set[bytes] = set()
        self._pairs: set[bytes] = set()  # values that one write set both keys to
        self._newest: Version | None = None  # that a node acknowledged for the last key
        self.outcomes = dict.fromkeys(("multi-ok", "multi-unknown", "multi-read", "multi-conditional"), 0)

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        replicas = self.cluster.options.replicas
        await insist(
            lambda: db.create_table(
                self.name, shards=1, replicas=replicas, profile="oxia", config={"writers": "multi"}
            )
        )
        (self.shard_id,) = await shards_of(db, self.name)

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(CLIENTS, self._work)

    async def _work(self, process: "Process", number: int) -> None:
        draw, serial = process.random, 0
        connection: Connection | None = None
        node = 0
        while not self.stopped:
            serial += 1
            try:
                if connection is None or connection.lost is not None or draw.random() < 0.1:
                    if connection is not None:
                        await connection.close()
                    connection, node = None, draw.randrange(self.cluster.options.nodes)
                    connection = await open_connection(f"node-{node}:{NATIVE_PORT}", "simulated", None)
                await self._one(
                    connection, node, draw.choice(KEYS), b"%d-%d" % (number, serial), draw.random()
                )
            except AntiphonError as error:
                self.outcomes["multi-unknown"] += 1
                self.cluster.tell("multi-failed", node, error.code)
            await self.think(process)
        if connection is not None:
            await connection.close()

    async def _one(self, connection: Connection, node: int, key: bytes, value: bytes, kind: float) -> None:
        if kind < 0.3:
            await self._read(connection, node)
            return
        ops: list[TableOp] = [Put(key, value) if kind < 0.85 else Delete(key)]
        seen = self._newest if kind >= 0.95 else None
        if kind >= 0.9:
            before = [Put(one, value) for one in KEYS[:-1]] * (1 if seen is None else BEFORE)
            ops = [*before, Put(KEYS[-1], value, None if seen is None else seen.id)]
            self._pairs.add(value)
        self._sent.add(value)
        timeout_ms, hurt = int(PATIENCE_S * 1000), self.cluster.evidence.hurt
        request = TableWrite(self.shard_id, tuple(ops), timeout_ms=timeout_ms, atomic=seen is not None)
        reply: Any = (await connection.request(request))[0]
        self.cluster.tell("multi-write", node, key, value, kind, reply.results)
        for op, result in zip(ops, reply.results, strict=True):
            if result.status != OpStatus.OK:
                return
            self.outcomes["multi-ok"] += 1
            if isinstance(op, Put) and op.key == KEYS[-1]:
                if seen is not None and node not in hurt:
                    self._check_wins(node, seen, result.version)
                self._newest = result.version
            if isinstance(op, Put):
                self.puts.append(Acknowledged(node, op.key, value, result.version.id, self.now))
            else:
                self.deletes[key] = self.deletes.get(key, 0) + 1

    def _check_wins(self, node: int, seen: Version, made: Version) -> None:
        """Who changes what he has seen wins over it."""
        self.outcomes["multi-conditional"] += 1
        before, after = ((one.modified_ms, *identity_of(one.id)) for one in (seen, made))
        require(
            after > before,
            "wins-over-what-was-seen",
            f"node {node} put {made} in the place of {seen}, as it was asked to, and loses to it",
            self.shard_id,
        )

    async def _read(self, connection: Connection, node: int) -> None:
        began, hurt = self.now, self.cluster.evidence.hurt
        if node in hurt:
            return  # it is still getting back what its disk lost
        reply: Any = (await connection.request(TableGet(self.shard_id, KEYS, "local")))[0]
        if node in hurt:
            return
        self.outcomes["multi-read"] += 1
        for key, row in zip(KEYS, reply.rows, strict=True):
            found, version = (None, -1) if row is None else (bytes(row.value), row.version.id)
            self.reads.append(Acknowledged(node, key, found, version, began))
        self._check_whole(node, [row for row in reply.rows if row is not None])

    def _check_whole(self, node: int, rows: list[Row]) -> None:
        """Of a write to both keys a reader sees both rows, or what won over them."""
        stamps = [(row.version.modified_ms, *identity_of(row.version.id)) for row in rows]
        require(
            not any(
                stamp > min(stamps) and row.value in self._pairs
                for stamp, row in zip(stamps, rows, strict=True)
            ),
            "all-or-nothing",
            f"node {node} showed {rows}: one write set both keys, and only one of them has its row, or a newer one",
            self.shard_id,
        )

    # -- the judge ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`. Where a disk lost what was durable, what stood on it alone may be gone (S4.28)."""
        lost = self.cluster.watch.multi.truth(self.shard_id).lost
        gone = {identity(read_header(batch)) for batch in lost}
        host: Any
        for machine, host in self.cluster.replicas_of(self.shard_id):
            if host.replica.log_start == 0:
                cells: dict[bytes, dict[int, list[Cell]]] = {}
                for batch in (*entries_of(self.cluster, machine, host).values(), *lost):
                    for key, value, packed in effects_of(batch):
                        cell = Cell(value, VERSION.unpack(packed))
                        cells.setdefault(key, {}).setdefault(cell.version[0], []).append(cell)
                self._check_acknowledged(machine.node_id, cells)
                self._check_reads(cells, gone)

    def _check_acknowledged(self, node: int, cells: dict[bytes, dict[int, list[Cell]]]) -> None:
        for put in self.puts:
            found = cells.get(put.key, {}).get(put.version, [])
            require(
                any(cell.value == put.value for cell in found),
                "acknowledged-kept",
                f"{put} was acknowledged, and the log of node {node} has {found} under that version",
                self.shard_id,
            )
        for key, of_version in cells.items():
            every = [cell for found in of_version.values() for cell in found]
            removed = sum(cell.value is None for cell in every)
            require(
                removed >= self.deletes.get(key, 0),
                "acknowledged-kept",
                f"{self.deletes.get(key)} removals of {key!r} were acknowledged, node {node} has {removed}",
                self.shard_id,
            )
            for cell in every:
                require(
                    cell.value is None or cell.value in self._sent,
                    "nobodys-record",
                    f"nobody has put {cell.value!r}",
                    self.shard_id,
                )

    def _check_reads(self, cells: dict[bytes, dict[int, list[Cell]]], gone: set[Identity]) -> None:
        """A node's answer is something that was written, and nothing older than what the node had acknowledged before."""
        for read in self.reads:
            of_key = cells.get(read.key, {})
            before = [
                put
                for put in self.puts
                if put.node == read.node
                and put.key == read.key
                and put.at_s < read.at_s
                and identity_of(put.version) not in gone
            ]
            known = max((of_key[put.version][0].stamp for put in before), default=None)
            if read.value is None:
                shown = [cell for found in of_key.values() for cell in found if cell.value is None]
            else:
                shown = [cell for cell in of_key.get(read.version, []) if cell.value == read.value]
            require(
                (read.value is None and known is None)
                or any(known is None or cell.stamp >= known for cell in shown),
                "reads-own-writes",
                f"node {read.node} showed {read}, though it had acknowledged {before[-1:]} before",
                self.shard_id,
            )
