"""Building and decoding batches, plain and compressed."""

import gzip
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import AntiphonError, CorruptBatchError, InvalidRequestError
from antiphon.records.batch import CODEC_NAMES, HEADER_BYTES, read_header, validate_batch
from antiphon.records.builder import (
    TERM_START_TYPE,
    RecordInput,
    build_batch,
    build_term_start,
    building,
    control_value,
    seal,
)
from antiphon.records.compression import compress, decompress
from antiphon.records.decode import Record, decode_records
from tests.memory import allocated_at_most
from tests.records.oracle import OracleBatch, OracleBuilder

OPTIONAL_BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        OPTIONAL_BYTES,
        OPTIONAL_BYTES,
        st.lists(st.tuples(st.text(max_size=8), OPTIONAL_BYTES), max_size=3),
        st.integers(0, 2**45),
    ),
    min_size=1,
    max_size=12,
)


def expected(records: list[RecordInput], base: int) -> list[Record]:
    return [Record(base + i, t, k, v, tuple(h)) for i, (k, v, h, t) in enumerate(records)]


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.sampled_from(CODEC_NAMES), st.integers(0, 2**50))
def test_round_trip(records: list[RecordInput], compression: str, base: int) -> None:
    batch = build_batch(records, base_offset=base, compression=compression)
    header = validate_batch(batch)
    assert CODEC_NAMES[header.codec] == compression
    assert header.max_timestamp == max(t for *_, t in records)
    assert decode_records(batch) == expected(records, base)


@settings(max_examples=40, deadline=None)
@given(RECORDS)
def test_an_independent_decoder_reads_what_we_build(records: list[RecordInput]) -> None:
    batch = build_batch(records, base_offset=5)
    oracle = OracleBatch(bytes(batch))
    assert oracle.validate_crc()
    found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in oracle]
    assert found == expected(records, 5)


@settings(max_examples=40, deadline=None)
@given(RECORDS)
def test_we_read_what_an_independent_builder_makes(records: list[RecordInput]) -> None:
    builder = OracleBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for at, (key, value, headers, timestamp) in enumerate(records):
        builder.append(at, timestamp=timestamp, key=key, value=value, headers=list(headers))
    assert decode_records(bytes(builder.build())) == expected(records, 0)


@pytest.mark.parametrize("compression", CODEC_NAMES)
def test_large_compressible_and_random_values(compression: str) -> None:
    noise = random.Random(1).randbytes(200_000)
    records: list[RecordInput] = [(None, b"a" * 300_000, (), 1), (b"n", noise, (), 2)]
    batch = build_batch(records, compression=compression)
    assert decode_records(memoryview(batch)) == expected(records, 0)


@pytest.mark.parametrize("times", [(-1, 0, 1), (-1, 1004, 1003), (-1,), (-1, -1, 5), (-1, -2, 3), (5, -1, 7)])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_record_without_a_time_keeps_none_before_others_that_have_one(
    times: tuple[int, ...], compression: str
) -> None:
    records: list[RecordInput] = [(b"k", b"v", (), time) for time in times]
    in_steps = building(records, 2, (-1, -1, -1))
    while True:
        try:
            next(in_steps)
        except StopIteration as done:
            stepped = done.value
            break
    for batch in (build_batch(records, compression=compression), stepped):
        header = validate_batch(batch)
        assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))
        assert [record.timestamp_ms for record in decode_records(batch)] == list(times)


def test_several_batches_and_control_batches() -> None:
    whole = (
        build_term_start(3, 0, 10)
        + build_batch([(b"a", b"1", (), 11)], base_offset=1)
        + build_batch([(b"b", None, (), 12)], base_offset=2)
    )
    assert [(r.offset, r.key) for r in decode_records(whole)] == [(1, b"a"), (2, b"b")]
    control = decode_records(whole, include_control=True)[0]
    assert control.offset == 0
    assert control.timestamp_ms == 10


def test_term_start_says_its_term() -> None:
    assert control_value(build_term_start(77, 0, 0), TERM_START_TYPE) == bytes(2) + (77).to_bytes(4)
    plain = build_batch([(b"\0\0\0\1", b"\0\0\0\0\0\1", (), 0)])
    assert control_value(plain, TERM_START_TYPE) is None


def test_log_append_time_gives_every_record_the_batchs_time() -> None:
    batch = build_batch([(b"a", b"", (), 5), (b"b", b"", (), 6)])
    struct.pack_into(">h", batch, 21, 0x08)
    struct.pack_into(">q", batch, 35, 900)
    seal(batch)
    assert [r.timestamp_ms for r in decode_records(batch)] == [900, 900]


@pytest.mark.parametrize(
    ("records", "kwargs"),
    [
        ([], {}),
        ([("text", b"", (), 0)], {}),
        ([(b"", b"", (), "now")], {}),
        ([(b"", b"", [("h", 5)], 0)], {}),
        ([(b"", b"", None, 0)], {}),
        ([(b"", b"", (), 2**63)], {}),
        ([(b"", b"", (), 0)], {"compression": "brotli"}),
        ([(b"", b"", (), 0)], {"producer_id": 2**63}),
    ],
)
def test_what_cannot_be_built_is_refused(records: list[RecordInput], kwargs: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        build_batch(records, **kwargs)  # type: ignore[arg-type]  # wrong on purpose


def test_records_that_do_not_fill_their_batch_are_refused() -> None:
    batch = build_batch([(b"k", b"v", [("h", b"x")], 1)])
    for at in range(HEADER_BYTES, len(batch)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            changed = bytearray(batch)
            changed[at] = value
            seal(changed)
            try:
                found = decode_records(changed)
            except CorruptBatchError:
                continue
            assert len(found) == 1


def test_hostile_counts_cost_nothing() -> None:
    batch = build_batch([(b"k", b"v", (), 1)])
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    seal(batch)
    with pytest.raises(CorruptBatchError, match="2147483647 records"):
        decode_records(batch)


def test_random_record_bytes_never_do_worse_than_refuse() -> None:
    rng = random.Random(11)
    batch = build_batch([(b"key", b"value", [("h", b"x")], 1000 + i) for i in range(4)])
    for _ in range(3000):
        changed = bytearray(batch)
        for _ in range(rng.randint(1, 6)):
            changed[rng.randrange(HEADER_BYTES, len(changed))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        seal(changed)
        try:
            decode_records(changed)
        except CorruptBatchError:
            continue


def test_crc_is_checked_unless_told_not_to() -> None:
    batch = build_batch([(b"k", b"v", (), 1)])
    batch[-2] ^= 1  # inside the value
    with pytest.raises(CorruptBatchError):
        decode_records(batch)
    assert decode_records(batch, check_crc=False)[0].value != b"v"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_is_refused(codec: int) -> None:
    bomb = compress(codec, bytes(1_000_000))
    assert decompress(codec, bomb, 1_000_000) == bytes(1_000_000)
    with pytest.raises(CorruptBatchError):
        decompress(codec, bomb, 999_999)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_garbage_is_refused(codec: int) -> None:
    rng = random.Random(codec)
    for size in (1, 2, 20, 200):
        with pytest.raises(CorruptBatchError):
            decompress(codec, b"\xff" + rng.randbytes(size))
    for cut in (1, 5, 30):
        packed = compress(codec, b"x" * 100_000) if codec < 5 else b""
        try:
            assert decompress(codec, packed[:-cut]) != b"x" * 100_000
        except CorruptBatchError:
            continue


def test_gzip_of_several_members_and_raw_snappy() -> None:
    assert decompress(1, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    assert decompress(2, b"\x03\x08abc") == b"abc"  # librdkafka's form: no framing


def test_zstd_frame_without_content_size() -> None:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(b"streamed" * 1000)
    assert decompress(4, sink.getvalue().to_pybytes()) == b"streamed" * 1000


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(AntiphonError):
        compress(9, b"")


def test_base_offset_may_carry_a_condition() -> None:
    assert read_header(build_batch([(b"", b"", (), 0)], base_offset=~123)).base_offset == -124


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_small_batch_takes_little_memory_to_unpack(codec: int) -> None:
    """Readers took the whole of what a topic allows (64 MiB) for each batch of lz4 or zstd, however small."""
    packed = compress(codec, b"small" * 100)
    decompress(codec, packed)  # what is imported is imported now
    with allocated_at_most(1024 * 1024):
        assert bytes(decompress(codec, packed)) == b"small" * 100


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_what_is_unpacked_in_pieces_is_whole_and_bounded(codec: int, size: int) -> None:
    plain = bytes(range(250)) * (size // 250) + bytes(size % 250)
    packed = compress(codec, plain)
    assert bytes(decompress(codec, packed, size)) == plain
    if size:
        with pytest.raises(CorruptBatchError):
            decompress(codec, packed, size - 1)
