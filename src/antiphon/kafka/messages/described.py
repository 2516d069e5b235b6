"""DescribeTopicPartitions, DescribeQuorum, UpdateFeatures and ListConfigResources."""

from typing import Annotated

from antiphon.kafka.messages.cluster import OPERATIONS_NOT_ASKED
from antiphon.kafka.messages.shared import ErrorResponse, ReasonResponse, Response
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.schema import I8, I16, I32, I64, U16, Message, Uuid, V


class NamedTopic(Message, kw_only=True):
    """A topic."""

    name: str


class PartitionCursor(Message, kw_only=True):
    """Where the next page begins."""

    topic_name: str
    partition_index: I32


class DescribeTopicPartitionsRequest(Message, kw_only=True):
    """Ask for a page of partitions. No topics: all."""

    topics: list[NamedTopic]
    response_partition_limit: I32 = 2000
    cursor: PartitionCursor | None = None


class DescribedPartition(Message, kw_only=True):
    """A shard's replicas. There are no eligible leaders beyond the live ones; Java's client cannot read null here."""

    error_code: I16 = 0
    partition_index: I32
    leader_id: I32
    leader_epoch: I32 = -1
    replica_nodes: list[I32]
    isr_nodes: list[I32]
    eligible_leader_replicas: list[I32] | None = []
    last_known_elr: list[I32] | None = []
    offline_replicas: list[I32] = []


class DescribedTopic(Message, kw_only=True):
    """A topic, or the error that stands for it."""

    error_code: I16 = 0
    name: str | None
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribedPartition] = []
    topic_authorized_operations: I32 = OPERATIONS_NOT_ASKED


class DescribeTopicPartitionsResponse(Response, kw_only=True):
    """A page, in the order of the topics' names. `next_cursor` None: the last one."""

    topics: list[DescribedTopic]
    next_cursor: PartitionCursor | None = None


class QuorumPartition(Message, kw_only=True):
    """Partition 0 is the only one."""

    partition_index: I32


class QuorumTopic(Message, kw_only=True):
    """`__cluster_metadata` is the only one."""

    topic_name: str
    partitions: list[QuorumPartition]


class DescribeQuorumRequest(Message, kw_only=True):
    """Ask for the replicas of the cluster's metadata."""

    topics: list[QuorumTopic]


class QuorumReplica(Message, kw_only=True):
    """A replica. -1: not known to who answers."""

    replica_id: I32
    replica_directory_id: Annotated[Uuid, V(2)] = ZERO_UUID
    log_end_offset: I64 = -1
    last_fetch_timestamp: Annotated[I64, V(1)] = -1
    last_caught_up_timestamp: Annotated[I64, V(1)] = -1


class DescribedQuorumPartition(Message, kw_only=True):
    """The leader, the voters, and who follows without a vote."""

    partition_index: I32
    error_code: I16 = 0
    error_message: Annotated[str | None, V(2)] = None
    leader_id: I32 = -1
    leader_epoch: I32 = -1
    high_watermark: I64 = -1
    current_voters: list[QuorumReplica] = []
    observers: list[QuorumReplica] = []


class DescribedQuorumTopic(Message, kw_only=True):
    """Partitions of one topic."""

    topic_name: str
    partitions: list[DescribedQuorumPartition]


class QuorumListener(Message, kw_only=True):
    """An address of a voter."""

    name: str
    host: str
    port: U16


class QuorumNode(Message, kw_only=True):
    """A voter's addresses."""

    node_id: I32
    listeners: list[QuorumListener]


class DescribeQuorumResponse(Message, kw_only=True):
    """The quorum."""

    error_code: I16 = 0
    error_message: Annotated[str | None, V(2)] = None
    topics: list[DescribedQuorumTopic] = []
    nodes: Annotated[list[QuorumNode], V(2)] = []


class FeatureUpdate(Message, kw_only=True):
    """The level that a feature is to have at most; below 1: it is removed. Type 1: upgrade, 2, 3: downgrade."""

    feature: str
    max_version_level: I16
    allow_downgrade: Annotated[bool, V(0, 0)] = False
    upgrade_type: Annotated[I8, V(1)] = 1


class UpdateFeaturesRequest(Message, kw_only=True):
    """Change the levels of features, all or none."""

    timeout_ms: I32
    feature_updates: list[FeatureUpdate]
    validate_only: Annotated[bool, V(1)] = False


class FeatureOutcome(Message, kw_only=True):
    """Outcome for one feature."""

    feature: str
    error_code: I16 = 0
    error_message: str | None = None


class UpdateFeaturesResponse(ReasonResponse, kw_only=True):
    """Outcomes; from version 2 on the first error stands for all."""

    results: Annotated[list[FeatureOutcome], V(0, 1)] = []


class ListConfigResourcesRequest(Message, kw_only=True):
    """Ask what has settings: of these types, or of all. Version 0 asks for client metrics only."""

    resource_types: Annotated[list[I8], V(1)] = []


class ListedResource(Message, kw_only=True):
    """Type 2: a topic, 4: a broker."""

    resource_name: str
    resource_type: Annotated[I8, V(1)] = 16


class ListConfigResourcesResponse(ErrorResponse, kw_only=True):
    """What has settings."""

    config_resources: list[ListedResource] = []
