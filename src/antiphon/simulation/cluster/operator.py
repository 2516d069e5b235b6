"""An operator of a simulated cluster: commands through an unchanged client, while everything else goes on.

Each command is a fault of kind `operator`: what is done to which shard is drawn from the fault's own seed and from the
metadata of the moment. That a command is refused, or that nobody answers it, is nothing unusual.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError, InvalidRequestError, TopicExistsError
from antiphon.invariants import invariant
from antiphon.model.internal import is_internal
from antiphon.model.metadata import ClusterMeta, Kind, ShardMeta, TopicMeta
from antiphon.model.placement import RecoverShard
from antiphon.model.requests import AlterVoters, CreateTopic, GetStatus
from antiphon.simulation.cluster.world import World
from antiphon.simulation.violation import require

PATIENCE_S: Final = 10.0
LATE_S: Final = 40.0  # so long after its time-out a command may still be carried out
AGAIN_S: Final = 0.05  # until a split that was refused is asked for again
VOTERS_MIN: Final = 3  # that are left alone mostly
VOTERS_MOST: Final = 5
SHARDS_MAX: Final = 4  # of a table; it is not split further

Command = Callable[["Operator", ClusterMeta, Random], Awaitable[Any]]


class Operator:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.process = world.client_process("operator")
        self._client: AsyncClient | None = None
        self._made = 0
        self._under_way: Counter[str] = Counter()  # commands by name that nobody has answered yet
        self._late_until_s: dict[str, float] = {}  # one that was not answered may still be carried out

    @property
    def may_change_voters(self) -> bool:
        """Is a change of the voters of `__cluster` on its way that the metadata may not show yet?"""
        return self._may_come("voters")

    @property
    def may_change_replicas(self) -> bool:
        """The same for how many replicas a topic has."""
        return self._may_come("replicas")

    def _may_come(self, name: str) -> bool:
        return self._under_way[name] > 0 or self._world.loop.now < self._late_until_s.get(name, 0.0)

    def change_voters(self, draw: Random) -> None:
        """Change the voters of `__cluster` somehow, in the background."""
        self.process.run(self._carry_out("voters", draw))

    def replace_voter(self, old: int, new: int) -> None:
        """Have another node vote, in the background."""
        self.process.run(self._carry_out("voters", Random(0), AlterVoters(new, old)))

    def spread(self) -> None:
        """Have every node hold every shard, in the background."""
        self.process.run(self._carry_out("spread", Random(0)))

    def recover(self, shard_id: int, node: int, number: int) -> None:
        """Let a shard go on from one node's replica, in the background."""
        self.process.run(self._recover(shard_id, node, number))

    def elect(self, shard_id: int, draw: Random) -> None:
        """Have another replica lead a shard, in the background."""
        self.process.run(self._elect(shard_id, draw))

    def split(self, shard_id: int, is_over: Callable[[], bool]) -> None:
        """Have a table's shard split in the background, again and again until that is done or it `is_over`."""
        self.process.run(self._split(shard_id, is_over))

    async def _split(self, shard_id: int, is_over: Callable[[], bool]) -> None:
        done = False
        while not (done or is_over()):
            with self._tells("split"):
                for topic, shard in await self._found(shard_id):
                    await self.db.split_shard(topic.name, shard.index)
                done = True
            if not done:
                await asyncio.sleep(AGAIN_S)

    async def _elect(self, shard_id: int, draw: Random) -> None:
        with self._tells("elect"):
            for topic, shard in await self._found(shard_id):
                node = draw.choice([node for node in shard.ensemble if node != shard.leader] or [-1])
                await self.db.elect_leader(topic.name, shard.index, node=node)

    async def _recover(self, shard_id: int, node: int, number: int) -> None:
        """As `antiphon shard recover` does: look first, and say what was seen."""
        with self._tells("recover"):
            db = await self._connected()
            status = await db.node_status(node, GetStatus((shard_id,)))
            for one in status.replicas:
                request = RecoverShard(shard_id, node, one.term, one.log_end, number)
                await db.administer(request)

    async def _found(self, shard_id: int) -> list[tuple[TopicMeta, ShardMeta]]:
        """A shard and its topic; none where it is there no more."""
        topics = (await (await self._connected()).metadata()).topics
        return [(topic, shard) for topic in topics for shard in topic.shards if shard.shard_id == shard_id]

    @contextmanager
    def _tells(self, name: str) -> Iterator[None]:
        """What becomes of a command is told."""
        try:
            yield
        except AntiphonError as error:
            if not isinstance(error, InvalidRequestError):
                self._late_until_s[name] = self._world.loop.now + LATE_S
            self._world.tell("refused", name, error.code)
        else:
            self._world.tell("carried-out", name)

    async def _connected(self) -> AsyncClient:
        if self._client is None:
            client = AsyncClient(self._world.servers, timeout_s=PATIENCE_S)
            await client.connect()
            self._client = client
        return self._client

    def add_voter(self, new: int) -> None:
        """Have another node vote too, in the background."""
        self.process.run(self._carry_out("voters", Random(0), AlterVoters(new)))

    def order(self, draw: Random) -> None:
        """Carry out a drawn command, in the background."""
        name = draw.choice(self._world.options.commands.split() or sorted(COMMANDS))
        self.process.run(self._carry_out(name, draw))

    async def elect_internal(self, draw: Random) -> None:
        """Have one node lead the shards of the cluster's own tables."""
        await self._carry_out("elect-internal", draw)

    async def _carry_out(self, name: str, draw: Random, wanted: AlterVoters | None = None) -> None:
        self._under_way[name] += 1
        try:
            with self._tells(name):
                meta = await (await self._connected()).metadata()
                if name == "voters":
                    await self.db.administer(wanted or _some_voters(meta, draw))
                else:
                    await {**COMMANDS, **OTHERS}[name](self, meta, draw)
        finally:
            self._under_way[name] -= 1

    async def create_internal(self, name: str, draw: Random) -> None:
        """As a job does that is started for the first time. It waits for no node that is down, as long as the others
        are a majority.
        """
        kind, replicas = draw.choice((Kind.TOPIC, Kind.TABLE)), self._world.options.replicas
        try:
            await self.db.administer(CreateTopic(name, kind, replicas=replicas, internal=True))
        except InvalidRequestError as error:
            alive, staying = (int(error.details[which]) for which in ("alive", "staying"))
            require(
                staying < replicas or alive <= replicas // 2,
                "first-start",
                f"an internal {kind.value} is refused, though {alive} nodes are a majority of its {replicas} replicas: "
                f"{error.message}",
            )
            raise
        self._world.tell("carried-out", "create-internal")

    @property
    def db(self) -> AsyncClient:
        """The client of the commands."""
        invariant(self._client is not None, "commands are carried out when the operator is connected")
        return self._client  # type: ignore[return-value]  # seen just now

    def some_shard(
        self, meta: ClusterMeta, draw: Random, *, tables: bool = False
    ) -> tuple[TopicMeta, ShardMeta]:
        """A shard of a topic or table of the workloads."""
        topics = [
            topic
            for topic in meta.topics
            if not topic.name.startswith("__") and (topic.kind is Kind.TABLE or not tables)
        ]
        topic = draw.choice(topics)
        return topic, draw.choice(topic.shards)

    def new_name(self) -> str:
        """A name that no topic has had."""
        self._made += 1
        return f"extra-{self._made}"


def _some_voters(meta: ClusterMeta, draw: Random) -> AlterVoters:
    """A change of the voters of `__cluster`, which may make no sense."""
    voting = () if meta.voters is None else meta.voters.ensemble
    others = [node.node_id for node in meta.nodes if node.node_id not in voting] or [0]
    come, go = draw.choice(others), draw.choice(voting)
    few, many = len(voting) < VOTERS_MIN, len(voting) >= VOTERS_MOST
    asked = [AlterVoters(come, go), AlterVoters(-1 if many else come, go if many else -1)]
    if not few or draw.random() < 0.1:
        asked.append(AlterVoters(remove=go))
    if draw.random() < 0.1:
        return AlterVoters(cancel=True)
    return draw.choice(asked)


async def _elect(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    topic, shard = operator.some_shard(meta, draw)
    node = draw.choice([-1, *shard.ensemble])
    await operator.db.elect_leader(topic.name, shard.index, node=node)


async def _elect_internal(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    node = draw.choice(meta.nodes).node_id
    for topic in meta.topics:
        for shard in topic.shards if is_internal(topic) else ():
            if node in shard.ensemble:
                await operator.db.elect_leader(topic.name, shard.index, node=node)


async def _move(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    topic, shard = operator.some_shard(meta, draw)
    others = [node.node_id for node in meta.nodes if node.node_id not in shard.ensemble]
    target = draw.choice(others or [0])
    await operator.db.move_replica(topic.name, shard.index, draw.choice(shard.ensemble), target)


async def _split(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    topic, shard = operator.some_shard(meta, draw, tables=True)
    if len(topic.shards) < SHARDS_MAX:
        await operator.db.split_shard(topic.name, shard.index)


async def _drain(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    node = draw.choice(meta.nodes).node_id
    await operator.db.drain_node(node)
    await operator.db.drain_node(node, cancel=True)  # it stays, and what moves goes on moving


async def _rebalance(operator: Operator, _meta: ClusterMeta, draw: Random) -> None:
    await operator.db.rebalance(leaders_only=draw.random() < 0.5)


async def _create(operator: Operator, _meta: ClusterMeta, draw: Random) -> None:
    name = operator.new_name()
    make = operator.db.create_topic if draw.random() < 0.5 else operator.db.create_table
    try:
        await make(name, shards=draw.choice((1, 2)))
    except (
        TopicExistsError
    ):  # a call repeats what a coordinator left undone, and is not told of its own success
        require(False, "made-once", f"{name} is said to exist by the only call that ever made it")
    if draw.random() < 0.5:
        await operator.create_internal(f"__{name}", draw)


async def _delete(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    found = [topic for topic in meta.topics if topic.name.startswith("extra-")]
    if found:
        await operator.db.delete_topic(draw.choice(found).name)


async def _replicas(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    topic, _ = operator.some_shard(meta, draw)
    await operator.db.alter_topic(topic.name, replicas=draw.choice((2, 3, 3)))


async def _spread(operator: Operator, meta: ClusterMeta, _draw: Random) -> None:
    for topic in meta.topics:
        if topic.replicas < len(meta.nodes) and not topic.name.startswith("recovered"):
            await operator.db.alter_topic(topic.name, replicas=len(meta.nodes))


async def _rule(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    topic, _ = operator.some_shard(meta, draw)
    if topic.config.get("commit", "") not in {"local", "live"} and topic.profile != "fluvio":
        await operator.db.alter_topic(topic.name, config={"commit": draw.choice(("quorum", "at_least(2)"))})


COMMANDS: Final[dict[str, Command]] = {
    "elect": _elect,
    "move": _move,
    "split": _split,
    "drain": _drain,
    "rebalance": _rebalance,
    "create": _create,
    "delete": _delete,
    "replicas": _replicas,
    "rule": _rule,
}
OTHERS: Final[dict[str, Command]] = {"elect-internal": _elect_internal, "spread": _spread}
"""Those that no seed draws for itself."""
