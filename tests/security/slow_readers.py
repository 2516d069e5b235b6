"""Clients that ask much of every listener of a node and read a few bytes of it now and then, or hold its connections."""

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from antiphon.kafka.messages import cluster
from antiphon.kafka.schema import encode
from antiphon.model.requests import PROTOCOL_VERSION, Fetch, Hello, TableGet
from antiphon.oxia import messages as m
from antiphon.wire.frames import encode_message
from tests.kafka.raw import fetch_body
from tests.security.oxia_attacks import HELLO, call_of

CONNECTIONS: Final = 15  # of one listener of one node
SIP_BYTES: Final = 64
SIP_S: Final = 0.05
BUFFER_BYTES: Final = 4096  # of their sockets: the rest waits at the node
LISTENERS: Final = ("native", "kafka", "http", "oxia")


class Served(NamedTuple):
    """A node's listeners (`host:port`), and shards that have much to read."""

    native: str
    kafka: str
    http: str
    oxia: str
    log: int
    table: int


async def small(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with little room for what comes."""
    host, _, port = address.rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    one.setblocking(False)
    await asyncio.get_running_loop().sock_connect(one, (host, int(port)))
    return await asyncio.open_connection(sock=one, limit=SIP_BYTES)


def kafka_request(key: int, version: int, number: int, body: bytes | bytearray) -> bytes:
    header = struct.pack(">hhih", key, version, number, -1) + b"\x00"
    return struct.pack(">i", len(header) + len(body)) + header + body


def asked(listener: str, served: Served) -> bytes:
    """Requests whose answers come to megabytes."""
    if listener == "native":
        hello = encode_message(1, Hello(PROTOCOL_VERSION, "t"))
        fetches = (encode_message(2 + n, Fetch(served.log, 0, 16 << 20)) for n in range(10))
        gets = (encode_message(20 + n, TableGet(served.table, (b"large",))) for n in range(20))
        return b"".join(part for one in (hello, *fetches, *gets) for part in one)
    if listener == "kafka":
        fetch = fetch_body("log", 0).replace(struct.pack(">i", 1 << 20), struct.pack(">i", 64 << 20))
        every = encode(cluster.MetadataRequest(topics=None), 9, flexible=True)
        large = [kafka_request(1, 12, n, fetch) for n in range(10)]
        return b"".join([*large, *(kafka_request(3, 9, 10 + n, every) for n in range(50))])
    if listener == "http":
        return b"GET /metrics HTTP/1.1\r\n\r\n" * 500
    scan = m.RangeRequest(shard=served.table)
    return HELLO + b"".join(call_of(2 * n + 1, "RangeScan", scan) for n in range(64))


async def sip(listener: str, served: Served, read: Counter[str]) -> None:
    """Ask, and read slowly; again where the node hangs up."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await small(getattr(served, listener))
            writer.write(asked(listener, served))
            while data := await reader.read(SIP_BYTES):
                read[listener] += len(data)
                await asyncio.sleep(SIP_S)
        await asyncio.sleep(1)


async def hold(address: str, most: int, held: Counter[str]) -> None:
    """As many connections as there may be, and a few more tries each second."""
    host, _, port = address.rpartition(":")
    writers: list[asyncio.StreamWriter] = []
    while True:
        for _ in range(most - len(writers)):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    _, writer = await asyncio.open_connection(host, int(port))
                writers.append(writer)
                held[address] += 1
        await asyncio.sleep(0.2)
        writers = [writer for writer in writers if not writer.transport.is_closing()]


def _for(seconds: float, jobs: list[Any], told: Counter[str], report: Path) -> None:
    async def run() -> None:
        tasks = [asyncio.create_task(job) for job in jobs]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    report.write_text(json.dumps(told))


def read_slowly(nodes: list[Served], seconds: float, report: Path) -> None:
    """In a process of its own: at every listener of the nodes; `report` gets the bytes that were read by listener."""
    read: Counter[str] = Counter()
    jobs = [sip(name, node, read) for node in nodes for name in LISTENERS for _ in range(CONNECTIONS)]
    _for(seconds, jobs, read, report)


def hold_connections(addresses: list[str], most: int, seconds: float, report: Path) -> None:
    """In a process of its own; `report` gets how many connections were made, by address."""
    held: Counter[str] = Counter()
    _for(seconds, [hold(address, most, held) for address in addresses], held, report)
