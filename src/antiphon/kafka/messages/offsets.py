"""ListOffsets and OffsetForLeaderEpoch: where things stand in a partition's log."""

from typing import Annotated

from antiphon.kafka.schema import I8, I16, I32, I64, Message, V


class ListOffsetsPartition(Message, kw_only=True):
    """Timestamp in ms, or -1 latest, -2 earliest, -3 largest timestamp, -4 earliest on local disk, -5 latest elsewhere."""

    partition_index: I32
    current_leader_epoch: Annotated[I32, V(4)] = -1
    timestamp: I64


class ListOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[ListOffsetsPartition]


class ListOffsetsRequest(Message, kw_only=True):
    """`isolation_level` 0: read uncommitted, 1: read committed (transactions)."""

    replica_id: I32
    isolation_level: Annotated[I8, V(2)] = 0
    topics: list[ListOffsetsTopic]
    timeout_ms: Annotated[I32, V(10)] = 0


class ListedOffset(Message, kw_only=True):
    """Offset -1 and timestamp -1: no record is that late."""

    partition_index: I32
    error_code: I16
    timestamp: Annotated[I64, V(1)] = -1
    offset: Annotated[I64, V(1)] = -1
    leader_epoch: Annotated[I32, V(4)] = -1


class ListedOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[ListedOffset]


class ListOffsetsResponse(Message, kw_only=True):
    """Offsets in the order of the request."""

    throttle_time_ms: Annotated[I32, V(2)] = 0
    topics: list[ListedOffsetsTopic]


class EpochPartition(Message, kw_only=True):
    """Asks for the end of `leader_epoch`; `current_leader_epoch` is what the asker takes for the newest."""

    partition: I32
    current_leader_epoch: Annotated[I32, V(2)] = -1
    leader_epoch: I32


class EpochTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic: str
    partitions: list[EpochPartition]


class OffsetForLeaderEpochRequest(Message, kw_only=True):
    """Up to which offset does a log hold a leader epoch (KIP-101, KIP-279)?"""

    replica_id: Annotated[I32, V(3)] = -2
    topics: list[EpochTopic]


class EpochEnd(Message, kw_only=True):
    """The largest epoch that is not above the one asked for, and its exclusive end; -1 and -1: unknown."""

    error_code: I16
    partition: I32
    leader_epoch: Annotated[I32, V(1)] = -1
    end_offset: I64 = -1


class EpochEndTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic: str
    partitions: list[EpochEnd]


class OffsetForLeaderEpochResponse(Message, kw_only=True):
    """Ends in the order of the request."""

    throttle_time_ms: Annotated[I32, V(2)] = 0
    topics: list[EpochEndTopic]
