"""Certificates that are renewed while clients are at work: who is connected stays so, and who comes is shown the new one."""

import asyncio
import contextlib
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antiphon.model.requests import PROTOCOL_VERSION, CreateTopic, GetMetadata, Hello
from antiphon.oxia import frames as f
from antiphon.records.builder import build_batch
from antiphon.security.settings import Security
from antiphon.wire.frames import encode_message
from tests.kafka.raw import produce_body
from tests.node.real_nodes import Nodes, in_real_time
from tests.security.certificates import server_files
from tests.security.slow_readers import kafka_request
from tests.security.test_renewal import der, renew, shown

pytestmark = [pytest.mark.slow]

RENEWALS = 4
BETWEEN_S = 1.0
CLIENTS = 4  # of each listener, which ask as quickly as they are answered

Ask = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def frame(reader: asyncio.StreamReader, layout: str) -> bytes:
    (length,) = struct.unpack(layout, await reader.readexactly(4))
    return await reader.readexactly(length)


async def native(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"".join(encode_message(2, GetMetadata())))
    assert await frame(reader, ">I")


async def kafka(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(kafka_request(0, 9, 7, produce_body("t", build_batch([(None, b"x" * 20_000, [], 1)]))))
    assert await frame(reader, ">i")


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200")
    (length,) = (line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    assert await reader.readexactly(int(length.partition(b":")[2]))


async def oxia(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(f.frame(f.PING, 0, 0, b"12345678"))
    while True:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == f.PING:
            return
        await asyncio.sleep(0)


GREETINGS = {
    "native": b"".join(encode_message(1, Hello(PROTOCOL_VERSION, "t"))),
    "oxia": f.PREFACE + f.settings_frame([]),
}
WAYS: dict[str, Ask] = {"native": native, "kafka": kafka, "http": http, "oxia": oxia}


class Staying:
    """One connection, for as long as all goes on; `asked` counts its answers."""

    def __init__(self, name: str, address: str, context: ssl.SSLContext) -> None:
        self.name, self.address, self.context = name, address, context
        self.asked = 0
        self.longest_s = 0.0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self.context)
        try:
            writer.write(GREETINGS.get(self.name, b""))
            if self.name == "native":
                await frame(reader, ">I")
            while True:
                began_s = time.monotonic()
                await WAYS[self.name](reader, writer)
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.asked += 1
                await asyncio.sleep(0.01)
        finally:
            writer.transport.abort()


@in_real_time
async def test_certificates_are_renewed_under_load(tmp_path: Path) -> None:
    directory = tmp_path / "node-0"
    nodes = Nodes(
        tmp_path, 1, {}, kafka=True, http=True, oxia=True, security=Security(tls=server_files(directory))
    )
    staying: list[Staying] = []
    try:
        await nodes.start_all()
        await nodes.nodes[0].gateway.create_topic(CreateTopic("t", replicas=1))
        meta, contexts = nodes.nodes[0].meta(), {}
        for name in WAYS:
            contexts[name] = ssl.create_default_context(cafile=str(directory / "authority.pem"))
        contexts["oxia"].set_alpn_protocols(["h2"])
        addresses = {name: str(getattr(meta, name)) for name in WAYS}
        staying = [Staying(name, addresses[name], contexts[name]) for name in WAYS for _ in range(CLIENTS)]
        coming = 0
        for _ in range(RENEWALS):
            new = der(renew(directory, "server", "test authority"))
            end_s = time.monotonic() + BETWEEN_S
            before = [one.asked for one in staying]
            while time.monotonic() < end_s:
                for name, address in addresses.items():
                    assert await shown(address, contexts[name]) == new, name
                    coming += 1
            assert not [one.name for one in staying if one.task.done()], "nobody is hung up on"
            assert all(one.asked > had for one, had in zip(staying, before, strict=True)), "and all go on"
        print(
            f"{RENEWALS} renewals: {sum(one.asked for one in staying)} answers on {len(staying)} connections that stayed, "
            f"the longest took {max(one.longest_s for one in staying) * 1000:.0f} ms; {coming} new connections"
        )
    finally:
        for one in staying:
            one.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await one.task
        await nodes.close()
