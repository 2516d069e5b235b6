"""Rows: where they go and how batches are cut."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antiphon.client.hashing import shard_of_table_key
from antiphon.errors import BatchTooLargeError, InvalidRequestError, UnknownShardError
from antiphon.records.batch import read_header
from antiphon.records.decode import Record, decode_records
from antiphon.spark.job import Job
from antiphon.spark.rows import RowData, TableRows, check_columns
from antiphon.spark.write.topic_rows import Cut, Ready, TopicRows

JOB = Job("q", 3, 1)
CUT = Cut(rows_max=10, bytes_max=1_000, limit_bytes=5_000, compression="none")


def topic_rows(shards: int = 3, cut: Cut = CUT, time_ms: int | Callable[[], int] = 77) -> TopicRows:
    return TopicRows(JOB, "t", shards, cut, time_ms)


def all_of(rows: TopicRows, *batches: pa.RecordBatch) -> list[Ready]:
    return [ready for batch in batches for ready in rows.add(batch)] + list(rows.rest())


def records(made: list[Ready], shard: int) -> list[Record]:
    return [record for ready in made if ready.shard == shard for record in decode_records(ready.batch)]


def test_rows_of_all_columns() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.record_batch(
        {
            "value": pa.array(["ä", None], pa.string()),
            "key": pa.array([b"k", None], pa.binary()),
            "headers": headers,
            "partition": pa.array([1, None], pa.int32()),
            "timestamp": pa.array([1_999, None], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    made = all_of(topic_rows(), batch)
    first, second = records(made, 1)
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (
        b"k",
        "ä".encode(),
        (("h", b"1"),),
        1,
    )
    assert (second.key, second.value, second.headers, second.timestamp_ms) == (None, None, (), 77)
    (ready,) = made
    header = read_header(ready.batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        JOB.producer_id(table=False),
        3,
        0,
    )


def test_a_row_goes_where_it_asks_to() -> None:
    def asking(*shards: int | None) -> pa.RecordBatch:
        count = len(shards)
        return pa.record_batch({"value": pa.array([b"v"] * count), "shard": pa.array(shards, pa.int16())})

    made = all_of(topic_rows(), asking(2, None, 2, 0))
    assert [len(records(made, shard)) for shard in range(3)] == [1, 1, 2]
    made = all_of(topic_rows(), asking(0, None, 2, None, 1, *[2] * 9, None).slice(3))
    assert [len(records(made, shard)) for shard in range(3)] == [1, 1, 10]
    for wrong in (3, -1):
        with pytest.raises(UnknownShardError, match=r"shards 0 to 2, a row asks for .* \(row 1 of epoch 3"):
            all_of(topic_rows(), asking(0, wrong))


def test_rows_without_a_key_take_turns() -> None:
    values = [pa.record_batch({"value": pa.array([b"%d" % n for n in range(at, at + 4)])}) for at in (0, 4)]
    made = all_of(topic_rows(), *values)
    assert [[record.value for record in records(made, shard)] for shard in range(3)] == [
        [b"0", b"3", b"6"],
        [b"1", b"4", b"7"],
        [b"2", b"5"],
    ]


def test_keys_choose_as_kafkas_clients_do() -> None:
    from aiokafka.partitioner import murmur2

    keys = [f"{'N' * (number % 9)}{number}".encode() for number in range(60)] + [b""]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())})
    made = all_of(topic_rows(7), batch)
    for shard in range(7):
        assert all((murmur2(record.key) & 0x7FFF_FFFF) % 7 == shard for record in records(made, shard))
    table = TableRows(JOB, 7, 10, 10_000, 10_000)
    cuts = [*table.add(batch), *table.rest()]
    assert sum(len(rows) for _, rows in cuts) == 61
    assert all(shard_of_table_key(row.key or b"", 7) == shard for shard, rows in cuts for row in rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=200), st.integers(1, 50))
def test_cutting_depends_on_the_rows_alone(plan: list[tuple[int, int]], step: int) -> None:
    def cut(step: int) -> list[Ready]:
        batches = [
            pa.record_batch(
                {
                    "value": pa.array([bytes(size) for _, size in plan[at : at + step]], pa.binary()),
                    "partition": pa.array([shard for shard, _ in plan[at : at + step]], pa.int32()),
                }
            )
            for at in range(0, len(plan), step)
        ]
        return sorted(all_of(topic_rows(), *batches))

    batches = cut(step)
    assert batches == cut(1_000)
    for shard in range(3):
        sizes = [len(record.value or b"") for record in records(batches, shard)]
        assert sizes == [size for s, size in plan if s == shard]
        sequences = [read_header(ready.batch) for ready in batches if ready.shard == shard]
        assert [header.base_sequence for header in sequences] == np.cumsum(
            [0, *(header.record_count for header in sequences[:-1])]
        ).tolist()[: len(sequences)]
    assert all(len(ready.batch) <= 1_000 and read_header(ready.batch).record_count <= 10 for ready in batches)


def test_a_record_that_is_too_large_is_named() -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b", bytes(6_000)], pa.binary())})
    with pytest.raises(
        BatchTooLargeError, match=r"row 2 of those for shard 0 takes 60\d\d bytes, t takes 5000"
    ):
        all_of(topic_rows(1), batch)


def conditional(*rows: tuple[int, int | None]) -> pa.RecordBatch:
    shards, expected = [shard for shard, _ in rows], [place for _, place in rows]
    return pa.record_batch(
        {
            "value": pa.array([b"v"] * len(rows)),
            "shard": pa.array(shards, pa.int32()),
            "expectedOffset": pa.array(expected, pa.int64()),
        }
    )


def test_rows_whose_expectations_follow_each_other_make_a_batch() -> None:
    plan = [(0, 5), (1, 9), (0, 6), (0, 7), (0, None), (0, None), (0, 20), (0, 22), (1, 10)]
    expected = [
        (0, 0, 5, 3),
        (0, 1, None, 2),
        (0, 2, 20, 1),
        (0, 3, 22, 1),
        (1, 0, 9, 2),
    ]
    for step in (1, 2, 4, 100):
        made = all_of(topic_rows(), *[conditional(*plan[at : at + step]) for at in range(0, len(plan), step)])
        found = [
            (ready.shard, ready.number, ready.expected, read_header(ready.batch).record_count)
            for ready in made
        ]
        assert sorted(found, key=lambda one: one[:2]) == expected
        sequences = [read_header(ready.batch).base_sequence for ready in made if ready.shard == 0]
        assert sequences == [0, 3, 5, 6]


def test_a_long_run_of_expectations_is_cut_and_goes_on() -> None:
    made = all_of(topic_rows(1), conditional(*[(0, 100 + n) for n in range(25)]))
    assert [(ready.expected, read_header(ready.batch).record_count) for ready in made] == [
        (100, 10),
        (110, 10),
        (120, 5),
    ]
    with pytest.raises(InvalidRequestError, match="negative"):
        all_of(topic_rows(1), conditional((0, -7)))


def test_a_tables_rows_are_cut_below_its_limit() -> None:
    table = TableRows(JOB, 1, 100, 100_000, 1_000)
    batch = pa.record_batch(
        {
            "key": pa.array([b"k%d" % n for n in range(50)]),
            "value": pa.array([bytes(n * 10) for n in range(50)]),
        }
    )
    cuts = [*table.add(batch), *table.rest()]
    assert [row for _, rows in cuts for row in rows] == [
        RowData(b"k%d" % n, bytes(n * 10)) for n in range(50)
    ]
    assert all(sum(row.size_bytes for row in rows) <= 1_000 for _, rows in cuts)


TYPES: dict[str, Any] = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}


def _schema(columns: str) -> StructType:
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


GOOD = [
    "value binary",
    "key string, value string",
    "key binary, value binary, partition int, timestamp timestamp",
    "value binary, expectedOffset bigint",
]


@pytest.mark.parametrize("columns", GOOD)
def test_columns_that_can_be_written(columns: str) -> None:
    check_columns(_schema(columns), table=False)


BAD = [
    ("key binary", False, "needs a column value"),
    ("key binary, valu binary", False, "did you mean value?"),
    ("key binary, value binary, xyz int", False, "select or rename"),
    ("value binary, expectedoffset bigint", False, "did you mean expectedOffset?"),
    ("value binary, expectedOffset string", False, "int or bigint"),
    ("key int, value binary", False, "binary or string"),
    ("value binary, headers string", False, "array<struct<key:string,value:binary>>"),
    ("value binary, shard int, partition int", False, "two names"),
    ("value binary", True, "needs a column key"),
    ("key binary, value binary, timestamp timestamp", True, "takes key, value"),
]


@pytest.mark.parametrize(("columns", "table", "message"), BAD)
def test_columns_that_cannot(columns: str, table: bool, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_columns(_schema(columns), table=table)
    assert message in caught.value.message
