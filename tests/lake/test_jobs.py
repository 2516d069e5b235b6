"""Lake jobs on a real Spark: what comes out of a topic or table, into each kind of lake table."""

import json
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from antiphon.errors import BadRecordError, DataLossError, InvalidRequestError, UnknownTopicError
from antiphon.lake.targets.target import open_target
from antiphon.model.metadata import Kind
from antiphon.model.requests import Delete, Put, TableWrite
from antiphon.records.builder import build_batch
from antiphon.spark import jobs
from tests.lake.test_targets import stage
from tests.lake.test_widening import BIG, NARROW, WIDE, narrow, wide
from tests.spark.native_server import MemoryShard, NativeServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def target(kind: str, folder: Path) -> dict[str, str]:
    options = {"kind": kind, "path": str(folder / kind)}
    return {**options, "table": "db.t"} if kind == "iceberg" else options


def put(shard: MemoryShard, *values: bytes | None) -> None:
    shard.put(build_batch([(b"key", value, (("h", b"1"),), 1_700_000_000_000) for value in values]))


def flights(first: int, count: int) -> list[bytes]:
    return [b'{"id": %d, "tail": "N%d"}' % (n, n % 7) for n in range(first, first + count)]


def ids(spark: "SparkSession", options: Any) -> Counter[int | None]:
    return Counter(row["id"] for row in open_target(options).read(spark).select("id").collect())


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("delta", "iceberg")), "parquet"]
)
def test_partitions_and_sql_of_a_topic(
    spark: "SparkSession", server: NativeServer, tmp_path: Path, kind: str
) -> None:
    (shard,) = server.create("flights")
    put(shard, *flights(0, 10))
    where: dict[str, Any] = target(kind, tmp_path) | {"partition_by": ["tail"]}
    options: dict[str, Any] = {
        "format": "json",
        "schema": "id bigint, tail string",
        "select": "id * 2 as twice, lower(tail) as tail",
        "where": "id <> 3",
        "timeout_ms": 10_000,
    }
    assert jobs.mirror_topic(spark, server.address, "flights", where, **options).progress.rows == 9
    put(shard, *flights(10, 2))
    assert jobs.mirror_topic(spark, server.address, "flights", where, **options).progress.rows == 2
    expected = sorted((n * 2, f"n{n % 7}") for n in range(12) if n != 3)
    read = open_target(where).read(spark)
    assert sorted((row["twice"], row["tail"]) for row in read.collect()) == expected
    assert read.where("tail = 'n1'").count() == 2
    if kind == "parquet":
        plain = spark.read.parquet(str(tmp_path / kind))
        assert sorted((row["twice"], row["tail"]) for row in plain.collect()) == expected
    assert jobs.compact(where).removed >= 4
    assert sorted((row["twice"], row["tail"]) for row in open_target(where).read(spark).collect()) == expected
    for wrong, words in (
        ({"select": "sum(id) as s"}, "select takes expressions of one row"),
        ({"where": "nope"}, "where: Binder Error"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            jobs.mirror_topic(spark, server.address, "flights", where, **(options | wrong))
    other = where | {"partition_by": ["twice"]}
    with pytest.raises(InvalidRequestError, match=r"partition_by is \[tail\], asked for is \[twice\]"):
        jobs.mirror_topic(spark, server.address, "flights", other, **options)


@pytest.mark.slow
def test_a_topic_goes_on_where_the_lake_is(
    spark: "SparkSession", server: NativeServer, tmp_path: Path
) -> None:
    one, other = server.create("flights", 2)
    (dead,) = server.create("dead")
    put(one, *flights(0, 10))
    put(other, *flights(10, 5), b"poison", None)
    where = target("delta", tmp_path)
    options: dict[str, Any] = {
        "format": "json",
        "dead_letters": "dead",
        "headers": True,
        "timeout_ms": 10_000,
    }
    first = jobs.mirror_topic(spark, server.address, "flights", where, max_offsets=12, **options).progress
    assert (first.rows, first.dead_letters, first.positions) == (16, 1, {0: one.end, 1: other.end})
    assert first.epochs >= 2
    # Without a checkpoint the next run begins with what the table has; fields that are new become columns.
    put(one, b'{"id": 15, "tail": "N1", "gate": "A"}', *flights(16, 2))
    again = jobs.mirror_topic(spark, server.address, "flights", where, **options).progress
    assert (again.rows, again.dead_letters) == (3, 0)
    found = ids(spark, where)
    assert found == Counter([*range(18), None]), "and the tombstone"
    rows = open_target(where).read(spark)
    assert rows.columns == ["_key", "id", "tail", "_partition", "_offset", "_timestamp", "_headers", "gate"]
    assert [row["id"] for row in rows.where("gate = 'A'").collect()] == [15]
    assert rows.where("_headers[0].key = 'h'").count() == 19
    ((header, batch),) = [pair for pair in dead.batches if not pair[0].is_control]
    assert header.record_count == 1
    assert all(part in batch for part in (b"poison", b"antiphon.reason", b"not JSON", b"antiphon.offset"))


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_a_topic_in_other_tables(
    spark: "SparkSession", server: NativeServer, tmp_path: Path, kind: str
) -> None:
    one, other = server.create("flights", 2)
    put(one, *flights(0, 10))
    put(other, *flights(10, 5))
    where = target(kind, tmp_path)
    progress = jobs.mirror_topic(
        spark, server.address, "flights", where, format="json", schema="id bigint"
    ).progress
    assert progress.rows == 15
    rows = open_target(where).read(spark)
    assert Counter(row["id"] for row in rows.collect()) == Counter(range(15))
    assert rows.where("_rest is not null").count() == 15, "the field that the schema does not name"


def test_a_poisoned_record_ends_the_mirror_with_its_name(
    spark: "SparkSession", server: NativeServer, tmp_path: Path
) -> None:
    (shard,) = server.create("flights")
    put(shard, *flights(0, 3), b'{"id": "no number"}')
    where = target("delta", tmp_path)
    options: dict[str, Any] = {"format": "json", "schema": "id bigint, tail string", "timeout_ms": 10_000}
    with pytest.raises(
        BadRecordError, match=r"topic flights shard 0 offset 4 cannot be decoded as json: .*number to string"
    ):
        jobs.mirror_topic(spark, server.address, "flights", where, str(tmp_path / "checkpoint"), **options)
    assert open_target(where).files() == []
    server.create("dead")
    jobs.mirror_topic(
        spark, server.address, "flights", where, str(tmp_path / "checkpoint"), dead_letters="dead", **options
    )
    assert ids(spark, where) == Counter(range(3))
    put(shard, *flights(3, 3))
    with pytest.raises(DataLossError, match="up to offset 0, but the checkpoint goes on at 5"):
        jobs.mirror_topic(
            spark, server.address, "flights", target("delta", tmp_path / "b"), str(tmp_path / "checkpoint")
        )


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"format": "jsno"}, InvalidRequestError, "format is one of raw, text, json, avro, protobuf, not 'jsno'"),
    ({"format": "json", "schema": "id bigint,,"}, InvalidRequestError, "schema is not a list of columns"),
    (
        {"format": "json", "schema": "m map<string,int>"},
        InvalidRequestError,
        "column m: JSON cannot be read as map",
    ),
    ({"format": "avro"}, InvalidRequestError, "format avro needs a schema"),
    (
        {"format": "avro", "schema": "nowhere.avsc"},
        InvalidRequestError,
        "schema: the file nowhere.avsc cannot be read",
    ),
    (
        {"schema": "id bigint"},
        InvalidRequestError,
        "schema is for format json or avro or protobuf, not for raw",
    ),
    ({"key": "jsno"}, InvalidRequestError, "key is one of raw, text"),
    ({"dead_letters": "nowhere"}, UnknownTopicError, "no topic 'nowhere'"),
    ({"dead_letters": "flights"}, InvalidRequestError, "cannot go to flights itself"),
    ({"max_offsets": 0}, InvalidRequestError, "max_offsets has to be at least 1"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_named_before_anything_starts(
    spark: "SparkSession",
    server: NativeServer,
    tmp_path: Path,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    server.create("flights")
    with pytest.raises(error, match=message):
        jobs.mirror_topic(
            spark, server.address, "flights", f"delta:{tmp_path}/t", timeout_ms=5_000, **options
        )
    assert not (tmp_path / "t").exists()


def write(shard: MemoryShard, *ops: Put | Delete) -> None:
    shard.write_table(TableWrite(0, ops))


def lake_state(spark: "SparkSession", options: Any) -> dict[str, tuple[int, int]]:
    rows = open_target(options).read(spark).select("_key", "n", "_version").collect()
    assert len({row["_key"] for row in rows}) == len(rows)
    return {row["_key"]: (row["n"], row["_version"]) for row in rows}


def table_state(*shards: MemoryShard) -> dict[str, tuple[int, int]]:
    return {
        key.decode(): (json.loads(value)["n"], version.id)
        for shard in shards
        for key, (value, version) in shard.rows.items()
    }


@pytest.mark.parametrize(("kind", "start"), [("delta", "snapshot"), ("iceberg", "earliest")])
def test_a_table_as_it_is_now(
    spark: "SparkSession", server: NativeServer, tmp_path: Path, kind: str, start: str
) -> None:
    one, other = shards = server.create("state", 2, Kind.TABLE)
    for n in range(20):
        write(shards[n % 2], Put(b"k%d" % n, b'{"n": %d}' % n))
    write(one, Put(b"k0", b'{"n": 100}'), Delete(b"k2"), Put(b"k2", b'{"n": 102}'), Delete(b"k4"))
    where = target(kind, tmp_path)
    options: dict[str, Any] = {"format": "json", "key": "text", "start": start, "timeout_ms": 10_000}
    jobs.mirror_table(spark, server.address, "state", where, **options)
    assert lake_state(spark, where) == table_state(one, other)
    write(
        other,
        Put(b"k1", b'{"n": 201}'),
        Delete(b"k3"),
        Put(b"k5", b'{"n": 1}'),
        Delete(b"k5"),
        Put(b"new", b'{"n": 9}'),
    )
    progress = jobs.mirror_table(spark, server.address, "state", where, max_offsets=2, **options).progress
    assert progress.epochs == 3
    assert lake_state(spark, where) == table_state(one, other)
    jobs.compact(where)
    jobs.expire(where, "0 seconds", force=True)
    assert lake_state(spark, where) == table_state(one, other)


def test_tables_that_cannot_be_mirrored(spark: "SparkSession", server: NativeServer, tmp_path: Path) -> None:
    server.create("state", 1, Kind.TABLE)
    with pytest.raises(InvalidRequestError, match="Parquet files cannot be changed in place"):
        jobs.mirror_table(spark, server.address, "state", target("parquet", tmp_path))
    lake = open_target(target("delta", tmp_path))
    assert lake.write_epoch(spark.range(3).selectExpr("id as n"), "load", 0)
    assert not lake.write_epoch(spark.range(3).selectExpr("id as n"), "load", 0)
    assert lake.write_epoch(spark.range(2).selectExpr("id as n", "'x' as more"), "load", 1, overwrite=True)
    assert sorted((row["n"], row["more"]) for row in lake.read(spark).collect()) == [(0, "x"), (1, "x")]
    with pytest.raises(
        InvalidRequestError, match="has rows that do not come from a mirror of the present table state"
    ):
        jobs.mirror_table(spark, server.address, "state", lake)


def test_shards_that_every_replica_writes_have_no_mirror(server: NativeServer, tmp_path: Path) -> None:
    server.create("carts", 1, Kind.TABLE, config={"writers": "multi"})
    with pytest.raises(InvalidRequestError, match="every replica of carts writes its shards"):
        jobs.mirror_table(None, server.address, "carts", target("delta", tmp_path))


def test_a_mirror_that_goes_on_until_it_is_stopped(
    spark: "SparkSession", server: NativeServer, tmp_path: Path
) -> None:
    (shard,) = server.create("flights")
    put(shard, *flights(0, 5))
    where = target("parquet", tmp_path)
    seen = threading.Event()
    with jobs.mirror_topic(
        spark,
        server.address,
        "flights",
        where,
        format="json",
        every="0 seconds",
        on_epoch=lambda progress: seen.set(),
    ) as mirror:
        assert seen.wait(20)
        assert mirror.running
        seen.clear()
        put(shard, *flights(5, 5))
        assert seen.wait(20)
    assert not mirror.running
    assert ids(spark, where) == Counter(range(10))
    assert mirror.progress.rows == 10


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_spark_reads_files_of_before_a_column_was_widened(
    spark: "SparkSession", tmp_path: Path, kind: str
) -> None:
    lake = open_target(target(kind, tmp_path))
    lake.prepare(NARROW)
    lake.append(stage(lake, narrow(b"a", 7), NARROW), {})
    lake.prepare(WIDE)
    lake.append(stage(lake, wide(b"b"), WIDE), {})
    found = lake.read(spark).orderBy("_key").collect()
    assert [(row["n"], row["x"], row["s"]["i"]) for row in found] == [(7, 0.5, 7), (BIG, 1e300, BIG)]
    assert [str(row["d"]) for row in found] == ["1.25", "1234567890.25"]
    lake.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_structs_of_a_topic_get_the_fields_that_newer_records_have(
    spark: "SparkSession", server: NativeServer, tmp_path: Path, kind: str
) -> None:
    (shard,), where = server.create("flights"), target(kind, tmp_path / "lake")
    for schema, value in (
        ("plane struct<tail: string>", b'{"plane": {"tail": "N1"}}'),
        ("plane struct<tail: string, seats: int>", b'{"plane": {"tail": "N2", "seats": 9}}'),
        ("plane struct<tail: string>", b'{"plane": {"tail": "N3"}}'),
    ):
        put(shard, value)
        jobs.mirror_topic(
            spark, server.address, "flights", where, format="json", schema=schema, new_fields="drop"
        )
    found = (
        open_target(where).read(spark).orderBy("_offset").selectExpr("plane.tail", "plane.seats").collect()
    )
    assert [tuple(row) for row in found] == [("N1", None), ("N2", 9), ("N3", None)]
