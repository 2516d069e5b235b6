"""The soak's rude clients: they ask and do not read, stop in the middle of a request, or vanish without a word."""

import asyncio
import contextlib
import math
import random
import struct
import time
from typing import TYPE_CHECKING, Any, Final

from antiphon.kafka.messages.groups import JoinGroupRequest, JoinProtocol
from antiphon.kafka.schema import encode
from antiphon.model.requests import PROTOCOL_VERSION, Fetch, Hello, TableScan
from antiphon.oxia import frames as f
from antiphon.oxia import messages as m
from antiphon.wire.frames import encode_message
from tests.kafka.raw import RawClient, fetch_body
from tests.security.oxia_attacks import HELLO, SHUT, call_headers, call_of
from tests.soak.load import KAFKA, LOG, TABLE, Pace
from tests.soak.visitors import host_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PERIOD_S: Final = 1.0
STAYS_S: Final = (0.0, 20.0)
FETCHES: Final = 30
READ_LIMIT_BYTES: Final = 1000  # the client's own buffer: the rest stays in the sockets and in the node


class RudeClients:
    """One a second, of any kind, at any node."""

    def __init__(self, cluster: Any, shards: dict[str, int], pace: Pace) -> None:
        """`shards`: a shard id of each topic and table, by name."""
        self._nodes = list(cluster.nodes.values())
        self._shards = shards
        self._pace = pace
        self._rng = random.Random("rude")
        self._staying: dict[asyncio.StreamWriter, float] = {}  # until when, by the monotonic clock
        self._kinds: tuple[Callable[[Any], Awaitable[asyncio.StreamWriter]], ...] = (
            self._kafka_deaf,
            self._native_deaf,
            self._http_deaf,
            self._half_a_request,
            self._member_that_vanishes,
            self._oxia_deaf,
            self._oxia_resets,
        )

    async def run(self) -> None:
        """Go on until the pace is told to stop."""
        await self._pace.every(PERIOD_S, "rude client", self._one)
        await self._vanish(math.inf)

    async def _one(self, number: int) -> None:
        await self._vanish(time.monotonic())
        node = self._rng.choice(self._nodes)
        writer = await self._kinds[number % len(self._kinds)](node)
        self._staying[writer] = time.monotonic() + self._rng.uniform(*STAYS_S)

    async def _vanish(self, now_s: float) -> None:
        """Those whose time is over go without a farewell: what was not read makes the kernel answer with a reset."""
        for writer in [writer for writer, until_s in self._staying.items() if until_s <= now_s]:
            del self._staying[writer]
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*host_port(address), limit=READ_LIMIT_BYTES)

    async def _kafka_deaf(self, node: Any) -> asyncio.StreamWriter:
        client = RawClient(*await self._open(node.kafka))
        for _ in range(FETCHES):
            client.send(1, 12, fetch_body(LOG, 0))
        return client.writer

    async def _native_deaf(self, node: Any) -> asyncio.StreamWriter:
        _, writer = await self._open(node.native)
        asked = (Fetch(self._shards[LOG], 0), TableScan(self._shards[TABLE], b"", b"", 1000))
        bodies = [Hello(PROTOCOL_VERSION, "rude"), *asked * FETCHES]
        writer.write(b"".join(part for n, body in enumerate(bodies) for part in encode_message(1 + n, body)))
        return writer

    async def _http_deaf(self, node: Any) -> asyncio.StreamWriter:
        _, writer = await self._open(node.http)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n" * FETCHES)
        return writer

    async def _half_a_request(self, node: Any) -> asyncio.StreamWriter:
        listener = self._rng.choice(("native", "kafka", "http"))
        _, writer = await self._open(getattr(node, listener))
        begun = {"native": b"\x00\x01\x00\x00", "kafka": struct.pack(">i", 1 << 20), "http": b"GET /sta"}[
            listener
        ]
        writer.write(begun + (b"" if listener == "native" else b"x" * 10))
        return writer

    async def _member_that_vanishes(self, node: Any) -> asyncio.StreamWriter:
        client = RawClient(*await self._open(node.kafka))
        request = JoinGroupRequest(
            group_id=f"rude-{self._rng.randrange(20)}",
            session_timeout_ms=6000,
            rebalance_timeout_ms=6000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinProtocol(name="range", metadata=KAFKA.encode())],
        )
        client.send(11, 3, encode(request, 3, flexible=False))
        return client.writer

    async def _oxia_deaf(self, node: Any) -> asyncio.StreamWriter:
        """Scans and notifications which may not be answered."""
        _, writer = await self._open(node.oxia)
        scan = m.RangeRequest(shard=self._shards[TABLE])
        follow = m.NotificationsRequest(shard=self._shards[TABLE], start_offset_exclusive=-1)
        calls = (("RangeScan", scan), ("GetNotifications", follow)) * FETCHES
        writer.write(SHUT + b"".join(call_of(2 * n + 1, *call) for n, call in enumerate(calls)))
        return writer

    async def _oxia_resets(self, node: Any) -> asyncio.StreamWriter:
        """Calls that are given up at once, and one in the middle of its message."""
        _, writer = await self._open(node.oxia)
        resets = (call_headers(2 * n + 1, "Read") + f.rst_stream(2 * n + 1, f.CANCEL) for n in range(FETCHES))
        half = call_headers(2 * FETCHES + 1, "Write") + f.frame(f.DATA, 0, 2 * FETCHES + 1, b"\x00\x00\x01")
        writer.write(HELLO + b"".join(resets) + half)
        return writer
