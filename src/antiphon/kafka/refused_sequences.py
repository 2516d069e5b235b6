"""Keeps the batches of an idempotent producer in order where one of them was refused and those behind it are on their way.

A producer sends up to five batches ahead. Where the first is refused for the moment (the node is not yet the leader, say)
and the next one comes when it would be taken, only the log could tell by the sequence that one is missing, and of a producer
that it does not know it takes any sequence: what was known of it may have been trimmed. So a connection remembers which
sequence was refused, and refuses what lies behind it until that one has come again, or the log knows the producer: then it
came by another way.
"""

from collections.abc import Callable
from typing import Final

from antiphon.errors import OutOfOrderSequenceError
from antiphon.kafka import error_codes as code
from antiphon.kafka.produce_codec import PartitionBatch
from antiphon.records.batch import HEADER_BYTES, is_later, read_header

REMEMBERED_MAX: Final = 1_000  # partitions and producers of one connection; beyond, the oldest is forgotten
RETRIABLE: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.LEADER_NOT_AVAILABLE, code.NOT_LEADER_OR_FOLLOWER, code.REQUEST_TIMED_OUT,
    code.NOT_ENOUGH_REPLICAS, code.KAFKA_STORAGE_ERROR,
})  # fmt: skip

Lane = tuple[str, int, int, int]  # topic, partition, producer id, epoch


class RefusedSequences:
    """The lowest sequence of each producer and partition that was refused on a connection and has not come again."""

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        self._lowest: dict[Lane, int] = {}

    def __bool__(self) -> bool:
        """Is any remembered?"""
        return bool(self._lowest)

    def check(self, topic: str, batch: PartitionBatch, knows: Callable[[int], bool]) -> None:
        """Called with each batch that is to be appended. Raises OutOfOrderSequenceError for one that came too early.

        `knows`: has the log batches of this producer?
        """
        found = _lane_of(topic, batch)
        if found is None or found[0] not in self._lowest:
            return
        lane, sequence = found
        lowest = self._lowest[lane]
        if sequence == lowest or knows(lane[2]):
            del self._lowest[lane]
        elif is_later(sequence, lowest):
            raise OutOfOrderSequenceError(
                f"producer {lane[2]} (epoch {lane[3]}) sent sequence {sequence}, expected {lowest}, which was refused",
                expected=lowest,
                actual=sequence,
            )

    def note(self, topic: str, batch: PartitionBatch, error_code: int) -> None:
        """The batch was refused with this error."""
        found = _lane_of(topic, batch) if error_code in RETRIABLE else None
        if found is None:
            return
        lane, sequence = found
        lowest = self._lowest.get(lane)
        if lowest is None or is_later(lowest, sequence):
            if lowest is None and len(self._lowest) >= REMEMBERED_MAX:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[lane] = sequence


def _lane_of(topic: str, batch: PartitionBatch) -> tuple[Lane, int] | None:
    """The producer with its partition, and the sequence; None for a batch without them."""
    if batch.records is None or len(batch.records) < HEADER_BYTES:
        return None
    header = read_header(batch.records)
    if header.producer_id < 0:
        return None
    return (topic, batch.partition, header.producer_id, header.producer_epoch), header.base_sequence
