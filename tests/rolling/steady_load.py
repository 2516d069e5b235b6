"""Clients that write one record after the other while nodes go and come, and a judge of what became of the records.

Each writer has one write under way. A write that fails, although the client has tried again for `PATIENCE_S`, is a failure
of the test. What was acknowledged must be there once, in order.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.error import KafkaException

import antiphon

TOPIC: Final = "steady-log"
KAFKA_TOPIC: Final = "steady-kafka"
PAID: Final = "steady-paid"
TABLE: Final = "steady-table"
GROUP: Final = "steady-group"
SHARDS: Final = 3
KEYS: Final = 50
PATIENCE_S: Final = 30.0
PAUSE_S: Final = 0.01
PER_TRANSACTION: Final = 5
READ_S: Final = 40.0
QUIET: Final[dict[str, Any]] = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "log_level": 0}


class Writer(threading.Thread):
    """Calls `write(number)` for 0, 1, 2, ... until it is stopped."""

    def __init__(self, name: str, write: Callable[[int], None], finish: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._write = write
        self._finish = finish
        self._stopping = threading.Event()
        self.acknowledged = 0
        self.latencies_s: list[float] = []
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            began = time.monotonic()
            try:
                self._write(self.acknowledged)
            except Exception as error:  # noqa: BLE001 - whatever it is, a client that tries again should not see it
                self.failures.append(f"{self.acknowledged}: {type(error).__name__}: {error}")
                break
            self.acknowledged += 1
            self.latencies_s.append(time.monotonic() - began)
        self._finish()

    def stop(self) -> None:
        """Ends after the write that is under way."""
        self._stopping.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive(), f"{self.name} does not end"

    @property
    def figures(self) -> str:
        """How long its writes took, in ms."""
        taken = sorted(self.latencies_s)
        if not taken:
            return f"{self.name}: nothing written"
        p50, p99 = (taken[min(len(taken) - 1, int(len(taken) * share))] * 1000 for share in (0.5, 0.99))
        return f"{self.name}: {len(taken)} writes, p50 {p50:.1f} p99 {p99:.1f} max {taken[-1] * 1000:.0f} ms"


class SteadyLoad:
    """Native appends and puts, Kafka's idempotent and transactional producers. A context: stopped at its end."""

    def __init__(self, native: str, kafka: str, *, transactions: bool = True) -> None:
        self.native, self.kafka = native, kafka
        with antiphon.connect(native) as db:
            for name in (TOPIC, KAFKA_TOPIC, PAID):
                db.create_topic(name, shards=SHARDS, replicas=3)
            db.create_table(TABLE, shards=SHARDS, replicas=3)
        self.writers = [self._native_log(), self._native_table(), self._kafka_log()]
        if transactions:
            self.writers.append(self._kafka_transactions())

    def __enter__(self) -> Self:
        for writer in self.writers:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.stop()

    def until_written(self, more: int, timeout_s: float = 30.0) -> None:
        """Return when every writer has written so many more, or has failed."""
        goals = [writer.acknowledged + more for writer in self.writers]
        deadline = time.monotonic() + timeout_s
        while not all(
            writer.acknowledged >= goal or writer.failures
            for writer, goal in zip(self.writers, goals, strict=True)
        ):
            assert time.monotonic() < deadline, f"too slow: {self.figures}"
            time.sleep(0.02)

    @property
    def figures(self) -> list[str]:
        """Latencies of each writer."""
        return [writer.figures for writer in self.writers]

    def _native_log(self) -> Writer:
        db = antiphon.connect(self.native, timeout_s=PATIENCE_S)
        topic = db.topic(TOPIC)
        return Writer("native append", lambda n: _drop(topic.append(b"%d" % n, shard=n % SHARDS)), db.close)

    def _native_table(self) -> Writer:
        db = antiphon.connect(self.native, timeout_s=PATIENCE_S)
        table = db.table(TABLE)
        return Writer("native put", lambda n: _drop(table.put(f"k{n % KEYS}", b"%d" % n)), db.close)

    def _kafka_log(self) -> Writer:
        producer = Producer(
            {**QUIET, "bootstrap.servers": self.kafka, "enable.idempotence": True, "linger.ms": 0}
        )

        def write(number: int) -> None:
            outcomes: list[object] = []
            producer.produce(
                KAFKA_TOPIC,
                b"%d" % number,
                partition=number % SHARDS,
                on_delivery=lambda error, _: outcomes.append(error),
            )
            left = producer.flush(PATIENCE_S)
            assert left == 0, "not delivered in time"
            assert outcomes == [None], str(outcomes)

        return Writer("kafka produce", write, lambda: _drop(producer.flush(1)))

    def _kafka_transactions(self) -> Writer:
        producer = Producer({**QUIET, "bootstrap.servers": self.kafka, "transactional.id": "steady-payer"})
        producer.init_transactions(PATIENCE_S)

        def write(number: int) -> None:
            for _ in range(5):
                try:
                    producer.begin_transaction()
                    for at in range(PER_TRANSACTION):
                        producer.produce(PAID, b"%d" % (number * PER_TRANSACTION + at), partition=at % SHARDS)
                    producer.commit_transaction(PATIENCE_S)
                    return
                except KafkaException as error:
                    if not error.args[0].txn_requires_abort():
                        raise
                    producer.abort_transaction(PATIENCE_S)
            raise AssertionError("five transactions in a row were aborted")

        return Writer("kafka transaction", write, lambda: None)

    # -- what became of it ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No write failed; each that was acknowledged is there once, in order. Raises AssertionError."""
        for writer in self.writers:
            assert writer.failures == [], f"{writer.name} failed: {writer.failures}"
        log, table, kafka, *paid = (writer.acknowledged for writer in self.writers)
        with antiphon.connect(self.native) as db:
            topic = db.topic(TOPIC)
            values = [[int(record.value or b"") for record in topic.read(shard)] for shard in range(SHARDS)]
            _complete(TOPIC, values, log)
            rows = {row.key.decode(): int(row.value) for row in db.table(TABLE).scan()}
            last = {f"k{number % KEYS}": number for number in range(table)}
            assert rows == last, "rows of the table are not those that were put last"
        _complete(KAFKA_TOPIC, read_all(self.kafka, KAFKA_TOPIC, kafka), kafka)
        if paid:
            _complete(PAID, read_all(self.kafka, PAID, paid[0] * PER_TRANSACTION), paid[0] * PER_TRANSACTION)


def _drop(_: object) -> None:
    """An outcome that nobody needs."""


def _complete(name: str, values: list[list[int]], count: int) -> None:
    """Every number below `count` once, rising in each partition."""
    for partition, found in enumerate(values):
        assert found == sorted(set(found)), f"{name}/{partition}: out of order or twice"
    assert sorted(number for found in values for number in found) == list(range(count)), f"{name}: not all"


def read_all(kafka: str, topic: str, count: int) -> list[list[int]]:
    """The committed values of each partition, once there are `count` of them or time is over."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": kafka,
            "group.id": "steady-judge",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    found: list[list[int]] = [[] for _ in range(SHARDS)]
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(SHARDS)])
        deadline = time.monotonic() + READ_S
        while sum(map(len, found)) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                found[message.partition()].append(int(message.value() or b""))
    finally:
        consumer.close()
    return found
