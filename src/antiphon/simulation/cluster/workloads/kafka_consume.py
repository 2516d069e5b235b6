"""Consumers that fetch a topic from its beginning: they see what is committed, byte for byte, all of it, in order.

Each follows the leaders of the topic's partitions by itself, without a group, half of them in fetch sessions, which tell
what changed only: who is not told of what is committed does not come to its end. Some say in which rack they stand, and read
from the replica there that the leader names, until it fails them or the choice is old. A position that consumers were led to
stays readable: who has read to an offset is never told that it is out of range, unless the log was trimmed.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import ProtocolViolationError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH
from antiphon.kafka.messages import offsets as om
from antiphon.records.batch import iter_batches, validate_batch
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.drawing import Drawn, with_listeners
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_workload import TOPIC, KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.racks import RACKS, rack_of
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

VERSIONS_BY_NAME: Final = (4, 7, 11, 12)
VERSIONS: Final = (*VERSIONS_BY_NAME, 16)
FIRST_TOPIC_IDS: Final = 13
FIRST_SESSIONS: Final = 7
FIRST_RACK: Final = 11
LEADER_AGAIN: Final = 0.03  # of the fetches from another replica, after which the leader is asked anew
NO_SESSION: Final = (0, -1)
NEW_SESSION: Final = (0, 0)
SESSION_LOST: Final = frozenset({code.FETCH_SESSION_ID_NOT_FOUND, code.INVALID_FETCH_SESSION_EPOCH})
LIST_OFFSETS: Final = 2
EARLIEST: Final = -2
# Kafka's consumer in Java asks again after these; at any other code of a fetch it throws, and its application ends.
FETCHED_AGAIN: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.NOT_LEADER_OR_FOLLOWER, code.KAFKA_STORAGE_ERROR, code.FENCED_LEADER_EPOCH,
    code.UNKNOWN_LEADER_EPOCH, code.OFFSET_NOT_AVAILABLE, code.UNKNOWN_TOPIC_ID,
})  # fmt: skip
RETRIABLE: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.LEADER_NOT_AVAILABLE, code.NOT_LEADER_OR_FOLLOWER, code.REQUEST_TIMED_OUT,
    code.NOT_ENOUGH_REPLICAS, code.KAFKA_STORAGE_ERROR, code.FENCED_LEADER_EPOCH, code.UNKNOWN_LEADER_EPOCH,
    code.UNKNOWN_TOPIC_ID, code.OFFSET_NOT_AVAILABLE,
})  # fmt: skip


@workload("kafka_consumers", 11, Drawn(with_listeners(0, 1, 1), "doors", 2), logs_in=False)
class ConsumerWorkload(KafkaWorkload):
    """Fetch from offset 0 on, in old and new versions.

    Checked: batches equal the committed ones byte for byte, none above the high watermark; a position that was reached
    stays in range.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "consumer") -> None:
        super().__init__(cluster, name)
        self.outcomes = {
            "fetched": 0,
            "fetch_retried": 0,
            "session_fetches": 0,
            "sessions_lost": 0,
            "followed": 0,
        }

    async def _work(self, process: "Process", _number: int) -> None:
        client = self.client(process)
        await asyncio.gather(*(_Follower(self, process, client, at).run() for at in self.shard_ids))
        client.close()

    def check(self) -> None:
        """See `Workload`: all was judged when it came."""


class _Follower:
    """One consumer's way through one partition."""

    def __init__(
        self, workload: ConsumerWorkload, process: "Process", client: KafkaClient, partition: int
    ) -> None:
        self._workload = workload
        self._process = process
        self._client = client
        self._partition = partition
        self._shard_id = workload.shard_ids[partition]
        self._truth = workload.cluster.evidence.truth(self._shard_id)
        self._version = client.random.choice(VERSIONS if client.knows_topic_ids else VERSIONS_BY_NAME)
        self._checks_epoch = client.random.random() < 0.5
        self._position = 0
        keeps = self._version >= FIRST_SESSIONS and (partition + self._version) % 2 == 0
        self._begins_with = NEW_SESSION if keeps else NO_SESSION
        self._session = self._begins_with
        self._session_of: tuple[str, int] | None = None  # address of the node that keeps the session
        self._told: m.FetchPartition | None = None  # what the session knows of the partition
        says_rack = self._version >= FIRST_RACK and client.random.random() < 0.6
        self._rack = rack_of(client.random.randrange(RACKS)) if says_rack else ""
        self._read_at: int | None = None  # the node that the leader named

    async def run(self) -> None:
        """Follow the partition until the workload is stopped, and then to its end."""
        while not (self._workload.stopped and self._position >= self._truth.end):
            try:
                went_on = await self._fetch()
            except NoAnswerError:
                went_on = False
            if not went_on:
                self._workload.outcomes["fetch_retried"] += 1
                self._session = self._begins_with
                self._read_at = None
                self._client.forget(TOPIC, self._partition)
                await self._client.back_off()
            elif not self._workload.stopped:
                await self._workload.think(self._process)

    async def _fetch(self) -> bool:
        """Fetch once; False where the leader has to be looked for again."""
        address, epoch = await self._client.leader(TOPIC, self._partition)
        if self._client.random.random() < LEADER_AGAIN:
            self._read_at = None
        is_led = self._read_at is None
        if self._read_at is not None:
            address = self._client.nodes[self._read_at]
        if address != self._session_of:
            self._session, self._session_of = self._begins_with, address
        answer: m.FetchResponse = await self._client.ask(
            address, FETCH, self._version, self._request(epoch if self._checks_epoch else -1)
        )
        if answer.error_code in SESSION_LOST and self._session[0]:
            self._workload.outcomes["sessions_lost"] += 1
            self._session = self._begins_with
            return True
        require(not answer.error_code, "fetch-refused", f"error {answer.error_code}", self._shard_id)
        if not self._goes_on(answer):
            return True
        fetched = answer.topics[0].partitions[0]
        if fetched.error_code == code.OFFSET_OUT_OF_RANGE:
            return is_led and await self._is_trimmed(address)
        if fetched.error_code:
            require(
                fetched.error_code in FETCHED_AGAIN,
                "fetch-refused",
                f"a fetch at {self._position} is refused with error {fetched.error_code}",
                self._shard_id,
            )
            return False
        if fetched.preferred_read_replica in self._client.nodes:
            self._read_at = fetched.preferred_read_replica
        elif not is_led:
            self._workload.outcomes["followed"] += 1
        self._take(fetched)
        return True

    def _goes_on(self, answer: m.FetchResponse) -> bool:
        """Follow the session; False where it has no news of the partition."""
        session_id, epoch = self._session
        if session_id:
            self._workload.outcomes["session_fetches"] += 1
            require(
                answer.session_id == session_id,
                "session-kept",
                f"an answer in session {session_id} says that it is of session {answer.session_id}",
                self._shard_id,
            )
        elif epoch != NEW_SESSION[1]:
            require(not answer.session_id, "session-wanted", "who wants no session gets one", self._shard_id)
        self._session = (answer.session_id, epoch + 1) if answer.session_id else self._begins_with
        require(
            bool(answer.topics) or bool(session_id),
            "full-answer",
            "a full fetch has no answer about its partition",
            self._shard_id,
        )
        return bool(answer.topics)

    def _request(self, epoch: int) -> m.FetchRequest:
        draw = self._client.random
        partition = m.FetchPartition(
            index=self._partition,
            leader_epoch=epoch,
            offset=self._position,
            max_bytes=draw.choice((1, 1_000, 1 << 20)),
        )
        is_known = bool(self._session[0]) and partition == self._told
        self._told = partition
        by_id = self._version >= FIRST_TOPIC_IDS
        topic = m.FetchTopic(name=TOPIC, partitions=[partition])
        if by_id:
            topic = m.FetchTopic(topic_id=self._client.topic_ids[TOPIC], partitions=[partition])
        return m.FetchRequest(
            max_wait_ms=draw.choice((0, 50, 500)),
            min_bytes=draw.choice((1, 1, 10_000)),
            max_bytes=1 << 20,
            isolation=draw.choice((0, 1)),
            session_id=self._session[0],
            session_epoch=self._session[1],
            topics=[] if is_known else [topic],
            rack=self._rack,
        )

    def _take(self, fetched: m.FetchedPartition) -> None:
        """Judge what came, and go on behind it."""
        end = self._truth.end
        require(
            fetched.high_watermark <= end,
            "watermark-committed",
            f"a consumer is told of a high watermark of {fetched.high_watermark}, committed is {end}",
            self._shard_id,
        )
        for header, data in iter_batches(fetched.records or b""):
            validate_batch(data)
            require(
                header.next_offset <= fetched.high_watermark,
                "below-watermark",
                f"a consumer gets {header.base_offset}..{header.next_offset}, told of a high watermark of "
                f"{fetched.high_watermark}",
                self._shard_id,
            )
            require(
                header.base_offset <= self._position < header.next_offset,
                "offsets-follow",
                f"a consumer at {self._position} gets {header.base_offset}..{header.next_offset}",
                self._shard_id,
            )
            known = self._truth.at(header.base_offset)
            require(
                known is not None and known.data == data,
                "fetched-is-committed",
                f"a consumer gets another batch at {header.base_offset} than was committed there",
                self._shard_id,
            )
            self._workload.outcomes["fetched"] += header.record_count
            self._position = header.next_offset

    async def _is_trimmed(self, address: tuple[str, int]) -> bool:
        """The position is said to be out of range: that may only be because the log begins behind it."""
        partition = om.ListOffsetsPartition(partition_index=self._partition, timestamp=EARLIEST)
        request = om.ListOffsetsRequest(
            replica_id=-1, topics=[om.ListOffsetsTopic(name=TOPIC, partitions=[partition])]
        )
        answer: Any = await self._client.ask(address, LIST_OFFSETS, 7, request)
        first = answer.topics[0].partitions[0]
        if first.error_code in RETRIABLE:
            return False
        if first.error_code:
            raise ProtocolViolationError(f"ListOffsets is refused with error {first.error_code}")
        if first.offset <= self._position:
            raise ViolationError(
                "position-kept",
                f"a consumer that has read to {self._position} is told that this is out of range; the log begins at "
                f"{first.offset}, committed is {self._truth.end}",
                self._shard_id,
            )
        self._position = first.offset
        return True
