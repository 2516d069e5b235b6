"""Gets and puts of a table whose leaders serve reads under leases, by clients that are quick to hear of a new leader."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.linearizability import Operation
from antiphon.simulation.violation import require
from antiphon.table.evaluator import ABSENT

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

LEASED_KEYS: Final = ("flute", "gong")
PATIENCE_S: Final = 0.3
LITTLE_S: Final = 0.04  # who waits for a leader that is cut off writes nothing while that has a lease
WRITERS: Final = 2  # of each three clients one writes
DEFAULT_MS: Final = 200  # where the world's other tables have none


@workload(
    "leased_clients",
    49,
    Drawn(lambda draw, world: draw.choice((0, 3)) * bool(world["read_lease_ms"]), "leases", 1),
    logs_in=False,
)
class LeasedWorkload(TableWorkload):
    """Get and put rows of a table with `read.lease.ms`. Those that put ask every node who leads; the others ask nobody.

    Checked: each key's history is linearizable; nobody is told of an older version than somebody was told before.
    """

    def __init__(self, cluster: "SimulatedCluster") -> None:
        super().__init__(cluster, "leased")
        self.config = {"read.lease.ms": str(cluster.options.read_lease_ms or DEFAULT_MS)}

    async def _work_with(self, db: AsyncClient, process: "Process", number: int) -> None:
        table, draw, serial = self.open_table(db, process), process.random, 0
        while not self.stopped:
            key = draw.choice(LEASED_KEYS)
            if number % WRITERS:
                await self._get_soon(table, number, key)
            else:
                serial += 1
                patience_s = draw.choice((LITTLE_S, LITTLE_S, PATIENCE_S))
                await self._learn(db)
                await self._put_soon(table, number, key, self._value(number, serial), patience_s)
                await asyncio.sleep(draw.uniform(0.0, 0.02))
            await asyncio.sleep(draw.uniform(0.0, 0.01))

    async def _learn(self, db: AsyncClient) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await db.whole.refresh()
        except (AntiphonError, TimeoutError):
            return

    async def _get_soon(self, table: Any, number: int, key: str) -> None:
        invoked = self._now()
        try:
            row = await table.find(key, timeout_s=PATIENCE_S)
        except AntiphonError:
            return
        result = None if row is None else (row.version.id, bytes(row.value))
        self._note(number, key, "get", None, result, invoked, returned=True)

    async def _put_soon(self, table: Any, number: int, key: str, value: bytes, patience_s: float) -> None:
        invoked, argument = self._now(), (None, value)
        self._pending[number] = (key, "put", argument, invoked)
        try:
            version = await table.put(key, value, timeout_s=patience_s)
        except AntiphonError as error:
            self.cluster.tell("put-failed", key, value, error.code)
            self._note(number, key, "put", argument, None, invoked, returned=False)
        else:
            self._note(number, key, "put", argument, ("ok", version.id), invoked, returned=True)

    def check(self) -> None:
        """See `Workload`. Rows are never removed here, and versions rise: that says it where many outcomes are unknown."""
        for key in LEASED_KEYS:
            done = [one for one in self.operations if one.key == key and one.returned is not None]
            ends = sorted((one.returned, _version(one)) for one in done if one.returned is not None)
            newest, at = ABSENT, 0
            for one in sorted(done, key=lambda one: one.invoked):
                while at < len(ends) and ends[at][0] < one.invoked:
                    newest, at = max(newest, ends[at][1]), at + 1
                require(
                    _version(one) >= newest,
                    "linearizable",
                    f"{one.what} of key {key!r} of table {self.name!r} was told of version {_version(one)} when {newest} "
                    "had been told before it was asked for",
                    self.shard_ids[0],
                )
        super().check()


def _version(operation: Operation) -> int:
    """The version that a client was told."""
    if operation.result is None:
        return ABSENT
    return int(operation.result[0] if operation.what == "get" else operation.result[1])
