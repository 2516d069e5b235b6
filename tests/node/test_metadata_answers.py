"""Requests for metadata, a node's status, and users with their rights: answers stay within the memory for clients, metadata
is encoded once, and few requests of a connection wait for news.
"""

import asyncio
from typing import Any

import pytest

from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.requests import (
    FIND_KEYS_MAX,
    AlterAcls,
    CreateTopic,
    Failure,
    GetAccess,
    GetMetadata,
    GetStatus,
    MetadataReply,
    ReplicaStatus,
)
from antiphon.native.cluster_requests import NEWS_MAX, REPLICA_BYTES
from antiphon.node.local_replicas import LocalReplicas
from antiphon.wire.frames import encode_message
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time
from tests.node.test_client_memory import Client, connect, pool_of

KIB = 1024
CLIENTS = 40


async def wide(nodes: Nodes) -> int:
    """Metadata that is worth asking for; returns its size."""
    gateway = nodes.nodes[0].gateway
    await gateway.create_topic(CreateTopic("wide", shards=1200, replicas=1))
    return len(b"".join(map(bytes, encode_message(1, MetadataReply(gateway.metadata)))))


async def waiting(nodes: Nodes, count: int) -> list[Client]:
    clients = []
    await asyncio.sleep(2)  # until all that a start brings is told
    version = nodes.nodes[0].gateway.metadata_version
    for _ in range(count):
        client = await connect(nodes)
        client.send(1, *[GetMetadata(version, 60_000)] * (NEWS_MAX * 4))
        clients.append(client)
    return clients


@in_virtual_time
async def test_few_requests_of_a_connection_wait_for_news() -> None:
    async with cluster_of(1) as nodes:
        (client,) = await waiting(nodes, 1)
        refused = await client.answered(1 + NEWS_MAX * 3)
        assert {type(answer) for at, answer in refused.items() if at} == {Failure}
        assert {answer.code for at, answer in refused.items() if at} == {"overloaded"}
        await nodes.nodes[0].gateway.create_topic(CreateTopic("news", replicas=1))
        answers = await client.answered(1 + NEWS_MAX * 4)
        assert sum(isinstance(answer, MetadataReply) for answer in answers.values()) == NEWS_MAX
        client.writer.close()


@in_virtual_time
async def test_news_for_many_is_encoded_once_and_stays_within_the_memory_for_clients() -> None:
    async with cluster_of(1) as nodes:
        size, native = await wide(nodes), nodes.servers[0].native
        pool = pool_of(nodes)
        clients = await waiting(nodes, CLIENTS)
        pool.limit_bytes = pool.budget.limit_bytes = 8 * size
        before = native._metadata_answers.encodings
        await nodes.nodes[0].gateway.create_topic(CreateTopic("news", replicas=1))
        highest = 0
        for _ in range(40):
            await asyncio.sleep(0.02)
            highest = max(highest, pool.held_bytes)
        assert native._metadata_answers.encodings - before < 8  # of the versions that making a topic takes
        assert highest < 12 * size
        for client in clients:  # who reads is answered
            async with asyncio.timeout(PATIENCE_S):
                await client.answered(1 + NEWS_MAX * 4)
            client.writer.close()


@in_virtual_time
async def test_who_hangs_up_waits_no_more() -> None:
    async with cluster_of(1) as nodes:
        native = nodes.servers[0].native
        clients = await waiting(nodes, 3)
        await eventually(lambda: len(native._tasks) == 3 * NEWS_MAX)
        for client in clients:
            client.writer.transport.abort()
        await eventually(lambda: not native._tasks)


async def size_of(nodes: Nodes, request: Any) -> tuple[int, Any]:
    """How long the answer is, and the answer."""
    client = await connect(nodes)
    client.send(1, request)
    answer = (await client.answered(2))[1]
    client.writer.close()
    return len(b"".join(map(bytes, encode_message(1, answer)))), answer


REPLICAS = tuple(
    ReplicaStatus(1000 + n, "leader", 7, 70_000 + n, 90_000, 90_000, 1 << 27, ((1, 90_000), (2, 90_000)))
    for n in range(4000)
)


@pytest.fixture
def many_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes say that they have these replicas."""
    monkeypatch.setattr(
        LocalReplicas, "statuses", lambda _, shards: REPLICAS[: None if shards is None else len(shards)]
    )


async def many_rights(nodes: Nodes) -> None:
    names = [f"a name of a topic that many may read, number {n}" for n in range(3000)]
    acls = tuple(Acl("User:eve", Resource.TOPIC, name, Operation.READ) for name in names)
    await nodes.nodes[0].gateway.administer(AlterAcls(acls))
    await eventually(lambda: len(nodes.nodes[0].view.access.acls) == len(acls))


@pytest.mark.usefixtures("many_replicas")
@pytest.mark.parametrize("request_", [GetStatus(), GetStatus(tuple(range(FIND_KEYS_MAX))), GetAccess()])
@in_virtual_time
async def test_states_that_nobody_takes_are_not_collected(request_: Any) -> None:
    async with cluster_of(1) as nodes:
        await many_rights(nodes)
        nodes.nodes[0].gateway.count_replicas = lambda: len(REPLICAS)
        (size, answer), pool = await size_of(nodes, request_), pool_of(nodes)
        await eventually(lambda: not pool.held_bytes)
        pool.limit_bytes = pool.budget.limit_bytes = 8 * size
        clients, highest = [await connect(nodes) for _ in range(CLIENTS)], 0
        for client in clients:
            client.send(1, *[request_] * 8)
        for _ in range(40):
            await asyncio.sleep(0.05)
            highest = max(highest, pool.held_bytes)
        assert 4 * size < highest < 10 * size + CLIENTS * FLOOR_BYTES
        async with asyncio.timeout(PATIENCE_S):  # who reads is answered
            answers = await asyncio.gather(*(client.answered(9) for client in clients))
        assert {type(one[n]) for one in answers for n in range(1, 9)} == {type(answer)}
        for client in clients:
            client.writer.close()


@pytest.mark.usefixtures("many_replicas")
@in_virtual_time
async def test_a_status_is_taken_to_be_about_as_large_as_it_is() -> None:
    async with cluster_of(1) as nodes:
        size, _ = await size_of(nodes, GetStatus())
        assert size / 2 < REPLICA_BYTES * len(REPLICAS) < 2 * size


@in_virtual_time
async def test_users_and_rights_are_told_as_they_are_now() -> None:
    async with cluster_of(1) as nodes:
        before = (await size_of(nodes, GetAccess()))[1]
        acl = Acl("User:eve", Resource.TOPIC, "t", Operation.READ)
        await nodes.nodes[0].gateway.administer(AlterAcls((acl,)))
        await eventually(lambda: bool(nodes.nodes[0].view.access.acls))
        after = (await size_of(nodes, GetAccess()))[1]
        assert (before.acls, after.acls) == ((), (acl,))
