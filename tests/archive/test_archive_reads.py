"""What Spark's readers make of an archive, without a JVM: whole, in pieces, by time, damaged, and of a split table."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import ArchiveError, DataLossError
from antiphon.records.arrow import SCHEMA_WITH_HEADERS
from antiphon.spark.source import AntiphonDataSource
from tests.archive.archiving import archive
from tests.spark.nodes_in_thread import LiveNodes, live_nodes


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("archive-reads"), 1) as running:
        yield running


@pytest.fixture(scope="module")
def db(live: LiveNodes) -> Iterator[antiphon.Client]:
    with antiphon.connect(live.servers, timeout_s=20) as client:
        yield client


class Read:
    """`spark.read` as Spark's planner and tasks call it."""

    def __init__(self, live: LiveNodes, **options: Any) -> None:
        given = {name.lower(): str(value) for name, value in options.items()}
        source = AntiphonDataSource({"servers": live.servers, "timeoutms": "10000", **given})
        self.reader = source.reader(source.schema())
        self.partitions = self.reader.partitions()

    @property
    def batches(self) -> Iterator[Any]:
        for partition in self.partitions:
            yield from self.reader.read(partition)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def test_a_topic_reads_on_from_its_archive(live: LiveNodes, db: antiphon.Client, tmp_path: Path) -> None:
    db.create_topic("t", config={"retention.ms": "-1"})  # the records are of 1970
    log = db.topic("t")
    for number in range(60):
        log.append_batch(
            [(b"k", b"%d" % number, (("h", b"x"),))] * 5, shard=0, timestamp_ms=1_000_000 + number
        )
    whole = Read(live, topic="t", includeHeaders=True)
    before = whole.rows
    assert len(before) == 300
    archive(live, "t", tmp_path, up_to=200)
    assert log.offsets()[0] == 200
    assert whole.rows == before  # it was planned while all was in the log
    for options in ({}, {"minPartitions": 7}, {"startingOffsets": "earliest"}):
        again = Read(live, topic="t", includeHeaders=True, **options)
        assert again.rows == before
        assert next(again.batches).schema.equals(SCHEMA_WITH_HEADERS)
    part = Read(live, topic="t", startingOffsets='{"t": {"0": 42}}', endingOffsets='{"t": {"0": 222}}')
    assert [row["offset"] for row in part.rows] == list(range(42, 222))
    late = Read(live, topic="t", startingTimestamp=1_000_020, columns="offset")
    assert [row["offset"] for row in late.rows] == list(range(100, 300))
    assert [list(row) for row in late.rows[:1]] == [["offset"]]


def test_a_damaged_file_is_an_error_that_names_it(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    db.create_topic("d")
    log = db.topic("d")
    for number in range(40):
        log.append_batch([b"some value %d" % number] * 5, shard=0)
    archive(live, "d", tmp_path, up_to=150)
    victim = sorted(tmp_path.rglob("*.parquet"))[1]
    good = victim.read_bytes()
    victim.write_bytes(good[:40] + bytes(60) + good[100:])
    with pytest.raises(ArchiveError, match=victim.name):
        list(Read(live, topic="d").batches)
    with pytest.raises(ArchiveError, match=victim.name):
        list(log.read(start=0))
    victim.unlink()
    with pytest.raises(ArchiveError, match="not there any more"):
        list(Read(live, topic="d").batches)
    start = json.dumps({"d": {"0": 160}})
    assert len(Read(live, topic="d", startingOffsets=start).rows) == 40  # which needs no archive
    victim.write_bytes(good)
    assert len(Read(live, topic="d").rows) == 200
    node = live.nodes.nodes[0]
    shard_id = next(topic for topic in db.metadata().topics if topic.name == "d").shards[0].shard_id
    live.run(node.gateway.trim(shard_id, 180, 10.0))  # as retention might: beyond what is archived
    with pytest.raises(DataLossError, match="begins at offset 180"):
        list(Read(live, topic="d", startingOffsets='{"d": {"0": 10}}').batches)


def test_the_past_of_a_split_table_is_folded_from_its_archive(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    """The keys that went to another shard are let go where they went, also when that stands in a file."""
    db.create_table("s", shards=1)
    table = db.table("s")
    for number in range(60):
        table.put(f"k{number % 30}", f"v{number}")
    db.split_shard("s", 0)
    for number in range(60, 90):
        table.put(f"k{number % 30}", f"v{number}")
    table.delete("k7")
    now = {row.key: row.value for row in table.scan()}
    log = db.topic("s", any_kind=True)
    ends = {shard: log.offsets(shard)[1] for shard in (0, 1)}
    as_of = json.dumps({"s": {str(shard): end for shard, end in ends.items()}})

    def state() -> dict[bytes, bytes]:
        return {row["key"]: row["value"] for row in Read(live, table="s", asOfOffset=as_of).rows}

    assert state() == now
    archive(live, "s", tmp_path)
    assert [log.offsets(shard)[0] for shard in (0, 1)] == [ends[0], ends[1]]
    assert state() == now
    kinds = [row["kind"] for row in Read(live, table="s", mode="changes").rows]
    assert kinds.count("deleted") == 1
    assert kinds.count("created") == 30
