"""Reading from real nodes, without a JVM: from followers, across the archive's border, tables whose log is archived."""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import antiphon
from antiphon.archive.format import ArchivedFile
from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveRun, addresses
from antiphon.archive.job.tasks import run_task
from antiphon.errors import DataLossError
from antiphon.spark import worker
from antiphon.spark.read import ranges
from antiphon.spark.read.replica_reads import ReplicaReads
from antiphon.spark.source import AntiphonDataSource
from tests.spark.nodes_in_thread import LiveNodes, live_nodes

pytestmark = pytest.mark.cluster

_names = count()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("source"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def db(live: LiveNodes) -> Iterator[antiphon.Client]:
    with antiphon.connect(live.servers, timeout_s=20) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"t{next(_names)}"


def reader(live: LiveNodes, **options: Any) -> Any:
    raw = {"servers": live.servers, "timeoutms": "10000"}
    raw |= {key.lower(): str(value) for key, value in options.items()}
    source = AntiphonDataSource(raw)
    return source.reader(source.schema())


def rows_of(made: Any, partitions: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    parts = made.partitions() if partitions is None else partitions
    return [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]


def append(db: antiphon.Client, name: str, first: int, last: int) -> None:
    topic = db.topic(name)
    for at in range(first, last, 10):
        batch = [(f"k{n}", f"v{n}") for n in range(at, min(at + 10, last))]
        topic.append_batch(batch, shard=0, timestamp_ms=1_000_000 + at)


def archive(live: LiveNodes, name: str, root: Path, **how: Any) -> None:
    def one_by_one(tasks: Any) -> list[ArchivedFile | None]:
        return [run_task(task) for task in tasks]

    shard_ids = [shard.shard_id for shard in live.nodes.nodes[0].gateway.topic(name).shards]
    for shard_id in shard_ids:
        live.all_settled(shard_id)
    limits = Limits(None, None, how.pop("up_to", None))
    run = ArchiveRun(
        addresses(live.servers), name, str(root), limits, timeout_ms=20_000, file_bytes=1_000, **how
    )
    run.run(one_by_one)


# -- followers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[ReplicaReads]:
    """Who answered each range that was read."""
    made: list[ReplicaReads] = []

    class Watched(ReplicaReads):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(ranges, "ReplicaReads", Watched)
    return made


def test_followers_give_the_same_rows(
    live: LiveNodes, db: antiphon.Client, name: str, sources: list[ReplicaReads]
) -> None:
    db.create_topic(name, shards=1)
    append(db, name, 0, 200)
    shard_id = live.nodes.nodes[0].gateway.topic(name).shards[0].shard_id
    live.all_settled(shard_id)
    by_leader = rows_of(reader(live, topic=name))
    assert sources == []
    before = {node: one.hosts[shard_id].services.metrics.fetches for node, one in live.nodes.nodes.items()}
    made = reader(live, topic=name, readFrom="follower", minPartitions=8, fetchBytes=1024)
    assert rows_of(made) == by_leader
    assert len(by_leader) == 200
    assert sum(source.from_leader for source in sources) == 0
    after = {node: one.hosts[shard_id].services.metrics.fetches for node, one in live.nodes.nodes.items()}
    leader = live.nodes.nodes[0].gateway.topic(name).shards[0].leader
    assert all((after[node] > before[node]) == (node != leader) for node in after), (
        "reads spread over both followers"
    )


def test_the_leader_stands_in_for_followers_that_are_away(
    live: LiveNodes, db: antiphon.Client, name: str, sources: list[ReplicaReads]
) -> None:
    db.create_topic(name, shards=1)
    append(db, name, 0, 100)
    meta = live.nodes.nodes[0].gateway.topic(name).shards[0]
    away = next(node for node in meta.ensemble if node != meta.leader)
    live.stop(away)
    try:
        append(db, name, 100, 150)
        found = rows_of(reader(live, topic=name, readFrom="follower", fetchBytes=1024))
    finally:
        live.start(away)
    assert [row["value"] for row in found] == [b"v%d" % n for n in range(150)]


def test_a_follower_that_lags_is_not_waited_for(
    live: LiveNodes,
    db: antiphon.Client,
    name: str,
    sources: list[ReplicaReads],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from antiphon.partition.reads import PartitionReads

    db.create_topic(name, shards=1)
    append(db, name, 0, 100)
    real = PartitionReads._end_for

    def lagging(self: PartitionReads, offset: int, isolation: str) -> int:
        return (
            min(31, real(self, offset, isolation))
            if isolation.startswith("replica")
            else real(self, offset, isolation)
        )

    monkeypatch.setattr(PartitionReads, "_end_for", lagging)
    found = rows_of(reader(live, topic=name, readFrom="follower", fetchBytes=1024))
    assert [row["value"] for row in found] == [b"v%d" % n for n in range(100)]
    (source,) = sources
    assert source.from_followers > 0 < source.from_leader


# -- the archive --------------------------------------------------------------------------------------------------


def test_an_archived_topic_is_one_topic(
    live: LiveNodes, db: antiphon.Client, name: str, tmp_path: Path
) -> None:
    db.create_topic(name, shards=1)
    append(db, name, 0, 200)
    before = rows_of(reader(live, topic=name))
    planned = reader(live, topic=name, minPartitions=4)
    partitions = planned.partitions()
    archive(live, name, tmp_path, up_to=120)
    assert min(live.log_starts(live.nodes.nodes[0].gateway.topic(name).shards[0].shard_id).values()) > 100
    assert rows_of(planned, partitions) == before, "what was planned before is read from where it is now"
    assert rows_of(reader(live, topic=name)) == before
    assert rows_of(reader(live, topic=name, maxRecordsPerPartition=30, readFrom="follower")) == before
    part = reader(live, topic=name, startingOffsets=f'{{"{name}": {{"0": 57}}}}', columns="offset,key")
    assert rows_of(part) == [{"offset": r["offset"], "key": r["key"]} for r in before if r["offset"] >= 57]
    late = reader(live, topic=name, startingTimestamp=1_000_050)
    assert [row["value"] for row in rows_of(late)] == [row["value"] for row in before[50:]]


def test_a_stream_begins_in_the_archive(
    live: LiveNodes, db: antiphon.Client, name: str, tmp_path: Path
) -> None:
    db.create_topic(name, shards=1)
    append(db, name, 0, 100)
    archive(live, name, tmp_path, up_to=60)
    raw = {
        "servers": live.servers,
        "topic": name,
        "startingoffsets": "earliest",
        "maxoffsetspertrigger": "30",
    }
    source = AntiphonDataSource(raw)
    stream = source.streamReader(source.schema())
    start, found = stream.initialOffset(), []
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        found += rows_of(stream, stream.partitions(start, end))
        start = end
    stream.stop()
    assert [row["value"] for row in found] == [b"v%d" % n for n in range(100)]


def test_what_the_archive_does_not_have_is_lost(
    live: LiveNodes, db: antiphon.Client, name: str, tmp_path: Path
) -> None:
    db.create_topic(name, shards=1)
    append(db, name, 0, 100)
    shard = live.nodes.nodes[0].gateway.topic(name).shards[0]
    live.all_settled(shard.shard_id)
    live.run(live.nodes.nodes[shard.leader].gateway.trim(shard.shard_id, 30, 10.0))
    archive(live, name, tmp_path, up_to=60)
    with pytest.raises(DataLossError, match="begins at offset 30, 3 was asked for"):
        reader(live, topic=name, startingOffsets=f'{{"{name}": {{"0": 3}}}}').partitions()
    lenient = reader(live, topic=name, startingOffsets=f'{{"{name}": {{"0": 3}}}}', failOnDataLoss=False)
    assert rows_of(lenient)[-1]["value"] == b"v99"
    assert len(rows_of(lenient)) == len(rows_of(reader(live, topic=name))) < 80


def test_the_past_of_an_archived_table(
    live: LiveNodes, db: antiphon.Client, name: str, tmp_path: Path
) -> None:
    db.create_table(name, shards=1)
    table = db.table(name)
    moments: list[tuple[int, dict[int, int], dict[bytes, bytes]]] = []
    state: dict[bytes, bytes] = {}
    for number in range(120):
        key = b"k%d" % (number % 23)
        if number % 7 == 6 and key in state:
            table.delete(key)
            del state[key]
        else:
            state[key] = b"%d" % number
            table.put(key, state[key])
        if number % 30 == 29:
            time.sleep(0.003)
            ends = {
                shard.index: live.run(_end(live, shard.leader, shard.shard_id))
                for shard in live.nodes.nodes[0].gateway.topic(name).shards
            }
            moments.append((time.time_ns() // 1_000_000, ends, dict(state)))
            time.sleep(0.003)
        if number == 70:
            db.split_shard(name, 0)
    archive(live, name, tmp_path)
    assert all(
        start > 0
        for shard in live.nodes.nodes[0].gateway.topic(name).shards
        for start in _starts(live, shard)
    )
    for time_ms, ends, expected in moments:
        offsets = json.dumps({name: ends})
        for options in ({"asOfTimestamp": time_ms}, {"asOfOffset": offsets}):
            found = rows_of(reader(live, table=name, **options))
            assert {row["key"]: row["value"] for row in found} == expected
            assert len(found) == len(expected)
    changes = rows_of(reader(live, table=name, mode="changes"))
    assert len(changes) == 120


def _starts(live: LiveNodes, shard: Any) -> Iterator[int]:
    yield from live.log_starts(shard.shard_id).values()


async def _end(live: LiveNodes, node: int, shard_id: int) -> int:
    return live.nodes.nodes[node].hosts[shard_id].state.high_watermark


def test_tasks_and_plans_spare_their_imports(
    live: LiveNodes, db: antiphon.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(worker, "spare_imports", lambda: calls.append("call"))
    db.create_topic(name, shards=1, replicas=3)
    db.create_table(f"{name}-rows", shards=1, replicas=3)
    source = AntiphonDataSource({"servers": live.servers, "topic": name})
    sink = source.writer(StructType([StructField("value", BinaryType())]), overwrite=False)
    assert len(calls) == 1, "a writer is made in a process that plans"
    written = sink.write(iter([pa.record_batch({"value": pa.array([b"1"])})]))
    assert len(calls) == 2
    sink.commit([written])
    assert len(calls) == 3
    assert [row["value"] for row in rows_of(reader(live, topic=name))] == [b"1"]
    assert len(calls) == 4
    assert rows_of(reader(live, table=f"{name}-rows")) == []
    assert len(calls) == 5
