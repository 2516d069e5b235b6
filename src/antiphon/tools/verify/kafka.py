"""The Kafka load of `antiphon verify`: an idempotent producer and a consumer group of two, by Confluent's client."""

import importlib.util
import random
import threading
import time
from typing import Any, Final

from antiphon.tools.verify.history import Append, History, Outcome, Seen, now_ns
from antiphon.tools.verify.load import KAFKA_TOPIC, SHARDS

GROUP: Final = "verify-group"
PACE_S: Final = 0.005
DELIVERY_TIMEOUT_MS: Final = 30_000
DRAIN_TIMEOUT_S: Final = 45.0
COMMIT_EVERY: Final = 50  # messages
MEMBERS: Final = 2
MEMBER_LIFE_S: Final = (4.0, 12.0)  # a member leaves and comes back after so long: the group rebalances

COMMON_CONFIG: Final[dict[str, Any]] = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}


def available() -> bool:
    """Is Confluent's client installed?"""
    return importlib.util.find_spec("confluent_kafka") is not None


class KafkaLoad:
    """Threads that run until `stop()`; what they did and saw lands in the history."""

    def __init__(self, servers: str, history: History, rng: random.Random) -> None:
        self._servers = servers
        self._history = history
        self._rng = rng
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._lock = threading.Lock()
        self._next: dict[int, int] = {}  # partition -> offset after the last one that any member got
        seeds = [rng.random() for _ in range(MEMBERS + 1)]
        self._producer = threading.Thread(
            target=self._guarded, args=("kafka producer", self._produce, seeds[0])
        )
        self._members = [
            threading.Thread(target=self._guarded, args=(f"kafka consumer {i}", self._consume, seeds[i + 1]))
            for i in range(MEMBERS)
        ]

    def start(self) -> None:
        """Start producing and consuming."""
        for thread in (self._producer, *self._members):
            thread.daemon = True
            thread.start()

    def stop(self) -> None:
        """Produce nothing more, and wait until all that was has its outcome."""
        self._stopping.set()
        self._producer.join(DELIVERY_TIMEOUT_MS / 1000 + 15)

    def drain(self, ends: dict[int, int]) -> None:
        """Let the group read up to these offsets (exclusive), then leave; notes what it has committed."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._lock:
                if all(self._next.get(partition, 0) >= end for partition, end in ends.items()):
                    break
            time.sleep(0.05)
        self._drained.set()
        for thread in self._members:
            thread.join(30)
        self._guarded("committed offsets", self._read_commits, 0.0)

    def _guarded(self, what: str, work: Any, seed: float) -> None:
        try:
            work(random.Random(seed))
        except Exception as error:  # noqa: BLE001 - whatever a client raises is a finding
            self._history.surprise(what, error)

    # -- producing ----------------------------------------------------------------------------------------------

    def _produce(self, rng: random.Random) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                **COMMON_CONFIG,
            }
        )
        number = 0
        while not self._stopping.is_set():
            for _ in range(rng.randint(1, 8)):
                append = Append("kafka", rng.randrange(SHARDS), f"kafka-{number}".encode(), now_ns())
                number += 1
                self._history.kafka.append(append)
                producer.produce(
                    KAFKA_TOPIC,
                    append.value,
                    partition=append.shard,
                    on_delivery=lambda error, message, append=append: self._delivered(append, error, message),
                )
            producer.poll(rng.random() * PACE_S * 8)
        producer.flush(DELIVERY_TIMEOUT_MS / 1000 + 10)

    def _delivered(self, append: Append, error: Any, message: Any) -> None:
        if error is None:
            append.outcome, append.offset, append.returned_ns = Outcome.OK, message.offset(), now_ns()
        elif error.name() not in {"_MSG_TIMED_OUT", "REQUEST_TIMED_OUT"}:
            self._history.surprise("kafka producer", RuntimeError(str(error)))

    # -- consuming ----------------------------------------------------------------------------------------------

    def _group_config(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
            **COMMON_CONFIG,
        }

    def _consume(self, rng: random.Random) -> None:
        from confluent_kafka import Consumer

        life = 0
        while not self._drained.is_set():
            life += 1
            name = f"{threading.current_thread().name}.{life}"
            ends_at = time.monotonic() + rng.uniform(*MEMBER_LIFE_S)
            consumer = Consumer(self._group_config())
            consumer.subscribe([KAFKA_TOPIC])
            try:
                self._follow(consumer, name, ends_at)
            finally:
                consumer.close()

    def _follow(self, consumer: Any, name: str, ends_at: float) -> None:
        since_commit = 0
        while not self._drained.is_set():
            over = time.monotonic() > ends_at and not self._stopping.is_set()
            messages = [] if over else consumer.consume(COMMIT_EVERY, timeout=0.2)
            found = [message for message in messages if message.error() is None]
            for message in found:
                self._history.consumed.append(
                    Seen(name, message.partition(), message.offset(), message.value())
                )
            with self._lock:
                for message in found:
                    partition = message.partition()
                    self._next[partition] = max(self._next.get(partition, 0), message.offset() + 1)
            since_commit += len(found)
            if since_commit >= COMMIT_EVERY or over:
                self._commit(consumer)
                since_commit = 0
            if over:
                return
        self._commit(consumer)

    def _commit(self, consumer: Any) -> None:
        """Commit what was got; a group in between owners refuses, which is no fault."""
        from confluent_kafka import KafkaException

        try:
            done = consumer.commit(asynchronous=False) or []
        except KafkaException:
            return
        self._history.commits += [(at.partition, at.offset) for at in done if at.error is None]

    def _read_commits(self, _rng: random.Random) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self._group_config())
        try:
            asked = [TopicPartition(KAFKA_TOPIC, shard) for shard in range(SHARDS)]
            self._history.committed_at_end = {
                at.partition: at.offset for at in consumer.committed(asked, timeout=20)
            }
        finally:
            consumer.close()
