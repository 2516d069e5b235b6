"""Answers of a listener that is to fail: a request's own parts with an error code where a Kafka broker puts it.

Brokers put an error at the top of a response, or beside each thing that was asked for: a topic, a partition, a group. So
an answer is made from its request. A request that asks for nothing has no place for the error then, and gets no answer
from here. Metadata is not among these: it also tells the brokers, so the listener takes a true answer and changes it.
"""

from collections.abc import Callable
from typing import Any, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.api import Api
from antiphon.kafka.fetch_codec import FetchRequest, PartitionFetched, TopicFetched, encode_fetch
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.handlers.metadata import served_versions
from antiphon.kafka.handlers.transactions import alike
from antiphon.kafka.messages import (
    admin,
    cluster,
    consumer_groups,
    described,
    groups,
    offsets,
    quotas,
    security,
    share_groups,
    telemetry,
    transactions,
)
from antiphon.kafka.produce_codec import PartitionProduced, ProduceRequest, encode_produce
from antiphon.kafka.schema import Message
from antiphon.kafka.share_fetch_codec import ShareFetched, encode_share_fetch
from antiphon.records.batch import Buffer

REASON: Final = "a test asked for this error"
SESSION_ERRORS: Final = (code.FETCH_SESSION_ID_NOT_FOUND, 71)  # of a Fetch as a whole
_FIRST_SESSIONS: Final = 7
LOGINS: Final = frozenset(
    {"SaslHandshake", "SaslAuthenticate"}
)  # what goes wrong there is told by the login itself
SHARE_SESSION_ERRORS: Final = (
    code.SHARE_SESSION_NOT_FOUND,
    code.INVALID_SHARE_SESSION_EPOCH,
    code.SHARE_SESSION_LIMIT_REACHED,
)

Answered = Callable[[Any, int, int], Message | None]
"""Of a request, its version and an error code; None where there is no place for the error."""


def failed_produce(header: RequestHeader, request: ProduceRequest, error: int) -> bytearray | None:
    """The response frame; the error stands beside each partition."""
    topics = [
        (name, [PartitionProduced(batch.partition, error, error_message=REASON) for batch in batches])
        for name, batches in request.topics
    ]
    return encode_produce(header, topics, []) if any(batches for _, batches in topics) else None


def failed_fetch(header: RequestHeader, request: FetchRequest, error: int) -> list[Buffer] | None:
    """The response frame. The error stands beside each partition, one of a fetch session at the top."""
    if not any(wanted.partitions for wanted in request.topics):
        return None
    if error in SESSION_ERRORS and header.version >= _FIRST_SESSIONS:
        return encode_fetch(header, error, [], [])
    topics = [
        TopicFetched(
            wanted.name,
            wanted.topic_id,
            [PartitionFetched(partition.partition, error) for partition in wanted.partitions],
        )
        for wanted in request.topics
    ]
    return encode_fetch(header, 0, topics, [], isolation=request.isolation)


def failed_share_fetch(
    header: RequestHeader, request: share_groups.ShareFetchRequest, error: int
) -> list[Buffer] | None:
    """The response frame. The error stands beside each partition that is named, one of a share session at the top."""
    if error in SHARE_SESSION_ERRORS:
        return encode_share_fetch(header, error, REASON)
    found = [
        ShareFetched(topic.topic_id, wanted.partition_index, error, REASON)
        for topic in request.topics
        for wanted in topic.partitions
    ]
    return encode_share_fetch(header, code.NONE, None, found) if found else None


def can_fail(api: Api) -> bool:
    """Is there an answer with an error to its requests?"""
    return api.name in ANSWERED or (api.name not in LOGINS and "error_code" in _fields(api))


def failed(api: Api, request: Message, version: int, error: int) -> Message | None:
    """The response to a request of such an API: as ANSWERED says, or with the error at its top."""
    if (answer := ANSWERED.get(api.name)) is not None:
        return answer(request, version, error)
    if (response := api.response) is None or not can_fail(api):
        raise KeyError(f"{api.name} has no answer with an error")
    reason = {"error_message": REASON} if "error_message" in _fields(api) else {}
    return response(error_code=error, **reason)


def _fields(api: Api) -> tuple[str, ...]:
    return () if api.response is None else api.response.__struct_fields__


def _each(response: Callable[[list[Any]], Message], one: Callable[[Any, int], Any], of: str) -> Answered:
    def answer(request: Any, _: int, error: int) -> Message | None:
        asked = getattr(request, of)
        return response([one(each, error) for each in asked]) if asked else None

    return answer


def _api_versions(_: Any, __: int, error: int) -> Message:
    return served_versions([], 0, error)


def _find_coordinator(request: Any, version: int, error: int) -> Message | None:
    if version < 4:
        return cluster.FindCoordinatorResponse(error_code=error, error_message=REASON)
    found = [
        cluster.FoundCoordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error, error_message=REASON
        )
        for key in request.coordinator_keys
    ]
    return cluster.FindCoordinatorResponse(coordinators=found) if found else None


def _add_partitions(request: Any, version: int, error: int) -> Message | None:
    if version < 4:
        results = alike(request.topics, error)
        return transactions.AddPartitionsToTxnResponse(results_by_topic=results) if results else None
    return transactions.AddPartitionsToTxnResponse(error_code=error)


def _txn_offsets_topic(topic: Any, error: int) -> Any:
    partitions = [
        transactions.TxnOffsetCommitPartitionResult(partition_index=each.partition_index, error_code=error)
        for each in topic.partitions
    ]
    return transactions.TxnOffsetCommitTopicResult(name=topic.name, partitions=partitions)


def _marker(marker: Any, error: int) -> Any:
    topics = [
        transactions.TxnTopicResult(
            name=topic.name,
            results_by_partition=[
                transactions.TxnPartitionResult(partition_index=index, error_code=error)
                for index in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]
    return transactions.WrittenTxnMarker(producer_id=marker.producer_id, topics=topics)


def _producers_topic(topic: Any, error: int) -> Any:
    partitions = [
        transactions.DescribedProducers(partition_index=index, error_code=error, error_message=REASON)
        for index in topic.partition_indexes
    ]
    return transactions.DescribedProducersTopic(name=topic.name, partitions=partitions)


def _join_group(request: Any, version: int, error: int) -> Message:
    name = None if version >= 7 else ""
    return groups.JoinGroupResponse(error_code=error, protocol_name=name, member_id=request.member_id)


def _offset_fetch(request: Any, version: int, error: int) -> Message | None:
    if version >= 8:
        found = [
            groups.FetchedOffsetsGroup(group_id=group.group_id, topics=[], error_code=error)
            for group in request.groups
        ]
        return groups.OffsetFetchResponse(groups=found) if found else None
    if version >= 2:
        return groups.OffsetFetchResponse(error_code=error)
    topics = [
        groups.FetchedOffsetsTopic(
            name=topic.name,
            partitions=[
                groups.FetchedOffset(partition_index=index, error_code=error)
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or []
    ]
    return groups.OffsetFetchResponse(topics=topics) if topics else None


def _offset_commit_topic(topic: Any, error: int) -> Any:
    return groups.CommittedTopic(
        name=topic.name,
        partitions=[
            groups.CommittedPartition(partition_index=one.partition_index, error_code=error)
            for one in topic.partitions
        ],
    )


def _list_offsets_topic(topic: Any, error: int) -> Any:
    return offsets.ListedOffsetsTopic(
        name=topic.name,
        partitions=[
            offsets.ListedOffset(partition_index=one.partition_index, error_code=error)
            for one in topic.partitions
        ],
    )


def _epoch_topic(topic: Any, error: int) -> Any:
    return offsets.EpochEndTopic(
        topic=topic.topic,
        partitions=[
            offsets.EpochEnd(error_code=error, partition=one.partition, end_offset=-1)
            for one in topic.partitions
        ],
    )


def _delete_records_topic(topic: Any, error: int) -> Any:
    return admin.DeletedRecordsTopic(
        name=topic.name,
        partitions=[
            admin.DeletedRecords(partition_index=one.partition_index, error_code=error)
            for one in topic.partitions
        ],
    )


def _delete_topics(request: Any, version: int, error: int) -> Message | None:
    if version >= 6:
        done = [
            admin.DeletedTopic(name=one.name, topic_id=one.topic_id, error_code=error, error_message=REASON)
            for one in request.topics
        ]
    else:
        done = [
            admin.DeletedTopic(name=name, error_code=error, error_message=REASON)
            for name in request.topic_names
        ]
    return admin.DeleteTopicsResponse(responses=done) if done else None


def _elect_leaders(request: Any, version: int, error: int) -> Message | None:
    results = [
        admin.ElectedTopic(
            topic=topic.topic,
            partition_result=[
                admin.ElectedPartition(partition_id=index, error_code=error, error_message=REASON)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or []
    ]
    if version < 1:
        return admin.ElectLeadersResponse(replica_election_results=results) if results else None
    return admin.ElectLeadersResponse(error_code=error, replica_election_results=results)


def _describe_log_dirs(_: Any, version: int, error: int) -> Message | None:
    """Before version 3 only a directory has an error, and which there are is not the client's to say."""
    return admin.DescribeLogDirsResponse(error_code=error, results=[]) if version >= 3 else None


def _alter_users(request: Any, _: int, error: int) -> Message | None:
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    results = [security.AlteredUser(user=name, error_code=error, error_message=REASON) for name in names]
    return security.AlterUserScramCredentialsResponse(results=results) if results else None


def _telemetry(request: Any, _: int, error: int) -> Message:
    return telemetry.GetTelemetrySubscriptionsResponse(
        error_code=error,
        client_instance_id=request.client_instance_id,
        subscription_id=0,
        push_interval_ms=0,
        telemetry_max_bytes=0,
    )


def _share_acknowledged_topic(topic: Any, error: int) -> Any:
    return share_groups.ShareAcknowledgedTopic(
        topic_id=topic.topic_id,
        partitions=[
            share_groups.ShareAcknowledgedPartition(
                partition_index=each.partition_index,
                error_code=error,
                error_message=REASON,
                current_leader=share_groups.LeaderIdAndEpoch(),
            )
            for each in topic.partitions
        ],
    )


def _resource(kind: type[Message]) -> Callable[[Any, int], Any]:
    def one(asked: Any, error: int) -> Message:
        return kind(
            error_code=error,
            error_message=REASON,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )

    return one


ANSWERED: Final[dict[str, Answered]] = {
    "ListOffsets": _each(
        lambda all_: offsets.ListOffsetsResponse(topics=all_), _list_offsets_topic, "topics"
    ),
    "OffsetCommit": _each(
        lambda all_: groups.OffsetCommitResponse(topics=all_), _offset_commit_topic, "topics"
    ),
    "OffsetFetch": _offset_fetch,
    "FindCoordinator": _find_coordinator,
    "JoinGroup": _join_group,
    "DescribeGroups": _each(
        lambda all_: groups.DescribeGroupsResponse(groups=all_),
        lambda group, error: groups.DescribedGroup(group_id=group, error_code=error, error_message=REASON),
        "groups",
    ),
    "ListGroups": lambda _, __, error: groups.ListGroupsResponse(error_code=error, groups=[]),
    "ConsumerGroupDescribe": _each(
        lambda all_: consumer_groups.ConsumerGroupDescribeResponse(groups=all_),
        lambda group, error: consumer_groups.DescribedConsumerGroup(
            group_id=group, error_code=error, error_message=REASON
        ),
        "group_ids",
    ),
    "ShareGroupDescribe": _each(
        lambda all_: share_groups.ShareGroupDescribeResponse(groups=all_),
        lambda group, error: share_groups.DescribedShareGroup(
            group_id=group, error_code=error, error_message=REASON
        ),
        "group_ids",
    ),
    "ShareAcknowledge": _each(
        lambda all_: share_groups.ShareAcknowledgeResponse(responses=all_),
        _share_acknowledged_topic,
        "topics",
    ),
    "DescribeShareGroupOffsets": _each(
        lambda all_: share_groups.DescribeShareGroupOffsetsResponse(groups=all_),
        lambda group, error: share_groups.ShareOffsetsGroup(
            group_id=group.group_id, error_code=error, error_message=REASON
        ),
        "groups",
    ),
    "ApiVersions": _api_versions,
    "CreateTopics": _each(
        lambda all_: admin.CreateTopicsResponse(topics=all_),
        lambda topic, error: admin.CreatedTopic(name=topic.name, error_code=error, error_message=REASON),
        "topics",
    ),
    "DeleteTopics": _delete_topics,
    "DeleteRecords": _each(
        lambda all_: admin.DeleteRecordsResponse(topics=all_), _delete_records_topic, "topics"
    ),
    "OffsetForLeaderEpoch": _each(
        lambda all_: offsets.OffsetForLeaderEpochResponse(topics=all_), _epoch_topic, "topics"
    ),
    "CreateAcls": _each(
        lambda all_: security.CreateAclsResponse(results=all_),
        lambda _, error: security.AclCreationResult(error_code=error, error_message=REASON),
        "creations",
    ),
    "DeleteAcls": _each(
        lambda all_: security.DeleteAclsResponse(filter_results=all_),
        lambda _, error: security.DeleteAclsFilterResult(error_code=error, error_message=REASON),
        "filters",
    ),
    "DescribeConfigs": _each(
        lambda all_: admin.DescribeConfigsResponse(results=all_),
        _resource(admin.DescribedResource),
        "resources",
    ),
    "DescribeLogDirs": _describe_log_dirs,
    "CreatePartitions": _each(
        lambda all_: admin.CreatePartitionsResponse(results=all_),
        lambda topic, error: admin.GrownTopic(name=topic.name, error_code=error, error_message=REASON),
        "topics",
    ),
    "DeleteGroups": _each(
        lambda all_: groups.DeleteGroupsResponse(results=all_),
        lambda group, error: groups.DeletedGroup(group_id=group, error_code=error),
        "groups_names",
    ),
    "ElectLeaders": _elect_leaders,
    "IncrementalAlterConfigs": _each(
        lambda all_: admin.IncrementalAlterConfigsResponse(responses=all_),
        _resource(admin.AlteredResource),
        "resources",
    ),
    "AlterConfigs": _each(
        lambda all_: admin.AlterConfigsResponse(responses=all_),
        _resource(admin.AlteredResource),
        "resources",
    ),
    "DescribeTopicPartitions": _each(
        lambda all_: described.DescribeTopicPartitionsResponse(topics=all_),
        lambda topic, error: described.DescribedTopic(name=topic.name, error_code=error),
        "topics",
    ),
    "GetTelemetrySubscriptions": _telemetry,
    "AlterClientQuotas": _each(
        lambda all_: quotas.AlterClientQuotasResponse(entries=all_),
        lambda one, error: quotas.AlteredResult(error_code=error, error_message=REASON, entity=one.entity),
        "entries",
    ),
    "AlterUserScramCredentials": _alter_users,
    "AddPartitionsToTxn": _add_partitions,
    "WriteTxnMarkers": _each(
        lambda all_: transactions.WriteTxnMarkersResponse(markers=all_), _marker, "markers"
    ),
    "TxnOffsetCommit": _each(
        lambda all_: transactions.TxnOffsetCommitResponse(topics=all_), _txn_offsets_topic, "topics"
    ),
    "DescribeProducers": _each(
        lambda all_: transactions.DescribeProducersResponse(topics=all_), _producers_topic, "topics"
    ),
    "DescribeTransactions": _each(
        lambda all_: transactions.DescribeTransactionsResponse(transaction_states=all_),
        lambda name, error: transactions.DescribedTransaction(error_code=error, transactional_id=name),
        "transactional_ids",
    ),
}
