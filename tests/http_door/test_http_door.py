"""The HTTP door: four pages, GET only, bounded."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from antiphon.errors import PortInUseError
from antiphon.http.door import REQUEST_BYTES_MAX, HttpDoor
from antiphon.node.gateway import Gateway
from antiphon.wire.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.wire.requests import ReplicaStatus


class SmallGateway:
    """As much of a node as the pages show."""

    node_id = 1
    cluster_id = "c"

    def __init__(self) -> None:
        shard = ShardMeta(4, 0, (0, 1, 2), 1, 3, ShardStatus.ONLINE, (0, 1, 2))
        topic = TopicMeta("flights", b"x" * 16, Kind.TOPIC, 3, "oxia", (shard,))
        self.metadata = ClusterMeta(
            "c", 7, 0, (NodeMeta(0, "h:1"), NodeMeta(1, "h:2", alive=False)), (topic,)
        )
        self.state = "ok"

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        return (ReplicaStatus(4, "leader", 3, 0, 5, 5, 100, state=self.state),)


def broken_page() -> bytes:
    raise ValueError("no metrics today")


@asynccontextmanager
async def served(
    gateway: SmallGateway, metrics: Callable[[], bytes] = lambda: b"antiphon_appends_total 3\n"
) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    door = HttpDoor(cast(Gateway, gateway), metrics=metrics, status=lambda: {"uptime_ms": 5})
    port = await door.start("127.0.0.1", 0)

    async def exchange(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    try:
        yield exchange
    finally:
        await door.stop()


def get(path: str, gateway: SmallGateway | None = None) -> tuple[int, bytes]:
    async def main() -> bytes:
        async with served(gateway or SmallGateway()) as exchange:
            return await exchange(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())

    head, _, body = asyncio.run(main()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_health_follows_the_replicas() -> None:
    status, body = get("/healthz")
    assert (status, json.loads(body)["healthy"]) == (200, True)
    sick = SmallGateway()
    sick.state = "failed"
    status, body = get("/healthz", sick)
    assert (status, json.loads(body)["failed_shards"]) == (503, [4])


def test_pages() -> None:
    assert get("/metrics") == (200, b"antiphon_appends_total 3\n")
    assert json.loads(get("/status")[1]) == {"uptime_ms": 5}
    (topic,) = json.loads(get("/topics?pretty")[1])
    assert topic["name"] == "flights"
    assert topic["shards"][0]["leader"] == 1
    page = get("/")[1]
    assert b"node 1 down" in page
    assert b'<span class="bad">DOWN</span>' in page
    assert get("/secrets")[0] == 404


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
def test_odd_requests_are_answered_and_closed(request_: bytes, status: bytes) -> None:
    async def main() -> bytes:
        async with served(SmallGateway()) as exchange:
            return await exchange(request_)

    answer = asyncio.run(main())
    assert answer.split(b" ")[1] == status
    if request_.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


def test_two_requests_on_one_connection() -> None:
    async def main() -> bytes:
        async with served(SmallGateway()) as exchange:
            return await exchange(
                b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"
            )

    assert asyncio.run(main()).count(b"200 OK") == 2


def test_a_page_that_fails_says_so() -> None:
    async def main() -> bytes:
        async with served(SmallGateway(), broken_page) as exchange:
            return await exchange(b"GET /metrics HTTP/1.0\r\n\r\n")

    answer = asyncio.run(main())
    assert b"500" in answer.split(b"\r\n")[0]
    assert b"no metrics today" in answer


def test_a_taken_port_is_named() -> None:
    async def main() -> None:
        first = HttpDoor(cast(Gateway, SmallGateway()), metrics=bytes, status=dict)
        port = await first.start("127.0.0.1", 0)
        second = HttpDoor(cast(Gateway, SmallGateway()), metrics=bytes, status=dict)
        try:
            with pytest.raises(PortInUseError, match=str(port)):
                await second.start("127.0.0.1", port)
        finally:
            await first.stop()

    asyncio.run(main())
