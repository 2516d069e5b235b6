"""A topic whose old records go to an archive while Kafka's consumers read it from the beginning.

- `archived-position`: a consumer is told that its position is out of range only where no file holds it that was entered in
  the catalog before it asked, and no log.
- `archived-order`: batches follow each other from the position on, and their records are the committed ones, each once.
- `archived-end`: what comes from the archive is below the high watermark that is told, and that is committed.
- `archived-start` and `archived-time`: see `archived_offsets`.
"""

import asyncio
import contextlib
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.archive import places
from antiphon.archive.format import (
    ARCHIVE_TABLE,
    FORMAT_VERSION,
    ArchivedFile,
    decode_row,
    encode_row,
)
from antiphon.archive.places import file_prefix, shard_directory, topic_directory
from antiphon.client.cluster import Cluster
from antiphon.errors import AntiphonError, TopicExistsError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import (
    CreateTopic,
    Fetch,
    ListOffset,
    OpStatus,
    Put,
    TableGet,
    TableWrite,
    TrimShard,
)
from antiphon.records.batch import BatchHeader, iter_batches, validate_batch
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.archive_place import SCHEME, ArchivePlace
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.archived_offsets import OUTCOMES, TOPIC, ToldOffsets
from antiphon.simulation.cluster.workloads.kafka_consume import EARLIEST, FETCHED_AGAIN
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, insist
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.truth import ShardTruth
    from antiphon.simulation.runtime.process import Process

ABSENT: Final = -1
ELSEWHERE: Final = 0.1  # chance that a consumer goes on at some other offset
BY_TIME: Final = 0.2  # chance that it asks for the offset of a time, and goes on there
PAUSE_S: Final = 0.4  # of the archive job, at most, between two files
FILE_BYTES: Final = 20_000  # of the log that one file holds
GROUP_ROWS: Final = 8
HAS_LIBRARIES: Final = all(find_spec(name) is not None for name in ("pyarrow", "fsspec"))
if HAS_LIBRARIES:  # they ask the real machine as they are loaded, and nobody simulated may
    for library in (
        "pyarrow.parquet",
        "pyarrow.compute",
        "fsspec.implementations.local",
        "antiphon.records.arrow",
        "antiphon.archive.writer",
    ):
        import_module(library)
    import_module("pyarrow").array([1])  # loads pandas, where there is one


@workload("archive_readers", 46, Drawn(seldom(0.15, 2), "archive"), logs_in=False)
class ArchivedWorkload(KafkaWorkload):
    """A job moves old records to Parquet files in memory, which fail now and then, and has the logs begin later, while
    producers write and Kafka's consumers read from the beginning; without pyarrow nothing is moved. One world in seven has
    it.

    Checked: each committed record comes once, in order and as it was written, from the log or the archive; nobody is sent
    away from a position that the archive holds; from what is told as the earliest offset on, files reach the log without a
    gap; what is told of a time is the first record, by offset, that is that late or later.
    """

    topic = TOPIC

    def __init__(self, cluster: "SimulatedCluster", name: str = "archive") -> None:
        super().__init__(cluster, name)
        draw = self.cluster.stream("archive place")
        self.place = ArchivePlace(draw, draw.choice((0.0, 0.1, 0.3)), draw.choice((0.0, 0.0, 0.1)))
        self.files: dict[int, list[ArchivedFile]] = {}  # by partition: those in the catalog, acknowledged
        self.tried: dict[int, list[ArchivedFile]] = {}  # by partition: those that may be in it
        self._loses = draw.choice((0.0, 0.2))  # chance that records go that are not archived
        self._attempts = 0
        self._astray_ms = self.cluster.stream("archive times").choice(
            (0, 100, 10_000)
        )  # from a record's time
        self.outcomes = dict.fromkeys(
            ("archived", "trimmed", "read-archived", "archive-waits", "archive-gone", *OUTCOMES), 0
        )

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        places.simulated[SCHEME] = self.place
        self.config = {"segment.bytes": "4096"}
        await super().set_up(db)
        self.files = {partition: [] for partition in self.shard_ids}
        self.tried = {partition: [] for partition in self.shard_ids}
        self.told = ToldOffsets(self.cluster, self.shard_ids, self.files, self.tried, self.outcomes)
        made = CreateTopic(
            ARCHIVE_TABLE, Kind.TABLE, 1, replicas=self.cluster.options.replicas, internal=True
        )
        cluster = await self._reached()
        with contextlib.suppress(TopicExistsError):
            await insist(lambda: cluster.call_any(made, timeout_s=PATIENCE_S))
        await cluster.close()

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(1, self._produce)
        self.spawn_all(self.cluster.options.archive_readers, self._consume)
        if HAS_LIBRARIES:
            self.spawn("job", self._archive)

    def stop(self) -> None:
        """See `Workload`: the archive is in order again."""
        self.place.is_sound = True
        super().stop()

    def check(self) -> None:
        """See `Workload`: all was judged when it came."""

    # -- producers ------------------------------------------------------------------------------------------------

    async def _produce(self, process: "Process", _number: int) -> None:
        client, draw = self.client(process), process.random
        while not self.stopped:
            partition = draw.choice(sorted(self.shard_ids))
            records = [
                (
                    draw.choice((None, b"key")),
                    draw.randbytes(draw.choice((0, 20, 300))),
                    [("h", draw.choice((None, b"x")))] * draw.randrange(2),
                    system.wall_ms() + draw.randint(-self._astray_ms, self._astray_ms),
                )
                for _ in range(draw.randint(1, 5))
            ]
            try:
                await self._append(client, partition, bytes(build_batch(records)))
            except NoAnswerError:
                client.forget(TOPIC, partition)
            await self.think(process)
        client.close()

    async def _append(self, client: KafkaClient, partition: int, batch: bytes) -> None:
        address, _ = await client.leader(TOPIC, partition)
        if (await client.produce(address, TOPIC, partition, batch)).error_code:
            client.forget(TOPIC, partition)

    # -- the job --------------------------------------------------------------------------------------------------

    async def _reached(self) -> Cluster:
        """The connections of a job."""
        cluster = Cluster(self.cluster.servers, "archive job")
        await insist(lambda: cluster.connect(PATIENCE_S))
        return cluster

    async def _archive(self, process: "Process") -> None:
        cluster, draw = await self._reached(), process.random
        while not self.stopped:
            await self.sleep(process, PAUSE_S)
            partition = draw.choice(sorted(self.shard_ids))
            with contextlib.suppress(AntiphonError):  # tried again later
                if draw.random() < self._loses:
                    await self._trim(cluster, partition, self.end_of(partition))
                await self._archive_some(cluster, partition)
                if self.files[partition] and draw.random() < 0.5:
                    await self._trim(cluster, partition, self.files[partition][-1].end)
        await cluster.close()

    async def _archive_some(self, cluster: Cluster, partition: int) -> None:
        """One file more, of what follows on the files that are there."""
        shard_id, known = self.shard_ids[partition], self.files[partition]
        log, _ = await cluster.call_shard(shard_id, ListOffset(shard_id, EARLIEST), timeout_s=PATIENCE_S)
        at = max(known[-1].end if known else 0, log.offset)
        asked = Fetch(shard_id, at, FILE_BYTES, isolation="committed")
        _, data = await cluster.call_shard(shard_id, asked, timeout_s=PATIENCE_S)
        batches = [(header, bytes(batch)) for header, batch in iter_batches(data)]
        if not batches:
            return
        file = self._written(cluster.topics[TOPIC], partition, at, batches)
        self.tried[partition].append(file)
        catalog = cluster.topics[ARCHIVE_TABLE].shards[0].shard_id
        write = TableWrite(catalog, (Put(file.key, encode_row(file), ABSENT),), internal=True)
        reply, _ = await cluster.call_shard(catalog, write, timeout_s=PATIENCE_S)
        if reply.results[0].status != OpStatus.OK:  # an earlier try got through
            rows, _ = await cluster.call_shard(catalog, TableGet(catalog, (file.key,)), timeout_s=PATIENCE_S)
            file = decode_row(rows.rows[0])
        known.append(file)
        self.outcomes["archived"] += 1

    def _written(
        self, meta: TopicMeta, partition: int, start: int, batches: list[tuple[BatchHeader, bytes]]
    ) -> ArchivedFile:
        """A file of these batches, which is where the archive is and not in the catalog yet."""
        import pyarrow as pa

        from antiphon.archive.writer import FileWriter
        from antiphon.records.arrow import SCHEMA_WITH_HEADERS

        end = batches[-1][0].next_offset
        self._attempts += 1
        name = f"{file_prefix(start, end)}{self._attempts:013d}-{self._attempts:08x}.parquet"
        uri = f"{SCHEME}://archive/{topic_directory(meta)}/{shard_directory(partition)}/{name}"
        rows = [row for header, batch in batches for row in _rows(header, batch, partition, start)]
        planned = ArchivedFile(
            format=FORMAT_VERSION,
            topic=TOPIC,
            topic_id=meta.topic_id.hex(),
            shard=partition,
            start=start,
            end=end,
            rows=len(rows),
            controls=end - start - len(rows),
            uri=uri,
            size_bytes=0,
            checksum="",
            digest="",
            earliest_ms=-1,
            latest_ms=-1,
            archived_ms=system.wall_ms(),
        )
        with self.place.sound(), FileWriter(planned, None, GROUP_ROWS) as writer:
            for at in range(0, len(rows), GROUP_ROWS):
                writer.add(pa.RecordBatch.from_pylist(rows[at : at + GROUP_ROWS], SCHEMA_WITH_HEADERS))
            return writer.finish(planned.controls, "")

    async def _trim(self, cluster: Cluster, partition: int, end: int) -> None:
        """Let each replica's log begin where the archive ends; or later, as retention does that does not wait for it."""
        shard_id = self.shard_ids[partition]
        await cluster.refresh()
        shard = next(one for one in cluster.topics[TOPIC].shards if one.index == partition)
        for node in (*shard.ensemble, *shard.learners):
            with contextlib.suppress(AntiphonError, TimeoutError):
                connection = await cluster.connection(cluster.address_of(node))
                async with asyncio.timeout(PATIENCE_S):
                    await connection.request(TrimShard(shard_id, end))
                self.outcomes["trimmed"] += 1

    # -- consumers ------------------------------------------------------------------------------------------------

    async def _consume(self, process: "Process", _number: int) -> None:
        client, draw = self.client(process), process.random
        positions = dict.fromkeys(sorted(self.shard_ids), 0)
        while left := [one for one, at in positions.items() if not self.stopped or at < self.end_of(one)]:
            partition = draw.choice(left)
            try:
                if not self.stopped and draw.random() < ELSEWHERE:
                    positions[partition] = draw.randint(0, self.end_of(partition))
                    address, _ = await client.leader(TOPIC, partition)
                    await self.told.earliest(client, address, partition)
                if not self.stopped and draw.random() < BY_TIME:
                    address, _ = await client.leader(TOPIC, partition)
                    first = await self.told.since(client, address, partition)
                    positions[partition] = positions[partition] if first is None else first
                positions[partition] = await self._fetch(client, partition, positions[partition])
            except NoAnswerError:
                client.forget(TOPIC, partition)
                await client.back_off()
            if not self.stopped:
                await self.think(process)
        client.close()

    async def _fetch(self, client: KafkaClient, partition: int, position: int) -> int:
        """Fetch once; returns where to go on."""
        draw, shard_id = client.random, self.shard_ids[partition]
        address, _ = await client.leader(TOPIC, partition)
        held = self._holder(partition, position)
        request = m.fetch_one(
            TOPIC,
            partition,
            position,
            draw.choice((1, 300, 1 << 20)),
            wait_ms=draw.choice((0, 50, 500)),
            min_bytes=draw.choice((1, 10_000)),
            isolation=draw.choice((0, 1)),
        )
        answer: m.FetchResponse = await client.ask(address, FETCH, 12, request)
        found = answer.topics[0].partitions[0]
        if found.error_code == code.OFFSET_OUT_OF_RANGE:
            require(
                held is None,
                "archived-position",
                f"a consumer is told that {position} is out of range, and {held and held.name} has it",
                shard_id,
            )
            self.outcomes["archive-gone"] += 1
            return await self._begin_again(client, address, partition, position)
        if found.error_code:
            require(found.error_code in FETCHED_AGAIN, "fetch-refused", f"error {found.error_code}", shard_id)
            self.outcomes["archive-waits"] += found.error_code == code.KAFKA_STORAGE_ERROR
            client.forget(TOPIC, partition)
            await client.back_off()
            return position
        return self._judge(partition, position, found)

    def _holder(self, partition: int, position: int) -> ArchivedFile | None:
        return next((one for one in self.files[partition] if one.start <= position < one.end), None)

    def _judge(self, partition: int, position: int, found: m.FetchedPartition) -> int:
        """Hold what came against what is committed; returns the position behind it."""
        truth = self.cluster.evidence.truth(self.shard_ids[partition])
        for header, data in iter_batches(found.records or b""):
            validate_batch(data)
            require(
                header.base_offset <= position < header.next_offset,
                "archived-order",
                f"a consumer at {position} gets {header.base_offset}..{header.next_offset}",
                truth.shard_id,
            )
            require(
                header.next_offset <= found.high_watermark <= truth.end,
                "archived-end",
                f"a consumer gets {header.base_offset}..{header.next_offset}, told of a high watermark of "
                f"{found.high_watermark}; committed is {truth.end}",
                truth.shard_id,
            )
            known = truth.at(header.base_offset)
            if known is None or known.data != data:
                self._judge_archived(truth, header, bytes(data))
            position = header.next_offset
        return position

    def _judge_archived(self, truth: "ShardTruth", header: BatchHeader, data: bytes) -> None:
        start, end = header.base_offset, header.next_offset
        require(
            start < truth.latest_start,
            "archived-order",
            f"a consumer gets another batch at {start} than was committed there, and no log begins behind it",
            truth.shard_id,
        )
        wanted = [
            record
            for batch in truth.batches
            if batch.base_offset < end and batch.next_offset > start
            for record in decode_records(batch.data)
            if start <= record.offset < end
        ]
        require(
            decode_records(data) == wanted,
            "archived-order",
            f"a consumer gets other records in {start}..{end} than were committed there",
            truth.shard_id,
        )
        self.outcomes["read-archived"] += len(wanted)

    async def _begin_again(
        self, client: KafkaClient, address: tuple[str, int], partition: int, position: int
    ) -> int:
        """As a consumer does with `auto.offset.reset=earliest`."""
        first = await self.told.earliest(client, address, partition)
        if first is None:
            return position
        require(
            position < first,
            "archived-position",
            f"a consumer is told that {position} is out of range, and then that records begin at {first}",
            self.shard_ids[partition],
        )
        return first


def _rows(header: BatchHeader, batch: bytes, partition: int, start: int) -> list[dict[str, Any]]:
    """Rows of an archived file, as `records.arrow` makes them with kernels that a simulation would have to compile."""
    if header.is_control:
        return []
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": TOPIC,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms * 1000,
            "timestampType": int(header.is_log_append_time),
            "headers": [{"key": name, "value": value} for name, value in record.headers],
            "term": header.leader_epoch,
        }
        for record in decode_records(batch)
        if record.offset >= start
    ]
