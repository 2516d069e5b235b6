"""Which APIs the door offers, in which versions, and their message types.

Ranges follow Kafka 4.x, where its clients were measured to need them; lower ends also serve aiokafka, which speaks no
flexible version outside its administration calls. Produce is advertised from 0 on and served from 3 on: older librdkafka
takes a higher advertised minimum for a broker that cannot store compressed batches (KAFKA-18659).
"""

from typing import Final, NamedTuple

from antiphon.kafka.messages import admin, cluster, groups, offsets
from antiphon.kafka.schema import Message


class Api(NamedTuple):
    """One API. `request` and `response` are None where the codec is hand-written (Produce, Fetch)."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int
    request: type[Message] | None
    response: type[Message] | None

    def is_flexible(self, version: int) -> bool:
        """Does this version use varint lengths and tagged fields?"""
        return version >= self.flexible_since


PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS: Final = 18
NEVER_FLEXIBLE: Final = 1 << 15
PRODUCE_MIN_SERVED: Final = 3

_APIS: Final = (
    Api(PRODUCE, "Produce", 0, 11, 9, None, None),
    Api(FETCH, "Fetch", 4, 16, 12, None, None),
    Api(2, "ListOffsets", 1, 10, 6, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
    Api(3, "Metadata", 0, 13, 9, cluster.MetadataRequest, cluster.MetadataResponse),
    Api(8, "OffsetCommit", 2, 9, 8, groups.OffsetCommitRequest, groups.OffsetCommitResponse),
    Api(9, "OffsetFetch", 1, 9, 6, groups.OffsetFetchRequest, groups.OffsetFetchResponse),
    Api(10, "FindCoordinator", 0, 6, 3, cluster.FindCoordinatorRequest, cluster.FindCoordinatorResponse),
    Api(11, "JoinGroup", 0, 9, 6, groups.JoinGroupRequest, groups.JoinGroupResponse),
    Api(12, "Heartbeat", 0, 4, 4, groups.HeartbeatRequest, groups.HeartbeatResponse),
    Api(13, "LeaveGroup", 0, 5, 4, groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    Api(14, "SyncGroup", 0, 5, 4, groups.SyncGroupRequest, groups.SyncGroupResponse),
    Api(15, "DescribeGroups", 0, 6, 5, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    Api(16, "ListGroups", 0, 5, 3, groups.ListGroupsRequest, groups.ListGroupsResponse),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, cluster.ApiVersionsRequest, cluster.ApiVersionsResponse),
    Api(19, "CreateTopics", 2, 7, 5, admin.CreateTopicsRequest, admin.CreateTopicsResponse),
    Api(20, "DeleteTopics", 1, 6, 4, admin.DeleteTopicsRequest, admin.DeleteTopicsResponse),
    Api(21, "DeleteRecords", 0, 2, 2, admin.DeleteRecordsRequest, admin.DeleteRecordsResponse),
    Api(22, "InitProducerId", 0, 5, 2, cluster.InitProducerIdRequest, cluster.InitProducerIdResponse),
    Api(
        23, "OffsetForLeaderEpoch", 2, 4, 4,
        offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse,
    ),
    Api(32, "DescribeConfigs", 1, 4, 4, admin.DescribeConfigsRequest, admin.DescribeConfigsResponse),
    Api(37, "CreatePartitions", 0, 3, 2, admin.CreatePartitionsRequest, admin.CreatePartitionsResponse),
    Api(42, "DeleteGroups", 0, 2, 2, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    Api(
        44, "IncrementalAlterConfigs", 0, 1, 1,
        admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse,
    ),
    Api(47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, groups.OffsetDeleteRequest, groups.OffsetDeleteResponse),
    Api(60, "DescribeCluster", 0, 2, 0, cluster.DescribeClusterRequest, cluster.DescribeClusterResponse),
)  # fmt: skip

APIS: Final[dict[int, Api]] = {api.key: api for api in _APIS}
