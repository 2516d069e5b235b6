"""Clients that follow what others write, for ever: they are through when they were given everything."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from antiphon.simulation.cluster.workloads.workload import Workload

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster

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

    async def follow(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this until all have everything."""
        task = asyncio.get_running_loop().create_task(work)
        while not (self._finished or task.done()):
            await asyncio.wait({task}, timeout=LOOK_S)
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
