"""Archiving with Spark on real node processes: a leader dies in the middle, and then it is one topic to every reader."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.archive.format import ArchivedFile
from antiphon.archive.job import run as archive_job
from antiphon.archive.job.tasks import ArchiveTask
from antiphon.errors import ArchiveError
from antiphon.spark import jobs
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.conftest import Reader

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]

EVENTS = 6000
NUMBER = "cast(cast(value as string) as int) as n"


def test_a_leader_dies_while_a_topic_is_archived(
    cluster: LocalCluster,
    db: antiphon.Client,
    reader: Reader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = db.create_topic("events", shards=2, config={"retention.ms": "-1"})
    for at in range(0, EVENTS, 100):
        messages = [(str(n), str(n)) for n in range(at, at + 100)]
        log.append_batch(messages, timestamp_ms=1_000_000 + at)
    killed: list[int] = []
    real = archive_job.with_spark

    def with_a_kill(spark: Any, tasks: Sequence[ArchiveTask]) -> Iterator[ArchivedFile | None]:
        if not killed:
            (meta,) = [topic for topic in db.metadata().topics if topic.name == "events"]
            killed.append(meta.shards[0].leader)
            cluster.kill(killed[0])  # the tasks know only the leader of before
        return real(spark, tasks)

    monkeypatch.setattr(archive_job, "with_spark", with_a_kill)
    up_to = {0: 2500, 1: 2500}
    to = str(tmp_path / "archive")
    report = jobs.archive(reader.spark, cluster.native, "events", to, up_to=up_to, file_bytes=10_000)
    assert [shard.archived for shard in report.shards] == [(0, 2500)] * 2
    assert report.files > 4
    assert {node for shard in report.shards for node in shard.behind} == set(killed)
    cluster.start_node(killed[0])
    _check_reads(db, reader)
    _check_stream(reader, tmp_path)
    again = jobs.archive(reader.spark, cluster.native, "events", to, up_to=up_to)
    assert again.files == 0
    assert all(shard.behind == {} and len(shard.log_starts) == 3 for shard in again.shards)
    assert all(log.offsets(shard)[0] > 2000 for shard in (0, 1))
    assert _read(db) == Counter(range(EVENTS))


def _read(db: antiphon.Client) -> Counter[int]:
    """What the Python client reads."""
    log = db.topic("events")
    return Counter(int(r.value or b"") for shard in (0, 1) for r in log.read(shard=shard, start=-2))


def _check_reads(db: antiphon.Client, reader: Reader) -> None:
    """Every event once, for batch reads and the Python client."""
    everything = Counter(range(EVENTS))
    assert _read(db) == everything
    rows = reader.batch(topic="events", minPartitions=6).selectExpr(NUMBER).collect()
    assert Counter(row["n"] for row in rows) == everything


def _check_stream(reader: Reader, directory: Path) -> None:
    """The same for a stream; and times are found."""
    everything = Counter(range(EVENTS))
    stream = reader.stream(topic="events", startingOffsets="earliest", maxOffsetsPerTrigger=4000)
    query = (
        stream.selectExpr(NUMBER)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "out"))
    )
    assert query.awaitTermination(60)
    rows = reader.spark.read.parquet(str(directory / "out")).collect()
    assert Counter(row["n"] for row in rows) == everything
    late = reader.batch(topic="events", startingTimestamp=1_000_000 + 1500).selectExpr(NUMBER).collect()
    assert Counter(row["n"] for row in late) == Counter(range(1500, EVENTS))


def test_the_past_of_a_table_reads_through_its_archive(
    db: antiphon.Client, cluster: LocalCluster, reader: Reader, tmp_path: Path
) -> None:
    table = db.create_table("state", shards=2)
    for number in range(400):
        table.put(f"k{number % 40}", str(number))
    log = db.topic("state", any_kind=True)
    half = {str(shard): log.offsets(shard)[1] for shard in (0, 1)}
    then = {row.key: row.value for row in table.scan()}
    for number in range(400, 800):
        table.put(f"k{number % 50}", str(number))
    table.delete("k1")
    ends = {shard: log.offsets(shard)[1] for shard in (0, 1)}
    now = {row.key: row.value for row in table.scan()}
    report = jobs.archive(
        reader.spark,
        cluster.native,
        "state",
        tmp_path.as_uri(),
        up_to={shard: end - 3 for shard, end in ends.items()},
    )
    assert report.rows > 780
    assert all(log.offsets(shard)[0] == ends[shard] - 3 for shard in (0, 1))

    def as_of(offsets: dict[str, int]) -> dict[bytes, bytes]:
        rows = reader.batch(table="state", asOfOffset=json.dumps({"state": offsets})).collect()
        return {bytes(row["key"]): bytes(row["value"]) for row in rows}

    assert as_of(half) == then
    assert as_of({str(shard): end for shard, end in ends.items()}) == now
    kinds = (
        reader.batch(table="state", mode="changes", startingOffsets="earliest")
        .groupBy("kind")
        .count()
        .collect()
    )
    assert {row["kind"]: row["count"] for row in kinds} == {"created": 50, "modified": 750, "deleted": 1}
    (tmp_path / "file").touch()
    with pytest.raises(
        ArchiveError, match="could not be written"
    ):  # one line of ours, not hundreds of Spark's
        jobs.archive(reader.spark, cluster.native, "state", str(tmp_path / "file"))
