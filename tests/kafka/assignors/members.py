"""Members of a group, with each library, each in a thread of its own: all say in one way what they are told."""

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky

from tests.kafka.assignors.ownership import Ownership, Place

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    import kafka

SESSION_MS: Final = 10_000
HEARTBEAT_MS: Final = 100
METADATA_MS: Final = 500
POLL_S: Final = 0.05
PATIENT_POLL_MS: Final = (
    2_000  # kafka-python drops what it was told about a rebalance when a poll ends meanwhile
)


class Member(ABC):
    """A consumer in a thread. `instance`: the id of a static member."""

    def __init__(
        self,
        name: str,
        servers: str,
        topic: str,
        ownership: Ownership,
        assignor: str,
        *,
        instance: str | None = None,
    ) -> None:
        self.name = name
        self._servers, self._topic, self._assignor, self._instance = servers, topic, assignor, instance
        self._ownership = ownership
        self._stopping = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it as an application does; a static member says nothing to the group."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self.failed is not None:
            raise self.failed

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - told by close()
            self.failed = error
        finally:
            self._ownership.ended(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the libraries that are written in Python."""
        return {
            "group_id": self._topic,
            "group_instance_id": self._instance,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "metadata_max_age_ms": METADATA_MS,
        }

    @abstractmethod
    def _run(self) -> None:
        """Read until it is told to stop."""

    def _given(self, places: Any) -> None:
        self._ownership.given(self.name, map(_place, places))

    def _taken(self, places: Any) -> None:
        self._ownership.taken(self.name, map(_place, places))


def _place(partition: Any) -> Place:
    return partition.topic, partition.partition


class Confluent(Member):
    """librdkafka."""

    assignors: ClassVar[tuple[str, ...]] = "range", "roundrobin", "cooperative-sticky"

    def _run(self) -> None:
        config = {
            "bootstrap.servers": self._servers,
            "group.id": self._topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            **self._protocol(),
        }
        if self._instance is not None:
            config["group.instance.id"] = self._instance
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe(
            [self._topic],
            on_assign=lambda _, places: self._given(places),
            on_revoke=lambda _, places: self._taken(places),
            on_lost=lambda _, places: self._taken(places),
        )
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(100, timeout=POLL_S):
                    if message.error() is None:
                        self._ownership.read(message.value())
        finally:
            consumer.close()

    def _protocol(self) -> dict[str, Any]:
        return {
            "group.protocol": "classic",
            "partition.assignment.strategy": self._assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }


class ConfluentNew(Confluent):
    """librdkafka, with the consumer protocol. Its assignor is one on the server."""

    assignors: ClassVar[tuple[str, ...]] = "uniform", "range"

    def _protocol(self) -> dict[str, Any]:
        return {"group.protocol": "consumer", "group.remote.assignor": self._assignor}


class KafkaPython(Member):
    """kafka-python."""

    _classes: Final[dict[str, Any]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    assignors: ClassVar[tuple[str, ...]] = tuple(_classes)

    def _run(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._servers.split(","),
            partition_assignment_strategy=(self._classes[self._assignor],),
            **self.settings,
        )
        told, taken = self._given, self._taken

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                told(assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                taken(revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                taken(lost)

        consumer.subscribe([self._topic], listener=Listener())
        try:
            while not self._stopping.is_set():
                found = consumer.poll(timeout_ms=PATIENT_POLL_MS)
                for message in (each for records in found.values() for each in records):
                    self._ownership.read(message.value)
        finally:
            consumer.close()


class AioKafka(Member):
    """aiokafka."""

    _classes: Final[dict[str, Any]] = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}
    assignors: ClassVar[tuple[str, ...]] = tuple(_classes)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        told, taken = self._given, self._taken

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                told(assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                taken(revoked)

        # aiokafka keeps what a member had at the assignor's class: each member takes a class of its own.
        assignor = type("Assignor", (self._classes[self._assignor],), {})
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            partition_assignment_strategy=(assignor,),
            **self.settings,
        )
        consumer.subscribe([self._topic], listener=Listener())
        await consumer.start()
        try:
            while not self._stopping.is_set():
                found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                for message in (each for records in found.values() for each in records):
                    self._ownership.read(message.value)
        finally:
            await consumer.stop()


CONSUMER: Final = "confluent-kafka of the consumer protocol"
LIBRARIES: Final[dict[str, type[Any]]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}
KINDS: Final[dict[str, type[Any]]] = {**LIBRARIES, CONSUMER: ConfluentNew}
