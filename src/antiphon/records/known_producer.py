"""What a shard says of its producers to whoever looks into it."""

from typing import NamedTuple


class KnownProducer(NamedTuple):
    """One producer of a shard, in the order of the fields of Kafka's DescribeProducers; -1: not known.

    Attributes:
        last_timestamp_ms: the largest of its last batch.
        number: of its last marker.
        open_since: the first offset of its transaction that is under way.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    number: int
    open_since: int
