"""Appends to a topic that may lose most of its replicas, and reads it all the while.

Such a topic is on fewer nodes than all else, so that nothing else is lost with it.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.replica_faults import RECOVERED
from antiphon.simulation.cluster.workloads.judged_records import each_once
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Workload,
    insist,
    shards_of,
)
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

FEW: Final = 5
READ_S: Final = 5.0
FOUNDERS: Final = 3  # the first nodes vote in `__cluster`


async def make_where_replicas_are_lost(
    cluster: "SimulatedCluster", db: "AsyncClient", name: str, kind: Kind
) -> int:
    """A topic or table with one shard, on few nodes, always the same; returns the shard's id."""
    options = cluster.options
    draw = cluster.stream("place of what may be lost")
    others = list(range(FOUNDERS, options.nodes))
    nodes = (draw.randrange(FOUNDERS), *others)
    if options.nodes < FEW:
        nodes = tuple(draw.sample(range(options.nodes), 2))
    profile = "oxia" if options.profile == "multi" else options.profile
    if kind is Kind.TABLE and profile == "fluvio":
        profile = "oxia"
    request = CreateTopic(name, kind, replicas=len(nodes), profile=profile, placement=(nodes,))
    await insist(lambda: db.administer(request))
    return (await shards_of(db, name))[0]


@workload(
    "recovered_writers",
    41,
    Drawn(lambda _, world: 2 * int(world["most_replicas_gone_weight"] > 0), "recoveries", 1),
)
class RecoveredWorkload(Workload):
    """Append to a topic that is on few nodes, and read it from its beginning, where replicas are lost.

    Of three or four nodes it is on two; of more, on all that do not vote in `__cluster`, and one that does.

    Checked: what was acknowledged is committed, once, but for what was committed on lost replicas and not on the one from
    which the shard went on; what was read since the last time is what is committed.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = RECOVERED) -> None:
        super().__init__(cluster, name)
        self.shard_id = -1
        self._sent: set[bytes] = set()
        self._acknowledged: dict[bytes, int] = {}
        self._reads: list[tuple[int, dict[int, bytes]]] = []  # recoveries before it, and what was read
        self.outcomes = {"kept": 0, "not-kept": 0, "read-again": 0, "lost": 0}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        self.shard_id = await make_where_replicas_are_lost(self.cluster, db, self.name, Kind.TOPIC)

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.recovered_writers, self.with_client(self._append))
        self.spawn("reads", self.with_client(self._read))

    async def _append(self, db: "AsyncClient", process: "Process", number: int) -> None:
        topic: Any = db.topic(self.name)
        serial = 0
        while not self.stopped:
            value = b"%d:%d" % (number, serial)
            serial += 1
            self._sent.add(value)
            with self.tells("not-kept", value.decode(), count="not-kept"):
                at = await topic.append(value, timeout_s=PATIENCE_S)
                self._acknowledged[value] = at.offset
                self.outcomes["kept"] += 1
            await self.think(process)

    async def _read(self, db: "AsyncClient", process: "Process") -> None:
        while not self.stopped:
            recoveries = self._recoveries
            found: dict[int, bytes] = {}
            try:
                async with asyncio.timeout(
                    READ_S
                ):  # the end that it has seen may be lost, and it waits for that
                    async for record in db.topic(self.name).read(shard=0, isolation="committed"):
                        found[record.offset] = bytes(record.value or b"")
            except AntiphonError as error:
                self.cluster.tell("not-read", error.code)
            except TimeoutError:
                self.cluster.tell("not-read", "waits")
            self._reads.append((recoveries, found))
            self.outcomes["read-again"] += 1
            await self.think(process, 10)

    @property
    def _recoveries(self) -> int:
        """How many have been led through. While one is not, a reader may still be told of the old history."""
        found = self.cluster.watch.recoveries.led(self.shard_id)
        return -1 if found is None else found

    def check(self) -> None:
        """See `Workload`."""
        recoveries = self.cluster.watch.recoveries
        truth = self.cluster.evidence.truth(self.shard_id)
        committed = dict(each_once(truth, self._sent))
        lost = recoveries.lost.get(self.shard_id, set())
        for value in self._acknowledged:
            require(
                value in committed or value in lost,
                "acknowledged-kept",
                f"{value!r} was acknowledged at {self._acknowledged[value]}, and is neither committed nor among the "
                f"{len(lost)} that were lost",
                self.shard_id,
            )
            self.outcomes["lost"] += value not in committed
        at = {offset: value for value, offset in committed.items()}
        for seen, found in self._reads:
            if seen != self._recoveries:
                continue
            for offset, value in found.items():
                require(
                    at.get(offset) == value,
                    "one-history",
                    f"{value!r} was read at {offset} after recovery {seen}; {at.get(offset)!r} is committed there",
                    self.shard_id,
                )
