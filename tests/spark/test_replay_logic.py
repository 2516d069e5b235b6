"""Replays without Spark: digests, folds over Arrow batches, cuts through the logs of real nodes, shards that were split."""

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import antiphon
from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveRun, addresses
from antiphon.archive.job.tasks import run_task
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import (
    AntiphonError,
    CorruptBatchError,
    DataLossError,
    InvalidRequestError,
    UnknownShardError,
)
from antiphon.model.requests import Put, TableWrite
from antiphon.spark.jobs.digests import Digest, digest_of
from antiphon.spark.jobs.job_state import JOBS_TABLE, JobState, same_or_refuse
from antiphon.spark.jobs.replay_cut import Cut, find_cut, iso_time, parse_offsets, parse_time
from antiphon.spark.jobs.replay_frames import FoldRecord, as_bytes, fold_rows, name_of
from antiphon.spark.option_values import parse_servers
from antiphon.tools.local_cluster import LocalCluster

ROWS = [(b"key-%d" % n, b"value-%d" % (n * n)) for n in range(200)]


def test_a_digest_is_of_the_rows_and_not_of_their_order_or_place() -> None:
    shuffled = ROWS[:]
    random.Random(5).shuffle(shuffled)
    whole = digest_of(ROWS)
    assert digest_of(shuffled) == whole
    assert digest_of(shuffled[:70]) + digest_of(shuffled[70:]) == whole
    assert digest_of([*ROWS, (b"gone", None)]) == whole
    changed = [
        ROWS[1:],
        [*ROWS, ROWS[0]],
        [*ROWS[1:], (ROWS[0][0], b"x")],
        [*ROWS[1:], (ROWS[0][0] + b"v", ROWS[0][1][1:])],  # the same bytes, another border
        [*ROWS[2:], (ROWS[0][0], ROWS[1][1]), (ROWS[1][0], ROWS[0][1])],
    ]
    assert all(digest_of(rows) != whole for rows in changed)
    assert str(Digest(1234, 255)) == "1,234 rows, digest 00000000000000ff"


def _batch(*rows: tuple[bytes | None, bytes | None, int, int]) -> pa.RecordBatch:
    keys, values, shards, offsets = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(shards, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([1_000_000 + offset * 1000 for offset in offsets], pa.timestamp("us", "UTC")),
            pa.array([None] * len(rows), pa.string()),
        ],
        ["key", "value", "partition", "offset", "timestamp", "kind"],
    )


def _folded(fold: Any, by: str, *batches: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    return [
        (row["key"], row["value"])
        for batch in fold_rows(fold, by, iter(batches))
        for row in batch.to_pylist()
    ]


def test_a_fold_by_key_has_a_state_a_key_across_batches() -> None:
    def joined(state: Any, record: FoldRecord) -> Any:
        return b"".join([state or b"", record.value or b"-"])

    batches = (
        _batch((b"a", b"1", 0, 4), (b"a", b"2", 0, 9), (b"b", b"3", 0, 1)),
        _batch((b"b", None, 0, 2), (b"c", b"5", 1, 0)),
    )
    assert _folded(joined, "key", *batches) == [(b"a", b"12"), (b"b", b"3-"), (b"c", b"5")]
    assert _folded(lambda _state, _record: None, "key", *batches) == []
    assert _folded(joined, "key") == []


def test_a_fold_by_shard_is_a_state_machine_over_the_shard() -> None:
    def balance(state: Any, record: FoldRecord) -> Any:
        accounts = state or {}
        source, target, amount = (record.value or b"").split()
        accounts[source] = accounts.get(source, 100) - int(amount)
        accounts[target] = accounts.get(target, 100) + int(amount)
        return accounts

    batch = _batch((None, b"x y 30", 0, 0), (None, b"y x 10", 0, 1), (None, b"u v 100", 1, 0))
    assert dict(_folded(balance, "shard", batch)) == {b"x": b"80", b"y": b"120", b"u": b"0", b"v": b"200"}
    counted = _folded(lambda state, record: (state or 0) + record.timestamp_ms, "shard", batch)
    assert counted == [(b"0", b"2001"), (b"1", b"1000")]


def test_a_fold_that_fails_says_where() -> None:
    def broken(state: Any, record: FoldRecord) -> Any:
        return 1 // (record.offset - 7)

    with pytest.raises(AntiphonError, match=r"broken failed at offset 7 of shard 3: ZeroDivisionError"):
        _folded(broken, "key", _batch((b"a", b"1", 3, 6), (b"a", b"1", 3, 7)))
    assert name_of(broken).endswith("broken")
    with pytest.raises(InvalidRequestError, match="fit for JSON"):
        as_bytes(object())
    assert as_bytes({"a": [1, None]}) == b'{"a":[1,null]}'


def test_times_and_offsets_as_people_write_them() -> None:
    noon = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
    for text in (
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:00",
        "2026-03-01T13:00:00+01:00",
        " 2026-03-01 12:00:00 ",
    ):
        assert parse_time(text) == noon
    assert iso_time(noon + 5) == "2026-03-01T12:00:00.005Z"
    with pytest.raises(InvalidRequestError, match="2026-03-01T12:00:00Z"):
        parse_time("yesterday")
    given: tuple[Any, ...] = (7, "7", '{"0": 7}', {"0": 7}, {0: 7}, {"t": {"0": 7, "id": "ab"}})
    assert all(parse_offsets("t", one, 1) == {0: 7} for one in given)
    wrongs: tuple[Any, ...] = ("{", "[1]", '{"0": -1}', '{"x": 1}', {"0": True}, {"u": {"0": 1}}, 1.5)
    for wrong in wrongs:
        with pytest.raises(InvalidRequestError, match="exclusive end"):
            parse_offsets("t", wrong, 1)
    with pytest.raises(InvalidRequestError, match=r"give an offset for each"):
        parse_offsets("t", 7, 2)


# -- on nodes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalCluster]:
    with LocalCluster.start(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def db(nodes: LocalCluster) -> Iterator[antiphon.Client]:
    with antiphon.connect(nodes.native) as db:
        yield db


@pytest.fixture
def cluster(nodes: LocalCluster) -> Iterator[Cluster]:
    with Cluster(parse_servers(nodes.native), 20_000) as cluster:
        yield cluster


def _cut(
    cluster: Cluster, name: str, offset: Any = None, time_ms: int | None = None, *, table: bool = True
) -> Cut:
    return find_cut(cluster, cluster.topic(name, table=table), offset, time_ms)


@pytest.mark.cluster
def test_a_split_shard_counts_from_the_release_on(db: antiphon.Client, cluster: Cluster) -> None:
    table = db.create_table("split", shards=1)
    for n in range(40):
        table.put(f"k{n}", b"first")
    before_ms = _now_ms()
    db.split_shard("split", 0)
    time.sleep(0.005)
    between_ms = _now_ms()
    time.sleep(0.005)
    (child,) = [shard for shard in cluster.topic("split", table=True).shards if shard.index == 1]
    # Nothing was written to the child itself yet: it counts all the same, its keys are nobody else's.
    now = _cut(cluster, "split")
    assert now.ends[1] == now.starts[1] == child.own_start
    for n in range(40):
        table.put(f"k{n}", b"second")
    assert _cut(cluster, "split", time_ms=between_ms).ends == now.ends
    early = _cut(cluster, "split", time_ms=before_ms)
    assert list(early.ends) == [0]
    assert _cut(cluster, "split", {"0": early.ends[0]}) == early
    assert _cut(cluster, "split", now.offsets_json()) == now
    late = _cut(cluster, "split")
    assert late.ends[0] > now.ends[0]
    assert late.ends[1] > now.ends[1]
    for wrong, said in (
        ({"0": now.ends[0]}, r"no offset is given for shard 1"),
        ({"0": 5, "1": late.ends[1]}, r"never such a state"),
        ({"0": now.ends[0], "1": 3}, r"of its own from offset"),
        ({"1": late.ends[1]}, r"no offset is given for shard 0"),
        ({"0": late.ends[0] + 1, "1": late.ends[1]}, r"is beyond: it cannot be replayed yet"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            _cut(cluster, "split", wrong)
    with pytest.raises(UnknownShardError, match="shards 0 to 1, not 7"):
        _cut(cluster, "split", {"0": 1, "7": 1})


@pytest.mark.cluster
def test_times_that_cannot_be_had_name_the_earliest(db: antiphon.Client, cluster: Cluster) -> None:
    topic = db.create_topic("times", shards=2)
    assert sum(_cut(cluster, "times", table=False).ends.values()) <= 2  # nobody's records yet
    first_ms = _now_ms()
    topic.append(b"x", shard=0)
    time.sleep(0.01)
    topic.append(b"y", shard=1)
    with pytest.raises(
        InvalidRequestError, match=r"begins at .*Z, the earliest .* \(there was nothing before\)"
    ):
        _cut(cluster, "times", time_ms=first_ms - 60_000, table=False)
    with pytest.raises(InvalidRequestError, match="in the future"):
        _cut(cluster, "times", time_ms=_now_ms() + 60_000, table=False)
    with pytest.raises(InvalidRequestError, match="not both"):
        _cut(cluster, "times", {"0": 1, "1": 1}, _now_ms(), table=False)
    with pytest.raises(InvalidRequestError, match="no offset is given for shard 1"):
        _cut(cluster, "times", {"0": 1}, table=False)
    later = _cut(cluster, "times", time_ms=_now_ms(), table=False)
    assert later.ends == {shard: topic.offsets(shard)[1] for shard in (0, 1)}
    assert json.loads(later.offsets_json()) == {"times": {str(k): v for k, v in later.ends.items()}}


@pytest.mark.cluster
def test_where_every_replica_writes_there_is_no_one_order(db: antiphon.Client, cluster: Cluster) -> None:
    db.create_table("everybody", config={"writers": "multi"})
    with pytest.raises(InvalidRequestError, match="no one order of its records"):
        _cut(cluster, "everybody")


@pytest.mark.cluster
def test_offsets_that_are_gone_are_said_to_be(db: antiphon.Client, cluster: Cluster) -> None:
    from antiphon.model.requests import TrimShard

    topic = db.create_topic("trimmed")
    for n in range(20):
        topic.append(b"%d" % n)
    (shard,) = cluster.topic("trimmed", table=False).shards
    cluster.ask(shard.leader, TrimShard(shard.shard_id, 10))
    start = topic.offsets(0)[0]
    assert start > 0
    with pytest.raises(DataLossError, match=f"begins at offset {start}, {start - 1} is before"):
        _cut(cluster, "trimmed", start - 1, table=False)
    assert _cut(cluster, "trimmed", table=False).starts == {0: start}


@pytest.mark.cluster
def test_what_was_archived_counts_as_there(
    nodes: LocalCluster, db: antiphon.Client, cluster: Cluster, tmp_path: Path
) -> None:
    table = db.create_table("kept", shards=1)
    first_ms = _now_ms()
    for n in range(30):
        table.put(f"k{n % 5}", f"v{n}")
    whole = _cut(cluster, "kept")
    middle_ms = _now_ms()
    time.sleep(0.01)
    ArchiveRun(addresses(nodes.native), "kept", str(tmp_path), Limits()).run(
        lambda tasks: [run_task(task) for task in tasks]
    )
    assert db.topic("kept", any_kind=True).offsets(0)[0] == whole.ends[0]
    table.put("k9", b"later")
    cluster.metadata()
    assert _cut(cluster, "kept", time_ms=middle_ms) == whole
    assert _cut(cluster, "kept", 12) == whole._replace(ends={0: 12})
    with pytest.raises(InvalidRequestError, match=r"the earliest time .* \(there was nothing before\)"):
        _cut(cluster, "kept", time_ms=first_ms - 60_000)
    (file,) = tmp_path.rglob("*.parquet")
    file.unlink()
    assert _cut(cluster, "kept").starts == {0: 0}  # the catalog has it; the read will say what is missing


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.cluster
def test_the_book_keeps_the_first_plan(nodes: LocalCluster, cluster: Cluster) -> None:
    book = JobState(cluster, "a job")
    assert book.plan() is None
    assert book.begin({"ends": {"0": 4}, "what": "x"}) == {"ends": {"0": 4}, "what": "x"}
    with Cluster(parse_servers(nodes.native), 20_000) as another:
        again = JobState(another, "a job")
        assert again.begin({"ends": {"0": 9}, "what": "x"}) == {"ends": {"0": 4}, "what": "x"}
        assert again.part(3) is None
        book.part_done(3, {"rows": 5})
        assert again.part(3) == {"rows": 5}
        assert JobState(another, "another job").part(3) is None
        assert again.end() is None
        book.ended({"rows": 5})
        assert again.end() == {"rows": 5}
    same_or_refuse(book.plan() or {}, {"what": "x"}, "a job")
    with pytest.raises(InvalidRequestError, match="begun with what = 'x', now it is 'y'"):
        same_or_refuse(book.plan() or {}, {"what": "y"}, "a job")
    (shard,) = cluster.topic(JOBS_TABLE, table=True).shards
    spoilt = TableWrite(shard.shard_id, (Put(b"a job\x00part/00000007", b"garbage"),), internal=True)
    cluster.call(ShardCall(shard.shard_id, spoilt))
    with pytest.raises(CorruptBatchError, match="not a job's"):
        book.part(7)
    for wrong in ("", "x" * 1001, "a\nb"):
        with pytest.raises(InvalidRequestError, match="a job's name"):
            JobState(cluster, wrong)
