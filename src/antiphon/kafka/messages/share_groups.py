"""Share groups (KIP-932): heartbeats, what members fetch and acknowledge, and what tools ask about such groups."""

from typing import Annotated

from msgspec import field

from antiphon.kafka.messages.cluster import OPERATIONS_NOT_ASKED
from antiphon.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    GroupHead,
    TopicPartitions,
)
from antiphon.kafka.messages.shared import PartitionOutcome, PartitionsOfTopic, ReasonResponse, Response
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.schema import I8, I16, I32, I64, Message, Uuid, V

INT32_MAX = 2**31 - 1


class ShareGroupHeartbeatRequest(Message, kw_only=True):
    """Join (epoch 0), stay, or leave (-1). None: as said before."""

    group_id: str
    member_id: str
    member_epoch: I32
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


class ShareGroupHeartbeatResponse(ConsumerGroupHeartbeatResponse, kw_only=True):
    """The same as for a consumer group."""


class ShareGroupDescribeRequest(ConsumerGroupDescribeRequest, kw_only=True):
    """Ask for the state of share groups."""


class DescribedShareMember(Message, kw_only=True):
    """A member of a share group."""

    member_id: str
    rack_id: str | None = None
    member_epoch: I32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    assignment: DescribedAssignment


class DescribedShareGroup(GroupHead, kw_only=True):
    """A share group's state."""

    members: list[DescribedShareMember] = []
    authorized_operations: I32 = OPERATIONS_NOT_ASKED


class ShareGroupDescribeResponse(Response, kw_only=True):
    """States in the order of the request."""

    groups: list[DescribedShareGroup]


# -- fetching and acknowledging -------------------------------------------------------------------------------------


class AcknowledgementBatch(Message, kw_only=True):
    """Offsets, the last one included; one type of acknowledgement for all of them, or one for each."""

    first_offset: I64
    last_offset: I64
    acknowledge_types: list[I8]


class SharePartitionWanted(Message, kw_only=True):
    """A partition to fetch from, if records are asked for, and what the member says of those that it acquired before."""

    partition_index: I32
    acknowledgement_batches: list[AcknowledgementBatch]


class ShareTopicWanted(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[SharePartitionWanted]


class ShareFetchRequest(Message, kw_only=True):
    """Open a share session (epoch 0), go on with it, or end it (-1).

    `share_acquire_mode`: 0 whole batches, 1 never more than `max_records`.
    """

    group_id: str | None
    member_id: str | None
    share_session_epoch: I32
    max_wait_ms: I32
    min_bytes: I32
    max_bytes: I32 = INT32_MAX
    max_records: I32
    batch_size: I32
    share_acquire_mode: Annotated[I8, V(2)] = 0
    is_renew_ack: Annotated[bool, V(2)] = False
    topics: list[ShareTopicWanted]
    forgotten_topics_data: list[TopicPartitions]


class LeaderIdAndEpoch(Message, kw_only=True):
    """Who leads a partition, where that is not this node."""

    leader_id: I32 = -1
    leader_epoch: I32 = -1


class AcquiredRecords(Message, kw_only=True):
    """Offsets that are the member's until its lock ends, the last one included."""

    first_offset: I64
    last_offset: I64
    delivery_count: I16


class ShareNodeEndpoint(Message, kw_only=True):
    """Where a leader listens."""

    node_id: I32
    host: str
    port: I32
    rack: str | None = None


class ShareAcknowledgeRequest(Message, kw_only=True):
    """Acknowledge without fetching; epoch -1 ends the session."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: I32
    is_renew_ack: Annotated[bool, V(2)] = False
    topics: list[ShareTopicWanted]


class ShareAcknowledgedPartition(PartitionOutcome, kw_only=True):
    """What became of the acknowledgements."""

    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)


class ShareAcknowledgedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[ShareAcknowledgedPartition]


class ShareAcknowledgeResponse(ReasonResponse, kw_only=True):
    """In the order of the request."""

    acquisition_lock_timeout_ms: Annotated[I32, V(2)] = 0
    responses: list[ShareAcknowledgedTopic] = []
    node_endpoints: list[ShareNodeEndpoint] = []


# -- offsets --------------------------------------------------------------------------------------------------------


class ShareOffsetsGroupAsked(Message, kw_only=True):
    """A group, and topics; None: all that it has offsets of."""

    group_id: str
    topics: list[PartitionsOfTopic] | None


class DescribeShareGroupOffsetsRequest(Message, kw_only=True):
    """Ask where share groups are."""

    groups: list[ShareOffsetsGroupAsked]


class ShareOffset(Message, kw_only=True):
    """The start offset of a share-partition; -1: nobody has read it yet. `lag`: records that are not done yet."""

    partition_index: I32
    start_offset: I64 = -1
    leader_epoch: I32 = 0
    lag: Annotated[I64, V(1)] = -1
    error_code: I16 = 0
    error_message: str | None = None


class ShareOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: str
    topic_id: Uuid = ZERO_UUID
    partitions: list[ShareOffset]


class ShareOffsetsGroup(Message, kw_only=True):
    """The offsets of one group."""

    group_id: str
    topics: list[ShareOffsetsTopic] = []
    error_code: I16 = 0
    error_message: str | None = None


class DescribeShareGroupOffsetsResponse(Response, kw_only=True):
    """In the order of the request."""

    groups: list[ShareOffsetsGroup]


class ShareOffsetAltered(Message, kw_only=True):
    """A new start offset."""

    partition_index: I32
    start_offset: I64


class ShareOffsetsTopicAltered(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: str
    partitions: list[ShareOffsetAltered]


class AlterShareGroupOffsetsRequest(Message, kw_only=True):
    """Let a group without members go on from elsewhere."""

    group_id: str
    topics: list[ShareOffsetsTopicAltered]


class AlteredShareOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: str
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionOutcome] = []


class AlterShareGroupOffsetsResponse(ReasonResponse, kw_only=True):
    """In the order of the request."""

    responses: list[AlteredShareOffsetsTopic] = []


class ShareOffsetsTopicDeleted(Message, kw_only=True):
    """A topic, by name."""

    topic_name: str


class DeleteShareGroupOffsetsRequest(Message, kw_only=True):
    """Forget where a group without members is in topics."""

    group_id: str
    topics: list[ShareOffsetsTopicDeleted]


class DeletedShareOffsetsTopic(Message, kw_only=True):
    """Was it forgotten?"""

    topic_name: str
    topic_id: Uuid = ZERO_UUID
    error_code: I16 = 0
    error_message: str | None = None


class DeleteShareGroupOffsetsResponse(ReasonResponse, kw_only=True):
    """In the order of the request."""

    responses: list[DeletedShareOffsetsTopic] = []
