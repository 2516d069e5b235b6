"""Layout, checks and stamping of RecordBatch v2."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import CorruptBatchError
from antiphon.records.batch import HEADER_BYTES, iter_batches, read_header, stamp, validate_batch
from antiphon.records.builder import build_batch, build_term_start, seal
from tests.records.oracle import OracleBatch


def one_batch(count: int = 3, **kwargs: Any) -> bytearray:
    return build_batch([(b"k%d" % i, b"v%d" % i, (), 1000 + i) for i in range(count)], **kwargs)


def test_header_reads_back_what_was_built() -> None:
    batch = one_batch(3, base_offset=40, leader_epoch=7, producer_id=9, producer_epoch=2, base_sequence=5)
    header = validate_batch(batch)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (40, 43, 7)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        9,
        2,
        5,
        7,
    )
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (1000, 1002, 3)
    assert header.size_bytes == len(batch)
    assert not header.is_control
    assert not header.is_transactional
    assert not header.is_log_append_time
    assert header.codec == 0


def test_an_independent_implementation_agrees() -> None:
    oracle = OracleBatch(bytes(one_batch(3, base_offset=40)))
    assert oracle.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in oracle] == [
        (40 + i, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(3)
    ]


def test_last_sequence_wraps_as_producers_do() -> None:
    header = read_header(one_batch(3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


def test_stamp_changes_only_what_the_crc_does_not_cover() -> None:
    batch = one_batch()
    before = bytes(batch)
    stamp(batch, 2**40, 2**31 - 1)
    header = validate_batch(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 2**31 - 1)
    assert before[8:12] + before[16:] == batch[8:12] + batch[16:]
    stamp(memoryview(batch), 0, -1)
    assert batch == before
    with pytest.raises(CorruptBatchError):
        stamp(bytearray(60), 0, 0)


def test_every_single_flipped_bit_after_byte_16_is_found() -> None:
    batch = bytes(one_batch())
    for at in range(16, len(batch)):
        for bit in range(8):
            flipped = bytearray(batch)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptBatchError):
                validate_batch(flipped)


@pytest.mark.parametrize("length", [0, 1, 11, 60, 61, 80])
def test_a_cut_batch_is_refused_with_the_facts(length: int) -> None:
    with pytest.raises(CorruptBatchError, match=str(length)):
        validate_batch(one_batch()[:length])


def test_a_batch_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(CorruptBatchError):
        validate_batch(one_batch() + b"\0")


@pytest.mark.parametrize(
    ("at", "fmt", "value"),
    [
        (57, ">i", -1),
        (57, ">i", 4),
        (23, ">i", -1),
        (21, ">h", 5),
        (43, ">q", 77),  # a producer without a sequence
    ],
)
def test_header_rules_hold_even_with_a_right_crc(at: int, fmt: str, value: int) -> None:
    batch = one_batch()
    struct.pack_into(fmt, batch, at, value)
    seal(batch)
    with pytest.raises(CorruptBatchError):
        validate_batch(batch)


def test_iter_batches_walks_without_copying() -> None:
    parts = [one_batch(n, base_offset=10 * n) for n in (1, 2, 3)]
    whole = b"".join(parts)
    found = list(iter_batches(whole))
    assert [h.base_offset for h, _ in found] == [10, 20, 30]
    assert [bytes(mv) for _, mv in found] == parts
    assert all(mv.obj is whole for _, mv in found)
    assert list(iter_batches(b"")) == []


def test_iter_batches_yields_the_good_prefix_then_refuses() -> None:
    walk = iter_batches(one_batch() + one_batch()[:-1])
    next(walk)
    with pytest.raises(CorruptBatchError):
        next(walk)


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, 48, 2**31 - 1])
def test_iter_batches_never_stands_still_on_hostile_lengths(length: int) -> None:
    batch = one_batch()
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptBatchError):
        list(iter_batches(batch))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = sum(len(mv) for _, mv in iter_batches(data))
    except CorruptBatchError:
        return
    assert found == len(data)


def test_read_header_bounds() -> None:
    with pytest.raises(CorruptBatchError):
        read_header(bytes(100), 40)
    with pytest.raises(CorruptBatchError):
        read_header(bytes(100), -1)
    assert read_header(bytes(HEADER_BYTES)).magic == 0


def test_term_start_is_a_control_batch_of_one_offset() -> None:
    header = validate_batch(build_term_start(term=4, base_offset=12, timestamp_ms=99))
    assert (header.base_offset, header.next_offset, header.leader_epoch, header.max_timestamp) == (
        12,
        13,
        4,
        99,
    )
    assert header.is_control


def test_random_mutations_are_refused_or_harmless() -> None:
    rng = random.Random(5)
    batch = bytes(one_batch(5))
    for _ in range(2000):
        mutated = bytearray(batch)
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            header = validate_batch(mutated)
        except CorruptBatchError:
            continue
        assert mutated[8:12] + mutated[16:] == batch[8:12] + batch[16:], header
