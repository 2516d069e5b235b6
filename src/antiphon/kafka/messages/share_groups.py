"""Share groups (KIP-932): heartbeats, what members fetch and acknowledge, and what tools ask about such groups."""

from typing import Annotated

from msgspec import field

from antiphon.kafka.messages.cluster import OPERATIONS_NOT_ASKED
from antiphon.kafka.messages.consumer_groups import DescribedAssignment, HeartbeatAssignment
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


class ShareGroupHeartbeatResponse(Message, kw_only=True):
    """The member's epoch, and its assignment where that is news."""

    throttle_time_ms: I32 = 0
    error_code: I16
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: I32 = 0
    heartbeat_interval_ms: I32 = 0
    assignment: HeartbeatAssignment | None = None


class ShareGroupDescribeRequest(Message, kw_only=True):
    """Ask for the state of share groups."""

    group_ids: list[str]
    include_authorized_operations: bool = False


class DescribedShareMember(Message, kw_only=True):
    """A member of a share group."""

    member_id: str
    rack_id: str | None = None
    member_epoch: I32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    assignment: DescribedAssignment


class DescribedShareGroup(Message, kw_only=True):
    """A share group's state."""

    error_code: I16
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: I32 = 0
    assignment_epoch: I32 = 0
    assignor_name: str = ""
    members: list[DescribedShareMember] = []
    authorized_operations: I32 = OPERATIONS_NOT_ASKED


class ShareGroupDescribeResponse(Message, kw_only=True):
    """States in the order of the request."""

    throttle_time_ms: I32 = 0
    groups: list[DescribedShareGroup]


# -- fetching and acknowledging -------------------------------------------------------------------------------------


class AcknowledgementBatch(Message, kw_only=True):
    """Offsets, the last one included; one type of acknowledgement for all of them, or one for each."""

    first_offset: I64
    last_offset: I64
    acknowledge_types: list[I8]


class SharePartitionWanted(Message, kw_only=True):
    """A partition to fetch from, and what was acquired of it before."""

    partition_index: I32
    acknowledgement_batches: list[AcknowledgementBatch]


class ShareTopicWanted(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[SharePartitionWanted]


class ForgottenTopic(Message, kw_only=True):
    """Partitions that leave the session."""

    topic_id: Uuid
    partitions: list[I32]


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
    forgotten_topics_data: list[ForgottenTopic]


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


class ShareAcknowledgePartition(Message, kw_only=True):
    """What a member says of records that it acquired."""

    partition_index: I32
    acknowledgement_batches: list[AcknowledgementBatch]


class ShareAcknowledgeTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[ShareAcknowledgePartition]


class ShareAcknowledgeRequest(Message, kw_only=True):
    """Acknowledge without fetching; epoch -1 ends the session."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: I32
    is_renew_ack: Annotated[bool, V(2)] = False
    topics: list[ShareAcknowledgeTopic]


class ShareAcknowledgedPartition(Message, kw_only=True):
    """What became of the acknowledgements."""

    partition_index: I32
    error_code: I16 = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)


class ShareAcknowledgedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: list[ShareAcknowledgedPartition]


class ShareAcknowledgeResponse(Message, kw_only=True):
    """In the order of the request."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Annotated[I32, V(2)] = 0
    responses: list[ShareAcknowledgedTopic] = []
    node_endpoints: list[ShareNodeEndpoint] = []


# -- offsets --------------------------------------------------------------------------------------------------------


class ShareOffsetsTopicAsked(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: str
    partitions: list[I32]


class ShareOffsetsGroupAsked(Message, kw_only=True):
    """A group, and topics; None: all that it has offsets of."""

    group_id: str
    topics: list[ShareOffsetsTopicAsked] | None


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


class DescribeShareGroupOffsetsResponse(Message, kw_only=True):
    """In the order of the request."""

    throttle_time_ms: I32 = 0
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


class AlteredShareOffset(Message, kw_only=True):
    """Was it changed?"""

    partition_index: I32
    error_code: I16 = 0
    error_message: str | None = None


class AlteredShareOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: str
    topic_id: Uuid = ZERO_UUID
    partitions: list[AlteredShareOffset] = []


class AlterShareGroupOffsetsResponse(Message, kw_only=True):
    """In the order of the request."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: str | None = None
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


class DeleteShareGroupOffsetsResponse(Message, kw_only=True):
    """In the order of the request."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: str | None = None
    responses: list[DeletedShareOffsetsTopic] = []
