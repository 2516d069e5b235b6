"""Arrow columns against records decoded one by one."""

import ctypes
import mmap
import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import CorruptBatchError
from antiphon.records.arrow import decode, to_arrow
from antiphon.records.batch import CODEC_NAMES, HEADER_BYTES, check_batch, iter_batches
from antiphon.records.builder import RecordInput, build_batch, build_term_start, seal
from antiphon.records.decode import decode_records, plain_records

OPTIONAL_BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=130, max_size=200)
RECORD = st.tuples(
    OPTIONAL_BYTES,
    OPTIONAL_BYTES,
    st.lists(st.tuples(st.text(max_size=5), OPTIONAL_BYTES), max_size=3),
    st.integers(-1, 2**45),
)
BATCHES = st.lists(
    st.tuples(st.lists(RECORD, min_size=1, max_size=8), st.sampled_from(CODEC_NAMES), st.booleans()),
    max_size=4,
)


def rows_of(table: pa.RecordBatch) -> list[dict[str, Any]]:
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.set_column(
        5, "timestamp", table.column("timestamp").cast(pa.int64())
    ).to_pylist()
    return rows


def expected_rows(batches: list[bytes], start: int, end: int) -> list[dict[str, Any]]:
    return [
        {
            "key": r.key,
            "value": r.value,
            "topic": "t",
            "partition": 3,
            "offset": r.offset,
            "timestamp": r.timestamp_ms * 1000,
            "timestampType": 0,
            "headers": [{"key": k, "value": v} for k, v in r.headers],
            "term": struct.unpack_from(">i", batch, 12)[0],
        }
        for batch in batches
        for r in decode_records(batch)
        if start <= r.offset < end
    ]


@settings(max_examples=80, deadline=None)
@given(BATCHES, st.integers(0, 20), st.integers(0, 30))
def test_columns_equal_the_records(parts: list[tuple[Any, str, bool]], start: int, length: int) -> None:
    batches: list[bytes] = []
    at = 0
    for number, (records, codec, control) in enumerate(parts):
        if control:
            batches.append(bytes(build_term_start(number, at, 7)))
            at += 1
        batches.append(bytes(build_batch(records, base_offset=at, leader_epoch=number, compression=codec)))
        at += len(records)
    data: list[Any] = [b"".join(batches)] if start % 2 else [memoryview(batch) for batch in batches]
    end = start + length
    place: dict[str, Any] = {"start": start, "end": end, "topic": "t", "partition": 3}
    expected = expected_rows(batches, start, end)
    assert rows_of(to_arrow(data, include_headers=True, **place)) == expected
    for row in expected:
        del row["headers"]
    assert rows_of(to_arrow(data, **place)) == expected


def read_all(batch: bytes | bytearray | memoryview, *, include_headers: bool = True) -> list[dict[str, Any]]:
    return rows_of(
        to_arrow([batch], start=0, end=2**62, topic="t", partition=0, include_headers=include_headers)
    )


def test_types_are_those_of_the_surface() -> None:
    empty = to_arrow([], start=0, end=1, topic="t", partition=0, include_headers=True)
    full = to_arrow(
        [build_batch([(b"k", b"v", [("h", b"x")], 1)])],
        start=0,
        end=1,
        topic="t",
        partition=0,
        include_headers=True,
    )
    assert empty.schema == full.schema
    assert [f"{field.name} {field.type}" for field in full.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int32",
        "offset int64",
        "timestamp timestamp[us, tz=UTC]",
        "timestampType int32",
        "headers list<item: struct<key: string, value: binary>>",
        "term int64",
    ]
    assert (empty.num_rows, full.num_rows) == (0, 1)


def test_log_append_time_and_extreme_timestamps() -> None:
    batch = build_batch([(b"a", b"", (), 5), (b"b", b"", (), 6)])
    struct.pack_into(">h", batch, 21, 0x08)
    struct.pack_into(">q", batch, 35, 900)
    seal(batch)
    assert [(row["timestamp"], row["timestampType"]) for row in read_all(batch)] == [(900_000, 1)] * 2
    far = build_batch([(b"a", b"", (), 2**62), (b"b", b"", (), -(2**62))])
    stamps = [row["timestamp"] for row in read_all(far)]
    assert stamps == [(2**63 - 1) // 1000 * 1000, -((2**63 - 1) // 1000) * 1000]


@pytest.mark.parametrize("records", [1, 2])
def test_offsets_beyond_64_bits_are_refused(records: int) -> None:
    batch = build_batch([(b"k", b"v", (), 1)] * records)
    for base, taken in ((2**63 - 1 - records, True), (2**63 - records, False), (2**63 - 1, False)):
        struct.pack_into(">q", batch, 0, base)
        if taken:
            found = decode([bytes(batch)], start=0, end=2**63 - 1, columns=("offset",)).columns["offset"]
            assert found.to_pylist() == [base + number for number in range(records)]
            assert [record.offset for record in decode_records(batch)] == found.to_pylist()
            continue
        with pytest.raises(CorruptBatchError, match="beyond offset"):
            decode_records(batch)
        with pytest.raises(CorruptBatchError, match=f"batch at {base} with {records} offsets goes"):
            decode([bytes(batch)], start=0, end=2**63 - 1, columns=("offset",))


def test_large_records_and_records_with_very_many_headers() -> None:
    headers = [(f"h{n}", None if n % 3 else b"v") for n in range(1000)]
    records: list[RecordInput] = [(b"k" * 70_000, b"v" * 3_000_000, headers, 1), (None, None, (), 2)]
    batch = bytes(build_batch(records))
    rows = read_all(batch)
    assert (rows[0]["key"], rows[0]["value"]) == (records[0][0], records[0][1])
    assert [(h["key"], h["value"]) for h in rows[0]["headers"]] == headers
    assert rows[1]["headers"] == []


def test_bad_records_are_refused_as_the_other_decoder_does() -> None:
    rng = random.Random(3)
    batch = build_batch([(b"key%d" % i, b"value", [("h", b"x"), ("i", None)], 1000 + i) for i in range(4)])
    attributes = {
        HEADER_BYTES + 1 + 23 * number for number in range(4)
    }  # unused, and aiokafka reads them as a varint
    places = [at for at in range(HEADER_BYTES, len(batch)) if at not in attributes]
    differing = 0
    for _ in range(1500):
        changed = bytearray(batch)
        for _ in range(rng.randint(1, 3)):
            changed[rng.choice(places)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        seal(changed)
        try:
            expected: Any = [(r.key, r.value, r.offset) for r in decode_records(changed)]
        except CorruptBatchError:
            expected = None
        try:
            found: Any = [(row["key"], row["value"], row["offset"]) for row in read_all(changed)]
        except CorruptBatchError:
            found = None
        if found != expected:
            differing += 1
            assert found is None, "only ever stricter than record by record"
    assert differing < 100


@pytest.mark.parametrize("at", [0, 21, 40, 60, 61, 70])
def test_damaged_batches_are_refused(at: int) -> None:
    batch = build_batch([(b"key", b"value", (), 1)])
    with pytest.raises(CorruptBatchError):
        read_all(batch[:at] if at else batch + b"\0")


class _RefusedError(Exception):
    pass


class Plain:
    """Reads records as their format is written down, a byte at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise _RefusedError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, bytes_max: int = 5) -> int:
        raw = 0
        for n in range(bytes_max):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << (7 * n)
            if byte < 0x80:
                raw &= 2**64 - 1
                return (raw >> 1) ^ -(raw & 1)
        raise _RefusedError

    def sized(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self.take(size)

    def record(self, count: int) -> tuple[Any, ...]:
        record = Plain(self.take(self.number()))
        record.take(1)
        record.number(10)
        delta = record.number()
        key, value, headers = record.sized(), record.sized(), record.number()
        if headers < 0 or not 0 <= delta < count:
            raise _RefusedError
        pairs = []
        for _ in range(headers):
            name = record.sized()
            if name is None:
                raise _RefusedError
            pairs.append((name.decode(), record.sized()))
        if record.at != len(record.data):
            raise _RefusedError
        return key, value, delta, pairs


def decoded_by_both(batch: bytearray) -> tuple[Any, Any]:
    """Rows of the kernels and of `Plain`; None where they are refused. The kernels must not look beyond the batch."""
    held = Guarded().hold(batch)
    try:
        found: Any = [
            (row["key"], row["value"], row["offset"], [tuple(pair.values()) for pair in row["headers"]])
            for row in read_all(held)
        ]
    except CorruptBatchError:
        found = None
    count = struct.unpack_from(">i", batch, 57)[0]
    records = Plain(bytes(batch[HEADER_BYTES:]))
    try:
        expected: Any = [records.record(count) for _ in range(count)]
    except (_RefusedError, UnicodeDecodeError):
        expected = None
    return found, None if records.at != len(records.data) else expected


class Guarded:
    """Memory that ends where reading on ends the process."""

    SIZE = 4 * mmap.PAGESIZE

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, self.SIZE + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        forbidden = libc.mprotect(ctypes.c_void_p(start + self.SIZE), mmap.PAGESIZE, 0)
        assert forbidden == 0

    def hold(self, data: bytes | bytearray) -> memoryview:
        """The data, with its end at the edge."""
        view = memoryview(self._map)[self.SIZE - len(data) : self.SIZE]
        view[:] = data
        return view


@settings(max_examples=150, deadline=None)
@given(
    st.lists(RECORD, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    st.integers(0, 40),
)
def test_changed_and_cut_records_are_refused_without_looking_beyond_them(
    records: list[RecordInput], changes: list[tuple[int, int]], cut: int
) -> None:
    batch = build_batch(records)
    del batch[max(HEADER_BYTES + 7 * len(records), len(batch) - cut) :]
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    for place, byte in changes:
        batch[HEADER_BYTES + place % (len(batch) - HEADER_BYTES)] = byte
    seal(batch)
    found, expected = decoded_by_both(batch)
    assert found == expected


@settings(max_examples=120, deadline=None)
@given(st.binary(min_size=14, max_size=120), st.integers(1, 2))
def test_any_bytes_as_records(noise: bytes, count: int) -> None:
    batch = build_batch([(None, None, (), 0)] * count)
    del batch[HEADER_BYTES:]
    batch += noise
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    seal(batch)
    found, expected = decoded_by_both(batch)
    assert found == expected


HEADER_CHANGES = st.tuples(
    st.integers(0, 1), st.integers(0, HEADER_BYTES - 1), st.integers(0, 255), st.booleans()
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([b"small", b"large" * 320]),
    st.sampled_from(CODEC_NAMES),
    st.lists(HEADER_CHANGES, min_size=1, max_size=2),
    st.integers(0, 3),
)
def test_headers_are_checked_as_everywhere(
    value: bytes, codec: str, changes: list[tuple[int, int, int, bool]], start: int
) -> None:
    batches = [
        build_batch([(b"k", value, (), 1)] * 2, base_offset=2 * n, compression=codec) for n in range(2)
    ]
    for number, place, byte, sealed in changes:
        batches[number][place] = byte
        if sealed:
            seal(batches[number])
    data = b"".join(batches)
    try:
        for header, batch in iter_batches(data):
            check_batch(header, batch)
            if not header.is_control and header.next_offset > start and header.base_offset < 4:
                plain_records(header, batch)
        good = True
    except CorruptBatchError:
        good = False
    held = Guarded().hold(data)
    try:
        found = decode([held], start=start, end=4, columns=["value"])
        assert good
        assert set(found.columns["value"].to_pylist()) <= {value}
    except CorruptBatchError:
        # The header may be good and the records not of it: their codec or the count was changed.
        assert not good or any(place in {22, 60, 26} for _, place, _, _ in changes)


def test_batches_of_every_size_up_to_where_another_way_checks_them() -> None:
    batches = [bytes(build_batch([(None, bytes(size), (), size)], base_offset=size)) for size in range(1600)]
    found = decode([b"".join(batches)], start=0, end=1600, columns=["offset", "value"])
    assert found.columns["offset"].to_pylist() == list(range(1600))
    assert [len(value) for value in found.columns["value"].to_pylist()] == list(range(1600))
    for size in (0, 7, 8, 1300, 1400, 1500):
        bad = bytearray(batches[size])
        bad[-1] ^= 1
        with pytest.raises(CorruptBatchError, match="CRC"):
            decode([bad], start=0, end=1600, columns=["value"])


def test_only_the_columns_that_are_asked_for() -> None:
    batch = build_batch([(b"k", b"v", [("h", b"x")], 1), (None, b"w", (), 2)])
    found = decode([batch], start=1, end=9, columns=["offset", "value"])
    assert found.rows == 1
    assert {name: column.to_pylist() for name, column in found.columns.items()} == {
        "offset": [1],
        "value": [b"w"],
    }
    assert decode([batch], start=5, end=9, columns=["key"]).columns["key"].to_pylist() == []
