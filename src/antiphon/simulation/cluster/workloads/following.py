"""Clients that follow what others write, for ever: they are through when they were given everything."""

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.simulation.cluster.workloads.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

    Follow = Callable[[AsyncClient, Process], Awaitable[None]]

LOOK_S: Final = 0.1


class FollowingWorkload(Workload):
    """See the module's text. `writers` write what is followed."""

    def __init__(self, cluster: "SimulatedCluster", name: str, writers: Workload) -> None:
        super().__init__(cluster, name)
        self._writers = writers
        self._finished = False

    @abstractmethod
    def has_everything(self) -> bool:
        """Was every follower given all that is committed?"""

    @property
    def done(self) -> bool:
        """See `Workload`."""
        if self.stopped and not self._finished and self._writers.done:
            self._finished = self.has_everything()
        return super().done

    def spawn_follower(self, name: str, once: "Follow", failed: str) -> None:
        """Run a client that does this again and again until all have everything. `failed`: is told where it fails."""

        async def again(db: "AsyncClient", process: "Process") -> None:
            while True:
                try:
                    await once(db, process)
                except AntiphonError as error:
                    self.cluster.tell(failed, error.code)
                    await self.think(process)

        async def follow(db: "AsyncClient", process: "Process") -> None:
            task = asyncio.get_running_loop().create_task(again(db, process))
            while not (self._finished or task.done()):
                await asyncio.wait({task}, timeout=LOOK_S)
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.spawn(name, self.with_client(follow))
