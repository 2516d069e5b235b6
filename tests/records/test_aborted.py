"""What aborted transactions wrote is left out by the headers alone."""

import pytest

from antiphon.errors import CorruptBatchError
from antiphon.records.aborted import offsets_left_out, without_aborted
from antiphon.records.batch import TRANSACTIONAL_BIT, iter_batches
from antiphon.records.builder import build_batch, build_end_marker, seal


def batch_at(offset: int, producer: int, *, transactional: bool = True) -> bytes:
    batch = build_batch(
        [(None, b"x", [], 1)],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=offset,
    )
    if transactional:
        batch[22] |= TRANSACTIONAL_BIT
        seal(batch)
    return bytes(batch)


def marker_at(offset: int, producer: int) -> bytes:
    return bytes(
        build_end_marker(
            commit=False, number=1, producer=(producer, 0), term=1, base_offset=offset, timestamp_ms=1
        )
    )


def test_only_batches_between_the_first_offset_and_the_marker_go() -> None:
    log = [
        batch_at(0, 1), batch_at(1, 2), batch_at(2, 1), batch_at(3, 1, transactional=False), marker_at(4, 1),
        batch_at(5, 1), batch_at(6, -1, transactional=False),
    ]  # fmt: skip
    left = without_aborted(b"".join(log), [(1, 1, 4)])
    assert [header.base_offset for header, _ in iter_batches(left)] == [0, 1, 3, 4, 5, 6]
    assert not len(without_aborted(b"".join(log[:1]), [(1, 0, 4)]))


def test_where_nothing_goes_nothing_is_copied() -> None:
    log = b"".join([batch_at(0, 1), batch_at(1, 2)])
    for aborted in ([], [(3, 0, 9)], [(1, 1, 9)]):
        assert without_aborted(log, aborted).obj is log


def test_what_is_no_batch_is_found() -> None:
    with pytest.raises(CorruptBatchError):
        without_aborted(batch_at(0, 1)[:-1], [(1, 0, 4)])


def test_offsets_that_go_are_counted_within_bounds() -> None:
    log = b"".join([batch_at(0, 1), batch_at(1, 1), batch_at(2, 2), marker_at(3, 1)])
    assert offsets_left_out(log, [(1, 0, 3)], 0, 4) == 2
    assert offsets_left_out(log, [(1, 0, 3)], 1, 4) == 1
    assert offsets_left_out(log, [], 0, 4) == 0
