"""Work through Kafka's protocol: confluent-kafka, the same client and settings for every peer that speaks it."""

import time
from itertools import cycle, islice
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.peers.clients.process import Due, Job, Result, result, serve
from tests.peers.clients.rebalance import Rebalance
from tests.peers.clients.values import random_values

BURST: Final = 1000
# Enough that all brokers have full batches; more would only make the end of each measurement longer.
QUEUE_BYTES_MIN: Final = 4 * 1024 * 1024
QUEUE_BATCHES: Final = 64
SAMPLE: Final = 50  # of how many records' latencies one is kept where nobody waits for a single record
FULL_S: Final = 0.003  # spinning on a full queue would take the brokers' share of the cores
TICK_S: Final = 0.001
FLUSH_S: Final = 60.0
READ_RECORDS: Final = 10_000


class Produce:
    """A producer that keeps its queue full."""

    def __init__(self, job: Job) -> None:
        self.topic: str = job["topic"]
        self.values = cycle(random_values(job["value_bytes"]))
        self.acknowledged = 0
        self.failed = 0
        self.took_us: list[float] = []
        self.producer = Producer(
            {
                "bootstrap.servers": job["servers"],
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": job["linger_ms"],
                "batch.size": job["batch_bytes"],
                "batch.num.messages": 100_000,
                "compression.type": job["codec"],
                "queue.buffering.max.messages": 400_000,
                "queue.buffering.max.kbytes": max(QUEUE_BYTES_MIN, QUEUE_BATCHES * job["batch_bytes"])
                // 1024,
                "max.in.flight": job.get("in_flight", 5),
                "on_delivery": self._delivered,
                **self._own(job),
            }
        )
        self._first()

    def _own(self, job: Job) -> dict[str, Any]:
        return {}

    def _first(self) -> None:
        self.producer.produce(self.topic, next(self.values))
        self.producer.flush(FLUSH_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acknowledged += 1
        if not self.acknowledged % SAMPLE:
            self.took_us.append((message.latency() or 0.0) * 1e6)

    def run(self, seconds: float) -> Result:
        self.acknowledged, self.failed = 0, 0
        self.took_us.clear()
        began = time.perf_counter()
        self.load(began, seconds)
        self.failed += self.producer.flush(FLUSH_S)
        took = time.perf_counter() - began
        return result(self.acknowledged, took, self.took_us, self.failed)

    def load(self, began: float, seconds: float) -> None:
        """Produce until the time is over."""
        produce, poll, topic = self.producer.produce, self.producer.poll, self.topic
        while time.perf_counter() < began + seconds:
            try:
                for value in islice(self.values, BURST):
                    produce(topic, value)
            except BufferError:
                time.sleep(FULL_S)
            poll(0)


class Fill(Produce):
    """So many records, as fast as they are taken; a consumer reads them later."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._records = job["records"] - 1  # the first one is there already

    def load(self, began: float, seconds: float) -> None:
        left = self._records
        while left:
            try:
                self.producer.produce(self.topic, next(self.values))
                left -= 1
            except BufferError:
                self.producer.poll(FULL_S)


class OneInFlight(Produce):
    """Each record waits for the acknowledgement of the one before."""

    def load(self, began: float, seconds: float) -> None:
        producer = self.producer
        took_us = []
        while (at := time.perf_counter()) < began + seconds:
            producer.produce(self.topic, next(self.values))
            producer.flush(FLUSH_S)
            took_us.append((time.perf_counter() - at) * 1e6)
        self.took_us = took_us


class Transact(Produce):
    """Transactions one after the other: so many records, spread over the partitions, and the commit."""

    def __init__(self, job: Job) -> None:
        self._records: int = job["records"]
        super().__init__(job)

    def _own(self, job: Job) -> dict[str, Any]:
        return {"transactional.id": f"transact-{job['topic']}-{job['number']}"}

    def _first(self) -> None:
        self.producer.init_transactions(FLUSH_S)
        self._transaction()

    def _transaction(self) -> None:
        self.producer.begin_transaction()
        for value in islice(self.values, self._records):
            self.producer.produce(self.topic, value)
        self.producer.commit_transaction(FLUSH_S)

    def run(self, seconds: float) -> Result:
        took_us = []
        began = time.perf_counter()
        while (at := time.perf_counter()) < began + seconds:
            self._transaction()
            took_us.append((time.perf_counter() - at) * 1e6)
        return result(len(took_us), time.perf_counter() - began, took_us, self.failed)


class OpenLoop(Produce):
    """Records at a fixed rate, whatever the acknowledgements do; a record's latency begins when it is due."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._rate: float = job["rate"]

    def load(self, began: float, seconds: float) -> None:
        due = Due(self._rate)
        took_us: list[float] = []
        number = 0
        while time.perf_counter() < began + seconds:
            for at in due.take():
                number += 1
                self._send(at, took_us if not number % SAMPLE else None)
            self.producer.poll(TICK_S)
        self.producer.flush(FLUSH_S)
        self.took_us = took_us

    def _send(self, due_s: float, took_us: list[float] | None) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._delivered(error, message)
            if took_us is not None:
                took_us.append((time.perf_counter() - due_s) * 1e6)

        while True:
            try:
                if took_us is None:
                    self.producer.produce(self.topic, next(self.values))
                else:
                    self.producer.produce(self.topic, next(self.values), on_delivery=delivered)
            except BufferError:
                self.producer.poll(TICK_S)
            else:
                return


class Consume:
    """A reader of the whole topic, from its beginning, again and again, or `once`."""

    def __init__(self, job: Job) -> None:
        self._places = [TopicPartition(job["topic"], number, 0) for number in range(job["partitions"])]
        self._records: int = job["records"]
        self._once: bool = job.get("once", False)
        self._left = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": job["servers"],
                "group.id": f"read-{job['topic']}-{job['number']}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.list_topics(job["topic"], timeout=FLUSH_S)

    def run(self, seconds: float) -> Result:
        consumer = self._consumer
        count = 0
        began = time.perf_counter()
        while True:
            if not self._left:
                consumer.assign(self._places)
                self._left = self._records
            found: list[Any] = consumer.consume(READ_RECORDS, 0.05)
            count += len(found)
            self._left -= len(found)
            took = time.perf_counter() - began
            over = took > FLUSH_S if self._once else took > seconds
            if over or (self._once and not self._left):
                failed = max(0, self._left) if self._once else 0
                return result(count, took, failed=failed)


class CommitOffsets:
    """A consumer of a group of its own that commits an offset of each partition, and waits, again and again."""

    def __init__(self, job: Job) -> None:
        self._topic: str = job["topic"]
        self._partitions: int = job["partitions"]
        self._offset = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": job["servers"],
                "group.id": f"commit-{job['topic']}-{job['number']}",
                "enable.auto.commit": False,
            }
        )
        self._commit()

    def _commit(self) -> None:
        self._offset += 1
        places = [TopicPartition(self._topic, number, self._offset) for number in range(self._partitions)]
        done = self._consumer.commit(offsets=places, asynchronous=False)
        for place in done or ():
            if place.error is not None:
                raise place.error

    def run(self, seconds: float) -> Result:
        took_us = []
        began = time.perf_counter()
        while (at := time.perf_counter()) < began + seconds:
            self._commit()
            took_us.append((time.perf_counter() - at) * 1e6)
        return result(len(took_us), time.perf_counter() - began, took_us)


if __name__ == "__main__":
    serve(
        {
            "produce": Produce,
            "fill": Fill,
            "one": OneInFlight,
            "open": OpenLoop,
            "consume": Consume,
            "commit": CommitOffsets,
            "transact": Transact,
            "rebalance": Rebalance,
        }
    )
