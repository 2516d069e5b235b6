"""An operator of a simulated cluster: commands through an unchanged client, while everything else goes on.

Each command is a fault of kind `operator`: what is done to which shard is drawn from the fault's own seed and from the
metadata of the moment. That a command is refused, or that nobody answers it, is nothing unusual.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError
from antiphon.invariants import invariant
from antiphon.model.internal import is_internal
from antiphon.model.metadata import ClusterMeta, Kind, ShardMeta, TopicMeta
from antiphon.simulation.cluster.world import World

PATIENCE_S: Final = 10.0
SHARDS_MAX: Final = 4  # of a table; it is not split further

Command = Callable[["Operator", ClusterMeta, Random], Awaitable[Any]]


class Operator:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.process = world.client_process("operator")
        self._client: AsyncClient | None = None
        self._made = 0

    def order(self, draw: Random) -> None:
        """Carry out a drawn command, in the background."""
        name = draw.choice(self._world.options.commands.split() or sorted(COMMANDS))
        self.process.run(self._carry_out(name, draw))

    async def elect_internal(self, draw: Random) -> None:
        """Have one node lead the shards of the cluster's own tables."""
        await self._carry_out("elect-internal", draw)

    async def _carry_out(self, name: str, draw: Random) -> None:
        try:
            if self._client is None:
                client = AsyncClient(self._world.servers, timeout_s=PATIENCE_S)
                await client.connect()
                self._client = client
            command = COMMANDS.get(name, _elect_internal)
            await command(self, await self.db.metadata(), draw)
        except AntiphonError as error:
            self._world.tell("refused", name, error.code)
        else:
            self._world.tell("carried-out", name)

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
    if draw.random() < 0.5:
        await operator.db.create_topic(name, shards=draw.choice((1, 2)))
    else:
        await operator.db.create_table(name, shards=draw.choice((1, 2)))


async def _delete(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    found = [topic for topic in meta.topics if topic.name.startswith("extra-")]
    if found:
        await operator.db.delete_topic(draw.choice(found).name)


async def _replicas(operator: Operator, meta: ClusterMeta, draw: Random) -> None:
    topic, _ = operator.some_shard(meta, draw)
    await operator.db.alter_topic(topic.name, replicas=draw.choice((2, 3, 3)))


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
