"""Clients with sessions of one table, one after the other, that fall silent and stand still.

At the end somebody reads the logs until all sessions have ended; else the run does not end.
"""

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from antiphon.simulation.cluster.workloads.session_history import SessionHistory
from antiphon.simulation.cluster.workloads.workload import Workload, make_table
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

LOOK_S: Final = 0.2
MILLION: Final = 1_000_000
TIMEOUTS_S: Final = (0.6, 1.0, 2.0)  # of sessions


class SessionedWorkload(Workload):
    """See the module's text.

    Attributes:
        shards: of the table; 0: as many as the run's options say.
        history: reads the logs.
    """

    shards: ClassVar[int] = 0
    history: ClassVar[type[SessionHistory]] = SessionHistory

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        super().__init__(cluster, name)
        self.shard_ids: list[int] = []
        self.fastest = 1.0 + cluster.options.clock_skew_ppm / MILLION  # of the nodes' clocks
        self.early: list[str] = []  # sessions that were lost too early; who has seen one waits for no end
        self._may_stand_still: list[Process] = []

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        made = await make_table(self.cluster, db, self.name, shards=self.shards)
        self.shard_ids = [shard.shard_id for shard in made]

    def begin(self) -> None:
        """See `Workload`."""
        super().begin()
        self.begin_others()
        self.spawn("hand", self._stop_some)
        self.spawn("last", self.see_the_end)

    def begin_others(self) -> None:
        """Start the clients without sessions."""

    async def _work(self, process: "Process", number: int) -> None:
        self._may_stand_still.append(process)
        count = 0
        while not self.stopped:
            count += 1
            db = await self.connected()
            await self.live(db, process, f"{number}-{count}")
            await db.close()  # whatever is open is left to its time-out

    @abstractmethod
    async def live(self, db: "AsyncClient", process: "Process", name: str) -> None:
        """One life of a client, which nobody else has the name of."""

    async def _stop_some(self, process: "Process") -> None:
        """Some clients stand still now and then, for less and for more than their sessions last."""
        draw = process.random
        while not self.stopped:
            await asyncio.sleep(draw.uniform(0.2, 3.0))
            if self._may_stand_still and draw.random() < 0.5:
                one = draw.choice(self._may_stand_still)
                one.pause()
                self.cluster.tell("client-stands-still", one.name)
                await asyncio.sleep(draw.choice((0.2, 1.0, 3.0)))
                one.resume()

    async def see_the_end(self, _process: "Process") -> None:
        """Read the logs until all sessions have ended."""
        history = self.history(self.cluster, self.shard_ids)
        while (self.is_working or history.open) and not self.early:
            await asyncio.sleep(LOOK_S)
            history.read()

    def read_all(self) -> SessionHistory:
        """All that the logs say."""
        history = self.history(self.cluster, self.shard_ids)
        history.read()
        return history

    def require(self, holds: object, promise: str, text: str) -> None:
        """Raise ViolationError unless this holds of the table."""
        require(holds, promise, text, self.shard_ids[0])
