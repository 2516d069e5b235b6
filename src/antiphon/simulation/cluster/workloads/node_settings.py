"""Operators change settings of nodes while all others work; each setting has one operator, for each node and for all.

Most values were not set before. So what `__cluster` says of a setting, version by version, tells which changes were
carried out, and each version of it must be one that its operator asked for.
"""

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.connection import open_connection
from antiphon.errors import AntiphonError
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin as m
from antiphon.model.node_settings import ALL_NODES, NODE_SETTINGS, AlterNodeSettings, text_of
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.cluster_log import ClusterLog
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

INCREMENTAL_ALTER_CONFIGS, VERSION = 44, 1
BROKER, SET, RESET = 4, 0, 1
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


class _Asked:
    """What an operator asked for of one setting."""

    __slots__ = ("doubtful", "last", "under_way")

    def __init__(self) -> None:
        self.last: str | None = None  # that was acknowledged; None: that there be none
        self.doubtful: set[str | None] = set()  # whose outcome is not known: they may still be carried out
        self.under_way: set[str | None] = set()

    def may_be(self, value: str | None) -> bool:
        """May it be so now?"""
        return value == self.last or value in self.doubtful or value in self.under_way


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
        self._log = ClusterLog(cluster)
        self._versions, self._books = [-1], [Book()]
        self._asked: dict[Pair, _Asked] = {}
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
            asked = self._asked.setdefault(pair, _Asked())
            value = None if draw.random() < 0.3 else self._next_value(name)
            self._follow()
            since = self._versions[-1]
            asked.under_way = {value}
            if draw.random() < 0.5:
                done = await self._by_kafka(client, scope, name, value)
            else:
                done = await self._by_native(draw, scope, name, value)
            self._follow()
            if done:
                self._acknowledged(pair, value, since)
            else:
                asked.doubtful.add(value)
            asked.under_way = set()
            self.outcomes[
                "settings-in-doubt" if not done else "settings-reset" if value is None else "settings-set"
            ] += 1
            await self.sleep(process, PAUSE_S)
        client.close()

    def _next_value(self, name: str) -> str:
        self._number += 1
        least, setting = VARIED[name], NODE_SETTINGS[name]
        return str(least + self._number % (setting.most + 1 - least))

    async def _by_kafka(self, client: Any, scope: int, name: str, value: str | None) -> bool:
        change = m.AlterableSetting(
            name=NODE_SETTINGS[name].kafka_name, config_operation=RESET if value is None else SET, value=value
        )
        whose = "" if scope == ALL_NODES else str(scope)
        one = m.AlterableResource(resource_type=BROKER, resource_name=whose, configs=[change])
        request = m.IncrementalAlterConfigsRequest(resources=[one], validate_only=False)
        try:
            answer = await client.ask(
                client.any_node(), INCREMENTAL_ALTER_CONFIGS, VERSION, request, PATIENCE_S
            )
        except NoAnswerError:
            return False
        found = answer.responses[0]
        require(
            found.error_code not in {code.INVALID_CONFIG, code.INVALID_REQUEST},
            "settings-refused",
            -1,
            f"{name}={value} for {whose or 'all'} is refused: {found.error_message}",
        )
        return bool(found.error_code == code.NONE)

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

    # -- what is committed ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        for version in self._log.news():
            entries = self._log.state.node_settings
            book = {(node, name): one for node, of in entries.items() for name, one in of.values.items()}
            before = self._books[-1]
            if book == before:
                continue
            for pair in {**before, **book}:
                if before.get(pair) != book.get(pair):
                    self._judge_change(pair, book.get(pair), version)
            self._versions.append(version)
            self._books.append(book)

    def _judge_change(self, pair: Pair, value: str | None, version: int) -> None:
        asked = self._asked.get(pair)
        require(
            asked is not None and asked.may_be(value),
            "settings-asked-for",
            -1,
            f"at version {version} `__cluster` says that {pair[1]} is {value} for {_whose(pair[0])}, which nobody asked for",
        )

    def _acknowledged(self, pair: Pair, value: str | None, since: int) -> None:
        """It was so in some version since it was asked for, and is so unless one in doubt was carried out later."""
        asked = self._asked[pair]
        first = bisect_right(self._versions, since) - 1
        require(
            any(book.get(pair) == value for book in self._books[first:]),
            "settings-kept",
            -1,
            f"{pair[1]}={value} for {_whose(pair[0])} was acknowledged, and is in no version of `__cluster` since {since}",
        )
        asked.last = value
        now = self._books[-1].get(pair)
        require(
            now == value or now in asked.doubtful,
            "settings-kept",
            -1,
            f"{pair[1]}={value} for {_whose(pair[0])} was acknowledged, and `__cluster` says {now}",
        )

    # -- what nodes go by -------------------------------------------------------------------------------------------

    async def _watch(self, process: "Process") -> None:
        while not self.stopped:
            for machine in self.cluster.machines:
                self._look(machine)
            await self.sleep(process, LOOK_S)

    def _look(self, machine: "Machine") -> None:
        """A node that knows any metadata goes by it."""
        server = machine.server
        node = None if server is None else server.node
        if server is None or node is None or node.view.version < 0:
            return
        self._follow()
        book = self._books[bisect_right(self._versions, node.view.version) - 1]
        known = {
            (scope, name): one
            for scope, of in node.view.node_settings.items()
            for name, one in of.values.items()
        }
        require(
            known == book,
            "settings-known",
            -1,
            f"node {node.node_id} at version {node.view.version} knows {known}, `__cluster` says {book}",
        )
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
                    -1,
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
        self._follow()
        for pair, asked in self._asked.items():
            now = self._books[-1].get(pair)
            require(
                asked.may_be(now),
                "settings-kept",
                -1,
                f"in the end {pair[1]} is {now} for {_whose(pair[0])}; {asked.last} was acknowledged",
            )
        for machine in self.cluster.machines:
            node = machine.node
            if node is not None and node.agent.registered.is_set():
                require(
                    node.view.version >= self._versions[-1],
                    "settings-known",
                    -1,
                    f"in the end node {node.node_id} knows version {node.view.version}, {self._versions[-1]} is committed",
                )
                self._look(machine)


def _of_topics(node: "Node") -> dict[str, int]:
    """What shards have from the node, as their topics say nothing of it."""
    found = {}
    for shard_id, host in node.hosts.items():
        topic = node.view.shard(shard_id)
        if topic is not None and "flush.ms" not in topic[0].config:
            found[f"shard {shard_id}"] = host.log.config.flush_interval_ms
    return found


def _whose(scope: int) -> str:
    return "all nodes" if scope == ALL_NODES else f"node {scope}"


def _value(config: "NodeConfig", name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found
