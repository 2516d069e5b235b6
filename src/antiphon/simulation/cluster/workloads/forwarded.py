"""Clients that ask any node, whoever leads: with `on.not.leader=forward` they get the leader's answers.

What is judged is what is judged of other clients of a table: each key's history is linearizable. They repeat nothing: a
request that fails for whatever reason but a refused condition has an unknown outcome.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from antiphon.client.aio import AsyncClient
from antiphon.client.connection import open_connection
from antiphon.client.table_writer import refusal
from antiphon.errors import AntiphonError, TimedOutError
from antiphon.model.metadata import KeyRanges
from antiphon.model.requests import (
    Delete,
    OpStatus,
    Put,
    TableGet,
    TableOp,
    TableRows,
    TableWrite,
    TableWritten,
)
from antiphon.model.rows import Row, Version
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.world import NATIVE_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.connection import Connection
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process


@workload("forwarded_clients", 7, Drawn(one_of(0, 0, 0, 0, 2, 3), "more loads", 2))
class ForwardedWorkload(TableWorkload):
    """Put, delete and get at any node of a table with `on.not.leader=forward`, without ever repeating.

    Checked: each key's history is linearizable.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "anywhere") -> None:
        super().__init__(cluster, name)
        self.config = {"on.not.leader": "forward"}
        self.outcomes = {"ok": 0, "refused": 0, "unknown": 0, "passed-on": 0}

    def open_table(self, db: AsyncClient, process: "Process") -> "AnyNodeTable":
        """See `TableWorkload`."""
        return AnyNodeTable(self, db, process)

    def asked(self, shard_id: int, node_id: int) -> None:
        """A request goes to this node: will it have to pass it on?"""
        host = self.cluster.machines[node_id].hosts.get(shard_id)
        self.outcomes["passed-on"] += host is None or not host.state.is_leader


class AnyNodeTable:
    """A table, asked at nodes that are drawn."""

    def __init__(self, workload: ForwardedWorkload, db: AsyncClient, process: "Process") -> None:
        self._workload = workload
        self._db = db
        self._draw = workload.cluster.stream(f"nodes asked by {process.name}")
        self._connections: dict[int, Connection] = {}
        self._ranges: KeyRanges | None = None

    async def find(self, key: str, *, timeout_s: float) -> Row | None:
        """The row of a key."""
        reply = await self._ask(key, lambda shard: TableGet(shard, (key.encode(),)), timeout_s)
        row: Row | None = reply.rows[0]
        return row

    async def put(self, key: str, value: bytes, *, expected_version: int | None, timeout_s: float) -> Version:
        """Set a key."""
        version: Version = await self._write(Put(key.encode(), value, expected_version), timeout_s)
        return version

    async def delete(self, key: str, *, expected_version: int | None, timeout_s: float) -> None:
        """Remove a key."""
        await self._write(Delete(key.encode(), expected_version), timeout_s)

    async def _write(self, op: TableOp, timeout_s: float) -> Any:
        timeout_ms = int(timeout_s * 1000)

        def request(shard_id: int) -> TableWrite:
            return TableWrite(shard_id, (op,), timeout_ms=timeout_ms)

        key = op.key if isinstance(op, Put | Delete) else b""
        result = (await self._ask(key.decode(), request, timeout_s)).results[0]
        if result.status != OpStatus.OK:
            raise refusal(op, result)
        return result.version

    async def _ask(self, key: str, request: Any, timeout_s: float) -> Any:
        if self._ranges is None:
            meta = await self._db.metadata()
            found = next(topic for topic in meta.topics if topic.name == self._workload.name)
            self._ranges = KeyRanges(found.shards)
        shard_id = self._ranges.shard_of(key.encode()).shard_id
        node_id = self._draw.randrange(self._workload.cluster.options.nodes)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connection(node_id)
                self._workload.asked(shard_id, node_id)
                body = request(shard_id)
                reply, _ = await connection.request(body)
        except AntiphonError:
            self._ranges = None  # perhaps the shard was split
            await self._hang_up(node_id)
            raise
        except TimeoutError:
            await self._hang_up(node_id)
            raise TimedOutError(f"node {node_id} did not answer") from None
        wanted = TableRows if isinstance(body, TableGet) else TableWritten
        require(
            isinstance(reply, wanted), "own-answer", f"node {node_id} answers {body} with {reply}", shard_id
        )
        return reply

    async def _connection(self, node_id: int) -> "Connection":
        if node_id not in self._connections:
            address = f"{self._workload.cluster.machines[node_id].host}:{NATIVE_PORT}"
            self._connections[node_id] = await open_connection(address, "anywhere", None)
        return self._connections[node_id]

    async def _hang_up(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            await connection.close()
