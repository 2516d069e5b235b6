"""Spark and a real cluster: three node processes, and whatever can die does."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.conftest import Reader
from tests.spark.failing_sink import FailingSource

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]

EVENTS = 3_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_ROLL_FORWARD_S", "1")
        with LocalCluster.start(3) as cluster:
            yield cluster


def _leader(db: antiphon.Client, topic: str, shard: int) -> int:
    (found,) = [meta for meta in db.metadata().topics if meta.name == topic]
    return found.shards[shard].leader


def _numbers(reader: Reader, topic: str) -> Counter[int]:
    return Counter(
        int(row["n"]) for row in reader.batch(topic=topic).selectExpr("cast(value as string) as n").collect()
    )


@pytest.mark.parametrize("protocol", ["staged", "direct"])
def test_from_log_to_log_while_everything_fails(
    cluster: LocalCluster, db: antiphon.Client, reader: Reader, tmp_path: Path, protocol: str
) -> None:
    source, out = db.create_topic(f"in-{protocol}", shards=3), db.create_topic(protocol, shards=3)
    source.append_batch([(str(n % 50).encode(), str(n).encode()) for n in range(EVENTS)])
    reader.spark.dataSource.register(FailingSource)

    def run() -> None:
        frame = reader.stream(
            topic=f"in-{protocol}", startingOffsets="earliest", maxOffsetsPerTrigger=1000
        ).select("key", "value")
        query = (
            frame.writeStream.format("failing")
            .options(servers=cluster.native, topic=protocol, timeoutMs="30000", faults=str(tmp_path))
            .options(batchRows="100", protocol=protocol)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(60), "the query hangs"
        finally:
            query.stop()

    # A worker dies after its rows are written, then the driver's commit fails; the leader of a shard dies in between.
    (tmp_path / "kill-1").touch()
    (tmp_path / "fail-commit").touch()
    with pytest.raises(Exception, match="commit fails as asked"):
        run()
    victim = _leader(db, "__staged" if protocol == "staged" else protocol, 0)
    cluster.kill(victim)
    run()
    cluster.start_node(victim)
    assert _numbers(reader, protocol) == Counter(range(EVENTS))
    commits = tmp_path / "checkpoint" / "commits"
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (str(newest), f".{newest}.crc"):
        (commits / name).unlink(missing_ok=True)
    run()
    assert _numbers(reader, protocol) == Counter(range(EVENTS))
    assert sum(end - start for start, end in (out.offsets(shard) for shard in range(3))) >= EVENTS


def test_tables_there_and_back(db: antiphon.Client, reader: Reader) -> None:
    table = db.create_table("state", shards=2)
    frame = reader.spark.range(0, 500, numPartitions=3).selectExpr(
        "concat('k', id) as key", "if(id % 5 = 0, null, cast(id as string)) as value"
    )
    table.put("k0", b"to be deleted")
    reader.write(frame, table="state", txnId="load", batchRows=40)
    reader.write(frame, table="state", txnId="load", batchRows=40)
    expected = {f"k{n}".encode(): str(n).encode() for n in range(500) if n % 5}
    assert {row.key: row.value for row in table.scan()} == expected
    rows = reader.batch(table="state").collect()
    assert {bytes(row["key"]): bytes(row["value"]) for row in rows} == expected
    kinds = Counter(row["kind"] for row in reader.batch(table="state", mode="changes").collect())
    assert kinds == {"created": 401, "deleted": 1}
    log = db.topic("state", any_kind=True)
    ends = {str(shard): log.offsets(shard)[1] for shard in range(2)}
    table.put("k1", b"later")
    past = reader.batch(table="state", asOfOffset=json.dumps({"state": ends})).where(
        "cast(key as string) = 'k1'"
    )
    assert [bytes(row["value"]) for row in past.collect()] == [b"1"]
