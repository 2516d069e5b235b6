"""Operators change settings of nodes while all others work; each setting has one operator, for each node and for all.

Most values were not set before. So what `__cluster` says of a setting, version by version, tells which changes were
carried out, and each version of it must be one that its operator asked for.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.connection import open_connection
from antiphon.errors import AntiphonError
from antiphon.model.node_settings import ALL_NODES, NODE_SETTINGS, AlterNodeSettings, text_of
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.asked_for import AskedFor
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.cluster.world import NATIVE_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.node.config import NodeConfig
    from antiphon.node.node import Node
    from antiphon.server.server import Server
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

BROKER: Final = 4
PAUSE_S: Final = 0.4
LOOK_S: Final = 0.03
VARIED: Final = {
    "limits.topics": 6_000,
    "limits.partitions": 60_000,
    "limits.topics_on_demand": 6_000,
    "limits.producers": 2_000_000,
    "sessions.per_shard": 20_000,
    "transactions.timeout_max_ms": 1_000_000,
    "consumer_groups.max_size": 2_000,
    "share_groups.max_size": 300,
    "cleaner.backoff_ms": 101,
    "flush_interval_ms": 101,
}
"""What is set, and to numbers above which: nobody else in a world comes to feel it."""

Pair = tuple[int, str]  # a node, or all of them, and a setting
Book = dict[Pair, str]


@workload("settings_operators", 42, Drawn(one_of(0, 0, 0, 2)), logs_in=False)
class SettingsWorkload(KafkaWorkload):
    """Operators set settings of single nodes and of all, and take them back, by the native protocol and Kafka's
    IncrementalAlterConfigs, at any node.

    Checked: every version of a setting in `__cluster` is one that was asked for; what was acknowledged is there, and stays
    until its operator asks for something else. A node goes by what the metadata says that it knows, at any moment: its own
    value, else that for all, else its file's; in the end all nodes know what is committed.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "settings") -> None:
        super().__init__(cluster, name)
        self._asked: AskedFor[Pair, str] = AskedFor(cluster, "settings", _set, _in_words)
        self._number = 0
        self.outcomes = dict.fromkeys(
            (
                "settings-set",
                "settings-reset",
                "settings-in-doubt",
                "settings-looked-at",
                "settings-in-effect",
            ),
            0,
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: it needs nothing."""

    def begin(self) -> None:
        """See `Workload`."""
        for number in range(self.cluster.options.settings_operators):
            self.spawn(f"{number}", lambda process, number=number: self._operate(process, number))  # type: ignore[misc]
        self.spawn("watch", self._watch)

    # -- what is asked for ------------------------------------------------------------------------------------------

    def _pairs(self, number: int) -> list[Pair]:
        """The settings of one operator."""
        names = [
            name for name in VARIED if name != "limits.topics_on_demand" or not self.cluster.options.crowds
        ]
        scopes = [ALL_NODES, *range(len(self.cluster.machines))]
        every = [(scope, name) for scope in scopes for name in names]
        return every[number :: self.cluster.options.settings_operators]

    async def _operate(self, process: "Process", number: int) -> None:
        client, draw, pairs = self.client(process), process.random, self._pairs(number)
        while not self.stopped:
            scope, name = pair = draw.choice(pairs)
            value = None if draw.random() < 0.3 else self._next_value(name)
            since = self._asked.begin(pair, value)
            if draw.random() < 0.5:
                whose = "" if scope == ALL_NODES else str(scope)
                values = {NODE_SETTINGS[name].kafka_name: value}
                done = await self._asked.ask_by_kafka(client, BROKER, whose, values)
            else:
                done = await self._by_native(draw, scope, name, value)
            if done:
                self._asked.acknowledged(pair, value, since)
            self.outcomes[
                "settings-in-doubt" if not done else "settings-reset" if value is None else "settings-set"
            ] += 1
            await self.sleep(process, PAUSE_S)
        client.close()

    def _next_value(self, name: str) -> str:
        self._number += 1
        least, setting = VARIED[name], NODE_SETTINGS[name]
        return str(least + self._number % (setting.most + 1 - least))

    async def _by_native(self, draw: "Random", scope: int, name: str, value: str | None) -> bool:
        machine = draw.choice(self.cluster.machines)
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection = await open_connection(f"{machine.host}:{NATIVE_PORT}", "operator", None)
                try:
                    await connection.request(AlterNodeSettings(scope, {name: value}))
                finally:
                    await connection.close()
        except (AntiphonError, TimeoutError, OSError):
            return False
        return True

    # -- what nodes go by -------------------------------------------------------------------------------------------

    async def _watch(self, process: "Process") -> None:
        while not self.stopped:
            for machine in self.cluster.machines:
                self._look(machine)
            await self.sleep(process, LOOK_S)

    def _look(self, machine: "Machine") -> None:
        """A node that knows any metadata goes by it."""
        book, server = self._asked.known_by(machine), machine.server
        if book is None or server is None:
            return
        node = server.node
        self.outcomes["settings-looked-at"] += 1
        file = machine.config()
        for name in VARIED:
            own, of_all = book.get((node.node_id, name)), book.get((ALL_NODES, name))
            expected = own or of_all or text_of(_value(file, name))
            self.outcomes["settings-in-effect"] += bool(own or of_all)
            for place, found in self._found(server, name).items():
                require(
                    str(found) == expected,
                    "settings-in-effect",
                    f"node {node.node_id} has {name}={found} ({place}) at {node.view.version}, not {expected}",
                )

    def _found(self, server: "Server", name: str) -> dict[str, int]:
        """What a node goes by, where it is kept."""
        node, kafka, shell = server.node, server.kafka, server.node.coordinator
        found: dict[str, int] = {"configuration": _value(node.config, name)}
        match name:
            case "limits.topics" if shell is not None:
                found["coordinator"] = shell.config.capacity.topics
            case "limits.topics_on_demand" if kafka is not None:
                found["Kafka"] = kafka.topics.topics_max
            case "transactions.timeout_max_ms":
                found["transactions"] = server.transactions.coordinator.bounds.timeout_ms_max
            case "consumer_groups.max_size" if kafka is not None:
                found["groups"] = kafka.groups.consumer.max_size
            case "share_groups.max_size" if kafka is not None:
                found["groups"] = kafka.groups.share.members.max_size
            case "flush_interval_ms":
                found |= _of_topics(node)
        return found

    def check(self) -> None:
        """See `Workload`: all nodes know what is committed, and go by it."""
        for machine in self._asked.check_end():
            self._look(machine)


def _set(metadata: Any) -> Book:
    return {
        (node, name): one for node, of in metadata.node_settings.items() for name, one in of.values.items()
    }


def _in_words(pair: Pair, value: str | None) -> str:
    scope, name = pair
    return f"{name} is {value} for {'all nodes' if scope == ALL_NODES else f'node {scope}'}"


def _of_topics(node: "Node") -> dict[str, int]:
    """What shards have from the node, as their topics say nothing of it."""
    found = {}
    for shard_id, host in node.hosts.items():
        topic = node.view.shard(shard_id)
        if topic is not None and "flush.ms" not in topic[0].config:
            found[f"shard {shard_id}"] = host.log.config.flush_interval_ms
    return found


def _value(config: "NodeConfig", name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found
