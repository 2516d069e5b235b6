"""Kafka's DeleteRecords on a topic that others write and read: what was to stay stays, what went does not come back.

- `deleted-too-much`: nothing begins above the highest offset that anybody asked for, nor is a reader sent away from there.
- `low-watermark`: a deletion is answered with its offset, inside a batch or not, or a later one that somebody asked for.
- `deletion-kept`: who leads, in the term in which a deletion was answered or a later one, shows nothing before its offset
  again: to fetches of Kafka's protocol and of the native one, to questions for offsets, and in the end on every replica.
  That is judged where no disk is lost or replaced.
- `deletion-durable`: where the leader's log itself begins by an answer, its disk says so too.
"""

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon import system
from antiphon.errors import AntiphonError, OffsetOutOfRangeError
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin as am
from antiphon.kafka.messages import offsets as om
from antiphon.log.snapshot import START_NAME, decode_start
from antiphon.model.metadata import ABSENT_NODE
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.faults import KINDS
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_consume import FETCHED_AGAIN, LIST_OFFSETS
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "pruned"
DELETE_RECORDS: Final = 21
FETCH_VERSIONS: Final = (5, 11, 12)  # by name, with the log's start in the answer
RECORDS_MAX: Final = 3
END: Final = -1
EARLIEST: Final = -2
GIVEN_UP_S: Final = 10.0  # a deletion that was not answered goes on no longer
NEVER: Final = 1 << 60  # no term is above it


class Floor(NamedTuple):
    """A deletion that was answered, by the leader of this term or an earlier one."""

    term: int
    before: int


@workload("record_deleters", 19, Drawn(seldom(0.1, 2), "deletes"), logs_in=False)
class RecordDeletes(KafkaWorkload):
    """DeleteRecords of Kafka's protocol at any offset, also inside of batches, and without one, while others append, fetch
    by both protocols and ask for offsets; one world in ten has it.

    Checked: an answer names the offset that was asked for, or a later one; nothing begins above the highest requested
    offset; whoever leads in that term or later shows nothing before an answered offset, however often nodes crash, and in
    the end no replica does; fetches give what is committed; where the leader's log begins by the answer is on its disk.
    """

    topic = TOPIC

    def __init__(self, cluster: "SimulatedCluster", name: str = "deletes") -> None:
        super().__init__(cluster, name)
        self.outcomes = {
            "records-deleted": 0,
            "deleted-inside": 0,
            "deletes-refused": 0,
            "pruned-read": 0,
            "read-below": 0,
            "told-start": 0,
        }
        self._keeps = not any(getattr(cluster.options, one.option) for one in KINDS.values() if one.renews)
        self._asked: dict[int, int] = {}  # by partition: the highest offset before which records were to go
        self._open_ended: dict[int, int] = {}  # by partition: requests for all that nobody has answered
        self._begun: dict[int, int] = {}  # by partition: deletions that were begun, ever
        self._open_until: dict[
            int, dict[int, float]
        ] = {}  # by partition: those that may be under way, and until when
        self._floors: dict[int, list[Floor]] = {}  # by partition: what was answered

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await super().set_up(db)
        self._asked = dict.fromkeys(self.shard_ids, 0)
        self._open_ended = dict.fromkeys(self.shard_ids, 0)
        self._begun = dict.fromkeys(self.shard_ids, 0)
        self._open_until = {partition: {} for partition in self.shard_ids}
        self._floors = {partition: [] for partition in self.shard_ids}

    async def _work(self, process: "Process", _number: int) -> None:
        client, draw, db = self.client(process), process.random, await self.connected()
        while not self.stopped:
            partition, kind = draw.choice(sorted(self.shard_ids)), draw.random()
            try:
                if kind < 0.5:
                    await self._append(client, partition)
                elif kind < 0.65:
                    await self._delete(client, partition)
                elif kind < 0.8:
                    await self._read(client, partition)
                elif kind < 0.9:
                    await self._ask_start(client, partition)
                else:
                    await self._read_natively(db, partition, draw)
            except NoAnswerError:
                client.forget(TOPIC, partition)
            await self.think(process)
        client.close()
        await db.close()

    def _highest(self, partition: int) -> int:
        """Nobody has asked for more to go."""
        return self.end_of(partition) if self._open_ended[partition] else self._asked[partition]

    async def _append(self, client: KafkaClient, partition: int) -> None:
        _, address = await self.leader_of(client, partition)
        records = client.random.randint(1, RECORDS_MAX)
        data = build_batch([(None, b"%d" % number, (), system.wall_ms()) for number in range(records)])
        if (await client.produce(address, TOPIC, partition, bytes(data))).error_code:
            client.forget(TOPIC, partition)

    # -- deletions ------------------------------------------------------------------------------------------------

    async def _delete(self, client: KafkaClient, partition: int) -> None:
        draw = client.random
        machine, address = await self.leader_of(client, partition)
        end = self.end_of(partition)
        asked = END if draw.random() < 0.1 else draw.randint(max(0, end - 20), end)
        if asked == END:
            self._open_ended[partition] += 1
        else:
            self._asked[partition] = max(self._asked[partition], asked)
        number = self._begun[partition] = self._begun[partition] + 1
        now_s, others = self.cluster.loop.now, self._open_until[partition]
        is_alone = all(until_s < now_s for until_s in others.values())
        others[number] = now_s + GIVEN_UP_S
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
        if not done.error_code:  # else it may yet be carried out
            del others[number]
        self.cluster.tell(
            "deleted-before", machine.node_id, partition, asked, done.low_watermark, done.error_code
        )
        if asked == END:
            # Which end that was, the leader had found out before it answered, also where it may yet be recorded.
            meant = self.end_of(partition) if done.error_code else done.low_watermark
            self._open_ended[partition] -= 1
            self._asked[partition] = max(self._asked[partition], meant)
        if done.error_code:
            self.outcomes["deletes-refused"] += 1
            client.forget(TOPIC, partition)
            return
        self.outcomes["records-deleted"] += 1
        self._deleted(machine, partition, asked, done.low_watermark)
        if (
            is_alone and number == self._begun[partition]
        ):  # else its leader may trim for another one right now
            self._check_durable(machine, partition, done.low_watermark)

    def _deleted(self, leader: "Machine", partition: int, asked: int, begins: int) -> None:
        """A deletion was acknowledged."""
        shard_id = self.shard_ids[partition]
        truth = self.cluster.evidence.truth(shard_id)
        require(
            max(asked, 0) <= begins <= self._highest(partition),
            "low-watermark",
            f"records before {asked} were to go, the highest that anybody asked for is {self._highest(partition)}, and the "
            f"answer is that the partition begins at {begins}",
            shard_id,
        )
        self.outcomes["deleted-inside"] += begins < truth.end and truth.at(begins) is None
        if self._keeps:
            host = leader.hosts.get(shard_id)
            term = NEVER if host is None else host.state.term
            self._floors[partition].append(Floor(term, begins))

    def _check_durable(self, leader: "Machine", partition: int, begins: int) -> None:
        shard_id = self.shard_ids[partition]
        host = leader.hosts.get(shard_id)
        if not self._keeps or host is None or host.log.log_start > begins:
            return
        start = _durable_start(leader, shard_id)
        require(
            start is None or start >= host.log.log_start,
            "deletion-durable",
            f"node {leader.node_id} has answered that {begins} is where it begins, and its log begins at "
            f"{host.log.log_start}; on its disk it begins at {start}",
            shard_id,
        )

    def _floor(self, partition: int, term: int) -> int:
        """What the leader of this term, and of every later one, must know to be deleted by now."""
        return max((floor.before for floor in self._floors[partition] if floor.term <= term), default=0)

    def _floor_of(self, machine: "Machine", partition: int) -> int:
        """What a node must know to be deleted, if it leads: its term only rises."""
        host = machine.hosts.get(self.shard_ids[partition])
        return 0 if host is None else self._floor(partition, host.state.term)

    # -- reads ----------------------------------------------------------------------------------------------------

    async def _read(self, client: KafkaClient, partition: int) -> None:
        """Fetch once, from anywhere in what is committed."""
        draw, shard_id = client.random, self.shard_ids[partition]
        machine, address = await self.leader_of(client, partition)
        position = draw.randint(0, self.end_of(partition))
        floor = self._floor_of(machine, partition)
        max_bytes, version = draw.choice((1, 10_000)), draw.choice(FETCH_VERSIONS)
        found = await client.fetch(address, TOPIC, partition, position, max_bytes, version)
        if found.error_code == code.OFFSET_OUT_OF_RANGE:
            self.outcomes["read-below"] += 1
            require(
                position < self._highest(partition),
                "deleted-too-much",
                f"{position} is out of range; nobody asked for more than what is before {self._highest(partition)} to go",
                shard_id,
            )
        elif found.error_code:
            require(found.error_code in FETCHED_AGAIN, "fetch-refused", f"error {found.error_code}", shard_id)
            client.forget(TOPIC, partition)
        else:
            self.outcomes["pruned-read"] += 1
            self._check_start(machine.node_id, partition, found.log_start_offset, position, floor)
            self.judge_fetched(partition, position, found.records or b"")

    async def _ask_start(self, client: KafkaClient, partition: int) -> None:
        """ListOffsets: the first offset, or the first record of a time."""
        machine, address = await self.leader_of(client, partition)
        floor = self._floor_of(machine, partition)
        asked_ms = EARLIEST if client.random.random() < 0.7 else 0
        one = om.ListOffsetsPartition(partition_index=partition, timestamp=asked_ms)
        request = om.ListOffsetsRequest(
            replica_id=-1, topics=[om.ListOffsetsTopic(name=TOPIC, partitions=[one])]
        )
        answer = await client.ask(address, LIST_OFFSETS, 7, request)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            client.forget(TOPIC, partition)
        elif found.offset >= 0:
            self.outcomes["told-start"] += 1
            if asked_ms == EARLIEST:
                self._check_start(machine.node_id, partition, found.offset, found.offset, floor)
            else:
                self._check_start(machine.node_id, partition, floor, found.offset, floor)

    async def _read_natively(self, db: "AsyncClient", partition: int, draw: "Random") -> None:
        """Fetch once by the native protocol, which tells the leader's term."""
        shard_id = self.shard_ids[partition]
        position, known = draw.randint(0, self.end_of(partition)), len(self._floors[partition])
        try:
            reply, payload = await db.fetch(shard_id, position, isolation="read_uncommitted")
        except OffsetOutOfRangeError:
            self.outcomes["read-below"] += 1
            return
        except AntiphonError:
            return
        floors = self._floors[partition][:known]  # that were answered before it asked
        floor = max((one.before for one in floors if one.term <= reply.term), default=0)
        self.outcomes["pruned-read"] += 1
        self._check_start(ABSENT_NODE, partition, reply.log_start, position, floor)
        self.judge_fetched(partition, position, bytes(payload))

    def _check_start(self, node_id: int, partition: int, start: int, position: int, floor: int) -> None:
        shard_id = self.shard_ids[partition]
        require(
            start <= self._highest(partition),
            "deleted-too-much",
            f"the log begins at {start}; nobody asked for more than what is before {self._highest(partition)} to go",
            shard_id,
        )
        require(
            min(start, position) >= floor,
            "deletion-kept",
            f"records before {floor} were deleted, which was answered; now {position} can be read at node {node_id}, where "
            f"the log begins at {start}",
            shard_id,
        )

    def check(self) -> None:
        """See `Workload`: from where on each replica is shown in the end."""
        for partition, shard_id in self.shard_ids.items():
            for machine, host in self.cluster.replicas_of(shard_id):
                start = host.state.log_start
                self._check_start(machine.node_id, partition, start, start, self._floor(partition, NEVER))


def _durable_start(machine: "Machine", shard_id: int) -> int | None:
    """Where a node's log would begin after a power failure now; None where that cannot be said."""
    host = machine.hosts.get(shard_id)
    if host is None or host.state.failed is not None:
        return None
    path = os.path.join(host.log.path, START_NAME)
    data = machine.disk.durable(path)
    start = None if data is None else decode_start(bytes(data), path)
    return 0 if start is None else start.log_start
