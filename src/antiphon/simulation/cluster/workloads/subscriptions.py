"""Operators subscribe to clients' metrics by Kafka's protocol, and clients ask for what is wanted, and push it.

Each subscription has one operator. What it is set to was not set before, so what `__cluster` says of it, version by version,
tells which changes were carried out.
"""

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from antiphon.gateway.protobuf import put_sized
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin as m
from antiphon.kafka.messages import telemetry as t
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.model.client_metrics import INTERVAL_MS, METRICS
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.cluster_log import ClusterLog
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.kafka_client import KafkaClient
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

INCREMENTAL_ALTER_CONFIGS, SUBSCRIPTIONS, PUSH = 44, 71, 72
CLIENT_METRICS, SET, RESET = 16, 0, 1
OF_EACH: Final = 2  # subscriptions of one operator
PAUSE_S: Final = 0.5
LOOK_S: Final = 0.05
TAKEN: Final = {code.NONE, code.UNKNOWN_SUBSCRIPTION_ID, code.THROTTLING_QUOTA_EXCEEDED}

Said = dict[str, str]  # by a subscription; nothing: there is none
Book = dict[str, Said]


class _Asked:
    """What an operator asked for of one subscription."""

    __slots__ = ("doubtful", "last", "under_way")

    def __init__(self) -> None:
        self.last: Said = {}  # that was acknowledged
        self.doubtful: list[Said] = []  # whose outcome is not known: they may still be carried out
        self.under_way: Said | None = None

    def may_be(self, said: Said) -> bool:
        """May it be so now?"""
        return said == self.last or said in self.doubtful or said == self.under_way


@workload("subscribers", 44, Drawn(one_of(0, 0, 0, 0, 1)), logs_in=False)
class SubscriptionsWorkload(KafkaWorkload):
    """Operators set subscriptions to clients' metrics and take them back, by IncrementalAlterConfigs at any node; clients
    ask any node what is wanted, and push it there or elsewhere.

    Checked: every version of a subscription in `__cluster` is one that was asked for; what was acknowledged is there, and
    stays until its operator asks for something else. A node knows what the metadata says that it knows, at any moment; in
    the end all nodes know what is committed. A client is told what was committed at some time, and what it pushes is read.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "subscriptions") -> None:
        super().__init__(cluster, name)
        self._log = ClusterLog(cluster)
        self._versions, self._books = [-1], [Book()]
        self._asked: dict[str, _Asked] = {}
        self._number = 0
        self.outcomes = dict.fromkeys(
            ("subscribed", "unsubscribed", "subscription-in-doubt", "subscription-told", "metrics-pushed"), 0
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: it needs nothing."""

    def begin(self) -> None:
        """See `Workload`."""
        for number in range(self.cluster.options.subscribers):
            self.spawn(f"{number}", lambda process, number=number: self._operate(process, number))  # type: ignore[misc]
            self.spawn(f"client-{number}", self._push)
        self.spawn("watch", self._watch)

    # -- operators --------------------------------------------------------------------------------------------------

    async def _operate(self, process: "Process", number: int) -> None:
        client, draw = self.client(process), process.random
        while not self.stopped:
            name = f"{self.name}-{number}-{draw.randrange(OF_EACH)}"
            self._number += 1
            wanted = (
                {INTERVAL_MS: str(200 + self._number), METRICS: f"m{self._number}."}
                if draw.random() < 0.7
                else {}
            )
            asked = self._asked.setdefault(name, _Asked())
            self._follow()
            since, asked.under_way = self._versions[-1], wanted
            done = await self._alter(client, name, wanted)
            self._follow()
            if done:
                self._acknowledged(name, wanted, since)
            else:
                asked.doubtful.append(wanted)
            asked.under_way = None
            outcome = "subscribed" if wanted else "unsubscribed"
            self.outcomes[outcome if done else "subscription-in-doubt"] += 1
            await self.sleep(process, PAUSE_S)
        client.close()

    @staticmethod
    async def _alter(client: "KafkaClient", name: str, wanted: Said) -> bool:
        changes = [
            m.AlterableSetting(name=one, config_operation=SET if wanted else RESET, value=wanted.get(one))
            for one in (INTERVAL_MS, METRICS)
        ]
        one = m.AlterableResource(resource_type=CLIENT_METRICS, resource_name=name, configs=changes)
        request = m.IncrementalAlterConfigsRequest(resources=[one], validate_only=False)
        try:
            answer = await client.ask(client.any_node(), INCREMENTAL_ALTER_CONFIGS, 1, request, PATIENCE_S)
        except NoAnswerError:
            return False
        found = answer.responses[0]
        require(
            found.error_code not in {code.INVALID_CONFIG, code.INVALID_REQUEST},
            "subscription-refused",
            -1,
            f"{name}={wanted} is refused: {found.error_message}",
        )
        return bool(found.error_code == code.NONE)

    # -- clients ----------------------------------------------------------------------------------------------------

    async def _push(self, process: "Process") -> None:
        client, instance = self.client(process), process.random.randbytes(16)
        while not self.stopped:
            try:
                told = await self._ask(client, SUBSCRIPTIONS, t.GetTelemetrySubscriptionsRequest, instance)
                if told.error_code == code.NONE:
                    self._told(told)
                    await self.sleep(process, PAUSE_S)
                    done = await self._ask(
                        client,
                        PUSH,
                        t.PushTelemetryRequest,
                        instance,
                        subscription_id=told.subscription_id,
                        terminating=False,
                        compression_type=0,
                        metrics=_gauge(told.requested_metrics[0] if told.requested_metrics else "none"),
                    )
                    require(done.error_code in TAKEN, "metrics-taken", -1, f"a push is answered with {done}")
                    self.outcomes["metrics-pushed"] += done.error_code == code.NONE
            except NoAnswerError:
                pass
            await self.sleep(process, PAUSE_S)
        client.close()

    @staticmethod
    async def _ask(client: "KafkaClient", key: int, kind: Any, instance: bytes, **fields: Any) -> Any:
        request = kind(client_instance_id=instance or ZERO_UUID, **fields)
        return await client.ask(client.any_node(), key, 0, request, PATIENCE_S)

    def _told(self, told: Any) -> None:
        self._follow()
        answer = (sorted(told.requested_metrics), told.push_interval_ms)
        require(
            any(answer == _wanted(book) for book in self._books),
            "subscription-told",
            -1,
            f"a client is told {answer}, which was never committed",
        )
        self.outcomes["subscription-told"] += bool(told.requested_metrics)

    # -- what is committed, and known -------------------------------------------------------------------------------

    def _follow(self) -> None:
        for version in self._log.news():
            book = {name: dict(one.values) for name, one in self._log.state.subscriptions.items()}
            before = self._books[-1]
            if book == before:
                continue
            for name in {**before, **book}:
                said, asked = book.get(name, {}), self._asked.get(name)
                require(
                    said == before.get(name, {}) or (asked is not None and asked.may_be(said)),
                    "subscription-asked-for",
                    -1,
                    f"at version {version} `__cluster` says that {name} is {said}, which nobody asked for",
                )
            self._versions.append(version)
            self._books.append(book)

    def _acknowledged(self, name: str, wanted: Said, since: int) -> None:
        """It was so in some version since it was asked for, and is so unless one in doubt was carried out later."""
        asked = self._asked[name]
        first = bisect_right(self._versions, since) - 1
        now = self._books[-1].get(name, {})
        require(
            any(book.get(name, {}) == wanted for book in self._books[first:])
            and (now == wanted or now in asked.doubtful),
            "subscription-kept",
            -1,
            f"{name}={wanted} was acknowledged, and `__cluster` says {now}",
        )
        asked.last = wanted

    async def _watch(self, process: "Process") -> None:
        while not self.stopped:
            for machine in self.cluster.machines:
                self._look(machine)
            await self.sleep(process, LOOK_S)

    def _look(self, machine: "Machine") -> None:
        node = machine.node
        if node is None or node.view.version < 0:
            return
        self._follow()
        book = self._books[bisect_right(self._versions, node.view.version) - 1]
        known = {name: one.values for name, one in node.view.subscriptions.items()}
        require(
            known == book,
            "subscription-known",
            -1,
            f"node {node.node_id} at version {node.view.version} knows {known}, `__cluster` says {book}",
        )

    def check(self) -> None:
        """See `Workload`: all nodes know what is committed."""
        self._follow()
        for name, asked in self._asked.items():
            now = self._books[-1].get(name, {})
            require(
                asked.may_be(now),
                "subscription-kept",
                -1,
                f"in the end {name} is {now}; {asked.last} was acknowledged",
            )
        for machine in self.cluster.machines:
            node = machine.node
            if node is not None and node.agent.registered.is_set():
                require(
                    node.view.version >= self._versions[-1],
                    "subscription-known",
                    -1,
                    f"in the end node {node.node_id} knows version {node.view.version}, {self._versions[-1]} is committed",
                )
                self._look(machine)


def _wanted(book: Book) -> tuple[list[str], int]:
    """What a client is to be told: all of it, as often as the most impatient one wants."""
    return (
        sorted(said[METRICS] for said in book.values()),
        min([300_000, *(int(said[INTERVAL_MS]) for said in book.values())]),
    )


def _gauge(prefix: str) -> bytes:
    """One figure, as MetricsData."""
    point = bytearray(b"\x21") + struct.pack("<d", 1.0)
    for tag, name in ((0x0A, b""), (0x2A, f"{prefix}x".encode()), (0x12, b""), (0x12, b""), (0x0A, b"")):
        outer = bytearray()
        if name:
            put_sized(outer, 0x0A, name)
        put_sized(outer, tag, point)
        point = outer
    return bytes(point)
