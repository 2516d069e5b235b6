"""Entries of the index, and finding the right one."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import NewerFormatError
from antiphon.log import index
from antiphon.log.index import (
    ENTRY_BYTES,
    entry_position,
    find_entry,
    is_index_header,
    iter_entries,
    pack_entry,
    pack_index_header,
    unpack_entry,
)
from antiphon.log.simulated_disk import SimulatedDisk, SimulatedFile
from antiphon.records.batch import HEADER_STRUCT, BatchHeader
from tests.log.helpers import batch_at


def entry_of(base: int, count: int, position: int = 0) -> bytes:
    header = BatchHeader(base, 49, 1, 2, 0, 0, count - 1, 5, 9, -1, -1, -1, count)
    return pack_entry(header, HEADER_STRUCT.pack(*header), position)


def file_of(entries: list[bytes]) -> SimulatedFile:
    file = SimulatedDisk(Random(0)).open("/i", create=True)
    file.pwritev([pack_index_header(0), *entries], 0)
    return file


def test_an_entry_reads_back_and_knows_every_flipped_bit() -> None:
    batch = batch_at(77, count=3, term=5, timestamp=1234)
    header = BatchHeader._make(HEADER_STRUCT.unpack_from(batch))
    packed = pack_entry(header, batch, 4096)
    entry = unpack_entry(packed)
    assert entry is not None
    assert (entry.base_offset, entry.next_offset, entry.position, entry.size) == (77, 80, 4096, len(batch))
    assert (entry.term, entry.max_timestamp, entry.synced) == (5, 1236, True)
    unsynced = unpack_entry(pack_entry(header, batch, 4096, unsynced=True))
    assert unsynced is not None
    assert (unsynced.synced, unsynced.size) == (False, len(batch))
    for bit in range(ENTRY_BYTES * 8):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << (bit % 8)
        assert unpack_entry(flipped) is None
    assert unpack_entry(packed[:-1]) is None


def test_the_header_names_segment_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    header = pack_index_header(9)
    assert len(header) == ENTRY_BYTES
    assert is_index_header(header, 9)
    assert not is_index_header(header, 8)
    assert not is_index_header(header[:-1], 9)
    assert not is_index_header(bytes(ENTRY_BYTES), 0)
    with monkeypatch.context() as patch:
        patch.setattr(index, "INDEX_VERSION", 2)
        newer = pack_index_header(9)
    with pytest.raises(NewerFormatError):
        is_index_header(newer, 9)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 700),
    st.sampled_from([1, 3, 1000, 10**9]),
    st.floats(0, 1),
)
def test_find_entry_finds_what_a_plain_search_finds(seed: int, count: int, spread: int, valid: float) -> None:
    rng = Random(seed)
    bases = [rng.randint(0, 50)]
    for _ in range(count):
        step = rng.randint(1, spread) if rng.random() < 0.9 else rng.randint(1, 50)
        bases.append(bases[-1] + step)
    packed = [entry_of(bases[n], bases[n + 1] - bases[n]) for n in range(count)]
    good = int(count * valid)  # entries from here on are being cut
    file = file_of(packed[:good] + [bytes(ENTRY_BYTES)] * rng.randint(0, 3))
    probes = [
        bases[0] - 1,
        bases[-1],
        bases[-1] + 1,
        *rng.choices(bases, k=10),
        *(b - 1 for b in rng.choices(bases, k=10)),
    ]
    for offset in probes:
        expected = next((n for n in range(good) if bases[n] <= offset < bases[n + 1]), -1)
        assert find_entry(file, count, offset, bases[0], bases[-1]) == expected


def test_entries_are_read_in_chunks_to_the_end_of_the_file() -> None:
    file = file_of([entry_of(n, 1, position=n) for n in range(2500)])
    found = [entry.position for entry in iter_entries(file, 10, 3000) if entry is not None]
    assert found == list(range(10, 2500))
    file.truncate(entry_position(5) + 7)
    assert len(list(iter_entries(file, 0, 100))) == 5
