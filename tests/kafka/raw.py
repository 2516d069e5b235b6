"""A client that is a bare socket: frames are built and read by hand, so that a test can send anything."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from antiphon.kafka.apis import APIS
from antiphon.kafka.messages import admin as m
from antiphon.kafka.primitives import put_compact_nullable_bytes, put_compact_nullable_string, put_uvarint
from antiphon.kafka.schema import Message, decode, encode
from antiphon.records.builder import build_batch
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.oracles import kio_class
from tests.node import in_process


class RawClient:
    """Frames over a socket, nothing hidden."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation = 0

    def send(self, key: int, version: int, body: bytes | bytearray) -> int:
        self.correlation += 1
        header = struct.pack(">hhih", key, version, self.correlation, -1)
        if key in APIS and APIS[key].is_flexible(version):
            header += b"\x00"
        self.writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
        return self.correlation

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def receive(self, correlation: int) -> bytes:
        frame = await self.frame()
        assert struct.unpack_from(">i", frame) == (correlation,)
        return frame[4:]

    async def ask(self, message: Message, key: int, version: int) -> Any:
        api = APIS[key]
        flexible = api.is_flexible(version)
        sent = self.send(key, version, encode(message, version, flexible=flexible))
        body = await self.receive(sent)
        assert api.response is not None
        return decode(
            api.response, memoryview(body)[1 if flexible and key != 18 else 0 :], version, flexible=flexible
        )

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


Connect = Callable[..., Awaitable[RawClient]]


@asynccontextmanager
async def listening(nodes: int = 1, at: int = 0, **config: Any) -> AsyncIterator[tuple[KafkaNodes, Connect]]:
    """Nodes in virtual time, and what connects to the listener of node `at`."""
    async with KafkaNodes.running(nodes, **config) as served:
        clients: list[RawClient] = []

        async def connect(node_id: int = at) -> RawClient:
            client = RawClient(*await asyncio.open_connection(f"node-{node_id}", in_process.KAFKA_PORT))
            clients.append(client)
            return client

        try:
            yield served, connect
        finally:
            for client in clients:
                client.writer.close()


async def ask(client: RawClient, request: Message, version: int | None = None) -> Any:
    """The answer to a request that the table of APIs has; without a version, to the newest one."""
    api = next(api for api in APIS.values() if api.request is type(request))
    return await client.ask(request, api.key, api.max_version if version is None else version)


async def alter_configs(
    client: RawClient,
    kind: int,
    name: str,
    changes: Iterable[tuple[str, int, str | None]],
    *,
    validate_only: bool = False,
) -> Any:
    """What IncrementalAlterConfigs of one resource is answered with: settings, operations and values."""
    configs = [m.AlterableSetting(name=one, config_operation=how, value=to) for one, how, to in changes]
    resource = m.AlterableResource(resource_type=kind, resource_name=name, configs=configs)
    request = m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return (await client.ask(request, 44, 1)).responses[0]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def main() -> None:
        await scenario()

    in_process.run(main())


def batch(*values: bytes, **fields: Any) -> bytearray:
    return build_batch([(None, value, (), 1000) for value in values], **fields)


def produce_body(
    topic: str, records: bytes | bytearray | None, acks: int = -1, partition: int = 0
) -> bytearray:
    out = bytearray(b"\x00") + struct.pack(">hi", acks, 5000)
    put_uvarint(out, 2)
    put_compact_nullable_string(out, topic)
    put_uvarint(out, 2)
    out += struct.pack(">i", partition)
    put_compact_nullable_bytes(out, records)
    return out + b"\x00\x00\x00"


async def produce(
    client: RawClient, topic: str, records: bytes | bytearray | None, version: int = 10, **how: Any
) -> Any:
    """The one partition's answer, as kio reads it, and the answer itself."""
    from kio.serial import entity_reader

    body = await client.receive(client.send(0, version, produce_body(topic, records, **how)))
    answer, _ = entity_reader(kio_class("Produce", version, "response"))(body, 1)
    return answer.responses[0].partition_responses[0], answer


def fetch_body(topic: str, offset: int, *, epoch: int = -1, session: int = 0, wait_ms: int = 0) -> bytearray:
    out = bytearray(struct.pack(">iiiibii", -1, wait_ms, 1, 1 << 20, 0, session, -1))
    put_uvarint(out, 2)
    put_compact_nullable_string(out, topic)
    put_uvarint(out, 2)
    out += struct.pack(">iiqiqi", 0, epoch, offset, -1, -1, 1 << 20)
    return out + b"\x00\x00\x01\x01\x00"


async def fetch(client: RawClient, topic: str, offset: int, **how: Any) -> Any:
    from kio.serial import entity_reader

    body = await client.receive(client.send(1, 12, fetch_body(topic, offset, **how)))
    answer, _ = entity_reader(kio_class("Fetch", 12, "response"))(body, 1)
    return answer.responses[0].partitions[0] if answer.responses else answer
