"""Consumer groups of the classic protocol: membership, committed offsets, administration."""

from typing import Annotated

from antiphon.kafka.messages.cluster import OPERATIONS_NOT_ASKED
from antiphon.kafka.messages.shared import PartitionsOfTopic, Response, TopicCodes
from antiphon.kafka.schema import I16, I32, I64, Message, V


class JoinProtocol(Message, kw_only=True):
    """An assignment strategy that the member can follow, with what the leader needs to know for it."""

    name: str
    metadata: bytes


class JoinGroupRequest(Message, kw_only=True):
    """Become or stay a member. Times in ms."""

    group_id: str
    session_timeout_ms: I32
    rebalance_timeout_ms: Annotated[I32, V(1)] = -1
    member_id: str
    group_instance_id: Annotated[str | None, V(5)] = None
    protocol_type: str
    protocols: list[JoinProtocol]
    reason: Annotated[str | None, V(8)] = None


class JoinedMember(Message, kw_only=True):
    """A member, as told to the group's leader."""

    member_id: str
    group_instance_id: Annotated[str | None, V(5)] = None
    metadata: bytes


class JoinGroupResponse(Message, kw_only=True):
    """The generation that was formed; `members` is for the leader only."""

    throttle_time_ms: Annotated[I32, V(2)] = 0
    error_code: I16
    generation_id: I32 = -1
    protocol_type: Annotated[str | None, V(7)] = None
    protocol_name: Annotated[str | None, V(nullable_since=7)] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, V(9)] = False
    member_id: str = ""
    members: list[JoinedMember] = []


class SyncAssignment(Message, kw_only=True):
    """What the leader assigned to one member."""

    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, kw_only=True):
    """The leader hands in the assignments, everybody asks for their own."""

    group_id: str
    generation_id: I32
    member_id: str
    group_instance_id: Annotated[str | None, V(3)] = None
    protocol_type: Annotated[str | None, V(5)] = None
    protocol_name: Annotated[str | None, V(5)] = None
    assignments: list[SyncAssignment]


class SyncGroupResponse(Message, kw_only=True):
    """The member's assignment."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    error_code: I16
    protocol_type: Annotated[str | None, V(5)] = None
    protocol_name: Annotated[str | None, V(5)] = None
    assignment: bytes = b""


class HeartbeatRequest(Message, kw_only=True):
    """Still here."""

    group_id: str
    generation_id: I32
    member_id: str
    group_instance_id: Annotated[str | None, V(3)] = None


class HeartbeatResponse(Message, kw_only=True):
    """Error 27 asks the member to rejoin."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    error_code: I16


class LeavingMember(Message, kw_only=True):
    """A member by id, or a static one by instance id."""

    member_id: str
    group_instance_id: str | None = None
    reason: Annotated[str | None, V(5)] = None


class LeaveGroupRequest(Message, kw_only=True):
    """One member up to version 2, many from 3 on."""

    group_id: str
    member_id: Annotated[str, V(0, 2)] = ""
    members: Annotated[list[LeavingMember], V(3)] = []


class LeftMember(Message, kw_only=True):
    """Whether one member left."""

    member_id: str
    group_instance_id: str | None = None
    error_code: I16


class LeaveGroupResponse(Message, kw_only=True):
    """Outcome, from version 3 on for each member."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    error_code: I16
    members: Annotated[list[LeftMember], V(3)] = []


class CommitPartition(Message, kw_only=True):
    """An offset to remember: the next one to read."""

    partition_index: I32
    committed_offset: I64
    committed_leader_epoch: Annotated[I32, V(6)] = -1
    committed_metadata: str | None


class CommitTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[CommitPartition]


class OffsetCommitRequest(Message, kw_only=True):
    """A generation below 0 comes from a consumer that assigns its partitions by itself."""

    group_id: str
    generation_id_or_member_epoch: Annotated[I32, V(1)] = -1
    member_id: Annotated[str, V(1)] = ""
    group_instance_id: Annotated[str | None, V(7)] = None
    retention_time_ms: Annotated[I64, V(2, 4)] = -1
    topics: list[CommitTopic]


class OffsetCommitResponse(Message, kw_only=True):
    """Outcomes in the order of the request."""

    throttle_time_ms: Annotated[I32, V(3)] = 0
    topics: list[TopicCodes]


class FetchOffsetsGroup(Message, kw_only=True):
    """One group; `topics` None: everything that it committed."""

    group_id: str
    member_id: Annotated[str | None, V(9)] = None
    member_epoch: Annotated[I32, V(9)] = -1
    topics: list[PartitionsOfTopic] | None = None


class OffsetFetchRequest(Message, kw_only=True):
    """One group up to version 7, many from 8 on."""

    group_id: Annotated[str, V(0, 7)] = ""
    topics: Annotated[list[PartitionsOfTopic] | None, V(0, 7, nullable_since=2)] = None
    groups: Annotated[list[FetchOffsetsGroup], V(8)] = []
    require_stable: Annotated[bool, V(7)] = False


class FetchedOffset(Message, kw_only=True):
    """Offset -1: nothing was committed."""

    partition_index: I32
    committed_offset: I64 = -1
    committed_leader_epoch: Annotated[I32, V(5)] = -1
    metadata: str | None = ""
    error_code: I16 = 0


class FetchedOffsetsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[FetchedOffset]


class FetchedOffsetsGroup(Message, kw_only=True):
    """One group's offsets."""

    group_id: str
    topics: list[FetchedOffsetsTopic] = []
    error_code: I16 = 0


class OffsetFetchResponse(Message, kw_only=True):
    """One group up to version 7, many from 8 on."""

    throttle_time_ms: Annotated[I32, V(3)] = 0
    topics: Annotated[list[FetchedOffsetsTopic], V(0, 7)] = []
    error_code: Annotated[I16, V(2, 7)] = 0
    groups: Annotated[list[FetchedOffsetsGroup], V(8)] = []


class DescribeGroupsRequest(Message, kw_only=True):
    """Ask for the state of groups."""

    groups: list[str]
    include_authorized_operations: Annotated[bool, V(3)] = False


class DescribedMember(Message, kw_only=True):
    """A member with the bytes that its client gave and got."""

    member_id: str
    group_instance_id: Annotated[str | None, V(4)] = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedGroup(Message, kw_only=True):
    """A group's state; a group that nobody knows is `Dead`."""

    error_code: I16
    error_message: Annotated[str | None, V(6)] = None
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedMember] = []
    authorized_operations: Annotated[I32, V(3)] = OPERATIONS_NOT_ASKED


class DescribeGroupsResponse(Message, kw_only=True):
    """States in the order of the request."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    groups: list[DescribedGroup]


class ListGroupsRequest(Message, kw_only=True):
    """Empty filters match everything."""

    states_filter: Annotated[list[str], V(4)] = []
    types_filter: Annotated[list[str], V(5)] = []


class ListedGroup(Message, kw_only=True):
    """A group that this node coordinates."""

    group_id: str
    protocol_type: str
    group_state: Annotated[str, V(4)] = ""
    group_type: Annotated[str, V(5)] = ""


class ListGroupsResponse(Message, kw_only=True):
    """Groups in the order of their names."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    error_code: I16 = 0
    groups: list[ListedGroup] = []


class DeleteGroupsRequest(Message, kw_only=True):
    """Forget groups and their offsets; they must be without members."""

    groups_names: list[str]


class DeletedGroup(Message, kw_only=True):
    """Outcome for one group."""

    group_id: str
    error_code: I16


class DeleteGroupsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    results: list[DeletedGroup]


class OffsetDeleteRequest(Message, kw_only=True):
    """Forget a group's offsets of some partitions.

    In Kafka's schema each is a structure of one number, which without tags, as in all versions, has that number's bytes.
    """

    group_id: str
    topics: list[PartitionsOfTopic]


class OffsetDeleteResponse(Message, kw_only=True):
    """Outcomes in the order of the request."""

    error_code: I16
    throttle_time_ms: I32 = 0
    topics: list[TopicCodes] = []
