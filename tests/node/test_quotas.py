"""Quotas at the native listener and over HTTP, in virtual time: who waits, and who never does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.client.connection import Connection, open_connection
from antiphon.client.connection_errors import ConnectionLostError
from antiphon.gateway.quotas import Use
from antiphon.kafka.messages.cluster import ApiVersionsRequest, MetadataRequest
from antiphon.model.metadata import Kind
from antiphon.model.quotas import DEFAULT, Quota
from antiphon.model.requests import (
    AlterQuota,
    AppendBatch,
    CreateTopic,
    DeleteTopic,
    Fetch,
    GetStatus,
    Put,
    TableGet,
    TableWrite,
)
from antiphon.node.config import Ports, split_address
from antiphon.records.builder import build_batch
from tests.kafka.raw import RawClient
from tests.node import real_nodes
from tests.node.in_process import KAFKA_PORT, Nodes, cluster_of, eventually, in_virtual_time

HTTP_PORT = 7480


@asynccontextmanager
async def served(count: int = 1, *quotas: Quota) -> AsyncIterator[Nodes]:
    async with cluster_of(count, ports=Ports(7400, -1, -1, HTTP_PORT)) as nodes:
        for quota in quotas:
            await limit(nodes, quota)
        yield nodes


async def limit(nodes: Nodes, quota: Quota) -> None:
    await nodes.nodes[0].gateway.administer(AlterQuota(quota))
    await eventually(
        lambda: all(node.gateway.access.quotas.get(quota.key) == quota for node in nodes.nodes.values())
    )


@asynccontextmanager
async def connected(node: int = 0, who: str = "test/1") -> AsyncIterator[Connection]:
    connection = await open_connection(f"node-{node}:7400", who, None)
    try:
        yield connection
    finally:
        await connection.close()


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def took_s(connection: Connection) -> float:
    """How long the answer to a small request takes."""
    began_s = now_s()
    await connection.request(GetStatus())
    return now_s() - began_s


def batch(size: int) -> bytes:
    return bytes(build_batch([(None, b"x" * size, (), 1000)]))


@in_virtual_time
async def test_writes_and_reads_of_topics_and_tables_are_charged() -> None:
    async with served(1, Quota("ANONYMOUS", producer_byte_rate=1000.0, consumer_byte_rate=1000.0)) as nodes:
        gateway = nodes.nodes[0].gateway
        topic = (await gateway.create_topic(CreateTopic("t"))).shards[0].shard_id
        table = (await gateway.create_topic(CreateTopic("k", Kind.TABLE))).shards[0].shard_id
        async with connected() as one:
            await one.request(AppendBatch(topic), (batch(5_000),))
            assert await took_s(one) < 0.5, "ten seconds' worth at once"
            await one.request(AppendBatch(topic), (batch(10_000),))
            assert 4.5 < await took_s(one) < 6.0
            await one.request(TableWrite(table, (Put(b"k", b"v" * 2_000),)))
            assert 1.5 < await took_s(one) < 3.0
            await one.request(TableGet(table, (b"k",)))
            assert await took_s(one) < 0.5, "what is read has a limit of its own"
            await one.request(Fetch(topic, 1, max_bytes=1 << 20))
            assert 1.5 < await took_s(one) < 4.0
            await one.request(TableGet(table, (b"k",)))
            assert 1.5 < await took_s(one) < 3.0
        waits = nodes.servers[0].quotas.waits
        assert (waits[Use.PRODUCE], waits[Use.FETCH]) == (2, 2)


@in_virtual_time
async def test_programs_are_told_apart_by_what_they_call_themselves() -> None:
    async with served(1, Quota(None, "greedy", producer_byte_rate=100.0)) as nodes:
        topic = (await nodes.nodes[0].gateway.create_topic(CreateTopic("t"))).shards[0].shard_id
        async with connected(who="modest/1.0") as modest, connected(who="greedy/2.0") as greedy:
            await modest.request(AppendBatch(topic), (batch(10_000),))
            assert await took_s(modest) < 0.5
            await greedy.request(AppendBatch(topic), (batch(2_000),))
            assert await took_s(greedy) > 5


@in_virtual_time
async def test_partitions_that_come_and_go_are_charged() -> None:
    async with served(1, Quota(DEFAULT, controller_mutation_rate=1.0)), connected() as one:
        await one.request(CreateTopic("t", shards=14))
        assert 3.0 < await took_s(one) < 5.0
        await one.request(DeleteTopic("t"))
        assert 12.0 < await took_s(one) < 15.0


@in_virtual_time
async def test_nodes_do_not_wait_for_each_other() -> None:
    """Replication goes over the same port; what a node passes on was charged where the client is."""
    async with served(
        3, Quota(DEFAULT, producer_byte_rate=10.0), Quota(None, DEFAULT, consumer_byte_rate=10.0)
    ) as nodes:
        request = CreateTopic("t", Kind.TABLE, replicas=3, config={"on.not.leader": "forward"})
        shard = (await nodes.nodes[0].gateway.create_topic(request)).shards[0]
        asked = next(node for node in nodes.nodes if node != shard.leader)
        async with connected(asked) as one:
            began_s = now_s()
            await one.request(TableWrite(shard.shard_id, (Put(b"k", b"v" * 5_000),)))
            assert now_s() - began_s < 1.0
            assert await took_s(one) > 15.0
        for node_id, server in nodes.servers.items():
            assert (sum(server.quotas.waits.values()) > 0) == (node_id == asked)
        async with connected(shard.leader) as other:
            await other.request(TableWrite(shard.shard_id, (Put(b"l", b"v"),)))
        hosts = [node.hosts[shard.shard_id] for node in nodes.nodes.values()]
        await eventually(lambda: len({host.state.high_watermark for host in hosts}) == 1)


async def page(path: str) -> tuple[int, str]:
    """The status and the whole answer."""
    reader, writer = await asyncio.open_connection("node-0", HTTP_PORT)
    writer.write(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    text = answer.decode()
    return int(text.split()[1]), text


@in_virtual_time
async def test_pages_are_refused_for_a_while() -> None:
    async with served(1) as nodes:
        size = len((await page("/metrics"))[1])
        rate = float(size // 15)  # the page is 5 s more than what is at hand
        await limit(nodes, Quota(DEFAULT, consumer_byte_rate=rate))
        assert (await page("/metrics"))[0] == 200
        status, answer = await page("/status")
        assert status == 429
        wait_s = int(answer.partition("Retry-After: ")[2].split()[0])
        assert 1 <= wait_s <= 20
        assert (await page("/healthz"))[0] == 200, "monitors always hear whether the node is well"
        await asyncio.sleep(wait_s)
        assert (await page("/topics"))[0] == 200
        assert nodes.servers[0].quotas.waits[Use.FETCH] == 1


@in_virtual_time
async def test_an_address_that_makes_too_many_connections_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every listener; other nodes come and go as they like."""
    monkeypatch.setattr("antiphon.gateway.quotas.address", lambda _: "192.0.2.1")
    async with cluster_of(3, ports=Ports(7400, KAFKA_PORT, -1, HTTP_PORT)) as nodes:
        await limit(nodes, Quota(ip="192.0.2.1", connection_creation_rate=1.0))
        quotas = nodes.servers[0].quotas
        for _ in range(10):
            async with connected() as one:
                await one.request(GetStatus())
        assert quotas.waits[Use.CONNECTION] == 0
        with pytest.raises(ConnectionLostError):
            async with connected() as one:
                await one.request(GetStatus())
        reader, _ = await asyncio.open_connection("node-0", KAFKA_PORT)
        assert await reader.read() == b""
        assert (await page("/topics"))[0] == 429
        assert quotas.waits[Use.CONNECTION] == 3
        nodes.kill(1)
        await nodes.start(1)
        await eventually(nodes.nodes[1].agent.registered.is_set)
        assert quotas.waits[Use.CONNECTION] == 3
        await asyncio.sleep(2.0)
        assert (await page("/topics"))[0] == 200


def test_time_of_the_event_loop_is_charged_at_every_listener(tmp_path: Path) -> None:
    """On the real clock: in virtual time requests take none."""

    async def scenario() -> None:
        nodes = real_nodes.Nodes(tmp_path, 1, {}, kafka=True, http=True)
        await nodes.start_all()
        try:
            node = nodes.nodes[0]
            await node.gateway.administer(AlterQuota(Quota(DEFAULT, request_percentage=0.0001)))
            await eventually(lambda: bool(node.gateway.access.quotas))
            host, port = split_address(node.meta().kafka)
            kafka = RawClient(*await asyncio.open_connection(host, port))
            told = await kafka.ask(MetadataRequest(topics=[]), 3, 9)
            assert told.throttle_time_ms == 1000, "one wait is a second at most"
            began_s = now_s()
            told = await kafka.ask(ApiVersionsRequest(), 18, 1)
            assert now_s() - began_s > 0.9
            assert told.throttle_time_ms == 1000
            kafka.writer.close()
            native = await open_connection(node.meta().native, "test", None)
            await native.request(GetStatus())
            assert await took_s(native) > 0.9
            await native.close()
            reader, writer = await asyncio.open_connection(*split_address(node.meta().http))
            writer.write(b"GET /topics HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 429 ")
            writer.close()
        finally:
            await nodes.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
