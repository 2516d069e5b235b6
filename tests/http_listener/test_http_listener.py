"""The HTTP listener: four pages for monitors, bounded; the dashboard has tests of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest

from antiphon import system
from antiphon.errors import PortInUseError
from antiphon.http.access import Reply
from antiphon.http.connection import REQUEST_BYTES_MAX
from antiphon.http.listener import HttpListener
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Ports
from antiphon.node.disk_care import JOINS_IN_S
from antiphon.node.metrics import NodeMetrics
from tests.node.in_process import NATIVE_PORT, Nodes, cluster_of, eventually, in_virtual_time

HTTP_PORT = 7480


@asynccontextmanager
async def served(count: int = 1) -> AsyncIterator[Nodes]:
    """Whole nodes in virtual time, each with its pages."""
    async with cluster_of(count, ports=Ports(NATIVE_PORT, -1, -1, HTTP_PORT)) as nodes:
        yield nodes


async def exchange(request: bytes) -> bytes:
    """What the first node answers on one connection."""
    reader, writer = await asyncio.open_connection("node-0", HTTP_PORT)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def get(path: str) -> tuple[int, bytes]:
    answer = await exchange(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@in_virtual_time
async def test_health_follows_the_replicas() -> None:
    async with served() as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("flights"))
        status, body = await get("/healthz")
        assert (status, json.loads(body)["healthy"]) == (200, True)
        shard_id = topic.shards[0].shard_id
        host = nodes.nodes[0].hosts[shard_id]
        nodes.processes[0].call(host.driver.fail, OSError("a disk that is broken"))
        status, body = await get("/healthz")
        assert (status, json.loads(body)["failed_shards"]) == (503, [shard_id])


@in_virtual_time
async def test_a_node_that_the_cluster_does_not_count_on_is_unhealthy_though_it_knows_the_metadata() -> None:
    async with served(3) as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("flights", replicas=3))
        await until_ready()
        # As one that was started again, hears of the metadata, and is refused by the coordinator.
        with patch.object(nodes.nodes[0].care, "_joined", lambda: False):
            await asyncio.sleep(JOINS_IN_S + 3)
            status, body = await get("/healthz")
        told = json.loads(body)
        assert (told["metadata_version"] >= 0, told["failed_shards"]) == (True, [])
        assert [(one["kind"], one["level"]) for one in told["findings"]] == [("not_joined", "unhealthy")]
        assert (status, told["healthy"], told["state"]) == (503, False, "unhealthy")
        await asyncio.sleep(3)
        status, body = await get("/healthz")
        assert (status, json.loads(body)["state"]) == (200, "ok")


@in_virtual_time
async def test_ready_is_a_node_that_takes_part_in_all_that_it_holds() -> None:
    async with served(3) as nodes:
        made = await nodes.nodes[0].gateway.create_topic(CreateTopic("flights", replicas=3))
        shard = made.shards[0]
        await until_ready()
        # It is in the metadata, and another process of it: what the metadata tells is not about this one.
        incarnation = nodes.nodes[0].incarnation
        nodes.nodes[0].incarnation = "another"
        status, body = await get("/readyz")
        assert (status, json.loads(body)["joined"]) == (503, False)
        nodes.nodes[0].incarnation = incarnation
        await until_ready()
        host = nodes.nodes[0].hosts[shard.shard_id]
        nodes.processes[0].call(host.driver.fail, OSError("a disk that is broken"))
        status, body = await get("/readyz")
        assert (status, json.loads(body)["first_behind"]) == (503, [shard.shard_id])
        status, body = await get("/livez")
        assert (status, json.loads(body)["alive"]) == (200, True), "that is no reason to kill it"
        assert 0 <= system.wall_ms() - json.loads(body)["clock_ms"] < 50


async def until_ready() -> None:
    """Return when node 0 says that it is in step."""
    for _ in range(400):
        if (await get("/readyz"))[0] == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError((await get("/readyz"))[1])


@in_virtual_time
async def test_pages() -> None:
    async with served(3) as nodes:
        made = await nodes.nodes[0].gateway.create_topic(CreateTopic("flights"))
        status, metrics = await get("/metrics")
        assert status == 200
        assert b"\nantiphon_replicas " in metrics
        shown = json.loads((await get("/status"))[1])
        assert shown["uptime_ms"] > 0
        assert shown["node"]["node_id"] == 0
        topics = {topic["name"]: topic for topic in json.loads((await get("/topics?pretty"))[1])}
        assert topics["flights"]["shards"][0]["leader"] == made.shards[0].leader
        assert b"Healthy" in (await get("/"))[1]
        nodes.kill(1)
        await eventually(lambda: not nodes.nodes[0].gateway.metadata.nodes[1].alive)
        page = (await get("/"))[1]
        assert b"Node 1 is down" in page
        assert b"Healthy" not in page
        assert (await get("/secrets"))[0] == 404


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /status HTTP/1.1\r\nConnection: close\r\n\r\n", b"405"),
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (REQUEST_BYTES_MAX + 10), b"431"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"200"),
    ],
)
@in_virtual_time
async def test_odd_requests_are_answered_and_closed(request_: bytes, status: bytes) -> None:
    async with served():
        answer = await exchange(request_)
    assert answer.split(b" ")[1] == status
    if request_.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


@in_virtual_time
async def test_two_requests_on_one_connection() -> None:
    async with served():
        answer = await exchange(
            b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
    assert answer.count(b"200 OK") == 2


@in_virtual_time
async def test_a_page_answers_who_asked_before_it_was_made() -> None:
    made: list[bytes] = []

    def metrics() -> bytes:
        made.append(b"metrics %d" % len(made))
        return made[-1]

    async with served() as nodes:
        with patch.object(nodes.servers[0].http, "_metrics", metrics):
            ask = b"GET /metrics HTTP/1.1\r\n"
            answers = await exchange((ask + b"\r\n") * 20 + ask + b"Connection: close\r\n\r\n")
            assert len(made) == 1, "they came together"
            assert answers.count(made[0]) == 21
            for _ in range(3):  # who asks after a page was made gets a newer one
                count = len(made)
                assert (await get("/metrics"))[1] == b"metrics %d" % count


@in_virtual_time
async def test_pages_that_nobody_reads_are_not_made() -> None:
    made = 0

    def page(_listener: HttpListener, line: bytes, *_: Any) -> Reply:
        nonlocal made
        made += b"metrics" in line
        return 200, "text/plain", bytes(100_000)

    with patch.object(HttpListener, "answer", page):
        async with served() as nodes:
            pool = nodes.servers[0].memory.pools["http"]
            request = b"GET /metrics HTTP/1.1\r\n\r\n"
            readers = []
            for _ in range(5):
                reader, writer = await asyncio.open_connection("node-0", HTTP_PORT, limit=1000)
                writer.write(request * 5000)
                readers.append((reader, writer))
            await asyncio.sleep(1)
            assert 5 <= made < 5 * 10  # what the sockets between them take, and one more
            assert 0 < pool.held_bytes < 5 * 1_000_000
            assert await get("/healthz")
            reader, writer = readers.pop()
            before = made
            for _ in range(50):  # who reads on gets all
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"200 OK" in head
                await reader.readexactly(100_000)
            assert made >= before + 40
            writer.transport.abort()
            await asyncio.sleep(31)  # and who does not is closed
            assert pool.held_bytes == 0
            assert pool.closed_slow >= 4
            for _, writer in readers:
                writer.transport.abort()


@in_virtual_time
async def test_a_page_that_fails_says_so() -> None:
    def broken_page(_metrics: NodeMetrics) -> bytes:
        raise ValueError("no metrics today")

    with patch.object(NodeMetrics, "render", broken_page):
        async with served():
            answer = await exchange(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert b"500" in answer.split(b"\r\n")[0]
    assert b"no metrics today" in answer


@in_virtual_time
async def test_a_taken_port_is_named() -> None:
    async with served() as nodes:
        second: Any = HttpListener(nodes.nodes[0].gateway, metrics=bytes, status=dict)
        with pytest.raises(PortInUseError, match=str(HTTP_PORT)):
            await nodes.processes[0].run(second.start("node-0", HTTP_PORT))


async def whole_page(reader: asyncio.StreamReader, size_bytes: int) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(size_bytes)
    return head


@in_virtual_time
async def test_pages_that_many_connections_do_not_take_stay_within_the_memory_for_clients() -> None:
    """None of them holds anything before its page is made: it is written in turn, when there is room for it."""
    size_bytes = 1_000_000
    with patch.object(HttpListener, "answer", lambda *_: (200, "text/plain", bytes(size_bytes))):
        async with served() as nodes:
            pool = nodes.servers[0].memory.pools["http"]
            pool.limit_bytes = pool.budget.limit_bytes = 4_000_000
            clients = []
            for _ in range(40):
                reader, writer = await asyncio.open_connection("node-0", HTTP_PORT, limit=1000)
                writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
                clients.append((reader, writer))
            highest = 0
            for _ in range(40):
                await asyncio.sleep(0.05)
                highest = max(highest, pool.held_bytes)
            assert size_bytes < highest < 4_000_000 + 2 * size_bytes
            for head in await asyncio.gather(*(whole_page(reader, size_bytes) for reader, _ in clients)):
                assert b"200 OK" in head
            await eventually(lambda: pool.held_bytes == 0)
            assert pool.budget.large is None
            for _, writer in clients:
                writer.close()
