"""Produce and Fetch as a client writes and reads them, in all versions: the nodes' own codecs only do the other half."""

from typing import Annotated

from antiphon.kafka.messages.share_groups import AcquiredRecords, LeaderIdAndEpoch, ShareNodeEndpoint
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.schema import I8, I16, I32, I64, Message, Uuid, V


class CurrentLeader(Message, kw_only=True):
    """Who leads a partition, as an error tells it (KIP-951)."""

    leader_id: I32
    leader_epoch: I32


class NodeEndpoint(Message, kw_only=True):
    """Address of a node that a `CurrentLeader` names."""

    node_id: I32
    host: str
    port: I32
    rack: str | None


class ProducePartition(Message, kw_only=True):
    """Records for one partition."""

    index: I32
    records: bytes | None


class ProduceTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[ProducePartition]


class ProduceRequest(Message, kw_only=True):
    """`acks`: -1 for all."""

    transactional_id: Annotated[str | None, V(3)] = None
    acks: I16
    timeout_ms: I32
    topics: list[ProduceTopic]


class RecordError(Message, kw_only=True):
    """What is wrong with one record of a batch."""

    batch_index: I32
    message: str | None


class ProducedPartition(Message, kw_only=True):
    """Outcome for one partition."""

    index: I32
    error_code: I16
    base_offset: I64
    log_append_time_ms: Annotated[I64, V(2)] = -1
    log_start_offset: Annotated[I64, V(5)] = -1
    record_errors: Annotated[list[RecordError], V(8)] = []
    error_message: Annotated[str | None, V(8)] = None
    current_leader: Annotated[CurrentLeader | None, V(10, tag=0)] = None


class ProducedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[ProducedPartition]


class ProduceResponse(Message, kw_only=True):
    """Outcomes."""

    topics: list[ProducedTopic]
    throttle_time_ms: Annotated[I32, V(1)] = 0
    endpoints: Annotated[list[NodeEndpoint], V(10, tag=0)] = []


class FetchPartition(Message, kw_only=True):
    """From where to read one partition."""

    index: I32
    leader_epoch: Annotated[I32, V(9)] = -1
    offset: I64
    last_fetched_epoch: Annotated[I32, V(12)] = -1
    log_start_offset: Annotated[I64, V(5)] = -1
    max_bytes: I32


class FetchTopic(Message, kw_only=True):
    """A topic by name up to version 12, by id from 13 on."""

    name: Annotated[str, V(0, 12)] = ""
    topic_id: Annotated[Uuid, V(13)] = ZERO_UUID
    partitions: list[FetchPartition]


class ForgottenTopic(Message, kw_only=True):
    """Partitions to leave out of a session."""

    name: Annotated[str, V(0, 12)] = ""
    topic_id: Annotated[Uuid, V(13)] = ZERO_UUID
    partitions: list[I32]


class FetchRequest(Message, kw_only=True):
    """Without a session: id 0, epoch -1."""

    replica_id: Annotated[I32, V(0, 14)] = -1
    max_wait_ms: I32
    min_bytes: I32
    max_bytes: I32
    isolation: I8 = 0
    session_id: Annotated[I32, V(7)] = 0
    session_epoch: Annotated[I32, V(7)] = -1
    topics: list[FetchTopic]
    forgotten: Annotated[list[ForgottenTopic], V(7)] = []
    rack: Annotated[str, V(11)] = ""


class AbortedTransaction(Message, kw_only=True):
    """A transaction that was given up."""

    producer_id: I64
    first_offset: I64


class FetchedPartition(Message, kw_only=True):
    """What was read."""

    index: I32
    error_code: I16
    high_watermark: I64
    last_stable_offset: I64
    log_start_offset: Annotated[I64, V(5)] = -1
    aborted: list[AbortedTransaction] | None
    preferred_read_replica: Annotated[I32, V(11)] = -1
    records: bytes | None
    current_leader: Annotated[CurrentLeader | None, V(12, tag=1)] = None


class FetchedTopic(Message, kw_only=True):
    """A topic by name or id, as in the request."""

    name: Annotated[str, V(0, 12)] = ""
    topic_id: Annotated[Uuid, V(13)] = ZERO_UUID
    partitions: list[FetchedPartition]


class FetchResponse(Message, kw_only=True):
    """What was read, or one error for all."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    error_code: Annotated[I16, V(7)] = 0
    session_id: Annotated[I32, V(7)] = 0
    topics: list[FetchedTopic]
    endpoints: Annotated[list[NodeEndpoint], V(16, tag=0)] = []


class SharedPartition(Message, kw_only=True):
    """What a member of a share group is given of a partition."""

    partition_index: I32
    error_code: I16
    error_message: str | None
    acknowledge_error_code: I16
    acknowledge_error_message: str | None
    current_leader: LeaderIdAndEpoch
    records: bytes | None
    acquired_records: list[AcquiredRecords]


class SharedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[SharedPartition]


class ShareFetchResponse(Message, kw_only=True):
    """What a member of a share group is given."""

    throttle_time_ms: I32
    error_code: I16
    error_message: str | None
    acquisition_lock_timeout_ms: I32
    responses: list[SharedTopic]
    node_endpoints: list[ShareNodeEndpoint]


def produce_one(
    topic: str,
    batch: bytes,
    partition: int = 0,
    *,
    timeout_ms: int = 2_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One batch for one partition, for all replicas."""
    topics = [ProduceTopic(name=topic, partitions=[ProducePartition(index=partition, records=batch)])]
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=timeout_ms, topics=topics)


def fetch_one(
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    *,
    total_bytes: int = 1 << 20,
    wait_ms: int = 0,
    min_bytes: int = 1,
    isolation: int = 0,
) -> FetchRequest:
    """What one partition has from an offset on, without a session."""
    wanted = FetchPartition(index=partition, offset=offset, max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=total_bytes,
        isolation=isolation,
        topics=[FetchTopic(name=topic, partitions=[wanted])],
    )
