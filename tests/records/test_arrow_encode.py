"""Batches made of Arrow columns against those made row by row, byte for byte."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.client.hashing import shard_of_table_key
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import key_hash
from antiphon.model.topic_keys import shard_of_topic_key
from antiphon.records.arrow_encode import (
    OPEN_BYTES_MAX,
    BatchEncoder,
    Encoded,
    compile_kernels,
    key_hashes,
    shards_by_key,
)
from antiphon.records.batch import CODEC_NAMES, HEADER_BYTES, validate_batch
from antiphon.records.builder import RecordInput, build_batch
from antiphon.records.decode import decode_records

DEFAULT_MS = 1_700_000_000_123
HEADERS_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
OPTIONAL_BYTES = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70)
HEADER = st.tuples(st.text(max_size=4), OPTIONAL_BYTES)
ROW = st.tuples(
    OPTIONAL_BYTES,
    OPTIONAL_BYTES,
    st.lists(HEADER, max_size=3),
    st.none() | st.integers(0, 2**45),
    st.integers(0, 2),  # shard
)
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None, int]


def columns_of(rows: list[Row], *, binary: Any = None, before: int = 0) -> pa.RecordBatch:
    """The rows as a batch, which is a slice of a larger one where `before` is not 0."""
    binary = binary or pa.binary()
    junk: list[Row] = [(b"junk", b"junk", [("junk", b"j")], 1, 0)] * before
    rows = junk + rows + junk
    headers = [[{"key": k, "value": v} for k, v in row[2]] if row[2] else None for row in rows]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], binary),
            pa.array([row[1] for row in rows], binary),
            pa.array(headers, pa.list_(HEADERS_TYPE)),
            pa.array([row[3] for row in rows], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        ],
        names=["key", "value", "headers", "timestamp"],
    )
    return batch.slice(before, len(rows) - 2 * before)


def shards_of(rows: list[Row]) -> Any:
    return np.array([row[4] for row in rows], np.int32)


def record(row: Row) -> RecordInput:
    return row[0], row[1], row[2], DEFAULT_MS if row[3] is None else row[3]


def encode(pieces: list[list[Row]], encoder: BatchEncoder, **kind: Any) -> dict[int, list[Encoded]]:
    found: dict[int, list[Encoded]] = {}
    for piece in pieces:
        for one in encoder.add(columns_of(piece, **kind), shards_of(piece), DEFAULT_MS):
            found.setdefault(one.shard, []).append(one)
    for one in encoder.rest():
        found.setdefault(one.shard, []).append(one)
    return found


def cut(rows: list[Row], rows_max: int, bytes_max: int) -> list[list[Row]]:
    """Batches as long as they may be, found by trying."""
    batches: list[list[Row]] = []
    for row in rows:
        longer = [*batches[-1], row] if batches else []
        if batches and len(longer) <= rows_max and len(build_batch(list(map(record, longer)))) <= bytes_max:
            batches[-1] = longer
        else:
            batches.append([row])
    return batches


@settings(max_examples=80, deadline=None)
@given(
    st.lists(ROW, max_size=30),
    st.lists(st.integers(0, 30), max_size=3),
    st.integers(1, 6),
    st.integers(HEADER_BYTES, 400),
    st.sampled_from(CODEC_NAMES),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.integers(0, 9),
)
def test_batches_are_those_of_the_other_builder(
    rows: list[Row],
    places: list[int],
    rows_max: int,
    bytes_max: int,
    codec: str,
    binary: pa.DataType,
    before: int,
) -> None:
    edges = sorted({0, len(rows), *(min(place, len(rows)) for place in places)})
    pieces = [rows[a:b] for a, b in itertools.pairwise(edges)]
    encoder = BatchEncoder(3, rows_max, bytes_max, producer_id=7, producer_epoch=2, compression=codec)
    found = encode(pieces, encoder, binary=binary, before=before)
    for shard in range(3):
        first = 0
        expected = cut([row for row in rows if row[4] == shard], rows_max, bytes_max)
        assert len(found.get(shard, [])) == len(expected)
        for one, part in zip(found.get(shard, []), expected, strict=True):
            assert (one.shard, one.first_row, one.rows) == (shard, first, len(part))
            assert one.batch == build_batch(
                list(map(record, part)),
                producer_id=7,
                producer_epoch=2,
                base_sequence=first,
                compression=codec,
            )
            first += len(part)


def test_text_columns_missing_columns_and_extreme_times() -> None:
    # Not -1 first: the other builder takes that for "none yet" and gives the row the next one's time.
    times = [5, 2**62 // 1000, -(2**62) // 1000, 0, -1]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["ä", None, "", "x" * 200, "y"], pa.string()),
            pa.array([time * 1000 for time in times], pa.int64()).view(pa.timestamp("us")),
        ],
        names=["value", "timestamp"],
    )
    encoder = BatchEncoder(1, 100, 1000)
    assert encoder.add(batch, np.zeros(5, np.int32), 0) == []
    (made,) = encoder.rest()
    values = ["ä".encode(), None, b"", b"x" * 200, b"y"]
    assert made.batch == build_batch(
        [(None, value, [], time) for value, time in zip(values, times, strict=True)]
    )
    assert validate_batch(made.batch).base_sequence == -1
    assert encoder.rest() == []


@pytest.mark.parametrize(("unit", "factor"), [("s", 1000), ("ms", 1), ("us", 0.001), ("ns", 0.000001)])
def test_times_of_every_unit_are_cut_to_milliseconds(unit: str, factor: float) -> None:
    stamps = pa.array([-1, 1_234_567_891, None], pa.timestamp(unit))
    batch = pa.RecordBatch.from_arrays([pa.nulls(3), stamps], names=["value", "timestamp"])
    encoder = BatchEncoder(1, 100, 1000)
    encoder.add(batch, np.zeros(3, np.int32), lambda: 5)
    (made,) = encoder.rest()
    found = [record.timestamp_ms for record in decode_records(made.batch)]
    assert found == [int(-1 * factor // 1), int(1_234_567_891 * factor // 1), 5]


def test_the_default_time_is_asked_for_only_if_a_row_needs_it() -> None:
    def none() -> int:
        raise AssertionError("nobody needs it")

    encoder = BatchEncoder(1, 100, 1000)
    rows: list[Row] = [(b"k", b"v", [], 17, 0)]
    encoder.add(columns_of(rows), shards_of(rows), none)
    with pytest.raises(AssertionError):
        encoder.add(columns_of([(b"k", b"v", [], None, 0)]), shards_of(rows), none)


def test_headers_that_are_null_or_have_null_keys() -> None:
    pairs = pa.array([{"key": "a", "value": b"1"}, None, {"key": None, "value": None}], HEADERS_TYPE)
    # The list that is null covers a header all the same, as Arrow allows.
    mask = pa.array([False, True, False])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pairs, mask=mask)
    whole = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), pairs)
    encoder = BatchEncoder(1, 100, 1000)
    for column in (headers, whole, whole.cast(pa.large_list(HEADERS_TYPE))):
        batch = pa.RecordBatch.from_arrays(
            [pa.array([b"v"] * len(column)), column], names=["value", "headers"]
        )
        encoder.add(batch, np.zeros(len(column), np.int32), 0)
    (made,) = encoder.rest()
    all_three = (("a", b"1"), ("", None))
    assert [record.headers for record in decode_records(made.batch)] == [
        (("a", b"1"),),
        (),
        (("", None),),
        all_three,
        all_three,
    ]


def test_large_rows_make_batches_of_their_own() -> None:
    rows: list[Row] = [(None, b"s", [], 1, 0), (b"k", b"v" * 3_000_000, [], 2, 0), (None, b"t", [], 3, 0)]
    encoder = BatchEncoder(1, 100, 10_000)
    found = encode([rows], encoder)[0]
    assert [one.rows for one in found] == [1, 1, 1]
    assert found[1].batch == build_batch([record(rows[1])])


def test_memory_is_bounded_with_very_many_shards() -> None:
    shards = 100_000
    encoder = BatchEncoder(shards, 1_000_000, 1 << 30)
    rows = 60
    batch = pa.RecordBatch.from_arrays([pa.array([b"v" * 1000] * rows)], names=["value"])
    made = encoder.add(batch, np.full(rows, shards - 1, np.int32), 0)
    assert made
    assert max(len(one.batch) for one in made) <= OPEN_BYTES_MAX // shards


def test_wrong_columns_and_shards_are_refused() -> None:
    encoder = BatchEncoder(2, 10, 1000)
    good = pa.RecordBatch.from_arrays([pa.array([b"v"])], names=["value"])
    for shard in (-1, 2):
        with pytest.raises(InvalidRequestError, match=f"asks for shard {shard}"):
            encoder.add(good, np.array([shard], np.int32), 0)
    with pytest.raises(InvalidRequestError, match="shards for 2"):
        encoder.add(good, np.array([0, 1], np.int32), 0)
    for name, column in (
        ("value", pa.array([[1]])),
        ("headers", pa.array([1])),
        ("headers", pa.array([[{"key": "k", "text": b"v"}]])),
        ("headers", pa.array([[{"key": b"\xff", "value": b"v"}]])),
        ("timestamp", pa.array([1])),
    ):
        with pytest.raises(InvalidRequestError, match=name[:-1]):
            encoder.add(pa.RecordBatch.from_arrays([column], names=[name]), np.zeros(1, np.int32), 0)
    for limits in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(InvalidRequestError, match="at least 1"):
            BatchEncoder(*limits)
    with pytest.raises(InvalidRequestError, match="compression"):
        BatchEncoder(1, 1, 1, compression="rar")


KEYS = st.lists(st.none() | st.binary(max_size=20) | st.binary(min_size=100, max_size=300), max_size=20)


@settings(max_examples=60, deadline=None)
@given(KEYS, st.integers(1, 300), st.integers(0, 9))
def test_shards_are_those_that_clients_choose(keys: list[bytes | None], shards: int, before: int) -> None:
    column = pa.array([b"junk"] * before + keys, pa.binary()).slice(before)
    for table, by_key in ((False, shard_of_topic_key), (True, shard_of_table_key)):
        found = shards_by_key(column, shards, table=table).tolist()
        assert found == [-1 if key is None else by_key(key, shards) for key in keys]


def test_hashes_of_keys_of_every_length() -> None:
    data = bytes(range(256)) * 2
    keys = [data[size % 7 : size % 7 + size] for size in range(300)]
    assert key_hashes(pa.array([None, *keys])).tolist() == [-1, *map(key_hash, keys)]
    for shards in (2, 3, 1_000_003):
        for table, by_key in ((False, shard_of_topic_key), (True, shard_of_table_key)):
            found = shards_by_key(pa.array(keys), shards, table=table).tolist()
            assert found == [by_key(key, shards) for key in keys]


def test_each_kernel_is_compiled_once() -> None:
    from antiphon.records import arrow_decode_kernels, arrow_encode_kernels, arrow_hash_kernels

    compile_kernels()
    kernels: list[Any] = [
        arrow_decode_kernels.scan_batches,
        arrow_decode_kernels.decode_records,
        arrow_decode_kernels.decode_headers,
        arrow_encode_kernels.encode_rows,
        arrow_encode_kernels.group_rows,
        arrow_hash_kernels.topic_hashes,
        arrow_hash_kernels.table_hashes,
    ]
    assert [len(kernel.signatures) for kernel in kernels] == [1] * len(kernels)
