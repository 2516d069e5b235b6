"""Consumer groups of the consumer protocol (KIP-848): heartbeats, and what tools ask about such groups."""

from typing import Annotated

from antiphon.kafka.messages.cluster import OPERATIONS_NOT_ASKED
from antiphon.kafka.messages.shared import Outcome, ReasonResponse, Response
from antiphon.kafka.schema import I8, I32, Message, Uuid, V


class TopicPartitions(Message, kw_only=True):
    """Partitions of one topic, by its id."""

    topic_id: Uuid
    partitions: list[I32]


class ConsumerGroupHeartbeatRequest(Message, kw_only=True):
    """Join (epoch 0), stay, leave (-1), or leave for a while (-2). None: as said before. Times in ms."""

    group_id: str
    member_id: str
    member_epoch: I32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: I32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: Annotated[str | None, V(1)] = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


class HeartbeatAssignment(Message, kw_only=True):
    """The partitions that the member may use from now on."""

    topic_partitions: list[TopicPartitions]


class ConsumerGroupHeartbeatResponse(ReasonResponse, kw_only=True):
    """The member's epoch, and its assignment where that is news."""

    member_id: str | None = None
    member_epoch: I32 = 0
    heartbeat_interval_ms: I32 = 0
    assignment: HeartbeatAssignment | None = None


class ConsumerGroupDescribeRequest(Message, kw_only=True):
    """Ask for the state of groups of this protocol."""

    group_ids: list[str]
    include_authorized_operations: bool = False


class NamedPartitions(Message, kw_only=True):
    """Partitions of one topic, by id and name."""

    topic_id: Uuid
    topic_name: str
    partitions: list[I32]


class DescribedAssignment(Message, kw_only=True):
    """Partitions of a member."""

    topic_partitions: list[NamedPartitions]


class DescribedConsumer(Message, kw_only=True):
    """A member. `member_type`: 0, of the classic protocol, or 1, of the consumer protocol."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: I32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[I8, V(1)] = 1


class GroupHead(Outcome, kw_only=True):
    """What a group's state begins with, here and for share groups."""

    group_id: str
    group_state: str = ""
    group_epoch: I32 = 0
    assignment_epoch: I32 = 0
    assignor_name: str = ""


class DescribedConsumerGroup(GroupHead, kw_only=True):
    """A group's state."""

    members: list[DescribedConsumer] = []
    authorized_operations: I32 = OPERATIONS_NOT_ASKED


class ConsumerGroupDescribeResponse(Response, kw_only=True):
    """States in the order of the request."""

    groups: list[DescribedConsumerGroup]
