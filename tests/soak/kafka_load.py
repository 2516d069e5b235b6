"""The soak's steady Kafka clients: an idempotent producer and a consumer group of two, by Confluent's client, in threads."""

import random
import threading
import time
from typing import Any, Final

from tests.soak.figures import Latencies
from tests.soak.ledger import Ledger, parse, value_of
from tests.soak.load import KAFKA, SHARDS

GROUP: Final = "soak-group"
MEMBERS: Final = 2
PERIOD_S: Final = 0.1  # between two groups of records
RECORDS: Final = 4  # of a group
COMMIT_EVERY: Final = 50
MEMBER_LIFE_S: Final = (20.0, 60.0)
DELIVERY_TIMEOUT_MS: Final = 30_000
DRAIN_TIMEOUT_S: Final = 45.0
COMMON: Final[dict[str, Any]] = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "log_level": 0}
# A group between two owners refuses a commit: the next one is taken.
MOVED: Final = {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_NO_OFFSET", "_STATE"}


class KafkaLoad:
    """Threads that run until `stop()`."""

    def __init__(self, servers: str, ledger: Ledger, latencies: Latencies) -> None:
        self._servers = servers
        self._ledger = ledger
        self._latencies = latencies
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._lock = threading.Lock()
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.members = 0
        targets = [("kafka produce", self._produce), *[("kafka consume", self._consume)] * MEMBERS]
        self._threads = [
            threading.Thread(target=self._guarded, args=target, daemon=True, name=target[0])
            for target in targets
        ]

    def start(self) -> None:
        """Start producing and consuming."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Produce nothing more, wait for all outcomes, let the group read to the end and leave."""
        self._stopping.set()
        self._threads[0].join(DELIVERY_TIMEOUT_MS / 1000 + 15)
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with self._lock:
                if all(self._next.get(partition, 0) >= end for partition, end in self._ends.items()):
                    break
            time.sleep(0.05)
        self._drained.set()
        for thread in self._threads[1:]:
            thread.join(30)
        self._guarded("committed offsets", self._check_commits)

    def missing(self) -> list[str]:
        """Acknowledged records that the group never got, by partition. What elections write takes offsets as well."""
        problems = []
        for partition in range(SHARDS):
            seen = self._ledger.consumed[partition]
            told = [one.offsets for one in self._ledger.logs[KAFKA, partition].values()]
            gaps = [at for offsets in told for at in offsets if at >= len(seen) or not seen[at]]
            if gaps:
                problems.append(
                    f"partition {partition}: {len(gaps)} records never came, the first at {gaps[0]}"
                )
        return problems

    def _guarded(self, what: str, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever a client raises is counted and told
            self._ledger.failed(what, error)

    def _produce(self) -> None:
        from confluent_kafka import Producer

        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 5}
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                **settings,
                **COMMON,
            }
        )
        number, due_s = 0, time.monotonic()
        while not self._stopping.is_set():
            for _ in range(RECORDS):
                self._send(producer, number, number % SHARDS)
                number += 1
            due_s = max(due_s + PERIOD_S, time.monotonic())
            while time.monotonic() < due_s:
                producer.poll(max(0.0, due_s - time.monotonic()))
        producer.flush(DELIVERY_TIMEOUT_MS / 1000 + 10)

    def _send(self, producer: Any, number: int, partition: int) -> None:
        sent_s = time.monotonic()

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._ledger.failed("kafka produce", RuntimeError(str(error)))
                return
            self._latencies.note("kafka produce", time.monotonic() - sent_s)
            self._ledger.acknowledged(KAFKA, partition, "kafka-0", number, message.offset())
            self._ends[partition] = max(self._ends.get(partition, 0), message.offset() + 1)

        self._ledger.operations["kafka produce"] += 1
        producer.produce(KAFKA, value_of("kafka-0", number), partition=partition, on_delivery=delivered)

    def _config(self) -> dict[str, Any]:
        group = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        times = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 1000, "fetch.wait.max.ms": 200}
        return {"bootstrap.servers": self._servers, **group, **times, **COMMON}

    def _consume(self) -> None:
        from confluent_kafka import Consumer

        while not self._drained.is_set():
            consumer = Consumer(self._config())
            consumer.subscribe([KAFKA])
            self.members += 1
            try:
                self._follow(consumer, time.monotonic() + random.uniform(*MEMBER_LIFE_S))
            finally:
                consumer.close()

    def _follow(self, consumer: Any, until_s: float) -> None:
        since_commit = 0
        while not self._drained.is_set():
            over = time.monotonic() > until_s and not self._stopping.is_set()
            messages = [] if over else consumer.consume(COMMIT_EVERY, timeout=0.2)
            for message in messages:
                if message.error() is None:
                    self._got(message)
                    since_commit += 1
            if since_commit and (since_commit >= COMMIT_EVERY or over):
                self._commit(consumer)
                since_commit = 0
            if over:
                return
        self._commit(consumer)

    def _got(self, message: Any) -> None:
        now_ns = time.monotonic_ns()
        _, _, written_ns = parse(message.value())
        partition, offset = message.partition(), message.offset()
        self._ledger.operations["kafka consume"] += 1
        with self._lock:
            again = offset < self._next.get(partition, 0)
            self._next[partition] = max(self._next.get(partition, 0), offset + 1)
            self._ledger.consumed_at(partition, offset, message.value())
        if not again:  # after a rebalance some come twice
            self._latencies.note("kafka consume", (now_ns - written_ns) / 1e9)

    def _commit(self, consumer: Any) -> None:
        from confluent_kafka import KafkaException

        try:
            done = consumer.commit(asynchronous=False) or []
        except KafkaException as error:
            if error.args[0].name() not in MOVED:
                self._ledger.failed("kafka commit", error)
            return
        with self._lock:
            for at in done:
                if at.error is None:
                    self.committed[at.partition] = at.offset

    def _check_commits(self) -> None:
        """What the group has committed at the end is the last that a member was told is kept."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self._config())
        try:
            asked = [TopicPartition(KAFKA, shard) for shard in range(SHARDS)]
            for at in consumer.committed(asked, timeout=20):
                told = self.committed.get(at.partition, 0)
                if told and at.offset < told:
                    self._ledger.problem(
                        f"partition {at.partition}: {told} was committed, now it is {at.offset}"
                    )
        finally:
            consumer.close()
