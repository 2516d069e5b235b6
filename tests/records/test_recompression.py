"""Batches that are packed anew for their topic: what they say stays, and what cannot be read is refused."""

import gzip
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
from antiphon.records import compression
from antiphon.records.batch import CODEC_NAMES, BatchHeader, read_header, validate_batch
from antiphon.records.builder import build_batch, recompress, seal
from antiphon.records.compression import compress, decompress
from antiphon.records.decode import decode_records
from antiphon.records.intake import AS_SENT, FULL, SHALLOW, UNCOMPRESSED, IntakeRules
from antiphon.records.recompression import (
    AT_ONCE_BYTES,
    AT_ONCE_PLAIN_BYTES,
    is_other,
    recompressed,
    recompressed_now,
)
from tests.records.test_intake import INSIDE, WALKERS, walker_of, with_records

GARBAGE = INSIDE[0][1]
FIELDS: dict[str, Any] = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 2**31 - 2}


def wants(codec: int, validation: str = UNCOMPRESSED, **more: Any) -> IntakeRules:
    return IntakeRules(validation, codec=codec, **more)


def sent(codec: int = 0, count: int = 5, size: int = 20) -> bytearray:
    rows = [(b"k%d" % n, b"v" * size, [("h", b"%d" % n)], 1_000 + n) for n in range(count)]
    return build_batch(rows, compression=CODEC_NAMES[codec], **FIELDS)


def packed(batch: bytearray, rules: IntakeRules, walker: str = "kernel", **how: Any) -> bytearray:
    return recompressed(walker_of(walker), read_header(batch), batch, rules, **{"looks": False, **how})


def besides(header: BatchHeader) -> BatchHeader:
    """What a codec has nothing to do with."""
    return header._replace(batch_length=0, crc=0, attributes=header.attributes & ~7)


@pytest.mark.parametrize("was", range(5))
@pytest.mark.parametrize("codec", range(5))
def test_only_length_codec_and_crc_change(was: int, codec: int) -> None:
    batch = sent(was)
    made = packed(batch, wants(codec))
    header = validate_batch(made)
    assert header.codec == codec
    assert besides(header) == besides(read_header(batch))
    assert decode_records(made) == decode_records(batch)
    assert packed(made, wants(codec)) == made, "the same again is the same"


@pytest.mark.parametrize("bits", [0x10, 0x08])
def test_other_attributes_stay(bits: int) -> None:
    batch = sent()
    batch[22] |= bits
    seal(batch)
    assert read_header(packed(batch, wants(4))).attributes == bits | 4


def test_what_has_the_codec_and_what_nobody_sends_stays() -> None:
    batch = sent(1)
    assert is_other(read_header(batch), wants(4))
    assert not is_other(read_header(batch), wants(1))
    assert not is_other(read_header(batch), wants(AS_SENT))
    assert is_other(read_header(batch), wants(0))
    batch[22] |= 0x20
    assert not is_other(read_header(batch), wants(4)), "a control batch is for brokers"


@pytest.mark.parametrize("codec", range(1, 5))
def test_damage_on_the_way_gets_no_right_crc(codec: int) -> None:
    for at in (25, 61, -1):
        batch = sent(codec, size=200)
        batch[at] ^= 0x55
        with pytest.raises(CorruptBatchError, match="CRC") as caught:
            packed(batch, wants(0))
        assert type(caught.value) is CorruptBatchError, "which clients retry"


@pytest.mark.parametrize("walker", WALKERS)
@pytest.mark.parametrize("was", range(5))
def test_what_is_unpacked_is_looked_at_unless_the_rules_are_shallow(was: int, walker: str) -> None:
    batch = recompress(bytearray(GARBAGE), was)
    other = 3 if was != 3 else 4
    with pytest.raises(InvalidRecordError):
        packed(batch, wants(other, FULL), walker, looks=was == 0)
    assert read_header(packed(batch, wants(other, SHALLOW), walker)).codec == other
    if was:
        with pytest.raises(InvalidRecordError):
            packed(batch, wants(other), walker)


@pytest.mark.parametrize("codec", range(1, 5))
def test_bytes_of_no_codec_are_refused(codec: int) -> None:
    batch = sent()
    batch[22] |= codec
    seal(batch)
    for validation in (SHALLOW, UNCOMPRESSED):
        with pytest.raises(InvalidRecordError):
            packed(batch, wants(0, validation))


@pytest.mark.parametrize("codec", range(1, 5))
def test_no_more_is_unpacked_than_the_topic_takes(codec: int) -> None:
    bomb = with_records(bytes(5_000_000), 3, codec)
    with pytest.raises(DecompressedTooLargeError, match=r"max\.decompressed\.bytes"):
        packed(bomb, wants(0, SHALLOW, plain_bytes_max=4_999_999))
    assert len(packed(bomb, wants(0, SHALLOW, plain_bytes_max=5_000_000))) == 5_000_061


def test_an_event_loop_packs_what_is_small() -> None:
    def now(batch: bytearray, rules: IntakeRules) -> bytearray | None:
        return recompressed_now(walker_of("kernel"), read_header(batch), batch, rules)

    for was, codec in product(range(5), range(5)):
        batch = sent(was)
        assert now(batch, wants(codec)) == packed(batch, wants(codec))
    large = sent(count=1, size=AT_ONCE_BYTES)
    assert now(large, wants(4)) is None
    assert now(sent(), wants(4, packs_quickly=False)) is None
    for size, fits in ((AT_ONCE_PLAIN_BYTES - 100, True), (AT_ONCE_PLAIN_BYTES, False)):
        assert (now(sent(4, 1, size), wants(1)) is not None) == fits
    with pytest.raises(InvalidRecordError):
        now(recompress(bytearray(GARBAGE), 1), wants(0))
    many = sent(0, 300, 1)
    decodes = recompressed_now(walker_of("decoder"), read_header(many), many, wants(1))
    assert decodes is None, "records are decoded one by one where the kernel is not loaded"


def test_a_library_that_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks() -> Any:
        raise compression.MissingCodecError("snappy, lz4 and zstd batches need pyarrow: pip install it")

    to_unpack = sent(4)
    monkeypatch.setattr(compression, "_pyarrow", lacks)
    for batch, codec in ((sent(1), 4), (to_unpack, 1)):
        for validation in (SHALLOW, FULL):
            with pytest.raises(UnsupportedCompressionError, match="pip install"):
                packed(batch, wants(codec, validation))
    assert read_header(packed(sent(1), wants(0))).codec == 0


@pytest.mark.parametrize(("codec", "levels"), [(1, (-1, 1, 9)), (3, (1, 3, 9, 12, 17)), (4, (-5, 3, 22))])
def test_levels_change_the_size_and_nothing_else(codec: int, levels: tuple[int, ...]) -> None:
    plain = b"".join(b'{"id": %d, "name": "customer %d"}' % (n, n * 7919 % 1000) for n in range(5_000))
    found = {level: compress(codec, plain, level) for level in levels}
    for made in found.values():
        assert bytes(decompress(codec, made)) == plain
    if codec == 3:
        assert found[9] == compress(codec, plain), "Kafka's default is the fast way of packing"
        assert len(found[9]) > len(found[3]) > len(found[12]) == len(found[17])
    else:
        sizes = [len(found[level]) for level in sorted(levels) if level != -1]
        assert sizes == sorted(sizes, reverse=True)
    assert read_header(packed(sent(), wants(codec, level=levels[-1]))).codec == codec


@given(st.binary(max_size=3_000), st.integers(1, 4), st.integers(0, 4))
def test_whatever_stands_behind_the_header_it_is_refused_or_read(data: bytes, was: int, codec: int) -> None:
    batch = with_records(data, 1)
    batch[22] |= was
    seal(batch)
    try:
        made = packed(batch, wants(codec, FULL), looks=True)
    except (InvalidRecordError, DecompressedTooLargeError):
        return
    decode_records(made)


def test_members_of_gzip_are_one_run_of_bytes() -> None:
    plain = bytes(sent()[61:])
    both = gzip.compress(plain[:20]) + gzip.compress(plain[20:])
    batch = bytearray(sent()[:61]) + both
    batch[22] |= 1
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    seal(batch)
    assert packed(batch, wants(0))[61:] == plain
