"""Idempotent producers: each record is there once, where it was said to be, those of one producer in order and without gap.

They work as librdkafka does with `enable.idempotence`: sequences by partition, up to five batches in flight, after any error
all that is in flight is waited for and sent again in order under the same sequences. A producer whose batches were not
acknowledged in its delivery time gives them up and goes on under a new producer id.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import PRODUCE
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.drawing import Drawn, with_listeners
from antiphon.simulation.cluster.kafka_client import Connection, KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.described_producers import describe_producers
from antiphon.simulation.cluster.workloads.judged_records import each_once
from antiphon.simulation.cluster.workloads.kafka_damage import send_damaged
from antiphon.simulation.cluster.workloads.kafka_workload import TOPIC, KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from random import Random

    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

IN_FLIGHT_MAX: Final = 5
RECORDS_MAX: Final = 3
VERSIONS: Final = (3, 7, 8, 9, 11)
DELIVERY_S: Final = (2.0, 8.0, 60.0)
RETRIABLE: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.LEADER_NOT_AVAILABLE, code.NOT_LEADER_OR_FOLLOWER, code.REQUEST_TIMED_OUT,
    code.NOT_ENOUGH_REPLICAS, code.KAFKA_STORAGE_ERROR,
})  # fmt: skip


@dataclass(slots=True)
class _Batch:
    first_sequence: int
    values: list[bytes]
    data: bytes
    made_s: float


@dataclass(slots=True)
class _Sent:
    batch: _Batch
    answer: "asyncio.Task[Any]"


@workload("kafka_producers", 10, Drawn(with_listeners(0, 1, 2), "doors", 1), logs_in=False)
class ProducerWorkload(KafkaWorkload):
    """Idempotent producers over Kafka's protocol, five batches in flight, half of them compressed (gzip), retries under the
    same sequences; a third of the topics give records the time of their append. Beside each producer (`kafka_damage.py`):
    batches with right checksums that nobody can read: garbage, a lie about the count, a record cut short. Half of the topics
    have `record.validation=full`, three fifths a `compression.type` of their own.

    Checked: each record is there once, at the acknowledged offset; those of one producer have no gap and are in order; no
    producer whose earlier batches are all acknowledged is refused; the answered time of an append is the batch's, and its
    codec is the topic's; in the end leaders name each producer's last sequence (DescribeProducers). No damaged batch is
    taken, and the producer goes on.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "producer") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"produced": 0, "produce_retried": 0, "produce_given_up": 0}
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # value -> (partition, offset)
        self.sent: dict[bytes, None] = {}

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.kafka_producers, self._produce)
        self.spawn("describer", lambda process: describe_producers(self, process))

    async def _produce(self, process: "Process", number: int) -> None:
        client = self.client(process)
        await asyncio.gather(
            send_damaged(self, process, number),
            *(_Lane(self, process, client, number, partition).run() for partition in self.shard_ids),
        )
        client.close()

    def landed(self, partition: int, batch: _Batch, base_offset: int, time_ms: int) -> None:
        """A batch was acknowledged: it is committed, there, now."""
        shard_id = self.shard_ids[partition]
        self.outcomes["produced"] += len(batch.values)
        self.cluster.tell("produced", batch.values[0].decode(), len(batch.values), base_offset)
        for at, value in enumerate(batch.values):
            self.acknowledged[value] = (partition, base_offset + at)
        end = self.cluster.evidence.truth(shard_id).end
        require(
            base_offset + len(batch.values) <= end,
            "acknowledged-committed",
            f"{batch.values[0]!r} and what follows was acknowledged at {base_offset}, committed is {end}",
            shard_id,
        )
        there = self.cluster.evidence.truth(shard_id).at(base_offset)
        header = None if there is None else read_header(there.data)
        require(
            header is None
            or (header.max_timestamp if self.gives_time else -1, self.gives_time)
            == (time_ms, header.is_log_append_time),
            "append-time",
            f"{batch.values[0]!r} at {base_offset} is said to have been appended at {time_ms}; the log says {header}",
            shard_id,
        )

        require(
            header is None or self.stored_codec in {None, header.codec},
            "stored-codec",
            f"{batch.values[0]!r} at {base_offset} is stored with codec {header and header.codec}, and the topic has "
            f"codec {self.stored_codec}",
            shard_id,
        )

    def check(self) -> None:
        """See `Workload`."""
        for partition in self.shard_ids:
            self._check_partition(partition)

    def _check_partition(self, partition: int) -> None:
        shard_id = self.shard_ids[partition]
        found: dict[bytes, int] = {}
        next_of: dict[bytes, int] = {}  # producer, partition and producer id -> number of its next record
        for value, offset in each_once(self.cluster.evidence.truth(shard_id), self.sent):
            found[value] = offset
            who, _, serial = value.rpartition(b":")
            require(
                int(serial) == next_of.get(who, 0),
                "order",
                f"{value!r} is at {offset}, where number {next_of.get(who, 0)} of its producer comes next",
                shard_id,
            )
            next_of[who] = int(serial) + 1
        for value, (where, offset) in self.acknowledged.items():
            if where == partition:
                require(
                    found.get(value) == offset,
                    "acknowledged-kept",
                    f"{value!r} was acknowledged at {offset}, it is at {found.get(value)}",
                    shard_id,
                )


class _Lane:
    """One producer's batches for one partition."""

    def __init__(
        self, workload: ProducerWorkload, process: "Process", client: KafkaClient, number: int, partition: int
    ) -> None:
        self._workload = workload
        self._process = process
        self._client = client
        self._number = number
        self._partition = partition
        self._draw: Random = client.random
        self._version = self._draw.choice(VERSIONS)
        self._delivery_s = self._draw.choice(DELIVERY_S)
        codecs = workload.cluster.stream(f"codec {number} {partition}")
        self._compression = codecs.choice(("none", "gzip"))  # what there is without pyarrow
        self._producer_id = -1
        self._incarnation = 0
        self._sequence = 0
        self._unsent: deque[_Batch] = deque()  # from an earlier try, in order
        self._in_flight: deque[_Sent] = deque()

    async def run(self) -> None:
        """Produce until the workload is stopped, and then until all is acknowledged."""
        self._producer_id = await self._client.producer_id()
        while self._unsent or not self._workload.stopped:
            if await self._pipeline():
                self._client.forget(TOPIC, self._partition)
                await self._client.back_off()
                await self._give_up_what_is_late()

    async def _pipeline(self) -> bool:
        """Send over one connection until something goes wrong: True. What has to be sent again is unsent then, in order."""
        try:
            address, _ = await self._client.leader(TOPIC, self._partition)
            connection = await self._client.connection(address)
        except NoAnswerError:
            return True
        failed: list[_Batch] = []
        while not failed:
            while len(self._in_flight) < IN_FLIGHT_MAX and (batch := self._next()) is not None:
                self._in_flight.append(_Sent(batch, self._send(connection, batch)))
            if not self._in_flight:
                return False
            await self._take_one(failed)
            if not self._unsent and not self._workload.stopped:
                await self._workload.think(self._process, RECORDS_MAX * IN_FLIGHT_MAX // 2)
        while self._in_flight:
            await self._take_one(failed)
        self._workload.outcomes["produce_retried"] += len(failed)
        self._unsent.extendleft(reversed(failed))
        return True

    def _next(self) -> _Batch | None:
        if self._unsent:
            return self._unsent.popleft()
        if self._workload.stopped:
            return None
        count, first = self._draw.randint(1, RECORDS_MAX), self._sequence
        values = [
            b"%d:%d:%d:%d" % (self._number, self._partition, self._incarnation, first + i)
            for i in range(count)
        ]
        self._sequence += count
        self._workload.sent.update(dict.fromkeys(values))
        data = build_batch(
            [(None, value, (), system.wall_ms()) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=first,
            compression=self._compression,
        )
        return _Batch(first, values, bytes(data), self._workload.now)

    def _send(self, connection: Connection, batch: _Batch) -> "asyncio.Task[Any]":
        timeout_ms = self._draw.choice((500, 5_000))
        request = m.produce_one(TOPIC, batch.data, self._partition, timeout_ms=timeout_ms)
        return self._client.send(connection, PRODUCE, self._version, request)

    async def _take_one(self, failed: list[_Batch]) -> None:
        """The outcome of the oldest batch in flight; to `failed` where it has to be sent again."""
        sent = self._in_flight.popleft()
        try:
            answer: m.ProduceResponse = await sent.answer
        except NoAnswerError:
            failed.append(sent.batch)
            return
        done = answer.topics[0].partitions[0]
        if not done.error_code:
            self._workload.landed(self._partition, sent.batch, done.base_offset, done.log_append_time_ms)
            return
        follows = done.error_code == code.OUT_OF_ORDER_SEQUENCE_NUMBER and bool(failed)
        if done.error_code not in RETRIABLE and not follows:
            raise ViolationError(
                "produce-refused",
                f"{sent.batch.values[0]!r} (producer {self._producer_id}, sequence {sent.batch.first_sequence}), before "
                f"which all is acknowledged, is refused with error {done.error_code}: {done.error_message}",
                self._workload.shard_ids[self._partition],
            )
        failed.append(sent.batch)

    async def _give_up_what_is_late(self) -> None:
        if self._workload.stopped or not self._unsent:
            return
        if self._workload.now - self._unsent[0].made_s < self._delivery_s:
            return
        self._workload.outcomes["produce_given_up"] += sum(len(batch.values) for batch in self._unsent)
        self._unsent.clear()
        self._sequence = 0
        self._incarnation += 1
        self._producer_id = await self._client.producer_id()
