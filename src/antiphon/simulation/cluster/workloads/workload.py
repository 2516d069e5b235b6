"""What every workload is: clients in processes of their own that work until they are told to stop, and a last check."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.model.metadata import ShardMeta
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

PATIENCE_S: Final = 5.0  # of a request; short, so that outcomes stay unknown now and then


class Workload(ABC):
    """See the module's text."""

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.random = cluster.stream(f"workload {name}")
        self.stopped = False
        self.operations_per_s = 0.0  # of all its clients together; 0: as fast as they can
        self._tasks: list[asyncio.Task[Any]] = []

    @abstractmethod
    async def set_up(self, db: AsyncClient) -> None:
        """Make what it needs; before faults begin."""

    @abstractmethod
    def begin(self) -> None:
        """Start the clients (`spawn`)."""

    @abstractmethod
    def check(self) -> None:
        """Everything is over, and all agree: raise ViolationError for what clients were told and is not so."""

    def spawn(self, name: str, work: Callable[["Process"], Coroutine[Any, Any, None]]) -> None:
        """Run one client in a process of its own."""
        process = self.cluster.client_process(f"{self.name}-{name}")
        self._tasks.append(process.run(work(process)))

    def stop(self) -> None:
        """Begin nothing new."""
        self.stopped = True

    async def think(self, process: "Process", operations: int = 1) -> None:
        """Pause after so many operations, as long as the workload's pace asks for on average."""
        draw = process.random
        if self.operations_per_s:
            await asyncio.sleep(draw.expovariate(self.operations_per_s / len(self._tasks) / operations))
        elif draw.random() < 0.2:
            await asyncio.sleep(draw.uniform(0.0, 0.05))

    @property
    def done(self) -> bool:
        """Are all clients through? Raises what one of them died of."""
        for task in self._tasks:
            if task.done():
                task.result()
        return all(task.done() for task in self._tasks)

    @property
    def now(self) -> float:
        """The world's time, by which histories are judged."""
        return self.cluster.loop.now

    async def connected(self) -> AsyncClient:
        """A client that has reached the cluster, however long that takes."""
        while True:
            db = AsyncClient(self.cluster.servers, timeout_s=PATIENCE_S)
            try:
                await db.connect()
            except AntiphonError:
                await asyncio.sleep(0.2)
            else:
                return db


async def make_table(
    cluster: "SimulatedCluster", db: AsyncClient, name: str, config: dict[str, str] | None = None
) -> "tuple[ShardMeta, ...]":
    """Create a table as the run's options say, until that works; returns its shards."""
    options = cluster.options
    profile = "oxia" if options.profile in {"multi", "fluvio"} else options.profile
    await insist(
        lambda: db.create_table(
            name, shards=options.table_shards, replicas=options.replicas, profile=profile, config=config
        )
    )
    found = next(topic for topic in (await db.metadata()).topics if topic.name == name)
    return tuple(found.shards)


async def insist(work: Callable[[], Awaitable[Any]]) -> Any:
    """Do what a set-up needs until it works."""
    while True:
        try:
            return await work()
        except AntiphonError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.1)
