"""ApiVersions, Metadata, DescribeCluster, FindCoordinator and InitProducerId."""

from typing import Annotated, Final

from antiphon.kafka.messages.shared import ErrorResponse, ReasonResponse
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.schema import I8, I16, I32, I64, Message, Uuid, V

OPERATIONS_NOT_ASKED: Final = -(1 << 31)  # "authorized operations" when the request did not ask for them


class ApiVersionsRequest(Message, kw_only=True):
    """Which versions of which APIs the broker speaks."""

    client_software_name: Annotated[str, V(3)] = ""
    client_software_version: Annotated[str, V(3)] = ""


class ApiVersionRange(Message, kw_only=True):
    """Inclusive range of versions of one API."""

    api_key: I16
    min_version: I16
    max_version: I16


class SupportedFeature(Message, kw_only=True):
    """A feature outside the API versions."""

    name: str
    min_version: I16
    max_version: I16


class FinalizedFeature(Message, kw_only=True):
    """The levels of a feature that clients may use."""

    name: str
    max_version_level: I16
    min_version_level: I16


class ApiVersionsResponse(Message, kw_only=True):
    """Its header is always of version 0, and a request of an unknown version is answered in version 0."""

    error_code: I16
    api_keys: list[ApiVersionRange]
    throttle_time_ms: Annotated[I32, V(1)] = 0
    supported_features: Annotated[list[SupportedFeature], V(3, tag=0)] = []
    finalized_features_epoch: Annotated[I64, V(3, tag=1)] = -1
    finalized_features: Annotated[list[FinalizedFeature], V(3, tag=2)] = []


class MetadataRequestTopic(Message, kw_only=True):
    """A topic by name, or by id where the name is None."""

    topic_id: Annotated[Uuid, V(10)] = ZERO_UUID
    name: Annotated[str | None, V(nullable_since=10)]


class MetadataRequest(Message, kw_only=True):
    """`topics` None: all; version 0 cannot say None and means all by an empty list."""

    topics: Annotated[list[MetadataRequestTopic] | None, V(nullable_since=1)]
    allow_auto_topic_creation: Annotated[bool, V(4)] = True
    include_cluster_authorized_operations: Annotated[bool, V(8, 10)] = False
    include_topic_authorized_operations: Annotated[bool, V(8)] = False


class MetadataBroker(Message, kw_only=True):
    """A node's address."""

    node_id: I32
    host: str
    port: I32
    rack: Annotated[str | None, V(1)] = None


class MetadataPartition(Message, kw_only=True):
    """A shard's replicas."""

    error_code: I16
    partition_index: I32
    leader_id: I32
    leader_epoch: Annotated[I32, V(7)] = -1
    replica_nodes: list[I32]
    isr_nodes: list[I32]
    offline_replicas: Annotated[list[I32], V(5)] = []


class MetadataTopic(Message, kw_only=True):
    """A topic, or the error that stands for it."""

    error_code: I16
    name: Annotated[str | None, V(nullable_since=12)]
    topic_id: Annotated[Uuid, V(10)] = ZERO_UUID
    is_internal: Annotated[bool, V(1)] = False
    partitions: list[MetadataPartition] = []
    topic_authorized_operations: Annotated[I32, V(8)] = OPERATIONS_NOT_ASKED


class MetadataResponse(Message, kw_only=True):
    """Nodes and topics."""

    throttle_time_ms: Annotated[I32, V(3)] = 0
    brokers: list[MetadataBroker]
    cluster_id: Annotated[str | None, V(2)] = None
    controller_id: Annotated[I32, V(1)] = -1
    topics: list[MetadataTopic]
    cluster_authorized_operations: Annotated[I32, V(8, 10)] = OPERATIONS_NOT_ASKED
    error_code: Annotated[I16, V(13)] = 0


class DescribeClusterRequest(Message, kw_only=True):
    """`endpoint_type` 1: brokers, 2: controllers."""

    include_cluster_authorized_operations: bool
    endpoint_type: Annotated[I8, V(1)] = 1
    include_fenced_brokers: Annotated[bool, V(2)] = False


class DescribeClusterBroker(Message, kw_only=True):
    """A node's address."""

    broker_id: I32
    host: str
    port: I32
    rack: str | None = None
    is_fenced: Annotated[bool, V(2)] = False


class DescribeClusterResponse(ReasonResponse, kw_only=True):
    """The nodes and the controller."""

    endpoint_type: Annotated[I8, V(1)] = 1
    cluster_id: str = ""
    controller_id: I32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: I32 = OPERATIONS_NOT_ASKED


class FindCoordinatorRequest(Message, kw_only=True):
    """`key_type` 0: a consumer group, 1: a transactional id."""

    key: Annotated[str, V(0, 3)] = ""
    key_type: Annotated[I8, V(1)] = 0
    coordinator_keys: Annotated[list[str], V(4)] = []


class FoundCoordinator(Message, kw_only=True):
    """The node that coordinates one key."""

    key: str
    node_id: I32 = -1
    host: str = ""
    port: I32 = -1
    error_code: I16 = 0
    error_message: str | None = None


class FindCoordinatorResponse(Message, kw_only=True):
    """One coordinator up to version 3, a list from 4 on."""

    throttle_time_ms: Annotated[I32, V(1)] = 0
    error_code: Annotated[I16, V(0, 3)] = 0
    error_message: Annotated[str | None, V(1, 3)] = None
    node_id: Annotated[I32, V(0, 3)] = -1
    host: Annotated[str, V(0, 3)] = ""
    port: Annotated[I32, V(0, 3)] = -1
    coordinators: Annotated[list[FoundCoordinator], V(4)] = []


class InitProducerIdRequest(Message, kw_only=True):
    """Ask for a producer id; with a transactional id, for that transaction's."""

    transactional_id: str | None
    transaction_timeout_ms: I32
    producer_id: Annotated[I64, V(3)] = -1
    producer_epoch: Annotated[I16, V(3)] = -1


class InitProducerIdResponse(ErrorResponse, kw_only=True):
    """A producer id and its epoch."""

    producer_id: I64 = -1
    producer_epoch: I16 = -1
