"""Each row of the table of APIs is true: its handler takes and gives the row's messages, and wants the node that it says."""

import inspect
import typing
from typing import Any

import pytest

from antiphon.errors import ProtocolViolationError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.apis import APIS, Handlers, HotHandler, Routing, ServedApi
from antiphon.kafka.features import CONDITIONAL_APPEND, SHARE, TRANSACTIONS
from antiphon.kafka.framing import read_header
from antiphon.kafka.handlers.metadata import OF_METRICS, served_versions
from antiphon.kafka.messages import (
    admin,
    cluster,
    consumer_groups,
    groups,
    offsets,
    share_groups,
    transactions,
)
from antiphon.kafka.messages.cluster import ApiVersionsRequest
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.schema import Message
from antiphon.model.client_metrics import AlterSubscription
from antiphon.model.metadata import ClusterMeta, Kind, NodeMeta
from antiphon.node.node_gateway import NodeGateway
from tests.kafka.oracles import leaves
from tests.kafka.raw import batch, fetch, listening, produce
from tests.node.in_process import in_virtual_time

PLAIN = [pytest.param(api, id=api.name) for api in APIS.values() if not isinstance(api.handler, HotHandler)]


@pytest.mark.parametrize("api", PLAIN)
def test_a_row_has_the_messages_of_its_handler(api: ServedApi) -> None:
    assert not isinstance(api.handler, HotHandler)
    classes: Any = typing.get_type_hints(Handlers)  # a method is picked from them as from the objects
    method = api.handler(Handlers(**classes))
    assert inspect.iscoroutinefunction(method)
    request, context, response = typing.get_type_hints(method).values()
    assert request is api.request
    assert context is RequestContext
    assert response is api.response or (response is bytes and api.name in {"Metadata", "DescribeProducers"})


def test_keys_rise_and_versions_are_ranges() -> None:
    assert list(APIS) == sorted(APIS)
    assert all(0 <= api.min_version <= api.max_version for api in APIS.values())
    assert len({api.name for api in APIS.values()}) == len(APIS)


def test_what_has_no_row_is_refused() -> None:
    for key in set(range(100)) - set(APIS):
        with pytest.raises(ProtocolViolationError, match=f"API key {key} is not served"):
            read_header(memoryview(key.to_bytes(2, "big") + bytes(10)), APIS)


@in_virtual_time
async def test_api_versions_tells_of_every_row_and_of_metrics_while_somebody_wants_them() -> None:
    async with listening() as (served, connect):
        client = await connect()
        changes: tuple[tuple[dict[str, str | None], bool], ...] = (
            ({}, False),
            ({"metrics": "*"}, True),
            ({"metrics": None}, False),
        )
        for config, of_metrics in changes:
            if config:
                await served.first.gateway.administer(AlterSubscription("all", config))
            answer = await client.ask(ApiVersionsRequest(), 18, 3)
            told = [(found.api_key, found.min_version, found.max_version) for found in answer.api_keys]
            assert told == [
                (api.key, api.min_version, api.max_version)
                for api in APIS.values()
                if of_metrics or api.key not in OF_METRICS
            ]


@in_virtual_time
async def test_a_node_that_knows_no_metadata_yet_tells_of_apis_for_metrics() -> None:
    """It cannot say that nobody wants them, and its clients come back at once, and stay."""
    async with listening() as (_, connect):
        client = await connect()
        with pytest.MonkeyPatch.context() as started:
            started.setattr(NodeGateway, "metadata_version", -1)
            answer = await client.ask(ApiVersionsRequest(), 18, 3)
        assert {found.api_key for found in answer.api_keys} > OF_METRICS


@in_virtual_time
async def test_api_versions_tells_of_features_whose_levels_the_client_can_read() -> None:
    async with listening() as (_, connect):
        for version in (3, 4):
            told = await (await connect()).ask(ApiVersionsRequest(), 18, version)
            supported = {one.name: (one.min_version, one.max_version) for one in told.supported_features}
            assert supported.pop(TRANSACTIONS, None) == ((0, 2) if version == 4 else None), "level 0"
            assert supported.pop(SHARE, None) == ((0, 1) if version == 4 else None), "level 0"
            assert supported == {CONDITIONAL_APPEND: (1, 1)}
            finalized = [(one.name, one.max_version_level) for one in told.finalized_features]
            levels = [(SHARE, 1), (TRANSACTIONS, 2)]
            assert (told.finalized_features_epoch, finalized) == (len(levels), levels)


@pytest.mark.parametrize("versions", [(), (4, 3), (4, 4), (5, 6), (7, 7)])
def test_a_level_is_told_of_once_every_node_has_it(versions: tuple[int, ...]) -> None:
    nodes = tuple(NodeMeta(node, f"n-{node}:7400", reads=reads) for node, reads in enumerate(versions))
    meta = ClusterMeta("c", 1, 0, nodes, ())
    told = served_versions(APIS.values(), 4, meta=meta)
    assert {one.name: one.max_version for one in told.supported_features}[TRANSACTIONS] == 2
    levels: dict[tuple[int, ...], list[str]] = {
        (4, 4): [TRANSACTIONS],
        (5, 6): [TRANSACTIONS],
        (7, 7): [SHARE, TRANSACTIONS],
    }
    known = levels.get(versions, [])
    assert [one.name for one in told.finalized_features] == known
    assert told.finalized_features_epoch == len(known), "clients keep what has the highest epoch"


# For each API of which the table says that one node has to be asked: a request that this node would carry out.
TO_LEADER: dict[str, Message] = {
    "ListOffsets": offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            offsets.ListOffsetsTopic(
                name="t", partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ],
    ),
    "DeleteRecords": admin.DeleteRecordsRequest(
        timeout_ms=1000,
        topics=[
            admin.DeleteRecordsTopic(
                name="t", partitions=[admin.DeleteRecordsPartition(partition_index=0, offset=-1)]
            )
        ],
    ),
    "OffsetForLeaderEpoch": offsets.OffsetForLeaderEpochRequest(
        topics=[
            offsets.EpochTopic(topic="t", partitions=[offsets.EpochPartition(partition=0, leader_epoch=1)])
        ]
    ),
    "DescribeProducers": transactions.DescribeProducersRequest(
        topics=[PartitionsOfTopic(name="t", partitions=[0])]
    ),
    "WriteTxnMarkers": transactions.WriteTxnMarkersRequest(
        markers=[
            transactions.TxnMarker(
                producer_id=1,
                producer_epoch=0,
                committed=False,
                topics=[PartitionsOfTopic(name="t", partitions=[0])],
                coordinator_epoch=0,
            )
        ]
    ),
}
TO_COORDINATOR: dict[str, Message] = {
    "ShareGroupHeartbeat": share_groups.ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"]
    ),
    "ShareGroupDescribe": share_groups.ShareGroupDescribeRequest(group_ids=["g"]),
    "DescribeShareGroupOffsets": share_groups.DescribeShareGroupOffsetsRequest(
        groups=[share_groups.ShareOffsetsGroupAsked(group_id="g", topics=None)]
    ),
    "AlterShareGroupOffsets": share_groups.AlterShareGroupOffsetsRequest(group_id="g", topics=[]),
    "DeleteShareGroupOffsets": share_groups.DeleteShareGroupOffsetsRequest(group_id="g", topics=[]),
    "OffsetCommit": groups.OffsetCommitRequest(
        group_id="g",
        topics=[
            groups.CommitTopic(
                name="t",
                partitions=[
                    groups.CommitPartition(partition_index=0, committed_offset=0, committed_metadata=None)
                ],
            )
        ],
    ),
    "OffsetFetch": groups.OffsetFetchRequest(
        groups=[groups.FetchOffsetsGroup(group_id="g", topics=None)],
    ),
    "JoinGroup": groups.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6000,
        member_id="",
        protocol_type="consumer",
        protocols=[groups.JoinProtocol(name="range", metadata=b"")],
    ),
    "Heartbeat": groups.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
    "LeaveGroup": groups.LeaveGroupRequest(group_id="g", members=[groups.LeavingMember(member_id="m")]),
    "SyncGroup": groups.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[]),
    "DescribeGroups": groups.DescribeGroupsRequest(groups=["g"]),
    "ConsumerGroupHeartbeat": consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    ),
    "ConsumerGroupDescribe": consumer_groups.ConsumerGroupDescribeRequest(group_ids=["g"]),
    "DeleteGroups": groups.DeleteGroupsRequest(groups_names=["g"]),
    "OffsetDelete": groups.OffsetDeleteRequest(
        group_id="g",
        topics=[PartitionsOfTopic(name="t", partitions=[0])],
    ),
    "InitProducerId": cluster.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000),
    "AddPartitionsToTxn": transactions.AddPartitionsToTxnRequest(
        transactions=[
            transactions.TxnToJoin(
                transactional_id="x",
                producer_id=1,
                producer_epoch=0,
                topics=[PartitionsOfTopic(name="t", partitions=[0])],
            )
        ]
    ),
    "AddOffsetsToTxn": transactions.AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=1, producer_epoch=0, group_id="g"
    ),
    "EndTxn": transactions.EndTxnRequest(
        transactional_id="x", producer_id=1, producer_epoch=0, committed=True
    ),
    "TxnOffsetCommit": transactions.TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[
            transactions.TxnOffsetCommitTopic(
                name="t",
                partitions=[
                    transactions.TxnOffsetCommitPartition(
                        partition_index=0, committed_offset=0, committed_metadata=None
                    )
                ],
            )
        ],
    ),
    "DescribeTransactions": transactions.DescribeTransactionsRequest(transactional_ids=["x"]),
}


def routed(routing: Routing) -> set[str]:
    return {
        api.name
        for api in APIS.values()
        if api.routing is routing and not isinstance(api.handler, HotHandler)
    }


@in_virtual_time
async def test_another_node_than_the_one_that_the_table_names_says_so() -> None:
    async with listening(2) as (served, connect):
        await served.create("t")
        for table in ("__groups", "__transactions"):
            await served.create(table, kind=Kind.TABLE, internal=True)
        for name in ("t", "__groups", "__transactions"):
            await served.lead(name, 0)
        client = await connect(1)
        assert (await produce(client, "t", batch(b"x")))[0].error_code == code.NOT_LEADER_OR_FOLLOWER
        assert (await fetch(client, "t", 0)).error_code == code.NOT_LEADER_OR_FOLLOWER
        for requests, error in (
            (TO_LEADER, code.NOT_LEADER_OR_FOLLOWER),
            (TO_COORDINATOR, code.NOT_COORDINATOR),
        ):
            for name, request in requests.items():
                api = next(api for api in APIS.values() if api.name == name)
                answer = await client.ask(request, api.key, api.max_version)
                assert error in list(leaves(answer)), name


def test_every_api_that_wants_one_node_is_shown_to() -> None:
    with_session = {"ShareAcknowledge"}  # asks who has opened one here: tests.kafka.test_share_fetch
    assert set(TO_LEADER) == routed(Routing.LEADER) - with_session
    assert set(TO_COORDINATOR) == routed(Routing.COORDINATOR)
