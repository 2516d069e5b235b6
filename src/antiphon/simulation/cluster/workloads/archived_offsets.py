"""Offsets by name and by time that nodes tell Kafka's consumers of a topic whose old records are archived.

- `archived-start`: from the earliest offset that is told on, files reach a log without a gap, and none does from before.
- `archived-time`: the offset that is told for a time is that of the first record, by offset, which is that late or later, of
  all from the earliest offset on up to the end that the same node told before. None is told where there is none.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.archive.format import ArchivedFile, archived_until, in_order, reaching
from antiphon.kafka.messages import offsets as om
from antiphon.records.batch import read_header
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.kafka_client import Address, KafkaClient
from antiphon.simulation.cluster.workloads.kafka_consume import EARLIEST, LIST_OFFSETS, RETRIABLE
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.truth import ShardTruth

TOPIC: Final = "aged"
LATEST: Final = -1
NONE: Final = -1
FAR_MS: Final = 100_000
OUTCOMES: Final = (
    "archive-start-told",
    "archive-time-told",  # an offset that the answering node's log did not have any more, or that no log has
    "archive-time-in-log",
    "archive-time-none",
)


class _Timed(NamedTuple):
    offset: int
    time_ms: int
    is_control: bool


class _Times:
    """Times of what is committed in one shard, in the order of offsets."""

    def __init__(self, truth: "ShardTruth") -> None:
        self._truth = truth
        self._seen = 0
        self._records: list[_Timed] = []

    def all(self) -> list[_Timed]:
        for batch in self._truth.batches[self._seen :]:
            is_control = read_header(batch.data).is_control
            records = decode_records(batch.data, include_control=True)
            self._records += [_Timed(one.offset, one.timestamp_ms, is_control) for one in records]
            self._seen += 1
        return self._records


class ToldOffsets:
    """Asks for offsets of a topic, and judges what is told.

    Args:
        shard_ids: by partition.
        files: by partition, those that are in the catalog; there are more at the end only.
        tried: by partition, those that may be in it.
        outcomes: where what was told is counted, under `OUTCOMES`.
    """

    def __init__(
        self,
        cluster: "SimulatedCluster",
        shard_ids: dict[int, int],
        files: dict[int, list[ArchivedFile]],
        tried: dict[int, list[ArchivedFile]],
        outcomes: dict[str, int],
    ) -> None:
        self._cluster = cluster
        self._shard_ids = shard_ids
        self._files = files
        self._tried = tried
        self._times = {one: _Times(cluster.evidence.truth(shard_id)) for one, shard_id in shard_ids.items()}
        self._outcomes = outcomes

    async def earliest(self, client: KafkaClient, address: Address, partition: int) -> int | None:
        """What a node tells as the earliest offset; None: nothing. From there on files reach its log without a gap."""
        known, logs_begin = len(self._files[partition]), self._log_starts(partition)
        told = await self._ask(client, address, partition, EARLIEST)
        if told is None:
            return None
        self._outcomes["archive-start-told"] += 1
        began, latest = int(told.offset), self._latest_start(partition, known)
        require(
            began <= latest and self._reaches(partition, began, logs_begin),
            "archived-start",
            f"a consumer is told that records begin at {began}; the archive reaches all logs from {latest} on, and none "
            f"began before {logs_begin}",
            self._shard_ids[partition],
        )
        return began

    async def since(self, client: KafkaClient, address: Address, partition: int) -> int | None:
        """What a node tells as the offset of a time; None: nothing, or that there is none."""
        end = await self._ask(client, address, partition, LATEST)
        if end is None:
            return None
        known, logs_begin = len(self._files[partition]), self._log_starts(partition)
        asked_ms = self._drawn(client.random, partition)
        told = await self._ask(client, address, partition, asked_ms)
        if told is None:
            return None
        first = self._latest_start(partition, known)
        if told.offset == NONE:
            self._outcomes["archive-time-none"] += 1
            self._judge_passed_over(partition, asked_ms, first, int(end.offset), "nothing is")
            return None
        self._judge_passed_over(partition, asked_ms, first, int(told.offset), f"{told.offset} is the first")
        self._judge_answer(partition, asked_ms, told, logs_begin)
        is_archived = told.offset < self._cluster.evidence.truth(self._shard_ids[partition]).latest_start
        self._outcomes["archive-time-told" if is_archived else "archive-time-in-log"] += 1
        return int(told.offset)

    async def _ask(self, client: KafkaClient, address: Address, partition: int, asked: int) -> Any:
        one = om.ListOffsetsPartition(partition_index=partition, timestamp=asked)
        topics = [om.ListOffsetsTopic(name=TOPIC, partitions=[one])]
        request = om.ListOffsetsRequest(
            replica_id=-1, isolation_level=client.random.randrange(2), topics=topics
        )
        answer: Any = await client.ask(address, LIST_OFFSETS, 7, request)
        told = answer.topics[0].partitions[0]
        if told.error_code:
            require(
                told.error_code in RETRIABLE,
                "offset-refused",
                f"an offset ({asked}) is refused with error {told.error_code}",
                self._shard_ids[partition],
            )
            client.forget(TOPIC, partition)
            return None
        return told

    def _drawn(self, draw: "Random", partition: int) -> int:
        """A time: of a committed record, of where a file or a log begins or ends, or before or after all of them."""
        times, files = self._times[partition].all(), self._files[partition]
        if not times or draw.random() < 0.15:
            return 0
        if draw.random() < 0.1:
            return max(one.time_ms for one in times) + draw.choice((0, 1, FAR_MS))
        near = [draw.choice(times).time_ms]
        if files:
            file = draw.choice(files)
            near += [one for one in (file.earliest_ms, file.latest_ms) if one >= 0]
            edges = {file.start, file.end - 1, file.end, files[-1].end - 1, files[-1].end}
            near += [one.time_ms for one in times if one.offset in edges]
        return max(0, draw.choice(near) + draw.choice((-1, 0, 0, 1)))

    # -- judging ----------------------------------------------------------------------------------------------------

    def _judge_passed_over(self, partition: int, asked_ms: int, first: int, end: int, told: str) -> None:
        """No record of [first, end) is as late as was asked. Control batches do not count: consumers do not see them."""
        missed = next(
            (
                one
                for one in self._times[partition].all()
                if first <= one.offset < end and one.time_ms >= asked_ms and not one.is_control
            ),
            None,
        )
        require(
            missed is None,
            "archived-time",
            f"a consumer asks for {asked_ms} ms and is told that {told} that late; {missed} is as well, and records "
            f"begin at {first} or before",
            self._shard_ids[partition],
        )

    def _judge_answer(self, partition: int, asked_ms: int, told: Any, logs_begin: int) -> None:
        """What is told is a record of that time, and what follows on it can be read."""
        times = self._times[partition].all()
        record = next((one for one in times if one.offset == told.offset), None)
        require(
            record is not None and record.time_ms == told.timestamp >= asked_ms,
            "archived-time",
            f"a consumer asks for {asked_ms} ms and is told of a record at {told.offset} of {told.timestamp} ms; committed "
            f"there is {record}",
            self._shard_ids[partition],
        )
        require(
            self._reaches(partition, int(told.offset), logs_begin),
            "archived-time",
            f"a consumer asks for {asked_ms} ms and is told of {told.offset}, from where files do not reach a log; none "
            f"began before {logs_begin}",
            self._shard_ids[partition],
        )

    def _latest_start(self, partition: int, known: int) -> int:
        """Wherever a node's log begins: what it serves begins here, or before, if it has `known` files of the catalog."""
        truth = self._cluster.evidence.truth(self._shard_ids[partition])
        return reaching(self._files[partition][:known], truth.latest_start)

    def _reaches(self, partition: int, offset: int, logs_begin: int) -> bool:
        """May files have everything from an offset on up to a log?"""
        return max(archived_until(in_order(self._tried[partition]), offset), offset) >= logs_begin

    def _log_starts(self, partition: int) -> int:
        """No log of the shard begins before; 0 where one cannot be seen now."""
        nodes = [machine.node for machine in self._cluster.machines]
        hosts = [node.hosts.get(self._shard_ids[partition]) for node in nodes if node is not None]
        if None in nodes:
            return 0
        return min((host.state.log_start for host in hosts if host is not None), default=0)
