"""What intake takes, readers can read: batches that are damaged on purpose and sealed again, by every reader's rules."""

import gzip
import itertools
import struct
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCompressionError,
)
from antiphon.records.arrow import to_arrow
from antiphon.records.batch import HEADER_BYTES, check_batch, read_header
from antiphon.records.builder import build_batch, recompress, seal
from antiphon.records.compression import compress
from antiphon.records.decode import decode_records, plain_batch
from antiphon.records.intake import (
    FULL,
    KERNEL_AFTER_RECORDS,
    SHALLOW,
    UNCOMPRESSED,
    IntakeRules,
    RecordWalker,
    check_outside,
)
from antiphon.records.varint import varint

EVERYTHING = IntakeRules(FULL)


WALKERS = ("kernel", "decoder")


@cache
def walker_of(name: str) -> RecordWalker:
    """Made where it is used: loading the kernel takes a second, and every process of a run reads this file."""
    made = RecordWalker(print)
    if name == "kernel":
        made.load_kernel()
    return made


def look(batch: bytes | bytearray, rules: IntakeRules = EVERYTHING, walker: str = "kernel") -> None:
    """What a node does before it appends a batch."""
    header = read_header(batch)
    check_outside(header, batch, rules)
    if not walker_of(walker).walk_now(header, batch, rules):
        walker_of(walker).walk(header, batch, rules)
    check_batch(header, batch)


def is_taken(batch: bytes | bytearray, rules: IntakeRules = EVERYTHING, walker: str = "kernel") -> bool:
    try:
        look(batch, rules, walker)
    except CorruptBatchError:
        return False
    return True


def field(batch: bytearray, place: int, form: str, value: int) -> bytearray:
    changed = bytearray(batch)
    struct.pack_into(form, changed, place, value)
    seal(changed)
    return changed


def with_records(records: bytes, count: int, codec: int = 0) -> bytearray:
    """A batch whose records are any bytes, and whose header is right."""
    batch = build_batch([(None, b"", (), 1)] * count)[:HEADER_BYTES]
    batch += compress(codec, records)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    seal(batch)
    return batch


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


PLAIN = build_batch(
    [(b"k%d" % n, b"v" * n, [("h", b"x"), ("é", None)][: n % 3], 1000 + n) for n in range(40)]
)
GOOD = [PLAIN] + [
    build_batch([(b"k", b"value" * n, (), 5) for n in range(20)], compression=codec)
    for codec in ("gzip", "snappy", "lz4", "zstd")
]


@pytest.mark.parametrize("walker", WALKERS)
@pytest.mark.parametrize("batch", GOOD, ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_good_batches_are_taken(batch: bytearray, walker: str) -> None:
    for validation in (FULL, UNCOMPRESSED, SHALLOW):
        look(batch, IntakeRules(validation), walker)


def large(codec: int) -> Callable[[], bytearray]:
    """A batch that takes a second to make, when it is needed."""
    return lambda: with_records(bytes(70_000_000), 3, codec)


OUTSIDE: list[tuple[str, bytearray | Callable[[], bytearray], type[CorruptBatchError]]] = [
    ("count of 2^31-1", field(field(PLAIN, 57, ">i", 2**31 - 1), 23, ">i", 2**31 - 2), InvalidRecordError),
    ("more records than bytes allow", field(field(PLAIN, 57, ">i", 900), 23, ">i", 899), InvalidRecordError),
    ("count other than offsets", field(PLAIN, 23, ">i", 99), InvalidRecordError),
    ("no records", field(field(PLAIN, 57, ">i", 0), 23, ">i", -1), InvalidRecordError),
    ("LogAppendTime", field(PLAIN, 21, ">h", 8), InvalidTimestampError),
    ("delete horizon", field(PLAIN, 21, ">h", 0x40), InvalidRecordError),
    ("unknown codec", field(PLAIN, 21, ">h", 5), UnsupportedCompressionError),
    ("producer below -1", field(PLAIN, 43, ">q", -2), InvalidRecordError),
    ("producer without a sequence", field(PLAIN, 43, ">q", 7), InvalidRecordError),
    ("not gzip at all", field(PLAIN, 21, ">h", 1), InvalidRecordError),
    ("not snappy at all", field(with_records(b"\xff" * 90, 3), 21, ">h", 2), InvalidRecordError),
    ("not lz4 at all", field(PLAIN, 21, ">h", 3), InvalidRecordError),
    ("not zstd at all", field(PLAIN, 21, ">h", 4), InvalidRecordError),
    ("compressed count", field(field(GOOD[1], 57, ">i", 1_000_001), 23, ">i", 1_000_000), InvalidRecordError),
    ("gzip that says its size", large(1), DecompressedTooLargeError),
    ("zstd that says its size", large(4), DecompressedTooLargeError),
    ("snappy that says its size", large(2), DecompressedTooLargeError),
]


@pytest.mark.parametrize(
    ("batch", "error"), [case[1:] for case in OUTSIDE], ids=[case[0] for case in OUTSIDE]
)
def test_what_a_header_gives_away_is_refused_without_looking_at_records(
    batch: bytearray | Callable[[], bytearray], error: type[CorruptBatchError]
) -> None:
    if callable(batch):
        batch = batch()
    with pytest.raises(CorruptBatchError) as caught:
        look(batch, IntakeRules(SHALLOW))
    assert type(caught.value) is error
    batch[30] ^= 1  # and where the bytes are damaged too, that is what is said
    with pytest.raises(CorruptBatchError, match="CRC") as caught:
        look(batch, IntakeRules(SHALLOW))
    assert type(caught.value) is CorruptBatchError


NO_RECORD = sized(b"\x00\x00\x00\x01\x01\x00")
INSIDE: list[tuple[str, bytearray, int | None]] = [
    ("garbage", with_records(b"\xa7" * 100, 3), 0),
    ("a second record too long", with_records(NO_RECORD + b"\xfe\x7f" + bytes(8), 2), 1),
    ("offsets that do not rise", with_records(NO_RECORD * 2, 2), 1),
    ("a key beyond its record", with_records(sized(b"\x00\x00\x00\x40\x01\x00\x00\x00"), 1), 0),
    ("fewer fields than bytes", with_records(sized(b"\x00\x00\x00\x01\x01\x00\x00"), 1), 0),
    ("bytes behind the last record", with_records(NO_RECORD + bytes(3), 1), 0),
    ("a name that is not UTF-8", with_records(sized(b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"), 1), 0),
    ("a record's attributes of two bytes", with_records(sized(b"\x80\x00\x00\x00\x01\x01\x00"), 1), 0),
]


@pytest.mark.parametrize("walker", WALKERS)
@pytest.mark.parametrize(("batch", "record"), [case[1:] for case in INSIDE], ids=[case[0] for case in INSIDE])
def test_records_that_nobody_can_read_are_refused(batch: bytearray, record: int, walker: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        look(batch, IntakeRules(UNCOMPRESSED), walker)
    assert caught.value.details.get("record", record) == record
    look(batch, IntakeRules(SHALLOW), walker)
    for codec in range(1, 5):
        packed = recompress(bytearray(batch), codec)
        look(packed, IntakeRules(UNCOMPRESSED), walker)
        with pytest.raises(InvalidRecordError):
            look(packed, IntakeRules(FULL), walker)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_batch_is_unpacked_up_to_the_limit_and_no_further(codec: int) -> None:
    """Also one that lies about its size."""
    batch = with_records(bytes(5_000_000), 3, codec)
    rules = IntakeRules(FULL, plain_bytes_max=1_000_000)
    if codec == 1:  # two members, of which the last tells a size
        batch = field(batch, 8, ">i", len(batch) - 12)
        batch += gzip.compress(b"x")
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        seal(batch)
    with pytest.raises(DecompressedTooLargeError, match="1000000"):
        look(batch, rules)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch


def read_by_all(batch: bytes) -> list[int]:
    """How many records the readers find: our Python client, Spark's and the lake's columns, kafka-python's parser."""
    ours = decode_records(batch)
    assert [record.offset for record in ours] == list(range(len(ours)))
    columns = to_arrow([batch], start=0, end=1 << 40, topic="t", partition=0, include_headers=True)
    theirs: Any = KafkaPythonBatch(
        bytes(plain_batch(read_header(batch), batch))
    )  # it has no library for snappy
    return [len(ours), columns.num_rows, sum(1 for _ in theirs)]


@st.composite
def mutated(draw: st.DrawFn) -> bytearray:
    """A good batch with some bytes changed, cut out or put in behind the header's first fields, and sealed again."""
    batch = bytearray(draw(st.sampled_from(GOOD)))
    codec = read_header(batch).codec
    if codec and draw(st.booleans()):  # damage inside what is compressed
        batch = bytearray(plain_batch(read_header(batch), bytes(batch)))
    else:
        codec = 0
    for _ in range(draw(st.integers(1, 3))):
        low = draw(st.sampled_from([21, HEADER_BYTES, HEADER_BYTES, HEADER_BYTES]))
        at = draw(st.integers(low, min(len(batch) - 1, low + 120)))
        kind = draw(st.sampled_from(["set", "set", "set", "cut", "put"]))
        if kind == "set":
            batch[at] = draw(st.sampled_from([0, 1, 2, 3, 9, 0x7F, 0x80, 0x81, 0xFF]) | st.integers(0, 255))
        elif kind == "cut" and at >= HEADER_BYTES:
            del batch[at : at + draw(st.integers(1, 3))]
        elif at >= HEADER_BYTES:
            batch[at:at] = draw(st.binary(min_size=1, max_size=3))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    if codec and not read_header(batch).attributes & 7:
        return recompress(batch, codec)
    seal(batch)
    return batch


@given(batch=mutated())
@settings(max_examples=400, deadline=None)
def test_whatever_is_taken_is_read_by_everybody(batch: bytearray) -> None:
    count = read_header(batch).record_count
    if is_taken(batch):
        assert read_by_all(bytes(batch)) == [count] * 3
    elif is_taken(batch, walker="decoder"):
        raise AssertionError("the decoder took what the kernel refused")


UNUSUAL = {
    "attributes of a record": b"\x0c\x10\x00\x00\x01\x01\x00",
    "numbers longer than they need be": b"\x90\x80\x00\x00\x80\x00\x80\x00\x01\x01\x00",
    "no headers, written long": b"\x0e\x00\x00\x00\x01\x01\x80\x00",
}


@pytest.mark.parametrize("records", UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_unusual_is_judged_the_same_before_and_after_the_kernel_is_loaded(records: bytes) -> None:
    """A node that had just started refused such a batch, and took it a moment later; found by the fuzzer of batches."""
    batch = build_batch([(None, None, (), 0)])[:HEADER_BYTES] + records
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    seal(batch)
    assert is_taken(batch, walker="kernel") == is_taken(batch, walker="decoder")
    assert is_taken(batch, walker="kernel") == (
        records[0] & 1 == 0 and len(decode_records(bytes(batch))) == 1
    )


def test_the_mutations_reach_both_sides() -> None:
    """Each byte of the records changed to a few others: some are taken, most are not, and all of those can be read."""
    taken = 0
    for at, value in itertools.product(range(HEADER_BYTES, len(PLAIN)), (0, 1, 0x80)):
        batch = bytearray(PLAIN)
        batch[at] = value
        seal(batch)
        if is_taken(batch):
            taken += 1
            assert read_by_all(bytes(batch)) == [40] * 3
    assert 100 < taken < 3 * (len(PLAIN) - HEADER_BYTES) - 100


def test_the_kernel_is_loaded_when_there_is_work_for_it() -> None:
    """Not before: it costs memory."""
    asked: list[Any] = []
    walker = RecordWalker(asked.append)
    header = read_header(PLAIN)
    for _ in range(KERNEL_AFTER_RECORDS // 40):
        assert walker.walk_now(header, PLAIN, EVERYTHING)
    assert not asked
    for _ in range(3):
        assert walker.walk_now(header, PLAIN, EVERYTHING)
    assert asked == [walker.load_kernel]
    many = build_batch([(None, b"", (), 1)] * 5_000)
    assert not walker.walk_now(read_header(many), many, EVERYTHING)
    asked[0]()
    assert walker.walk_now(read_header(many), many, EVERYTHING)
    assert walker.walk_now(read_header(many), many, IntakeRules(SHALLOW))
    many = build_batch([(None, b"", (), 1)] * 60_000)
    assert not walker.walk_now(read_header(many), many, EVERYTHING)
