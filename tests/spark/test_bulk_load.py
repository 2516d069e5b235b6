"""The tasks of a bulk load, without Spark: each row once whatever happens to a task, its shard or its shard's leader."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import antiphon
from antiphon.client.blocking import Cluster
from antiphon.client.hashing import shard_of_table_key
from antiphon.errors import InvalidRequestError, ReplayConflictError, TimedOutError, UnknownTopicError
from antiphon.spark.jobs import bulk_load_writer
from antiphon.spark.jobs.bulk_load_writer import (
    TASK_COLUMN,
    LoadSpec,
    RateLimiter,
    TaskResult,
    route,
    write_partition,
)
from antiphon.spark.jobs.digests import digest_of
from antiphon.spark.jobs.job_state import JobState
from antiphon.spark.option_values import parse_servers
from antiphon.tools.local_cluster import LocalCluster

Rows = Sequence[tuple[bytes | None, bytes | None]]


def _spec(db: antiphon.Client, cluster: LocalCluster, table: str, **changes: Any) -> LoadSpec:
    (meta,) = [topic for topic in db.metadata().topics if topic.name == table]
    spec = LoadSpec(
        servers=tuple(parse_servers(cluster.native)),
        table=table,
        topic_id=meta.topic_id.hex(),
        name=f"load/{table}/0",
        producer=f"load/{table}",
        version=0,
        tasks=2 * len(meta.shards),
        slices=2,
        batch_rows=50,
        batch_bytes=64 * 1024,
        row_bytes_max=10_000,
        timeout_ms=30_000,
    )
    return msgspec.structs.replace(spec, **changes)


def _arrow(rows: Rows) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"]
    )


def _tasks(spec: LoadSpec, rows: Rows, size: int = 333) -> dict[int, list[pa.RecordBatch]]:
    """As Spark's shuffle leaves them: by task, sorted by key, in batches."""
    table = pa.Table.from_batches(route(spec, iter([_arrow(rows)])))
    numbers = sorted(set(table.column(TASK_COLUMN).to_pylist()))
    found = {}
    for number in numbers:
        own = table.filter(pa.compute.equal(table.column(TASK_COLUMN), number))
        found[number] = (
            own.sort_by([("key", "ascending"), ("value", "ascending")])
            .combine_chunks()
            .to_batches(max_chunksize=size)
        )
    return found


def _run(spec: LoadSpec, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    (row,) = [batch.to_pylist()[0] for batch in write_partition(spec, batches)]
    return msgspec.json.decode(row["result"], type=TaskResult)


def _load(spec: LoadSpec, rows: Rows) -> list[TaskResult]:
    return [_run(spec, iter(batches)) for batches in _tasks(spec, rows).values()]


def _total(results: list[TaskResult], name: str) -> int:
    return sum(getattr(result, name) for result in results)


def _rows(count: int, mark: bytes = b"v") -> list[tuple[bytes | None, bytes | None]]:
    return [(b"key-%05d" % n, b"%s-%d" % (mark, n)) for n in range(count)]


def _state(db: antiphon.Client, table: str) -> dict[bytes, bytes]:
    return {row.key: row.value or b"" for row in db.table(table).scan()}


def _writes(db: antiphon.Client, table: str) -> Counter[int]:
    """How often keys were written: 0 modifications after one put."""
    return Counter(row.version.modifications for row in db.table(table).scan())


def test_rows_go_to_the_task_of_their_shard(cluster: LocalCluster, db: antiphon.Client) -> None:
    db.create_table("routed", shards=3)
    spec = _spec(db, cluster, "routed")
    (batch,) = route(spec, iter([_arrow(_rows(2000))]))
    tasks = batch.column(TASK_COLUMN).to_pylist()
    assert set(tasks) == set(range(6))
    for key, task in zip(batch.column("key").to_pylist(), tasks, strict=True):
        assert task // spec.slices == shard_of_table_key(key, 3)
    with pytest.raises(InvalidRequestError, match="rows without a key"):
        list(route(spec, iter([_arrow([(b"a", b"1"), (None, b"2")])])))
    with pytest.raises(
        InvalidRequestError, match="a row has 10003 bytes of key and value, table routed takes 10000"
    ):
        list(route(spec, iter([_arrow([(b"key", b"x" * 10_000)])])))


def test_a_task_that_is_run_again_writes_what_is_missing(cluster: LocalCluster, db: antiphon.Client) -> None:
    db.create_table("again", shards=2)
    spec = _spec(db, cluster, "again", batch_rows=10)
    rows = _rows(1500)
    tasks = _tasks(spec, rows, size=100)

    def dies(batches: list[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
        yield from batches[:after]
        raise ConnectionError("the worker dies here")

    for batches in tasks.values():
        with pytest.raises(ConnectionError, match="dies here"):
            list(write_partition(spec, dies(batches, len(batches) - 1)))
    part = _state(db, "again")
    assert 0 < len(part) < 1500
    results = [_run(spec, iter(batches)) for batches in tasks.values()]
    assert _state(db, "again") == dict(rows)
    assert _writes(db, "again") == {0: 1500}
    assert _total(results, "rows") == 1500
    assert sum((result.digest for result in results), digest_of([])) == digest_of(
        (k or b"", v) for k, v in rows
    )
    # The whole load once more, as after a driver that died: nothing is written twice.
    _load(spec, rows)
    assert _writes(db, "again") == {0: 1500}
    with pytest.raises(ReplayConflictError, match="earlier run"):
        _load(spec, _rows(1500, b"w"))


def test_deletes_and_keys_that_come_several_times(cluster: LocalCluster, db: antiphon.Client) -> None:
    table = db.create_table("keys", shards=2)
    table.put("key-00003", b"old")
    table.put("other", b"stays")
    rows = [*_rows(200), (b"key-00003", None), (b"key-00007", b"w"), (b"key-00007", b"a")]
    spec = _spec(db, cluster, "keys")
    results = _load(spec, [row for row in rows if row != (b"key-00003", b"v-3")])
    assert (_total(results, "rows"), _total(results, "deletes"), _total(results, "superseded")) == (199, 1, 2)
    state = _state(db, "keys")
    assert b"key-00003" not in state
    assert state[b"key-00007"] == b"w"  # the greatest value, where nothing else says what is last
    assert state[b"other"] == b"stays"
    assert len(state) == 200


def test_more_requests_than_a_leader_remembers_of_one_producer(
    cluster: LocalCluster, db: antiphon.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_load_writer, "JOB_BATCHES_MAX", 3)
    db.create_table("long", shards=1)
    spec = _spec(db, cluster, "long", tasks=1, slices=1, batch_rows=20)
    rows = _rows(400)
    for _ in range(2):
        (result,) = _load(spec, rows)
        assert result.batches == 20
    assert _state(db, "long") == dict(rows)
    assert _writes(db, "long") == {0: 400}


def test_the_book_lets_a_second_run_skip_what_is_through(cluster: LocalCluster, db: antiphon.Client) -> None:
    db.create_table("booked", shards=2)
    spec = _spec(db, cluster, "booked", keeps_book=True)
    with Cluster(spec.servers, 20_000) as link:
        JobState(link, spec.name).begin({"job": "bulk_load"})
    rows = _rows(300)
    tasks = _tasks(spec, rows)
    first = next(iter(tasks))
    assert not _run(spec, iter(tasks[first])).skipped
    results = _load(spec, rows)
    assert [result.task for result in results if result.skipped] == [first]
    assert _total(results, "rows") == 300
    assert _writes(db, "booked") == {0: 300}
    with pytest.raises(ReplayConflictError, match=r"part \d of load .* with other rows"):
        _load(spec, _rows(300, b"w"))


def test_the_leader_dies_and_the_shard_is_split_under_a_load(
    cluster: LocalCluster, db: antiphon.Client
) -> None:
    db.create_table("moved", shards=1)
    spec = _spec(db, cluster, "moved", tasks=1, slices=1, batch_rows=25)
    rows = _rows(3000)
    (batches,) = _tasks(spec, rows, size=100).values()
    leader = _leader(db, "moved")

    def disturbed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 8:
                cluster.kill(leader)
            if number == 16:
                db.split_shard("moved", 0)
            yield batch

    result = _run(spec, disturbed())
    cluster.start_node(leader)
    assert result.rows == 3000
    assert _state(db, "moved") == dict(rows)
    assert _writes(db, "moved") == {0: 3000}
    # And once more, to the shards that there are now.
    assert _run(spec, iter(batches)).rows == 3000
    assert _writes(db, "moved") == {0: 3000}


def _leader(db: antiphon.Client, table: str) -> int:
    (meta,) = [topic for topic in db.metadata().topics if topic.name == table]
    return meta.shards[0].leader


def test_the_table_sets_the_rate(cluster: LocalCluster, db: antiphon.Client) -> None:
    db.create_table("paced", shards=1, config={"bulk.bytes.per.second": "0"})
    spec = _spec(db, cluster, "paced", tasks=1, slices=1, timeout_ms=700)
    with pytest.raises(TimedOutError, match=r"bulk.bytes.per.second is 0"):
        _load(spec, _rows(100))
    assert _state(db, "paced") == {}
    db.table("paced").put("others", b"are not held up")
    patient = msgspec.structs.replace(spec, timeout_ms=20_000)
    allow = threading.Timer(0.5, lambda: db.alter_topic("paced", config={"bulk.bytes.per.second": "40000"}))
    allow.start()
    started = time.monotonic()
    (result,) = _load(patient, _rows(1000))  # about 34 kB with what each operation counts for
    took_s = time.monotonic() - started
    allow.join()
    assert result.overloaded > 0
    assert result.waited_ms > 500
    assert took_s > 1.0
    assert len(_state(db, "paced")) == 1001


def test_the_job_can_bound_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(bulk_load_writer, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    pace = RateLimiter(100_000)
    for _ in range(5):
        pace.wait(5_000)
    assert pace.waited_s == pytest.approx(0.2)  # the first one waits for nobody
    assert now_s[0] == pytest.approx(100.2)
    free = RateLimiter(0)
    free.wait(1 << 40)
    assert free.waited_s == 0


def test_a_table_that_was_made_anew_is_not_the_same(cluster: LocalCluster, db: antiphon.Client) -> None:
    db.create_table("anew")
    spec = _spec(db, cluster, "anew", tasks=1, slices=1, topic_id="00" * 16)
    with pytest.raises(UnknownTopicError, match="deleted and created again"):
        _load(spec, _rows(10))
