"""Rows: where they go and how batches are cut."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antiphon.client.hashing import shard_of_table_key
from antiphon.errors import InvalidRequestError, UnknownShardError
from antiphon.spark.rows import Cutter, Router, RowData, check_columns, rows_of


def _row(key: bytes | None = None, value: bytes | None = b"v", shard: int | None = None) -> RowData:
    return RowData(key, value, (), shard, None)


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
    first, second = rows_of(batch)
    assert first == RowData(b"k", "ä".encode(), (("h", b"1"),), 1, 1)
    assert second == RowData(None, None, (), None, None)


def test_a_row_goes_where_it_asks_to() -> None:
    router = Router("t", 3, table=False)
    assert router.shard(_row(b"k", shard=2)) == 2
    for wrong in (3, -1):
        with pytest.raises(UnknownShardError, match="shards 0 to 2"):
            router.shard(_row(shard=wrong))


def test_rows_without_a_key_take_turns() -> None:
    router = Router("t", 3, table=False)
    assert [router.shard(_row()) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_keys_choose_as_kafkas_clients_do() -> None:
    from aiokafka.partitioner import murmur2

    router, table = Router("t", 7, table=False), Router("t", 7, table=True)
    for number in range(60):
        key = f"{'N' * (number % 9)}{number}".encode()
        assert router.shard(_row(key)) == (murmur2(key) & 0x7FFF_FFFF) % 7
        assert table.shard(_row(key)) == shard_of_table_key(key, 7)
    assert router.shard(_row(b"")) == (murmur2(b"") & 0x7FFF_FFFF) % 7


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=200))
def test_cutting_depends_on_the_rows_alone(plan: list[tuple[int, int]]) -> None:
    def cut() -> list[tuple[int, list[RowData]]]:
        cutter = Cutter(10, 1000)
        found = []
        for shard, size in plan:
            batch = cutter.add(shard, _row(value=bytes(size)))
            if batch is not None:
                found.append((shard, batch))
        return found + cutter.rest()

    batches = cut()
    assert batches == cut()
    for shard in range(3):
        sizes = [len(row.value or b"") for s, batch in batches if s == shard for row in batch]
        assert sizes == [size for s, size in plan if s == shard]
    for _, batch in batches:
        assert 0 < len(batch) <= 10
        assert sum(row.size_bytes for row in batch[:-1]) < 1000


TYPES = {"binary": BinaryType(), "int": IntegerType(), "string": StringType(), "timestamp": TimestampType()}


def _schema(columns: str) -> StructType:
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


GOOD = [
    "value binary",
    "key string, value string",
    "key binary, value binary, partition int, timestamp timestamp",
]


@pytest.mark.parametrize("columns", GOOD)
def test_columns_that_can_be_written(columns: str) -> None:
    check_columns(_schema(columns), table=False)


BAD = [
    ("key binary", False, "needs a column value"),
    ("key binary, valu binary", False, "did you mean value?"),
    ("key binary, value binary, xyz int", False, "select or rename"),
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
