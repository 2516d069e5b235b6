"""A stream between real nodes while what it reads from, and what it runs on, goes away and comes back: every row once.

(The sink's own failures are in test_cluster and test_sink, a task that runs twice in test_speculation.)
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.conftest import Reader

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]

EVENTS = 1_200
EPOCH_OFFSETS = 150
PLANNER = b"python_streaming_source_runner"


@pytest.fixture
def db(cluster: LocalCluster) -> Iterator[antiphon.Client]:
    with antiphon.connect(cluster.native, timeout_s=60) as db:
        yield db


class Copy:
    """A query that copies topic NAME-in to NAME-out, a few rows an epoch unless told otherwise, without end."""

    def __init__(self, reader: Reader, db: antiphon.Client, name: str, checkpoint: Path) -> None:
        self.reader = reader
        self.db = db
        self.name = name
        self.checkpoint = checkpoint
        self.source = db.create_topic(f"{name}-in", shards=2)
        self.out = db.create_topic(f"{name}-out", shards=2)
        self.appended = 0

    def append(self, count: int, shards: int = 2) -> None:
        numbers = range(self.appended, self.appended + count)
        for shard in range(shards):
            rows = [(None, b"%d" % number) for number in numbers if number % shards == shard]
            self.db.topic(f"{self.name}-in").append_batch(rows, shard=shard)
        self.appended += count

    def start(self, timeout_ms: int = 60_000, epoch_offsets: int = EPOCH_OFFSETS) -> Any:
        options = {"servers": self.reader.servers, "timeoutMs": str(timeout_ms)}
        return (
            self.reader.spark.readStream.format("antiphon")
            .options(
                topic=f"{self.name}-in",
                startingOffsets="earliest",
                maxOffsetsPerTrigger=str(epoch_offsets),
                **options,
            )
            .load()
            .selectExpr("value", "partition % 2 as partition")
            .writeStream.format("antiphon")
            .options(topic=f"{self.name}-out", checkpointLocation=str(self.checkpoint), **options)
            .start()
        )

    def written(self) -> int:
        """Offsets of the copy that are used: at least its rows."""
        return sum(self.out.offsets(shard)[1] for shard in range(2))

    def rows(self) -> Counter[int]:
        return Counter(
            int(record.value or b"-1") for shard in range(2) for record in self.out.read(shard=shard)
        )

    def finish(self) -> None:
        """Goes on from the checkpoint to the end, in few epochs: every row once."""
        query = self.start(epoch_offsets=10 * EVENTS)
        query.processAllAvailable()
        query.stop()
        assert self.rows() == Counter(range(self.appended))


def _until(true: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} does not happen"
        time.sleep(0.05)


def _planners() -> list[int]:
    """Processes of this one's Spark in which streaming sources plan."""
    parents: dict[int, int] = {}
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # ended meanwhile
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
            if PLANNER in command:
                found.append(int(folder.name))

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in found if is_ours(pid)]


def test_a_killed_planner(db: antiphon.Client, reader: Reader, tmp_path: Path) -> None:
    copy = Copy(reader, db, "planner", tmp_path)
    copy.append(EVENTS)
    query = copy.start()
    _until(lambda: copy.written() > 0, "the first epoch")
    planners = _planners()
    assert planners
    for pid in planners:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match="STREAM_FAILED"):
        query.awaitTermination(60)
    assert sum(copy.rows().values()) < EVENTS, "it was through before the planner died"
    copy.finish()


@pytest.mark.timeout(300)
def test_a_cluster_that_goes_away_and_comes_back(
    cluster: LocalCluster, db: antiphon.Client, reader: Reader, tmp_path: Path
) -> None:
    copy = Copy(reader, db, "away", tmp_path)
    copy.append(EVENTS)
    query = copy.start()
    _until(lambda: copy.written() > 0, "the first epoch")
    # Killed, all at once: the same query goes on when they are back.
    for node in cluster.nodes:
        cluster.kill(node)
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.start_node, cluster.nodes))
    before = copy.written()
    _until(lambda: copy.written() > before, "an epoch after the kill")
    # Silent for a moment, with a shard more when they speak again.
    for node in cluster.nodes:
        cluster.pause(node)
    time.sleep(1)
    for node in cluster.nodes:
        cluster.resume(node)
    db.alter_topic("away-in", shards=3)
    copy.append(EVENTS // 2, shards=3)
    query.processAllAvailable()
    _until(lambda: copy.written() >= copy.appended, "the shard that was added")
    assert query.isActive
    query.stop()
    # Away for longer than the query waits: an error that says so, and nothing is lost or doubled by it.
    query = copy.start(timeout_ms=2_000)
    copy.append(EVENTS, shards=3)
    before = copy.written()
    _until(lambda: copy.written() > before, "an epoch before the silence")
    for node in cluster.nodes:
        cluster.pause(node)
    try:
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination(60)
        # Of a write that fails as a whole, in its commit, only Spark's causes say why.
        said = f"{failed.value} {getattr(failed.value, '_stackTrace', '')}"
        assert re.search(r"antiphon\.errors\.(Unreachable|TimedOut|Unavailable)Error", said), said
    finally:
        for node in cluster.nodes:
            cluster.resume(node)
    copy.finish()


def test_an_empty_log_and_then_not(db: antiphon.Client, reader: Reader, tmp_path: Path) -> None:
    copy = Copy(reader, db, "empty", tmp_path)
    for events in (0, 0, 10):
        copy.append(events)
        frame = reader.stream(topic="empty-in", startingOffsets="earliest").select("value", "partition")
        reader.run(frame, tmp_path / "checkpoint", topic="empty-out")
        assert copy.rows() == Counter(range(events))
    assert reader.batch(topic="empty-out", startingOffsets="latest").count() == 0


def test_another_zone_and_columns_that_are_never_null(db: antiphon.Client, reader: Reader) -> None:
    topic, table = db.create_topic("zones"), db.create_table("zones-table", shards=1)
    spark = reader.spark
    frame = spark.range(0, 3).selectExpr(
        "cast(id as string) as value", "timestamp_millis(1800000000000 + id) as timestamp"
    )
    assert not frame.schema["value"].nullable
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        reader.write(frame, topic="zones")
        reader.write(frame.selectExpr("value as key", "value"), table="zones-table")
        again = reader.batch(topic="zones").selectExpr("unix_millis(timestamp) as ms").orderBy("ms")
        assert [row["ms"] - 1_800_000_000_000 for row in again.collect()] == [0, 1, 2]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = sorted((record.value, record.timestamp_ms - 1_800_000_000_000) for record in topic.read())
    assert stored == [(b"0", 0), (b"1", 1), (b"2", 2)]
    assert {row.key: row.value for row in table.scan()} == {b"0": b"0", b"1": b"1", b"2": b"2"}
