"""Kafka's DeleteRecords on a topic that others write and read: what was to stay stays, what went does not come back.

- `deleted-too-much`: no log begins above the highest offset that anybody asked for, nor is a reader sent away from there.
- `low-watermark`: the answer is where a batch begins, and not above what anybody asked for.
- `deletion-durable`: where the partition begins by the answer, the leader's disk says so too.
- `deletion-kept`: a replica whose disk had it when the answer came never begins before that again, whoever leads since;
  a read below that is out of range. That is judged where disks lose nothing and replicas stay where they are. A node that
  is down at the time keeps its records, which is what docs/kafka.md says, so it is not judged.
"""

import os
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH, PRODUCE
from antiphon.kafka.messages import admin as am
from antiphon.log.snapshot import START_NAME, decode_start
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.faults import KINDS
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_consume import RETRIABLE
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "pruned"
DELETE_RECORDS: Final = 21
FETCH_VERSIONS: Final = (5, 11, 12)  # by name, with the log's start in the answer
RECORDS_MAX: Final = 3
END: Final = -1
UNTOUCHED: Final = frozenset({code.NOT_LEADER_OR_FOLLOWER, code.UNKNOWN_TOPIC_OR_PARTITION})


@workload("record_deleters", 19, Drawn(seldom(0.1, 2), "deletes"), logs_in=False)
class RecordDeletes(KafkaWorkload):
    """DeleteRecords of Kafka's protocol, with and without an offset, while others append and fetch; one world in ten has it.

    Checked: no log begins above the requested offset; the answered offset is the beginning of a batch and is on the
    leader's disk; a replica that had it on disk never begins before it again, and reads below it are out of range.
    """

    topic = TOPIC

    def __init__(self, cluster: "SimulatedCluster", name: str = "deletes") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"records-deleted": 0, "deletes-refused": 0, "pruned-read": 0, "read-below": 0}
        self._keeps = not any(getattr(cluster.options, one.option) for one in KINDS.values() if one.renews)
        self._asked: dict[int, int] = {}  # by partition: the highest offset before which records were to go
        self._open_ended: dict[int, int] = {}  # by partition: requests for all whose outcome is not known
        self._floors: dict[
            tuple[int, int], int
        ] = {}  # by node and partition: where its log begins at the earliest

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await super().set_up(db)
        self._asked = dict.fromkeys(self.shard_ids, 0)
        self._open_ended = dict.fromkeys(self.shard_ids, 0)

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.record_deleters, self._work)

    async def _work(self, process: "Process", _number: int) -> None:
        client, draw = self.client(process), process.random
        while not self.stopped:
            partition, kind = draw.choice(sorted(self.shard_ids)), draw.random()
            try:
                if kind < 0.5:
                    await self._append(client, partition)
                elif kind < 0.65:
                    await self._delete(client, partition)
                else:
                    await self._read(client, partition)
            except NoAnswerError:
                client.forget(TOPIC, partition)
            await self.think(process)
        client.close()

    def _end(self, partition: int) -> int:
        return self.cluster.evidence.truth(self.shard_ids[partition]).end

    def _highest(self, partition: int) -> int:
        """Nobody has asked for more to go."""
        return self._end(partition) if self._open_ended[partition] else self._asked[partition]

    async def _leader(self, client: KafkaClient, partition: int) -> "tuple[Machine, tuple[str, int]]":
        address, _ = await client.leader(TOPIC, partition)
        return next(one for one in self.cluster.machines if one.host == address[0]), address

    async def _append(self, client: KafkaClient, partition: int) -> None:
        _, address = await self._leader(client, partition)
        records = client.random.randint(1, RECORDS_MAX)
        data = build_batch([(None, b"%d" % number, (), system.wall_ms()) for number in range(records)])
        one = m.ProducePartition(index=partition, records=bytes(data))
        topics = [m.ProduceTopic(name=TOPIC, partitions=[one])]
        request = m.ProduceRequest(acks=-1, timeout_ms=2_000, topics=topics)
        answer = await client.ask(address, PRODUCE, 9, request)
        if answer.topics[0].partitions[0].error_code:
            client.forget(TOPIC, partition)

    # -- deletions ------------------------------------------------------------------------------------------------

    async def _delete(self, client: KafkaClient, partition: int) -> None:
        draw = client.random
        machine, address = await self._leader(client, partition)
        end = self._end(partition)
        asked = END if draw.random() < 0.1 else draw.randint(max(0, end - 20), end)
        if asked == END:
            self._open_ended[partition] += 1
        else:
            self._asked[partition] = max(self._asked[partition], asked)
        request = am.DeleteRecordsRequest(
            topics=[
                am.DeleteRecordsTopic(
                    name=TOPIC,
                    partitions=[am.DeleteRecordsPartition(partition_index=partition, offset=asked)],
                )
            ],
            timeout_ms=draw.choice((1_000, 4_000)),
        )
        answer = await client.ask(address, DELETE_RECORDS, draw.choice((0, 2)), request, 5.0)
        done = answer.topics[0].partitions[0]
        self.cluster.tell(
            "deleted-before", machine.node_id, partition, asked, done.low_watermark, done.error_code
        )
        if asked == END and (not done.error_code or done.error_code in UNTOUCHED):
            self._open_ended[partition] -= 1
            self._asked[partition] = max(self._asked[partition], done.low_watermark)
        if done.error_code:
            self.outcomes["deletes-refused"] += 1
            client.forget(TOPIC, partition)
        else:
            self.outcomes["records-deleted"] += 1
            self._deleted(machine, partition, asked, done.low_watermark)

    def _deleted(self, leader: "Machine", partition: int, asked: int, begins: int) -> None:
        """A deletion was acknowledged."""
        shard_id = self.shard_ids[partition]
        truth = self.cluster.evidence.truth(shard_id)
        require(
            0 <= begins <= self._highest(partition) and (begins == truth.end or truth.at(begins) is not None),
            "low-watermark",
            shard_id,
            f"records before {asked} were to go, the highest that anybody asked for is {self._highest(partition)}, and the "
            f"answer is that the log begins at {begins}",
        )
        for machine in self.cluster.machines:
            start = _durable_start(machine, shard_id)
            if machine is leader and self._keeps:
                require(
                    start is None or start >= begins,
                    "deletion-durable",
                    shard_id,
                    f"node {machine.node_id} has answered that the log begins at {begins}; on its disk it begins at {start}",
                )
            if start is not None:
                at = machine.node_id, partition
                self._floors[at] = max(self._floors.get(at, 0), min(start, begins))

    # -- reads ----------------------------------------------------------------------------------------------------

    async def _read(self, client: KafkaClient, partition: int) -> None:
        """Fetch once, from anywhere in what is committed."""
        draw, shard_id = client.random, self.shard_ids[partition]
        machine, address = await self._leader(client, partition)
        position = draw.randint(0, self._end(partition))
        floor = self._floors.get((machine.node_id, partition), 0) if self._keeps else 0
        one = m.FetchPartition(index=partition, offset=position, max_bytes=draw.choice((1, 10_000)))
        topics = [m.FetchTopic(name=TOPIC, partitions=[one])]
        request = m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
        answer: m.FetchResponse = await client.ask(address, FETCH, draw.choice(FETCH_VERSIONS), request)
        found = answer.topics[0].partitions[0]
        if found.error_code == code.OFFSET_OUT_OF_RANGE:
            self.outcomes["read-below"] += 1
            require(
                position < self._highest(partition),
                "deleted-too-much",
                shard_id,
                f"{position} is out of range; nobody asked for more than what is before {self._highest(partition)} to go",
            )
        elif found.error_code:
            require(found.error_code in RETRIABLE, "fetch-refused", shard_id, f"error {found.error_code}")
            client.forget(TOPIC, partition)
        else:
            self.outcomes["pruned-read"] += 1
            self._check_start(machine, partition, found.log_start_offset, position, floor)
            self._check_records(partition, position, found.records or b"")

    def _check_start(self, machine: "Machine", partition: int, start: int, position: int, floor: int) -> None:
        shard_id = self.shard_ids[partition]
        require(
            start <= self._highest(partition),
            "deleted-too-much",
            shard_id,
            f"the log begins at {start}; nobody asked for more than what is before {self._highest(partition)} to go",
        )
        require(
            min(start, position) >= floor,
            "deletion-kept",
            shard_id,
            f"node {machine.node_id} had the log begin at {floor} when a deletion was acknowledged; now {position} can "
            f"be read there, and the log begins at {start}",
        )

    def _check_records(self, partition: int, position: int, data: bytes) -> None:
        shard_id = self.shard_ids[partition]
        truth = self.cluster.evidence.truth(shard_id)
        for header, batch in iter_batches(data):
            known = truth.at(header.base_offset)
            require(
                header.base_offset <= position < header.next_offset
                and known is not None
                and known.data == batch,
                "fetched-is-committed",
                shard_id,
                f"a fetch at {position} gives {header.base_offset}..{header.next_offset}; committed there is {known}",
            )
            position = header.next_offset

    def check(self) -> None:
        """See `Workload`: where each replica's log begins in the end."""
        for machine in self.cluster.machines:
            for partition, shard_id in self.shard_ids.items():
                host = None if machine.node is None else machine.node.hosts.get(shard_id)
                if host is None:
                    continue
                start = host.log.log_start
                floor = self._floors.get((machine.node_id, partition), 0) if self._keeps else 0
                self._check_start(machine, partition, start, start, floor)


def _durable_start(machine: "Machine", shard_id: int) -> int | None:
    """Where a node's log would begin after a power failure now; None where that cannot be said."""
    host = None if machine.node is None else machine.node.hosts.get(shard_id)
    if host is None or host.state.failed is not None:
        return None
    path = os.path.join(host.log.path, START_NAME)
    data = machine.disk.durable(path)
    start = None if data is None else decode_start(bytes(data), path)
    return 0 if start is None else start.log_start
