"""The APIs that are served: one row each, with versions, messages, handler and what the documentation says of it.

ApiVersions, the dispatch of requests and the table in docs/kafka.md all come from these rows. CONTRIBUTING.md shows how an
API is added.

Ranges follow Kafka 4.x, where its clients were measured to need them; lower ends also serve aiokafka, which speaks no
flexible version outside its administration calls. Produce is advertised from 0 on and served from 3 on: older librdkafka
takes a higher advertised minimum for a broker that cannot store compressed batches (KAFKA-18659).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from antiphon.kafka.api import (
    API_VERSIONS,
    FETCH,
    GET_TELEMETRY_SUBSCRIPTIONS,
    NEVER_FLEXIBLE,
    PRODUCE,
    PUSH_TELEMETRY,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SHARE_FETCH,
    Api,
    Handler,
)
from antiphon.kafka.connection import Answer
from antiphon.kafka.fetch_codec import decode_fetch
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.handlers.access import AccessHandler
from antiphon.kafka.handlers.configs import ConfigHandler
from antiphon.kafka.handlers.consumer_groups import ConsumerGroupHandler
from antiphon.kafka.handlers.elections import ElectionHandler
from antiphon.kafka.handlers.fetch import FetchHandler
from antiphon.kafka.handlers.group_admin import GroupAdminHandler
from antiphon.kafka.handlers.group_offsets import GroupOffsetsHandler
from antiphon.kafka.handlers.groups import GroupHandler
from antiphon.kafka.handlers.log_offsets import LogOffsetsHandler
from antiphon.kafka.handlers.logins import LoginHandler
from antiphon.kafka.handlers.markers import MarkersHandler
from antiphon.kafka.handlers.metadata import MetadataHandler
from antiphon.kafka.handlers.partitions import TopicPartitionsHandler
from antiphon.kafka.handlers.produce import ProduceHandler
from antiphon.kafka.handlers.producers import ProducersHandler
from antiphon.kafka.handlers.quorum import QuorumHandler
from antiphon.kafka.handlers.quotas import QuotaHandler
from antiphon.kafka.handlers.reassignments import ReassignmentHandler
from antiphon.kafka.handlers.share_fetch import ShareFetchHandler
from antiphon.kafka.handlers.share_groups import ShareGroupHandler
from antiphon.kafka.handlers.share_offsets import ShareOffsetsHandler
from antiphon.kafka.handlers.telemetry import TelemetryHandler
from antiphon.kafka.handlers.topics import TopicHandler
from antiphon.kafka.handlers.transaction_offsets import TransactionOffsetsHandler
from antiphon.kafka.handlers.transactions import TransactionHandler
from antiphon.kafka.messages import (
    admin,
    cluster,
    consumer_groups,
    described,
    groups,
    offsets,
    quotas,
    reassignments,
    security,
    share_groups,
    telemetry,
    transactions,
)
from antiphon.kafka.primitives import Reader
from antiphon.kafka.produce_codec import decode_produce
from antiphon.kafka.share_fetch_codec import decode_share_fetch


class Routing(StrEnum):
    """Which node a client has to ask."""

    ANY = "any node"
    LEADER = "the partition's leader"
    COORDINATOR = "the coordinator"
    EACH = "each node, for itself"


class Handlers(NamedTuple):
    """The objects that carry out requests; a row's `handler` picks a method of one of them."""

    produce: ProduceHandler
    fetch: FetchHandler
    metadata: MetadataHandler
    log_offsets: LogOffsetsHandler
    producers: ProducersHandler
    markers: MarkersHandler
    groups: GroupHandler
    transactions: TransactionHandler
    transaction_offsets: TransactionOffsetsHandler
    group_offsets: GroupOffsetsHandler
    group_admin: GroupAdminHandler
    consumer_groups: ConsumerGroupHandler
    share_groups: ShareGroupHandler
    share_fetch: ShareFetchHandler
    share_offsets: ShareOffsetsHandler
    topics: TopicHandler
    configs: ConfigHandler
    elections: ElectionHandler
    reassignments: ReassignmentHandler
    topic_partitions: TopicPartitionsHandler
    quorum: QuorumHandler
    telemetry: TelemetryHandler
    logins: LoginHandler
    access: AccessHandler
    quotas: QuotaHandler


class HotHandler(NamedTuple):
    """An API whose codec is hand-written. `start` writes the answer itself, now or in what it returns to be awaited."""

    decode: Callable[[Reader, int], Any]
    start: Callable[[Handlers], Callable[[RequestHeader, Any, Answer], Awaitable[None] | None]]


@dataclass(frozen=True, slots=True)
class ServedApi(Api):
    """One row. `notes` is for the documentation: what a user of Kafka does not expect, or wants to know."""

    handler: Callable[[Handlers], Handler] | HotHandler
    routing: Routing
    notes: str = ""


_APIS: Final = (
    ServedApi(
        PRODUCE, "Produce", 0, 12, 9, None, None,
        HotHandler(decode_produce, lambda on: on.produce.start), Routing.LEADER,
        "0 to 2 answer UNSUPPORTED_VERSION",
    ),
    ServedApi(
        FETCH, "Fetch", 4, 16, 12, None, None,
        HotHandler(decode_fetch, lambda on: on.fetch.run), Routing.LEADER,
        "with fetch sessions",
    ),
    ServedApi(
        2, "ListOffsets", 1, 10, 6, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse,
        lambda on: on.log_offsets.list_offsets, Routing.LEADER,
    ),
    ServedApi(
        3, "Metadata", 0, 13, 9, cluster.MetadataRequest, cluster.MetadataResponse,
        lambda on: on.metadata.metadata, Routing.ANY, "makes missing topics",
    ),
    ServedApi(
        8, "OffsetCommit", 2, 9, 8, groups.OffsetCommitRequest, groups.OffsetCommitResponse,
        lambda on: on.group_offsets.commit, Routing.COORDINATOR, "answered when the offsets are replicated",
    ),
    ServedApi(
        9, "OffsetFetch", 1, 9, 6, groups.OffsetFetchRequest, groups.OffsetFetchResponse,
        lambda on: on.group_offsets.fetch, Routing.COORDINATOR,
    ),
    ServedApi(
        10, "FindCoordinator", 0, 6, 3, cluster.FindCoordinatorRequest, cluster.FindCoordinatorResponse,
        lambda on: on.groups.find_coordinator, Routing.ANY, "of groups and transactional ids",
    ),
    ServedApi(
        11, "JoinGroup", 0, 9, 6, groups.JoinGroupRequest, groups.JoinGroupResponse,
        lambda on: on.groups.join, Routing.COORDINATOR, "waits for the other members",
    ),
    ServedApi(
        12, "Heartbeat", 0, 4, 4, groups.HeartbeatRequest, groups.HeartbeatResponse,
        lambda on: on.groups.heartbeat, Routing.COORDINATOR,
    ),
    ServedApi(
        13, "LeaveGroup", 0, 5, 4, groups.LeaveGroupRequest, groups.LeaveGroupResponse,
        lambda on: on.groups.leave, Routing.COORDINATOR,
    ),
    ServedApi(
        14, "SyncGroup", 0, 5, 4, groups.SyncGroupRequest, groups.SyncGroupResponse,
        lambda on: on.groups.sync, Routing.COORDINATOR, "answered when what the leader hands in is replicated",
    ),
    ServedApi(
        15, "DescribeGroups", 0, 6, 5, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse,
        lambda on: on.group_admin.describe, Routing.COORDINATOR,
    ),
    ServedApi(
        16, "ListGroups", 0, 5, 3, groups.ListGroupsRequest, groups.ListGroupsResponse,
        lambda on: on.group_admin.list_groups, Routing.EACH, "the groups that it coordinates",
    ),
    ServedApi(
        SASL_HANDSHAKE, "SaslHandshake", 0, 1, NEVER_FLEXIBLE,
        security.SaslHandshakeRequest, security.SaslHandshakeResponse,
        lambda on: on.logins.handshake, Routing.EACH, "PLAIN and OAUTHBEARER over TLS or loopback",
    ),
    ServedApi(
        API_VERSIONS, "ApiVersions", 0, 4, 3, cluster.ApiVersionsRequest, cluster.ApiVersionsResponse,
        lambda on: on.metadata.api_versions, Routing.ANY, "a version that is not served is answered in version 0",
    ),
    ServedApi(
        19, "CreateTopics", 2, 7, 5, admin.CreateTopicsRequest, admin.CreateTopicsResponse,
        lambda on: on.topics.create_topics, Routing.ANY, "a node that is named has to be alive",
    ),
    ServedApi(
        20, "DeleteTopics", 1, 6, 4, admin.DeleteTopicsRequest, admin.DeleteTopicsResponse,
        lambda on: on.topics.delete_topics, Routing.ANY,
    ),
    ServedApi(
        21, "DeleteRecords", 0, 2, 2, admin.DeleteRecordsRequest, admin.DeleteRecordsResponse,
        lambda on: on.topics.delete_records, Routing.LEADER, "the partition begins at the offset; no batch is cut",
    ),
    ServedApi(
        22, "InitProducerId", 0, 5, 2, cluster.InitProducerIdRequest, cluster.InitProducerIdResponse,
        lambda on: on.transactions.init_producer_id, Routing.COORDINATOR, "any node without a transactional id",
    ),
    ServedApi(
        23, "OffsetForLeaderEpoch", 2, 4, 4,
        offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse,
        lambda on: on.log_offsets.offset_for_leader_epoch, Routing.LEADER,
    ),
    ServedApi(
        24, "AddPartitionsToTxn", 0, 5, 3,
        transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse,
        lambda on: on.transactions.add_partitions, Routing.COORDINATOR, "all partitions or none",
    ),
    ServedApi(
        25, "AddOffsetsToTxn", 0, 4, 3,
        transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse,
        lambda on: on.transactions.add_offsets, Routing.COORDINATOR,
    ),
    ServedApi(
        26, "EndTxn", 0, 5, 3, transactions.EndTxnRequest, transactions.EndTxnResponse,
        lambda on: on.transactions.end, Routing.COORDINATOR, "answered when it is decided",
    ),
    ServedApi(
        27, "WriteTxnMarkers", 1, 2, 1,
        transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse,
        lambda on: on.markers.write, Routing.LEADER, "aborts only, of the whole transaction",
    ),
    ServedApi(
        28, "TxnOffsetCommit", 0, 5, 3,
        transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse,
        lambda on: on.transaction_offsets.commit, Routing.COORDINATOR,
    ),
    ServedApi(
        29, "DescribeAcls", 1, 3, 2, security.DescribeAclsRequest, security.DescribeAclsResponse,
        lambda on: on.access.describe_acls, Routing.ANY, "entries about tables are not shown",
    ),
    ServedApi(
        30, "CreateAcls", 1, 3, 2, security.CreateAclsRequest, security.CreateAclsResponse,
        lambda on: on.access.create_acls, Routing.ANY,
    ),
    ServedApi(
        31, "DeleteAcls", 1, 3, 2, security.DeleteAclsRequest, security.DeleteAclsResponse,
        lambda on: on.access.delete_acls, Routing.ANY,
    ),
    ServedApi(
        32, "DescribeConfigs", 1, 4, 4, admin.DescribeConfigsRequest, admin.DescribeConfigsResponse,
        lambda on: on.configs.describe, Routing.ANY, "of topics, groups and brokers",
    ),
    ServedApi(
        33, "AlterConfigs", 0, 2, 2, admin.AlterConfigsRequest, admin.AlterConfigsResponse,
        lambda on: on.configs.replace, Routing.ANY, "of topics, groups and brokers",
    ),
    ServedApi(
        35, "DescribeLogDirs", 1, 4, 2, admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse,
        lambda on: on.topics.describe_log_dirs, Routing.EACH, "one directory a node, named `node-N`",
    ),
    ServedApi(
        SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2,
        security.SaslAuthenticateRequest, security.SaslAuthenticateResponse,
        lambda on: on.logins.authenticate, Routing.EACH, "a failure is answered after a second",
    ),
    ServedApi(
        37, "CreatePartitions", 0, 3, 2, admin.CreatePartitionsRequest, admin.CreatePartitionsResponse,
        lambda on: on.topics.create_partitions, Routing.ANY,
    ),
    ServedApi(
        42, "DeleteGroups", 0, 2, 2, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse,
        lambda on: on.group_admin.delete, Routing.COORDINATOR,
    ),
    ServedApi(
        43, "ElectLeaders", 0, 2, 2, admin.ElectLeadersRequest, admin.ElectLeadersResponse,
        lambda on: on.elections.elect_leaders, Routing.ANY, "of the preferred replica only",
    ),
    ServedApi(
        44, "IncrementalAlterConfigs", 0, 1, 1,
        admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse,
        lambda on: on.configs.alter, Routing.ANY, "of topics, groups and brokers",
    ),
    ServedApi(
        45, "AlterPartitionReassignments", 0, 1, 0,
        reassignments.AlterPartitionReassignmentsRequest, reassignments.AlterPartitionReassignmentsResponse,
        lambda on: on.reassignments.alter, Routing.ANY, "the first replica leads as soon as it can",
    ),
    ServedApi(
        46, "ListPartitionReassignments", 0, 0, 0,
        reassignments.ListPartitionReassignmentsRequest, reassignments.ListPartitionReassignmentsResponse,
        lambda on: on.reassignments.list_moves, Routing.ANY, "moves of operators and drains, too",
    ),
    ServedApi(
        47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, groups.OffsetDeleteRequest, groups.OffsetDeleteResponse,
        lambda on: on.group_offsets.delete, Routing.COORDINATOR, "not of topics that members subscribe to",
    ),
    ServedApi(
        48, "DescribeClientQuotas", 0, 1, 1,
        quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse,
        lambda on: on.quotas.describe, Routing.ANY,
    ),
    ServedApi(
        49, "AlterClientQuotas", 0, 1, 1,
        quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse,
        lambda on: on.quotas.alter, Routing.ANY, "an `ip` is an address, no name of a host; a user also has `connections`",
    ),
    ServedApi(
        50, "DescribeUserScramCredentials", 0, 0, 0,
        security.DescribeUserScramCredentialsRequest, security.DescribeUserScramCredentialsResponse,
        lambda on: on.access.describe_users, Routing.ANY,
    ),
    ServedApi(
        51, "AlterUserScramCredentials", 0, 0, 0,
        security.AlterUserScramCredentialsRequest, security.AlterUserScramCredentialsResponse,
        lambda on: on.access.alter_users, Routing.ANY,
    ),
    ServedApi(
        55, "DescribeQuorum", 0, 2, 0, described.DescribeQuorumRequest, described.DescribeQuorumResponse,
        lambda on: on.quorum.describe, Routing.ANY, "of `__cluster`; its leader knows most",
    ),
    ServedApi(
        57, "UpdateFeatures", 0, 2, 0, described.UpdateFeaturesRequest, described.UpdateFeaturesResponse,
        lambda on: on.quorum.update_features, Routing.ANY, "levels come with the nodes' version",
    ),
    ServedApi(
        60, "DescribeCluster", 0, 2, 0, cluster.DescribeClusterRequest, cluster.DescribeClusterResponse,
        lambda on: on.metadata.describe_cluster, Routing.ANY,
    ),
    ServedApi(
        61, "DescribeProducers", 0, 0, 0,
        transactions.DescribeProducersRequest, transactions.DescribeProducersResponse,
        lambda on: on.producers.describe, Routing.LEADER, "the coordinator epoch is the last marker's number",
    ),
    ServedApi(
        65, "DescribeTransactions", 0, 0, 0,
        transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse,
        lambda on: on.transactions.describe, Routing.COORDINATOR,
    ),
    ServedApi(
        66, "ListTransactions", 0, 2, 0,
        transactions.ListTransactionsRequest, transactions.ListTransactionsResponse,
        lambda on: on.transactions.list_transactions, Routing.EACH, "those that it coordinates",
    ),
    ServedApi(
        68, "ConsumerGroupHeartbeat", 0, 1, 0,
        consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse,
        lambda on: on.consumer_groups.heartbeat, Routing.COORDINATOR, "answered when what it changes is replicated",
    ),
    ServedApi(
        69, "ConsumerGroupDescribe", 0, 1, 0,
        consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse,
        lambda on: on.consumer_groups.describe, Routing.COORDINATOR,
    ),
    ServedApi(
        GET_TELEMETRY_SUBSCRIPTIONS, "GetTelemetrySubscriptions", 0, 0, 0,
        telemetry.GetTelemetrySubscriptionsRequest, telemetry.GetTelemetrySubscriptionsResponse,
        lambda on: on.telemetry.subscriptions, Routing.ANY,
        "told of while there is a subscription to metrics of clients",
    ),
    ServedApi(
        PUSH_TELEMETRY, "PushTelemetry", 0, 0, 0, telemetry.PushTelemetryRequest, telemetry.PushTelemetryResponse,
        lambda on: on.telemetry.push, Routing.ANY,
        "told of while there is a subscription; the newest are kept, by the node that gets them",
    ),
    ServedApi(
        74, "ListConfigResources", 0, 1, 0,
        described.ListConfigResourcesRequest, described.ListConfigResourcesResponse,
        lambda on: on.configs.list_resources, Routing.ANY, "topics, brokers, their loggers, and groups with settings",
    ),
    ServedApi(
        75, "DescribeTopicPartitions", 0, 0, 0,
        described.DescribeTopicPartitionsRequest, described.DescribeTopicPartitionsResponse,
        lambda on: on.topic_partitions.describe, Routing.ANY, "2,000 partitions a page",
    ),
    ServedApi(
        76, "ShareGroupHeartbeat", 1, 1, 0,
        share_groups.ShareGroupHeartbeatRequest, share_groups.ShareGroupHeartbeatResponse,
        lambda on: on.share_groups.heartbeat, Routing.COORDINATOR, "answered when what it changes is replicated",
    ),
    ServedApi(
        77, "ShareGroupDescribe", 1, 1, 0,
        share_groups.ShareGroupDescribeRequest, share_groups.ShareGroupDescribeResponse,
        lambda on: on.share_groups.describe, Routing.COORDINATOR,
    ),
    ServedApi(
        SHARE_FETCH, "ShareFetch", 1, 2, 0, None, None,
        HotHandler(decode_share_fetch, lambda on: on.share_fetch.run), Routing.LEADER,
        "`min_bytes` is taken for 1",
    ),
    ServedApi(
        79, "ShareAcknowledge", 1, 2, 0,
        share_groups.ShareAcknowledgeRequest, share_groups.ShareAcknowledgeResponse,
        lambda on: on.share_fetch.acknowledge, Routing.LEADER, "answered when it is replicated",
    ),
    ServedApi(
        90, "DescribeShareGroupOffsets", 0, 1, 0,
        share_groups.DescribeShareGroupOffsetsRequest, share_groups.DescribeShareGroupOffsetsResponse,
        lambda on: on.share_offsets.describe, Routing.COORDINATOR,
    ),
    ServedApi(
        91, "AlterShareGroupOffsets", 0, 0, 0,
        share_groups.AlterShareGroupOffsetsRequest, share_groups.AlterShareGroupOffsetsResponse,
        lambda on: on.share_offsets.alter, Routing.COORDINATOR, "of groups without members",
    ),
    ServedApi(
        92, "DeleteShareGroupOffsets", 0, 0, 0,
        share_groups.DeleteShareGroupOffsetsRequest, share_groups.DeleteShareGroupOffsetsResponse,
        lambda on: on.share_offsets.delete, Routing.COORDINATOR, "of groups without members",
    ),
)  # fmt: skip

APIS: Final[dict[int, ServedApi]] = {api.key: api for api in _APIS}
