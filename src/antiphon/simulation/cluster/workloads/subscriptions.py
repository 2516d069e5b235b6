"""Operators subscribe to clients' metrics by Kafka's protocol, and clients ask for what is wanted, and push it.

Each subscription has one operator. What it is set to was not set before, so what `__cluster` says of it, version by version,
tells which changes were carried out.
"""

import contextlib
import struct
from typing import TYPE_CHECKING, Any, Final

from antiphon.gateway.protobuf import put_sized
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import API_VERSIONS, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from antiphon.kafka.messages import telemetry as t
from antiphon.kafka.messages.cluster import ApiVersionsRequest
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.model.client_metrics import INTERVAL_MS, METRICS
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.asked_for import AskedFor
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

CLIENT_METRICS: Final = 16
API_VERSIONS_VERSION: Final = 3
NEW: Final = 0.5  # of clients that are not told of metrics: the others connected before
OF_EACH: Final = 2  # subscriptions of one operator
PAUSE_S: Final = 0.5
LOOK_S: Final = 0.05
TAKEN: Final = {code.NONE, code.UNKNOWN_SUBSCRIPTION_ID, code.THROTTLING_QUOTA_EXCEEDED}

Said = dict[str, str]  # by a subscription
Book = dict[str, Said]


@workload("subscribers", 44, Drawn(one_of(0, 0, 0, 0, 1)), logs_in=False)
class SubscriptionsWorkload(KafkaWorkload):
    """Operators set subscriptions to clients' metrics and take them back, by IncrementalAlterConfigs at any node; clients
    ask any node what is wanted, and push it there or elsewhere.

    Checked: every version of a subscription in `__cluster` is one that was asked for; what was acknowledged is there, and
    stays until its operator asks for something else. A node knows what the metadata says that it knows, at any moment; in
    the end all nodes know what is committed. A node tells of the APIs for metrics while the metadata that it knows has a
    subscription, and not otherwise. A client is told what was committed at some time, and what it pushes is read.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "subscriptions") -> None:
        super().__init__(cluster, name)
        self._asked: AskedFor[str, Said] = AskedFor(cluster, "subscription", _said, _in_words)
        self._number = 0
        self.outcomes = dict.fromkeys(
            (
                "subscribed",
                "unsubscribed",
                "subscription-in-doubt",
                "metrics-offered",
                "metrics-not-offered",
                "subscription-told",
                "metrics-pushed",
            ),
            0,
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
            one: Said = {INTERVAL_MS: str(200 + self._number), METRICS: f"m{self._number}."}
            wanted = one if draw.random() < 0.7 else None
            since = self._asked.begin(name, wanted)
            done = await self._asked.ask_by_kafka(client, CLIENT_METRICS, name, wanted or dict.fromkeys(one))
            if done:
                self._asked.acknowledged(name, wanted, since)
            outcome = "subscribed" if wanted else "unsubscribed"
            self.outcomes[outcome if done else "subscription-in-doubt"] += 1
            await self.sleep(process, PAUSE_S)
        client.close()

    # -- clients ----------------------------------------------------------------------------------------------------

    async def _push(self, process: "Process") -> None:
        client, instance = self.client(process), process.random.randbytes(16)
        while not self.stopped:
            with contextlib.suppress(NoAnswerError):
                if not await self._offered(client) and process.random.random() < NEW:
                    await self.sleep(process, PAUSE_S)
                    continue  # another one was connected before
                told = await self._ask(
                    client, GET_TELEMETRY_SUBSCRIPTIONS, t.GetTelemetrySubscriptionsRequest, instance
                )
                if told.error_code == code.NONE:
                    self._judge(told)
                    await self.sleep(process, PAUSE_S)
                    done = await self._ask(
                        client,
                        PUSH_TELEMETRY,
                        t.PushTelemetryRequest,
                        instance,
                        subscription_id=told.subscription_id,
                        terminating=False,
                        compression_type=0,
                        metrics=_gauge(told.requested_metrics[0] if told.requested_metrics else "none"),
                    )
                    require(done.error_code in TAKEN, "metrics-taken", f"a push is answered with {done}")
                    self.outcomes["metrics-pushed"] += done.error_code == code.NONE
            await self.sleep(process, PAUSE_S)
        client.close()

    async def _offered(self, client: "KafkaClient") -> bool:
        """Does a node tell of the APIs for metrics? If so it knows of a subscription, before the answer and after it."""
        address = client.any_node()
        machine = next(one for one in self.cluster.machines if one.host == address[0])
        before = _known(machine)
        answer = await client.ask(
            address, API_VERSIONS, API_VERSIONS_VERSION, ApiVersionsRequest(), PATIENCE_S
        )
        offered = {GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY} & {one.api_key for one in answer.api_keys}
        if before is not None and before == _known(machine):
            book = self._asked.known_by(machine)
            require(
                offered == ({GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY} if book else set()),
                "metrics-offered",
                f"a node that knows the subscriptions {book} tells of {offered or 'no APIs for metrics'}",
            )
            self.outcomes["metrics-offered" if offered else "metrics-not-offered"] += 1
        return bool(offered)

    @staticmethod
    async def _ask(client: "KafkaClient", key: int, kind: Any, instance: bytes, **fields: Any) -> Any:
        request = kind(client_instance_id=instance or ZERO_UUID, **fields)
        return await client.ask(client.any_node(), key, 0, request, PATIENCE_S)

    def _judge(self, told: Any) -> None:
        answer = (sorted(told.requested_metrics), told.push_interval_ms)
        require(
            any(answer == _wanted(book) for book in self._asked.books),
            "subscription-told",
            f"a client is told {answer}, which was never committed",
        )
        self.outcomes["subscription-told"] += bool(told.requested_metrics)

    # -- nodes ------------------------------------------------------------------------------------------------------

    async def _watch(self, process: "Process") -> None:
        while not self.stopped:
            for machine in self.cluster.machines:
                self._asked.known_by(machine)
            await self.sleep(process, LOOK_S)

    def check(self) -> None:
        """See `Workload`: all nodes know what is committed."""
        for machine in self._asked.check_end():
            self._asked.known_by(machine)


def _known(machine: "Machine") -> "tuple[object, int] | None":
    """The node of a machine, and the version of the metadata that it knows, if it knows any."""
    node = machine.node
    return None if node is None or node.view.version < 0 else (node, node.view.version)


def _said(metadata: Any) -> Book:
    return {name: dict(one.values) for name, one in metadata.subscriptions.items()}


def _in_words(name: str, said: Said | None) -> str:
    return f"{name} is {said}"


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
