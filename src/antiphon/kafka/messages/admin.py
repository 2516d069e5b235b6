"""Topics, their records, settings and place on disk: create, delete, grow, describe, alter, elect."""

from typing import Annotated

from antiphon.kafka.messages.shared import Outcome, PartitionsOfTopic, Response
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.schema import I8, I16, I32, I64, Message, Uuid, V


class ReplicaAssignment(Message, kw_only=True):
    """Which nodes hold a partition, when the caller wants to choose."""

    partition_index: I32
    broker_ids: list[I32]


class TopicSetting(Message, kw_only=True):
    """A setting by Kafka's name; None: the default."""

    name: str
    value: str | None


class CreatableTopic(Message, kw_only=True):
    """-1 partitions or replicas: the default."""

    name: str
    num_partitions: I32
    replication_factor: I16
    assignments: list[ReplicaAssignment]
    configs: list[TopicSetting]


class CreateTopicsRequest(Message, kw_only=True):
    """Create topics; with `validate_only` just check."""

    topics: list[CreatableTopic]
    timeout_ms: I32
    validate_only: Annotated[bool, V(1)] = False


class CreatedSetting(TopicSetting, kw_only=True):
    """A setting as it came out. Source 1: of the topic, 5: default."""

    read_only: bool = False
    config_source: I8 = 1
    is_sensitive: bool = False


class CreatedTopic(Message, kw_only=True):
    """Outcome for one topic."""

    name: str
    topic_id: Annotated[Uuid, V(7)] = ZERO_UUID
    error_code: I16 = 0
    error_message: Annotated[str | None, V(1)] = None
    topic_config_error_code: Annotated[I16, V(5, tag=0)] = 0
    num_partitions: Annotated[I32, V(5)] = -1
    replication_factor: Annotated[I16, V(5)] = -1
    configs: Annotated[list[CreatedSetting] | None, V(5)] = None


class CreateTopicsResponse(Message, kw_only=True):
    """Outcomes in the order of the request."""

    throttle_time_ms: Annotated[I32, V(2)] = 0
    topics: list[CreatedTopic]


class DeletableTopic(Message, kw_only=True):
    """A topic by name, or by id where the name is None."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message, kw_only=True):
    """Delete topics with their data."""

    topics: Annotated[list[DeletableTopic], V(6)] = []
    topic_names: Annotated[list[str], V(0, 5)] = []
    timeout_ms: I32


class DeletedTopic(Message, kw_only=True):
    """Outcome for one topic."""

    name: Annotated[str | None, V(nullable_since=6)]
    topic_id: Annotated[Uuid, V(6)] = ZERO_UUID
    error_code: I16 = 0
    error_message: Annotated[str | None, V(5)] = None


class DeleteTopicsResponse(Message, kw_only=True):
    """Outcomes in the order of the request."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    responses: list[DeletedTopic]


class DeleteRecordsPartition(Message, kw_only=True):
    """Records before `offset` are to go; -1: all that are committed."""

    partition_index: I32
    offset: I64


class DeleteRecordsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[DeleteRecordsPartition]


class DeleteRecordsRequest(Message, kw_only=True):
    """Let partitions begin later."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: I32


class DeletedRecords(Message, kw_only=True):
    """Where the partition begins now; -1 with an error."""

    partition_index: I32
    low_watermark: I64 = -1
    error_code: I16 = 0


class DeletedRecordsTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[DeletedRecords]


class DeleteRecordsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    topics: list[DeletedRecordsTopic]


class PartitionAssignment(Message, kw_only=True):
    """Nodes of one new partition."""

    broker_ids: list[I32]


class GrowingTopic(Message, kw_only=True):
    """`count` is the number of partitions afterwards."""

    name: str
    count: I32
    assignments: list[PartitionAssignment] | None = None


class CreatePartitionsRequest(Message, kw_only=True):
    """Add partitions."""

    topics: list[GrowingTopic]
    timeout_ms: I32
    validate_only: bool


class GrownTopic(Message, kw_only=True):
    """Outcome for one topic."""

    name: str
    error_code: I16 = 0
    error_message: str | None = None


class CreatePartitionsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    results: list[GrownTopic]


class ConfigResource(Message, kw_only=True):
    """What has settings. Type 2: a topic, 4: a broker by its id."""

    resource_type: I8
    resource_name: str


class DescribeConfigsResource(ConfigResource, kw_only=True):
    """`configuration_keys` None: all."""

    configuration_keys: list[str] | None


class DescribeConfigsRequest(Message, kw_only=True):
    """Ask for settings."""

    resources: list[DescribeConfigsResource]
    include_synonyms: Annotated[bool, V(1)] = False
    include_documentation: Annotated[bool, V(3)] = False


class SettingSynonym(TopicSetting, kw_only=True):
    """Where a value comes from, the nearest first."""

    source: I8


class DescribedSetting(TopicSetting, kw_only=True):
    """A setting. Sources: 1 topic, 4 static broker, 5 default. Types: 1 boolean, 2 string, 3 int, 5 long, 7 list."""

    read_only: bool = False
    config_source: Annotated[I8, V(1)] = -1
    is_sensitive: bool = False
    synonyms: Annotated[list[SettingSynonym], V(1)] = []
    config_type: Annotated[I8, V(3)] = 0
    documentation: Annotated[str | None, V(3)] = None


class AlteredResource(Outcome, kw_only=True):
    """Outcome for one topic or broker."""

    resource_type: I8
    resource_name: str


class DescribedResource(AlteredResource, kw_only=True):
    """Settings of one topic or broker."""

    configs: list[DescribedSetting] = []


class DescribeConfigsResponse(Response, kw_only=True):
    """Settings in the order of the request."""

    results: list[DescribedResource]


class AlterableSetting(Message, kw_only=True):
    """Operation 0: set, 1: back to the default, 2: append to a list, 3: take from a list."""

    name: str
    config_operation: I8
    value: str | None


class AlterableResource(ConfigResource, kw_only=True):
    """Changes to one topic or broker."""

    configs: list[AlterableSetting]


class IncrementalAlterConfigsRequest(Message, kw_only=True):
    """Change some settings and leave the others."""

    resources: list[AlterableResource]
    validate_only: bool


class IncrementalAlterConfigsResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    responses: list[AlteredResource]


class ReplacedResource(ConfigResource, kw_only=True):
    """All settings that one topic or broker is to have."""

    configs: list[TopicSetting]


class AlterConfigsRequest(Message, kw_only=True):
    """Set some settings, and all others back to their defaults."""

    resources: list[ReplacedResource]
    validate_only: bool


class AlterConfigsResponse(IncrementalAlterConfigsResponse, kw_only=True):
    """The same."""


class DescribeLogDirsRequest(Message, kw_only=True):
    """Ask what partitions take on disk; `topics` None: all that the node has."""

    topics: list[PartitionsOfTopic] | None


class LogDirPartition(Message, kw_only=True):
    """One replica: the bytes of its segments, and how many offsets its end is behind the high watermark."""

    partition_index: I32
    partition_size: I64
    offset_lag: I64
    is_future_key: bool = False


class LogDirTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[LogDirPartition]


class LogDir(Message, kw_only=True):
    """One directory. Bytes of its volume; -1: not told."""

    error_code: I16 = 0
    log_dir: str
    topics: list[LogDirTopic]
    total_bytes: Annotated[I64, V(4)] = -1
    usable_bytes: Annotated[I64, V(4)] = -1


class DescribeLogDirsResponse(Response, kw_only=True):
    """The directories of the answering node."""

    error_code: Annotated[I16, V(3)] = 0
    results: list[LogDir] = []


class ElectLeadersRequest(Message, kw_only=True):
    """Election type 0: the preferred replica, 1: unclean. `topic_partitions` None: all that there are."""

    election_type: Annotated[I8, V(1)] = 0
    topic_partitions: list[PartitionsOfTopic] | None
    timeout_ms: I32


class ElectedPartition(Message, kw_only=True):
    """Outcome for one partition."""

    partition_id: I32
    error_code: I16 = 0
    error_message: str | None = None


class ElectedTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partition_result: list[ElectedPartition]


class ElectLeadersResponse(Response, kw_only=True):
    """Outcomes; where all partitions were asked for, without those that needed no election."""

    error_code: Annotated[I16, V(1)] = 0
    replica_election_results: list[ElectedTopic] = []
