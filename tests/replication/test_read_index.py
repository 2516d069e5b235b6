"""Reads are confirmed by rounds that began after they were asked for."""

import pytest

from antiphon.errors import OverloadedError
from antiphon.replication.actions import Action, ReadFailed, ReadReady
from antiphon.replication.read_index import NO_ROUND, ReadIndex


def test_reads_of_one_round_are_served_together_with_the_watermark_they_asked_at() -> None:
    reads, out = ReadIndex(10), list[Action]()
    assert reads.add(1, 50)
    reads.start(7)
    assert not reads.add(2, 60), "a round is underway: wait for the next"
    assert not reads.confirm(6, out)
    assert out == []
    assert reads.confirm(7, out), "another round is wanted"
    assert out == [ReadReady(1, 50)]
    reads.start(8)
    assert not reads.confirm(8, out)
    assert out == [ReadReady(1, 50), ReadReady(2, 60)]


def test_all_reads_fail_with_the_leadership() -> None:
    reads, out = ReadIndex(10), list[Action]()
    reads.add(1, 0)
    reads.start(2)
    reads.add(2, 0)
    reads.fail(out)
    assert out == [ReadFailed(1), ReadFailed(2)]
    assert reads.round == NO_ROUND


def test_the_number_of_waiting_reads_is_bounded() -> None:
    reads = ReadIndex(2)
    reads.add(1, 0)
    reads.start(2)
    reads.add(2, 0)
    with pytest.raises(OverloadedError):
        reads.add(3, 0)
