"""What is compiled for large batches of tables makes, and finds, byte for byte what goes row by row."""

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.records.batch import HEADER_STRUCT, read_header, stamp
from antiphon.records.builder import build_batch, seal
from antiphon.records.changes import VERSION, VersionTuple, effects_in
from antiphon.records.packed_effects import AFTER_RECORDS, AT_LEAST, EffectKernels
from antiphon.records.packed_rows import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS = 1_800_000_000_123
PREFIX = 1


def loaded_kernels() -> EffectKernels:
    """Kernels for batches of any size."""
    kernels = EffectKernels(lambda work: work())
    kernels.at_least = 1
    kernels.load()
    return kernels


KERNELS = loaded_kernels()

rows_of_a_load = st.lists(
    st.tuples(st.binary(max_size=200), st.binary(max_size=300)), min_size=1, max_size=300
)
versions = st.none() | st.tuples(*[st.integers(0, 1 << 62)] * 4)


def effect(key: bytes, value: bytes | None, version: VersionTuple, at: int = 0) -> tuple:  # type: ignore[type-arg]
    return key, value, [("v", VERSION.pack(*version))], NOW_MS + at


@given(rows_of_a_load, st.data(), st.integers(0, 1 << 60))
def test_a_load_becomes_the_batch_that_its_puts_would_be(
    rows: list[tuple[bytes, bytes]], data: st.DataObject, first_id: int
) -> None:
    before = data.draw(st.none() | st.lists(versions, min_size=len(rows), max_size=len(rows)))
    loaded = KERNELS.rows(packed(rows), len(rows), PREFIX)
    assert loaded is not None
    assert loaded.keys == [b"\x01" + key for key, _ in rows]
    made = loaded.batch(first_id, before, NOW_MS, (7, 1, 99))
    records = []
    for at, ((key, value), old) in enumerate(zip(rows, before or [None] * len(rows), strict=True)):
        count, created = (0, NOW_MS) if old is None else (old[1] + 1, old[2])
        records.append(effect(key, value, (first_id + at, count, created, NOW_MS)))
    assert made == build_batch(records, producer_id=7, producer_epoch=1, base_sequence=99)
    assert loaded.values() == [record[2][0][1] + record[1] for record in records]


def test_rows_travel_and_come_out_again() -> None:
    rows = [(b"a", b"1"), (b"", b""), (b"b", None), (b"long" * 500, b"x" * 3000)]
    assert unpacked(packed(rows), 4) == rows
    assert KERNELS.rows(packed(rows), 4, PREFIX) is None, "a removal is judged by itself"
    assert unpacked(memoryview(packed(rows[:2])), 2) == rows[:2]


@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize(
    "damaged",
    [
        packed([(b"ab", b"cd"), (b"e", b"f")])[:-1],
        packed([(b"ab", b"cd"), (b"e", b"f")]) + b"!",
        b"\xff" * 40,
        b"\x7f" * 40,
        b"",
    ],
    ids=["short", "long", "negative", "huge", "empty"],
)
def test_bytes_that_are_not_so_many_rows_are_refused(damaged: bytes, rows: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"says {rows} rows"):
        unpacked(damaged, rows)
    assert KERNELS.rows(damaged, rows, PREFIX) is None


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.none() | st.binary(max_size=300),
            st.tuples(*[st.integers(0, 1 << 62)] * 4),
            st.integers(0, 1 << 40),
        ),
        min_size=1,
        max_size=300,
    )
)
def test_a_batch_is_stored_as_its_effects_are(
    rows: list[tuple[bytes, bytes | None, VersionTuple, int]],
) -> None:
    batch = build_batch([effect(*row) for row in rows], base_offset=5)
    found = KERNELS.stored(read_header(batch), batch, PREFIX)
    assert found is not None
    effects = effects_in(read_header(batch), batch)
    assert found.keys == [b"\x01" + key for key, _, _ in effects]
    assert found.values == [None if value is None else version + value for _, value, version in effects]
    assert found.newest_id == max(version[0] for _, _, version, _ in rows)


PLAIN = [effect(b"k%d" % at, b"v" * at, (at, 0, 1, 2)) for at in range(5)]


@pytest.mark.parametrize(
    "headers",
    [
        [("v", bytes(32)), ("e", bytes(8))],
        [("v", bytes(31))],
        [("v", bytes(33))],
        [("w", bytes(32))],
        [("vv", bytes(31))],
        [("v", None)],
        [],
    ],
    ids=["session", "short", "long", "name", "two letters", "null", "none"],
)
def test_records_that_are_no_plain_effects_are_left_to_who_looks_at_each(headers: list) -> None:  # type: ignore[type-arg]
    batch = build_batch([*PLAIN, (b"k", b"v", headers, NOW_MS)])
    assert KERNELS.stored(read_header(batch), batch, PREFIX) is None


def test_compressed_and_damaged_batches_are_left_or_refused() -> None:
    packed_batch = build_batch(PLAIN, compression="gzip")
    assert KERNELS.stored(read_header(packed_batch), packed_batch, PREFIX) is None
    damaged = bytearray(build_batch(PLAIN))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        KERNELS.stored(read_header(damaged), damaged, PREFIX)


def test_a_count_that_the_bytes_do_not_bear_out_gets_no_memory() -> None:
    batch = build_batch(PLAIN)
    header = read_header(batch)
    many = (1 << 31) - 1
    HEADER_STRUCT.pack_into(batch, 0, *header._replace(record_count=many, last_offset_delta=many - 1))
    seal(batch)
    assert KERNELS.stored(read_header(batch), batch, PREFIX) is None


def test_no_bytes_make_it_read_or_write_elsewhere() -> None:
    """Each byte of a batch set to others, sealed again: what comes is as each record says, or nothing."""
    good, random = build_batch(PLAIN), Random(1)
    for place in range(61, len(good)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)):
            batch = bytearray(good)
            batch[place] = value
            seal(batch)
            stamp(batch, 0, 1)
            header = read_header(batch)
            found = KERNELS.stored(header, batch, PREFIX)
            if found is not None:
                effects = effects_in(header, batch)
                assert found.keys == [b"\x01" + key for key, _, _ in effects]
                assert found.values == [None if one is None else version + one for _, one, version in effects]


def test_they_are_loaded_when_there_is_work_for_them() -> None:
    asked: list[Callable[[], None]] = []
    kernels = EffectKernels(asked.append)
    for _ in range(AFTER_RECORDS // AT_LEAST):
        assert not kernels.are_for(AT_LEAST - 1), "small batches do not count"
        assert not kernels.are_for(AT_LEAST)
    assert not asked
    assert not kernels.are_for(AT_LEAST)
    assert not kernels.are_for(AT_LEAST)
    (load,) = asked
    load()
    assert kernels.are_for(AT_LEAST)
    assert not kernels.are_for(AT_LEAST - 1)
