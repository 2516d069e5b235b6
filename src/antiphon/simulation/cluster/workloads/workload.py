"""What every workload is: clients in processes of their own that work until they are told to stop, and a last check."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError
from antiphon.invariants import invariant

if TYPE_CHECKING:
    from random import Random

    from antiphon.model.metadata import ShardMeta, TopicMeta
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process, Shield

P = ParamSpec("P")
Work = Callable[["Process", int], Coroutine[Any, Any, None]]
Until = Callable[[Callable[[], bool], float, Callable[[], str]], None]
"""Lets the world go on until a condition holds. If it does not within so many seconds, the run fails with the words."""

PAUSE_MAX_S: Final = 10.0  # between two operations: a client is to end soon after it was told to
PATIENCE_S: Final = 5.0  # of a request; short, so that outcomes stay unknown now and then


@dataclass(eq=False, slots=True)
class Client:
    """One client. `number`: what it is told that it is; `work`: what a successor does too; None: it is never killed."""

    process: "Process"
    task: "asyncio.Task[Any]"
    number: int = -1
    work: Work | None = None


class Workload(ABC):
    """See the module's text.

    Attributes:
        option: of `ClusterOptions`, that says how many clients do `_work`; set where the workload is registered.
        may_be_killed: faults may end these clients in the middle of whatever they do.
        may_pause: the judges allow for clients that stand still.
    """

    option: ClassVar[str] = ""
    may_be_killed = True
    may_pause = True

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.random = cluster.stream(f"workload {name}")
        self.stopped = False
        self.outcomes: dict[str, int] = {}
        self.operations_per_s = 0.0  # of all its clients together; 0: as fast as they can
        self.clients: list[Client] = []
        self.heirs: dict[int, int] = {}  # number of a client: that of the killed one whose place it took
        self._places_free: list[Client] = []
        self._numbers = 0

    async def set_up(self, db: AsyncClient) -> None:  # noqa: B027 - some make what they need later
        """Make what it needs; before faults begin."""

    def begin(self) -> None:
        """Start the clients (`spawn`): those that do `_work`, if no others are named."""
        wanted = getattr(self.cluster.options, self.option)
        if self.may_be_killed:
            self.spawn_all(wanted, self._work)
            return
        for number in range(wanted):
            self.spawn(f"{number}", lambda process, number=number: self._work(process, number))  # type: ignore[misc]

    async def _work(self, process: "Process", number: int, /) -> None:
        """What a client does until it is told to stop: with a client of the cluster, where it says no more."""
        await self.with_client(self._work_with)(process, number)

    async def _work_with(self, _db: AsyncClient, process: "Process", number: int, /) -> None:
        """See `_work`."""
        invariant(False, f"{type(self).__name__} does not say what client {number}, {process.name}, does")

    def with_client(
        self, work: Callable[Concatenate[AsyncClient, P], Awaitable[None]]
    ) -> Callable[P, Coroutine[Any, Any, None]]:
        """Such work as a process does: it reaches the cluster first, and hangs up when it is through."""

        async def connected(*args: P.args, **kwargs: P.kwargs) -> None:
            db = await self.connected()
            await work(db, *args, **kwargs)
            await db.close()

        return connected

    @contextmanager
    def tells(self, what: str, *of: Any, count: str = "") -> Iterator[None]:
        """What is asked for here may fail: then that is told, with the code of the error, and counted as this outcome."""
        try:
            yield
        except AntiphonError as error:
            if count:
                self.outcomes[count] += 1
            self.cluster.tell(what, *of, error.code)

    @abstractmethod
    def check(self) -> None:
        """Everything is over, and all agree: raise ViolationError for what clients were told and is not so."""

    def afterwards(self, until: Until) -> None:  # noqa: B027 - most have nothing more to do
        """All workloads were checked, and nobody works any more."""

    def spawn(
        self,
        name: str,
        work: Callable[["Process"], Coroutine[Any, Any, None]],
        *,
        shield: "Shield | None" = None,
        address: str = "",
    ) -> None:
        """Run one client in a process of its own. `shield`: of its connections; `address`: an IP address of its own."""
        process = self.cluster.client_process(f"{self.name}-{name}", address)
        process.shield = shield
        self.clients.append(Client(process, process.run(work(process))))

    def spawn_all(self, count: int, work: Work) -> None:
        """Run clients that may be killed; each is told its number, which no other client of the workload ever has."""
        for number in range(self._numbers, self._numbers + count):
            process = self.cluster.client_process(f"{self.name}-{number}")
            self.clients.append(Client(process, process.run(work(process, number)), number, work))
        self._numbers += count

    def kill(self, client: Client, *, silently: bool) -> None:
        """End a client in the middle of whatever it does. `succeed` puts another one in its place."""
        client.process.kill(silently=silently)
        self.clients.remove(client)
        self._places_free.append(client)
        self.died(client.number)

    def died(self, number: int) -> None:  # noqa: B027 - most keep account of requests before they are made
        """A client was killed: what it had asked for, and was not told, has an unknown outcome."""

    def succeed(self) -> None:
        """A new client, with a number of its own, takes each place that is free."""
        free, self._places_free = self._places_free, []
        for client in free:
            if client.work is not None:
                self.heirs[self._numbers] = client.number
                self.spawn_all(1, client.work)

    def stop(self) -> None:
        """Begin nothing new. What a client does last its successor does."""
        self.succeed()
        self.stopped = True

    async def think(self, process: "Process", operations: int = 1) -> None:
        """Pause after so many operations, as long as the workload's pace asks for on average."""
        draw = process.random
        if self.operations_per_s:
            pause_s = draw.expovariate(self.operations_per_s / len(self.clients) / operations)
            await asyncio.sleep(min(pause_s, PAUSE_MAX_S))
        elif draw.random() < 0.2:
            await asyncio.sleep(draw.uniform(0.0, 0.05))

    @property
    def done(self) -> bool:
        """Are all clients through? Raises what one of them died of."""
        for client in self.clients:
            if client.task.done():
                client.task.result()
        return all(client.task.done() for client in self.clients)

    @property
    def is_working(self) -> bool:
        """Does any of the clients that may be killed work, or will one?"""
        return not self.stopped or any(
            client.work is not None and not client.task.done() for client in self.clients
        )

    @property
    def now(self) -> float:
        """The world's time, by which histories are judged."""
        return self.cluster.loop.now

    def host(self, node: int) -> str:
        """Of a node."""
        return self.cluster.machines[node].host

    def any_node(self, draw: "Random") -> int:
        """One of them."""
        return draw.randrange(len(self.cluster.machines))

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


def _one_writer(cluster: "SimulatedCluster") -> str:
    """The run's profile, where that has one writer and loses nothing that was acknowledged."""
    profile = cluster.options.profile
    return "oxia" if profile in {"multi", "fluvio"} else profile


async def make_topic(cluster: "SimulatedCluster", db: AsyncClient, name: str, shards: int) -> None:
    """Create a topic as the run's options say, until that works."""
    profile, replicas = _one_writer(cluster), cluster.options.replicas
    await insist(lambda: db.create_topic(name, shards=shards, replicas=replicas, profile=profile))


async def make_table(
    cluster: "SimulatedCluster",
    db: AsyncClient,
    name: str,
    config: dict[str, str] | None = None,
    shards: int = 0,
) -> "tuple[ShardMeta, ...]":
    """Create a table as the run's options say, until that works; returns its shards. `shards` 0: as many as they say."""
    options = cluster.options
    profile = _one_writer(cluster)
    await insist(
        lambda: db.create_table(
            name,
            shards=shards or options.table_shards,
            replicas=options.replicas,
            profile=profile,
            config=config,
        )
    )
    return tuple((await topic_named(db, name)).shards)


def durable_options(cluster: "SimulatedCluster") -> dict[str, Any]:
    """Of a topic as the run's options say, but that it loses nothing: one writer, no `commit=local`."""
    options = cluster.options
    return {
        "replicas": options.replicas,
        "profile": "oxia" if options.profile == "multi" else options.profile,
        "config": {"commit": options.commit} if options.commit not in {"", "local"} else {},
    }


async def shards_of(db: AsyncClient, name: str) -> list[int]:
    """The shards of a topic or table that there is."""
    return [shard.shard_id for shard in (await topic_named(db, name)).shards]


async def administer_all(db: AsyncClient, requests: Iterable[Any]) -> None:
    """Have the cluster carry out one request after the other, each until that works."""
    for request in requests:
        await insist(lambda one=request: db.administer(one))  # type: ignore[misc]


async def topic_named(db: AsyncClient, name: str) -> "TopicMeta":
    """What the metadata says of a topic or table that there is."""
    return next(topic for topic in (await db.metadata()).topics if topic.name == name)


async def insist(work: Callable[[], Awaitable[Any]]) -> Any:
    """Do what a set-up needs until it works."""
    while True:
        try:
            return await work()
        except AntiphonError as error:
            if not (error.retriable or error.outcome_unknown):
                raise
            await asyncio.sleep(0.1)
