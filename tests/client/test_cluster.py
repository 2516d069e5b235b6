"""Connecting, metadata, administration and the end of a client."""

import asyncio

import pytest

import antiphon
from antiphon.client.aio import AsyncClient, connect
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    NotReadyError,
    TopicExistsError,
    UnavailableError,
    UnknownShardError,
    UnknownTopicError,
    UnreachableError,
)
from antiphon.model.requests import (
    CreateTopic,
    DeleteTopic,
    GetMetadata,
    Hello,
    OpStatus,
    Put,
    TableWrite,
)
from antiphon.records.builder import build_batch
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, FailingNodes
from tests.node.in_process import in_virtual_time

NOBODY = "nowhere:7400"  # no node listens there


@pytest.mark.parametrize(
    "servers", ["", "nowhere", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", ":7400", "a:1,b", ["a:1", "b"]]
)
def test_addresses_that_are_none(servers: str | list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="address"):
        connect(servers)


@in_virtual_time
async def test_default_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_SERVERS", NOBODY)
    with pytest.raises(UnreachableError, match=NOBODY):
        await connect(connect_timeout_s=0.05)


@in_virtual_time
async def test_nobody_there() -> None:
    with pytest.raises(UnreachableError, match="is the cluster up"):
        await connect(NOBODY, connect_timeout_s=0.1)


@in_virtual_time
async def test_somebody_else_there() -> None:
    """A server that speaks another protocol is named, not waited for."""

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    await asyncio.start_server(http, "test", 80)
    with pytest.raises(AntiphonError, match="frame of"):
        await connect("test:80", connect_timeout_s=1)


@in_virtual_time
async def test_one_address_is_enough_and_dead_ones_are_passed_over() -> None:
    async with FailingNodes.cluster() as cluster:
        db = await connect(f"{NOBODY}, {cluster.nodes.members[2].native}")
        table = await db.create_table("t", shards=3)
        for index in range(3):
            await cluster.move_leader("t", index, index)
        await asyncio.gather(*(table.put(f"{i}", b"") for i in range(50)))
        assert all(cluster.client_exchanges(node_id) for node_id in range(3))
        await db.close()


@in_a_cluster
async def test_node_of_another_cluster_is_refused(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=3)
    cluster.fail(Hello, ForeignDirectoryError("node 1 of cluster other"))
    with pytest.raises(ForeignDirectoryError):
        await asyncio.gather(*(table.put(f"{i}", b"") for i in range(50)))


@in_a_cluster
async def test_administration(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("t", shards=2, config={"retention.ms": "5"})
    with pytest.raises(TopicExistsError):
        await db.create_topic("t")
    meta = await db.metadata()
    assert [topic.name for topic in meta.topics] == ["default", "t"]
    assert (await db.node_status(1)).node.node_id == 1
    with pytest.raises(UnavailableError, match="node 9"):
        await db.node_status(9)
    await db.elect_leader("t", 1, node=2)
    assert cluster.topic("t").shards[1].leader == cluster.leader("t", 1) == 2
    with pytest.raises(UnknownShardError):
        await db.elect_leader("t", 5)
    with pytest.raises(UnknownTopicError):
        await db.elect_leader("none", 0)
    await db.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        await db.delete_topic("t")


@in_a_cluster
async def test_administration_is_repeated_without_harm(cluster: FailingNodes, db: AsyncClient) -> None:
    cluster.fail(CreateTopic, NotReadyError("no coordinator"), DROP_BEFORE, DROP_AFTER)
    topic = await db.create_topic("t")
    assert (await topic.append(b"")).offset == 0
    cluster.fail(DeleteTopic, DROP_AFTER)
    await db.delete_topic("t")


@in_a_cluster
async def test_metadata_from_any_node_that_answers(cluster: FailingNodes, db: AsyncClient) -> None:
    cluster.fail(GetMetadata, DROP_BEFORE, DROP_AFTER)
    assert (await db.metadata()).cluster_id == "test"


@in_a_cluster
async def test_single_requests(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("t")
    await db.create_table("k")
    topic_shard, table_shard = (cluster.topic(name).shards[0].shard_id for name in ("t", "k"))
    producer_id = await db.new_producer_id()
    batch = build_batch([(b"k", b"v", (), 1)], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    first = await db.append_raw(topic_shard, batch)
    again = await db.append_raw(topic_shard, batch)
    assert (first.base_offset, first.duplicate, again.base_offset, again.duplicate) == (0, False, 0, True)
    fetched, payload = await db.fetch(topic_shard, 0)
    assert (fetched.high_watermark, len(payload)) == (1, len(batch))
    assert (await db.list_offset(topic_shard, -1)).offset == 1
    written = await db.write_raw(TableWrite(table_shard, (Put(b"k", b"v"),)))
    assert (written.results[0].status, written.offset) == (OpStatus.OK, 0)


@in_virtual_time
async def test_handle_that_is_made_outside_of_a_context() -> None:
    async with FailingNodes.cluster() as cluster:
        async with AsyncClient(cluster.servers) as db:
            await db.create_table("t")
        with pytest.raises(UnavailableError):
            await db.metadata()


def test_public_names_are_there() -> None:
    for name in antiphon.__all__:
        assert getattr(antiphon, name) is not None
    assert set(antiphon.__all__) <= set(dir(antiphon))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = antiphon.nothing
