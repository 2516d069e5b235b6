"""What is handed to Spark, of batches of the log and of rows that are Arrow already."""

import struct
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.records.arrow import SCHEMA, to_arrow, version_columns
from antiphon.records.batch import CODEC_NAMES
from antiphon.records.builder import build_batch
from antiphon.records.changes import VERSION, decode_changes
from antiphon.spark.read import columns
from antiphon.spark.schema import arrow_schema, table_schema, topic_schema

NUMBER = st.integers(-(2**63), 2**63 - 1)
VERSIONS = st.tuples(NUMBER, st.integers(0, 1) | NUMBER, st.integers(0, 2**45), NUMBER).map(
    lambda fields: VERSION.pack(*fields)
)
HEADER = st.tuples(st.just("v"), VERSIONS | st.none() | st.binary(max_size=3)) | st.tuples(
    st.sampled_from(["i", "s", "", "vv"]), st.none() | st.binary(max_size=40)
)
RECORD = st.tuples(
    st.none() | st.binary(max_size=5),
    st.none() | st.binary(max_size=5),
    st.lists(HEADER, max_size=3),
    st.integers(0, 2**45),
)
BATCHES = st.lists(
    st.tuples(st.lists(RECORD, min_size=1, max_size=6), st.sampled_from(CODEC_NAMES)), max_size=3
)
TIME_MAX = (2**63 - 1) // 1000 * 1000
PLACE = ("t", 3)


def built(parts: list[tuple[Any, str]]) -> list[memoryview]:
    batches, at = [], 0
    for records, codec in parts:
        batches.append(memoryview(build_batch(records, base_offset=at, leader_epoch=4, compression=codec)))
        at += len(records)
    return batches


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    plain = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
    ]
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(plain, names=batch.schema.names).to_pylist()
    return rows


def cut_us(time_ms: int) -> int:
    return max(-TIME_MAX, min(TIME_MAX, time_ms * 1000))


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.integers(0, 6), st.integers(0, 15), st.randoms(use_true_random=False))
def test_changes_are_those_that_are_decoded_one_by_one(
    parts: list[Any], start: int, length: int, rng: Any
) -> None:
    batches, end = built(parts), start + length
    expected = [
        {
            "key": change.key,
            "value": change.value,
            "kind": change.kind.value,
            "version": change.version_id,
            "modifications": change.modifications,
            "created": cut_us(change.created_ms),
            "modified": cut_us(change.modified_ms),
            "table": "t",
            "partition": 3,
            "offset": change.offset,
            "timestamp": change.timestamp_ms * 1000,
        }
        for change in decode_changes(batches, start)
        if change.offset < end
    ]
    schema = arrow_schema(table_schema())
    rows = rows_of(columns.change_rows(batches, start, end, PLACE, schema))
    for row in rows:
        row["key"] = row["key"] or b""  # tables' keys are never null
    assert rows == expected
    archived = to_arrow(batches, start=start, end=end, topic="t", partition=3, include_headers=True)
    again = rows_of(columns.fit_change_rows(archived, schema))
    for row in again:
        row["key"] = row["key"] or b""
    assert again == expected
    some = pa.schema(rng.sample(list(schema), 3))
    chosen = columns.change_rows(batches, start, end, PLACE, some)
    assert chosen.schema == some
    assert [{**row, "key": row.get("key") or b""} for row in rows_of(chosen)] == [
        {**{name: row[name] for name in some.names}, "key": row["key"] if "key" in some.names else b""}
        for row in expected
    ]


def test_any_choice_of_a_topics_columns() -> None:
    batches = built([([(b"k", None, [("h", b"1")], 5), (None, b"v", [], 6)], "none")])
    schema = arrow_schema(topic_schema(include_headers=True))
    whole = columns.log_rows(batches, 0, 9, PLACE, schema)
    assert whole.schema == schema
    for names in (["headers"], ["term", "key"], ["timestampType", "topic", "value"], ["partition"]):
        some = pa.schema([schema.field(name) for name in names])
        for found in (
            columns.log_rows(batches, 0, 9, PLACE, some),
            columns.fit_log_rows(whole, some),
        ):
            assert found.schema == some
            assert found.to_pylist() == whole.select(names).to_pylist()
    nothing = columns.log_rows([], 0, 9, PLACE, schema)
    assert (nothing.num_rows, nothing.schema) == (0, schema)
    assert SCHEMA.names == [name for name in schema.names if name != "headers"]


def test_versions_of_scanned_rows() -> None:
    made = version_columns([(1, 2, 3, 2**62), (-1, 0, 0, -(2**62))])
    assert [column.to_pylist() for column in (made["version"], made["modifications"])] == [[1, -1], [2, 0]]
    assert made["modified"].cast(pa.int64()).to_pylist() == [TIME_MAX, -TIME_MAX]
    assert version_columns([])["created"].type == pa.timestamp("us", "UTC")
    kinds = columns.kinds(pa.array([b"", b"", None]), pa.array([0, 7, 0]))
    assert kinds.to_pylist() == ["created", "modified", "deleted"]


def test_log_append_time_of_changes() -> None:
    batch = bytearray(build_batch([(b"k", b"v", [("v", VERSION.pack(1, 0, 2, 3))], 5)]))
    struct.pack_into(">h", batch, 21, 0x08)
    struct.pack_into(">q", batch, 35, 900)
    from antiphon.records.builder import seal

    seal(batch)
    schema = pa.schema([arrow_schema(table_schema()).field("timestamp")])
    assert rows_of(columns.change_rows([memoryview(batch)], 0, 1, PLACE, schema)) == [{"timestamp": 900_000}]


def test_pieces_for_spark() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(2 * columns.ROWS_MAX + 1))], names=["n"])
    assert [piece.num_rows for piece in columns.sliced(batch)] == [columns.ROWS_MAX, columns.ROWS_MAX, 1]
    assert list(columns.sliced(batch.slice(0, 0))) == []
