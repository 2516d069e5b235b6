"""What a connection remembers of refused batches of idempotent producers."""

import pytest

from antiphon.errors import OutOfOrderSequenceError
from antiphon.kafka import error_codes as code
from antiphon.kafka.produce_codec import PartitionBatch
from antiphon.kafka.refused_sequences import REMEMBERED_MAX, RefusedSequences
from antiphon.records.builder import build_batch

LAST = (1 << 31) - 1


def sent(sequence: int, *, producer: int = 1, epoch: int = 0, partition: int = 0) -> PartitionBatch:
    data = build_batch(
        [(None, b"v", (), 1)], producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return PartitionBatch(partition, memoryview(data))


def unknown(_producer_id: int) -> bool:
    return False


def refused(batch: PartitionBatch, error: int = code.NOT_LEADER_OR_FOLLOWER) -> RefusedSequences:
    remembered = RefusedSequences()
    remembered.note("t", batch, error)
    return remembered


@pytest.mark.parametrize(("first", "later"), [(0, 1), (5, 900), (LAST, 0), (LAST - 2, 3)])
def test_what_lies_behind_is_refused_until_it_has_come(first: int, later: int) -> None:
    remembered = refused(sent(first))
    with pytest.raises(OutOfOrderSequenceError, match=f"sent sequence {later}, expected {first}"):
        remembered.check("t", sent(later), unknown)
    remembered.check("t", sent(first), unknown)
    remembered.check("t", sent(later), unknown)


def test_the_lowest_counts() -> None:
    remembered = refused(sent(4))
    remembered.note("t", sent(2), code.LEADER_NOT_AVAILABLE)
    remembered.note("t", sent(6), code.LEADER_NOT_AVAILABLE)
    remembered.check("t", sent(1), unknown)
    with pytest.raises(OutOfOrderSequenceError):
        remembered.check("t", sent(4), unknown)
    remembered.check("t", sent(2), unknown)
    remembered.check("t", sent(4), unknown)


def test_others_are_not_held_up() -> None:
    remembered = refused(sent(0))
    remembered.check("u", sent(1), unknown)
    remembered.check("t", sent(1, producer=2), unknown)
    remembered.check("t", sent(1, epoch=1), unknown)
    remembered.check("t", sent(1, partition=1), unknown)
    remembered.check("t", PartitionBatch(0, None), unknown)


def test_what_is_refused_for_good_does_not_come_again() -> None:
    refused(sent(0), code.INVALID_RECORD).check("t", sent(1), unknown)
    refused(sent(-1, producer=-1)).check("t", sent(1, producer=-1), unknown)


def test_it_remembers_so_many() -> None:
    remembered = RefusedSequences()
    for producer in range(REMEMBERED_MAX + 1):
        remembered.note("t", sent(0, producer=producer), code.NOT_ENOUGH_REPLICAS)
    remembered.check("t", sent(1, producer=0), unknown)
    with pytest.raises(OutOfOrderSequenceError):
        remembered.check("t", sent(1, producer=1), unknown)


def test_whoever_is_in_the_log_by_now_came_by_another_way() -> None:
    """Through another connection, to another leader, which has handed back to this node since."""
    remembered = refused(sent(3))
    remembered.check("t", sent(9), lambda producer_id: producer_id == 1)
    remembered.check("t", sent(11), unknown)
