"""Requests for metadata: few of a connection wait, it is encoded once, and answers stay within the memory for clients."""

import asyncio

from antiphon.gateway.budget import PATIENCE_S
from antiphon.model.requests import CreateTopic, Failure, GetMetadata, MetadataReply
from antiphon.native.cluster_requests import NEWS_MAX
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
