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
from types import ModuleType
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


def _api(
    key: int,
    name: str,
    min_version: int,
    max_version: int,
    flexible_since: int,
    messages: ModuleType,
    handler: Callable[[Handlers], Handler],
    routing: Routing,
    notes: str = "",
) -> ServedApi:
    """A row whose messages are called as it is, in a module of `kafka/messages`."""
    request, response = (getattr(messages, f"{name}{part}") for part in ("Request", "Response"))
    return ServedApi(
        key, name, min_version, max_version, flexible_since, request, response, handler, routing, notes
    )


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
    _api(2, "ListOffsets", 1, 10, 6, offsets, lambda on: on.log_offsets.list_offsets, Routing.LEADER),
    _api(3, "Metadata", 0, 13, 9, cluster, lambda on: on.metadata.metadata, Routing.ANY, "makes missing topics"),
    _api(
        8, "OffsetCommit", 2, 9, 8, groups,
        lambda on: on.group_offsets.commit, Routing.COORDINATOR, "answered when the offsets are replicated",
    ),
    _api(9, "OffsetFetch", 1, 9, 6, groups, lambda on: on.group_offsets.fetch, Routing.COORDINATOR),
    _api(
        10, "FindCoordinator", 0, 6, 3, cluster,
        lambda on: on.groups.find_coordinator, Routing.ANY, "of groups and transactional ids",
    ),
    _api(
        11, "JoinGroup", 0, 9, 6, groups,
        lambda on: on.groups.join, Routing.COORDINATOR, "waits for the other members",
    ),
    _api(12, "Heartbeat", 0, 4, 4, groups, lambda on: on.groups.heartbeat, Routing.COORDINATOR),
    _api(13, "LeaveGroup", 0, 5, 4, groups, lambda on: on.groups.leave, Routing.COORDINATOR),
    _api(
        14, "SyncGroup", 0, 5, 4, groups,
        lambda on: on.groups.sync, Routing.COORDINATOR, "answered when what the leader hands in is replicated",
    ),
    _api(15, "DescribeGroups", 0, 6, 5, groups, lambda on: on.group_admin.describe, Routing.COORDINATOR),
    _api(
        16, "ListGroups", 0, 5, 3, groups,
        lambda on: on.group_admin.list_groups, Routing.EACH, "the groups that it coordinates",
    ),
    _api(
        SASL_HANDSHAKE, "SaslHandshake", 0, 1, NEVER_FLEXIBLE, security,
        lambda on: on.logins.handshake, Routing.EACH, "PLAIN and OAUTHBEARER over TLS or loopback",
    ),
    _api(
        API_VERSIONS, "ApiVersions", 0, 4, 3, cluster,
        lambda on: on.metadata.api_versions, Routing.ANY, "a version that is not served is answered in version 0",
    ),
    _api(
        19, "CreateTopics", 2, 7, 5, admin,
        lambda on: on.topics.create_topics, Routing.ANY, "a node that is named has to be alive",
    ),
    _api(20, "DeleteTopics", 1, 6, 4, admin, lambda on: on.topics.delete_topics, Routing.ANY),
    _api(
        21, "DeleteRecords", 0, 2, 2, admin,
        lambda on: on.topics.delete_records, Routing.LEADER, "the partition begins at the offset; no batch is cut",
    ),
    _api(
        22, "InitProducerId", 0, 5, 2, cluster,
        lambda on: on.transactions.init_producer_id, Routing.COORDINATOR, "any node without a transactional id",
    ),
    _api(
        23, "OffsetForLeaderEpoch", 2, 4, 4, offsets,
        lambda on: on.log_offsets.offset_for_leader_epoch, Routing.LEADER,
    ),
    _api(
        24, "AddPartitionsToTxn", 0, 5, 3, transactions,
        lambda on: on.transactions.add_partitions, Routing.COORDINATOR, "all partitions or none",
    ),
    _api(25, "AddOffsetsToTxn", 0, 4, 3, transactions, lambda on: on.transactions.add_offsets, Routing.COORDINATOR),
    _api(
        26, "EndTxn", 0, 5, 3, transactions,
        lambda on: on.transactions.end, Routing.COORDINATOR, "answered when it is decided",
    ),
    _api(
        27, "WriteTxnMarkers", 1, 2, 1, transactions,
        lambda on: on.markers.write, Routing.LEADER, "aborts only, of the whole transaction",
    ),
    _api(28, "TxnOffsetCommit", 0, 5, 3, transactions, lambda on: on.transaction_offsets.commit, Routing.COORDINATOR),
    _api(
        29, "DescribeAcls", 1, 3, 2, security,
        lambda on: on.access.describe_acls, Routing.ANY, "entries about tables are not shown",
    ),
    _api(30, "CreateAcls", 1, 3, 2, security, lambda on: on.access.create_acls, Routing.ANY),
    _api(31, "DeleteAcls", 1, 3, 2, security, lambda on: on.access.delete_acls, Routing.ANY),
    _api(
        32, "DescribeConfigs", 1, 4, 4, admin,
        lambda on: on.configs.describe, Routing.ANY, "of topics, groups and brokers",
    ),
    _api(
        33, "AlterConfigs", 0, 2, 2, admin,
        lambda on: on.configs.replace, Routing.ANY, "of topics, groups and brokers",
    ),
    _api(
        35, "DescribeLogDirs", 1, 4, 2, admin,
        lambda on: on.topics.describe_log_dirs, Routing.EACH, "one directory a node, named `node-N`",
    ),
    _api(
        SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, security,
        lambda on: on.logins.authenticate, Routing.EACH, "a failure is answered after a second",
    ),
    _api(37, "CreatePartitions", 0, 3, 2, admin, lambda on: on.topics.create_partitions, Routing.ANY),
    _api(42, "DeleteGroups", 0, 2, 2, groups, lambda on: on.group_admin.delete, Routing.COORDINATOR),
    _api(
        43, "ElectLeaders", 0, 2, 2, admin,
        lambda on: on.elections.elect_leaders, Routing.ANY, "of the preferred replica only",
    ),
    _api(
        44, "IncrementalAlterConfigs", 0, 1, 1, admin,
        lambda on: on.configs.alter, Routing.ANY, "of topics, groups and brokers",
    ),
    _api(
        45, "AlterPartitionReassignments", 0, 1, 0, reassignments,
        lambda on: on.reassignments.alter, Routing.ANY, "the first replica leads as soon as it can",
    ),
    _api(
        46, "ListPartitionReassignments", 0, 0, 0, reassignments,
        lambda on: on.reassignments.list_moves, Routing.ANY, "moves of operators and drains, too",
    ),
    _api(
        47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, groups,
        lambda on: on.group_offsets.delete, Routing.COORDINATOR, "not of topics that members subscribe to",
    ),
    _api(48, "DescribeClientQuotas", 0, 1, 1, quotas, lambda on: on.quotas.describe, Routing.ANY),
    _api(
        49, "AlterClientQuotas", 0, 1, 1, quotas,
        lambda on: on.quotas.alter, Routing.ANY, "an `ip` is an address, no name of a host; a user also has `connections`",
    ),
    _api(50, "DescribeUserScramCredentials", 0, 0, 0, security, lambda on: on.access.describe_users, Routing.ANY),
    _api(51, "AlterUserScramCredentials", 0, 0, 0, security, lambda on: on.access.alter_users, Routing.ANY),
    _api(
        55, "DescribeQuorum", 0, 2, 0, described,
        lambda on: on.quorum.describe, Routing.ANY, "of `__cluster`; its leader knows most",
    ),
    _api(
        57, "UpdateFeatures", 0, 2, 0, described,
        lambda on: on.quorum.update_features, Routing.ANY, "levels come with the nodes' version",
    ),
    _api(60, "DescribeCluster", 0, 2, 0, cluster, lambda on: on.metadata.describe_cluster, Routing.ANY),
    _api(
        61, "DescribeProducers", 0, 0, 0, transactions,
        lambda on: on.producers.describe, Routing.LEADER, "the coordinator epoch is the last marker's number",
    ),
    _api(65, "DescribeTransactions", 0, 0, 0, transactions, lambda on: on.transactions.describe, Routing.COORDINATOR),
    _api(
        66, "ListTransactions", 0, 2, 0, transactions,
        lambda on: on.transactions.list_transactions, Routing.EACH, "those that it coordinates",
    ),
    _api(
        68, "ConsumerGroupHeartbeat", 0, 1, 0, consumer_groups,
        lambda on: on.consumer_groups.heartbeat, Routing.COORDINATOR, "answered when what it changes is replicated",
    ),
    _api(
        69, "ConsumerGroupDescribe", 0, 1, 0, consumer_groups,
        lambda on: on.consumer_groups.describe, Routing.COORDINATOR,
    ),
    _api(
        GET_TELEMETRY_SUBSCRIPTIONS, "GetTelemetrySubscriptions", 0, 0, 0, telemetry,
        lambda on: on.telemetry.subscriptions, Routing.ANY, "told of while there is a subscription to metrics of clients",
    ),
    _api(
        PUSH_TELEMETRY, "PushTelemetry", 0, 0, 0, telemetry,
        lambda on: on.telemetry.push, Routing.ANY,
        "told of while there is a subscription; the newest are kept, by the node that gets them",
    ),
    _api(
        74, "ListConfigResources", 0, 1, 0, described,
        lambda on: on.configs.list_resources, Routing.ANY, "topics, brokers, their loggers, and groups with settings",
    ),
    _api(
        75, "DescribeTopicPartitions", 0, 0, 0, described,
        lambda on: on.topic_partitions.describe, Routing.ANY, "2,000 partitions a page",
    ),
    _api(
        76, "ShareGroupHeartbeat", 1, 1, 0, share_groups,
        lambda on: on.share_groups.heartbeat, Routing.COORDINATOR, "answered when what it changes is replicated",
    ),
    _api(77, "ShareGroupDescribe", 1, 1, 0, share_groups, lambda on: on.share_groups.describe, Routing.COORDINATOR),
    ServedApi(
        SHARE_FETCH, "ShareFetch", 1, 2, 0, None, None,
        HotHandler(decode_share_fetch, lambda on: on.share_fetch.run), Routing.LEADER,
        "`min_bytes` is taken for 1",
    ),
    _api(
        79, "ShareAcknowledge", 1, 2, 0, share_groups,
        lambda on: on.share_fetch.acknowledge, Routing.LEADER, "answered when it is replicated",
    ),
    _api(
        90, "DescribeShareGroupOffsets", 0, 1, 0, share_groups,
        lambda on: on.share_offsets.describe, Routing.COORDINATOR,
    ),
    _api(
        91, "AlterShareGroupOffsets", 0, 0, 0, share_groups,
        lambda on: on.share_offsets.alter, Routing.COORDINATOR, "of groups without members",
    ),
    _api(
        92, "DeleteShareGroupOffsets", 0, 0, 0, share_groups,
        lambda on: on.share_offsets.delete, Routing.COORDINATOR, "of groups without members",
    ),
)  # fmt: skip

APIS: Final[dict[int, ServedApi]] = {api.key: api for api in _APIS}
