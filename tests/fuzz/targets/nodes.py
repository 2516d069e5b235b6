"""Whole nodes in the simulator, whose listeners get the bytes: everything that a request reaches is the product's.

An input is a list of messages: two bytes with the length, then the bytes. The first byte of the input says how they are
sent: with the frame's length that they have (`FRAMED`), or as they are. Another client, the witness, asks after each
input and must be answered; what handlers report as failed, and what nobody caught, are findings too.
"""

import asyncio
import struct
from collections.abc import Coroutine
from random import Random
from typing import Any, Final

import structlog

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.apis import APIS
from antiphon.kafka.primitives import Reader
from antiphon.kafka.schema import codec, encode
from antiphon.model.peer_handshake import PeerHello, PeerProof
from antiphon.model.requests import PROTOCOL_VERSION, AlterUser, Failure, Hello
from antiphon.node.config import Ports
from antiphon.node.peer_wire import (
    SnapshotBegin,
    SnapshotChunk,
    SnapshotFile,
    decode_challenge,
    decode_peer_reply,
)
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import Append
from antiphon.security.passwords import credential
from antiphon.security.settings import Security
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process
from antiphon.wire.frames import FrameDecoder, encode_message
from tests.fuzz.target import Target, check
from tests.fuzz.targets.large import enlarged, http_inputs, kafka_inputs, native_inputs, split
from tests.kafka.kafka_nodes import configured, create
from tests.node.in_process import KAFKA_PORT, NATIVE_PORT, PEER_PORT, Nodes

HTTP_PORT: Final = 8080
FRAMED: Final = 1
GREETED: Final = 2  # native: a good Hello comes first
SILENCE_S: Final = 0.6  # of virtual time, after which nothing more is expected to come
INPUT_S: Final = 90.0
FRESH_AFTER: Final = 400  # inputs, after which the nodes are made anew
MESSAGES_MAX: Final = 24
# Lines of a node's log that nobody's bytes may cause.
FAILURES: Final = {
    "request_failed", "kafka request failed", "unexpected", "replica_stopped", "coordinator_broke_down",
    "replica_not_opened", "metadata_not_readable", "oxia_request_failed",
}  # fmt: skip


def messages_in(data: bytes) -> list[bytes]:
    """The messages of an input."""
    found: list[bytes] = []
    at = 0
    while at + 2 <= len(data) and len(found) < MESSAGES_MAX:
        size = int.from_bytes(data[at : at + 2], "big")
        found.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def messages_of(data: bytes) -> list[bytes]:
    """The messages of an input as they are sent: the first one may be large (`large`)."""
    listed, repeated = split(data)
    found = messages_in(listed)
    return [enlarged(found[0], repeated), *found[1:]] if found else found


def input_of(how: int, *messages: bytes) -> bytes:
    """The reverse."""
    return bytes([how]) + b"".join(len(one).to_bytes(2, "big") + one for one in messages)


class World:
    """Simulated nodes that live as long as this, and run while somebody calls."""

    def __init__(self, security: Security, **config: Any) -> None:
        self.told: list[dict[str, Any]] = []
        self.loop = VirtualLoop(Random("fuzz loop"))
        Network(self.loop, Random("fuzz network"))
        self.client = Process(self.loop, "client", "client", seed=1)
        ports = Ports(NATIVE_PORT, KAFKA_PORT, config.pop("oxia_port", -1), HTTP_PORT)
        self._opens = configured()
        self._opens.__enter__()
        with self.heard():
            self.call(self._start(security, ports, config))

    async def _start(self, security: Security, ports: Ports, config: dict[str, Any]) -> None:
        self.nodes = Nodes(1, ports=ports, security=security, **config)
        await self.nodes.start_all()

    def heard(self) -> Any:
        """While this is open, what the nodes' log says is kept."""
        return _Captured(self.told)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something as the client, until it is done."""
        task = self.client.run(asyncio.wait_for(work, INPUT_S))
        self.loop.run_until(task.done)
        return task.result()

    def failures(self) -> list[str]:
        """What went wrong since the last time."""
        found = [f"{line}" for line in self.told if line["event"] in FAILURES or line.get("exc_info")]
        found += [f"{failure}" for failure in self.loop.failures]
        self.told.clear()
        self.loop.failures.clear()
        return found

    def close(self) -> None:
        """Away with it."""
        self.loop.close()
        self._opens.__exit__(None, None, None)


class _Captured:
    """Keeps the lines of the log instead of printing them."""

    def __init__(self, told: list[dict[str, Any]]) -> None:
        self._told = told

    def __enter__(self) -> None:
        self._before = structlog.get_config()
        structlog.configure(processors=[self._keep], cache_logger_on_first_use=False)

    def _keep(self, _logger: Any, _method: str, line: Any) -> Any:
        self._told.append(dict(line))
        raise structlog.DropEvent

    def __exit__(self, *_: object) -> None:
        structlog.configure(**self._before)


class Listener(Target):
    """Base: one listener of a node."""

    port: int
    slow_s = 4.0
    memory_bytes = 192 * 1024 * 1024
    security = Security()

    def __init__(self) -> None:
        self._world: World | None = None
        self._inputs = 0

    def make(self) -> World:
        """The nodes, with what requests are about."""
        world = World(self.security)
        with world.heard():
            world.call(self._furnish(world))
        return world

    async def _furnish(self, world: World) -> None:
        node = world.nodes.nodes[0]
        await create(node, "log", 2)
        await node.gateway.append(node.gateway.topic("log").shards[0].shard_id, _batch())

    def stream(self, how: int, messages: list[bytes]) -> list[bytes]:
        """What is written to the socket, piece by piece."""
        return messages

    def answers(self, sent: list[bytes], received: bytes) -> None:
        """Check what came back."""

    def is_borne(self, line: dict[str, Any]) -> bool:
        """Is this line of the log what may become of such an input?"""
        return False

    async def witness(self, world: World) -> None:
        """Another client asks something, and must be answered as always."""
        raise NotImplementedError

    def run(self, data: bytes) -> None:
        if not data:
            return
        if self._world is None or self._inputs >= FRESH_AFTER:
            self.close()
            self._world, self._inputs = self.make(), 0
        self._inputs += 1
        world = self._world
        sent = self.stream(data[0], messages_of(data))
        try:
            with world.heard():
                received = world.call(self._exchange(sent))
                world.call(self.witness(world))
            if any(self.is_borne(line) for line in world.told):
                self.close()  # the replica of these nodes serves nobody any more
                return
            failures = world.failures()
            check(not failures, "; ".join(failures)[:4000])
            self.answers(sent, received)
        except BaseException:
            self.close()  # whatever it left behind must not be blamed on the next input
            raise

    async def _exchange(self, sent: list[bytes]) -> bytes:
        """Send it all, and read until nothing more comes."""
        reader, writer = await asyncio.open_connection("node-0", self.port)
        received = bytearray()
        try:
            for piece in sent:
                writer.write(piece)
            while True:
                try:
                    data = await asyncio.wait_for(reader.read(1 << 16), SILENCE_S)
                except TimeoutError:
                    return bytes(received)
                if not data:
                    return bytes(received)
                received += data
        except ConnectionError:
            return bytes(received)
        finally:
            writer.transport.abort()

    def close(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None


def _batch() -> bytes:
    from antiphon.records.builder import build_batch

    return bytes(build_batch([(b"k", b"v", [], 1)]))


class Kafka(Listener):
    """The Kafka listener."""

    port = KAFKA_PORT

    def seeds(self) -> list[bytes]:
        return kafka_inputs(FRAMED)

    def stream(self, how: int, messages: list[bytes]) -> list[bytes]:
        if how & FRAMED:
            return [struct.pack(">i", len(one)) + one for one in messages]
        return messages

    def answers(self, sent: list[bytes], received: bytes) -> None:
        """Each answer is a frame that belongs to the next request that has one, and reads as that API's answer does."""
        asked = requests_in(b"".join(sent))
        at = 0
        while at < len(received):
            check(len(received) - at >= 8, f"{len(received) - at} bytes after the last answer")
            size, correlation = struct.unpack_from(">ii", received, at)
            check(
                4 <= size <= len(received) - at - 4,
                f"an answer of {size} bytes, {len(received) - at - 4} are here",
            )
            body, at = received[at + 8 : at + 4 + size], at + 4 + size
            while asked and asked[0][2] != correlation:
                asked.pop(0)  # Produce with acks=0 has no answer
            check(bool(asked), f"an answer to {correlation}, which was not asked, or not then")
            key, version, _ = asked.pop(0)
            _readable(key, version, body)

    async def witness(self, world: World) -> None:
        reader, writer = await asyncio.open_connection("node-0", self.port)
        writer.write(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        size, correlation = struct.unpack(">ii", await asyncio.wait_for(reader.readexactly(8), 20))
        check(correlation == 7 and size > 100, "the other client got another answer")
        await reader.readexactly(size - 4)
        writer.close()


def requests_in(stream: bytes) -> list[tuple[int, int, int]]:
    """(API key, version, correlation id) of the frames of a stream."""
    found, at = [], 0
    while at + 12 <= len(stream):
        size, key, version, correlation = struct.unpack_from(">ihhi", stream, at)
        if size < 8:
            break
        found.append((key, version, correlation))
        at += 4 + size
    return found


def _readable(key: int, version: int, body: bytes) -> None:
    api = APIS.get(key)
    if api is None or api.response is None or not api.min_version <= version <= api.max_version:
        return  # Produce and Fetch have codecs of their own; ApiVersions answers any version
    flexible = api.is_flexible(version)
    reader = Reader(memoryview(body)[1 if flexible and key != 18 else 0 :])
    try:
        message = codec(api.response, version, flexible).read(reader)
    except ProtocolViolationError as error:
        raise AssertionError(f"the answer of {api.name} {version} cannot be read: {error}") from error
    check(not reader.remaining, f"{reader.remaining} bytes follow the answer of {api.name} {version}")
    written = encode(message, version, flexible=flexible)
    check(
        bytes(written) == bytes(reader.buffer),
        f"the answer of {api.name} {version} is not as it would be written",
    )


class KafkaLogin(Kafka):
    """The Kafka listener of a cluster that asks who is there."""

    security = Security(authentication=True, super_users=["User:root"])

    async def _furnish(self, world: World) -> None:
        await super()._furnish(world)
        made = tuple(
            credential(name, "of root", iterations=4096) for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        )
        await world.nodes.nodes[0].gateway.administer(AlterUser("root", made))


class Native(Listener):
    """The native listener: clients."""

    port = NATIVE_PORT

    def seeds(self) -> list[bytes]:
        return native_inputs(FRAMED | GREETED)

    def stream(self, how: int, messages: list[bytes]) -> list[bytes]:
        if not how & FRAMED:
            return messages
        hello = (
            [b"".join(bytes(p) for p in encode_message(1, Hello(PROTOCOL_VERSION, "fuzz")))]
            if how & GREETED
            else []
        )
        return hello + [_framed(one) for one in messages]

    def answers(self, sent: list[bytes], received: bytes) -> None:
        """Whole frames, each a message; none says that the node failed."""
        decoder = FrameDecoder()
        for frame in decoder.feed(received):
            _, body = self.decoded(frame.header)
            told = isinstance(body, Failure) and body.code in {"internal", "internal_error"}
            check(not told, f"{body}")
        check(decoder.buffered_bytes == 0, f"{decoder.buffered_bytes} bytes after the last answer")

    def decoded(self, header: Any) -> tuple[int, Any]:
        """One answer."""
        return decode_peer_reply(header)

    async def witness(self, world: World) -> None:
        await _greeted(self.port, Hello(PROTOCOL_VERSION, "witness"))


def _framed(message: bytes) -> bytes:
    """A frame: the first two bytes say how much of the rest is the header."""
    header_bytes = int.from_bytes(message[:2], "big")
    rest = message[2:]
    return struct.pack(">II", 4 + len(rest), min(header_bytes, len(rest))) + rest


def _message(body: Any, payload: bytes = b"") -> bytes:
    """A message as `_framed` takes it."""
    frame = b"".join(bytes(part) for part in encode_message(1, body, (payload,) if payload else ()))
    return frame[6:8] + frame[8:]


async def _greeted(port: int, hello: Any) -> None:
    reader, writer = await asyncio.open_connection("node-0", port)
    writer.writelines(encode_message(1, hello))
    data = await asyncio.wait_for(reader.read(1 << 16), 20)
    check(len(FrameDecoder().feed(data)) == 1, "the other client was not greeted")
    writer.close()


class NativeLogin(Native):
    """The native listener of a cluster that asks who is there."""

    security = Security(authentication=True, super_users=["User:root"])

    async def _furnish(self, world: World) -> None:
        await super()._furnish(world)
        made = (credential("SCRAM-SHA-256", "of root", iterations=4096),)
        await world.nodes.nodes[0].gateway.administer(AlterUser("root", made))


class Peer(Native):
    """The port for nodes of a cluster with a key: nobody here knows the key."""

    port = PEER_PORT

    def seeds(self) -> list[bytes]:
        hello = PeerHello(PROTOCOL_VERSION, "test", 1, 0, "i", bytes(32))
        bodies = (hello, PeerProof(bytes(32)), Hello(PROTOCOL_VERSION, "n", "test", 1, "i"))
        messages = [_message(body) for body in bodies]
        large = native_inputs(FRAMED)
        return [input_of(FRAMED, one) for one in messages] + [input_of(FRAMED, *messages), *large]

    def make(self) -> World:
        return World(Security(), secrets={0: b"the key of all nodes, long enough it is"})

    def decoded(self, header: Any) -> tuple[int, Any]:
        return decode_challenge(header)

    async def witness(self, world: World) -> None:
        await _greeted(self.port, PeerHello(PROTOCOL_VERSION, "test", 1, 0, "i", bytes(32)))


class PeerMessages(Native):
    """The messages of a node that has said who it is. What replication does not allow stops the replica, on purpose."""

    def seeds(self) -> list[bytes]:
        batch = _batch()
        snapshot = SnapshotBegin(2, 1, EntryId(1, 5), "s", (SnapshotFile("a", 3, 7),))
        bodies: tuple[tuple[Any, bytes], ...] = (
            (Append(1, 1, 2, EntryId(0, 0), 0, 1), batch),
            (Append(2, 5, 2, EntryId(1, 1), 9, 1), b""),
            (snapshot, b""),
            (SnapshotChunk(2, "s", 0, 0, 7), b"abc"),
        )
        return [input_of(FRAMED, _message(body, payload)) for body, payload in bodies]

    def stream(self, how: int, messages: list[bytes]) -> list[bytes]:
        hello = encode_message(1, Hello(PROTOCOL_VERSION, "node", "test", 2, "i"))
        return [bytes(part) for part in hello] + [_framed(one) for one in messages]

    def is_borne(self, line: dict[str, Any]) -> bool:
        """A second leader of one term, say, or entries that do not follow each other."""
        return line["event"] == "replica_stopped" and line.get("kind") in {
            "InvariantError",
            "ProtocolViolationError",
        }


class Http(Listener):
    """The HTTP listener."""

    port = HTTP_PORT

    def seeds(self) -> list[bytes]:
        return http_inputs()

    def answers(self, sent: list[bytes], received: bytes) -> None:
        at = 0
        while at < len(received):
            end = received.find(b"\r\n\r\n", at)
            head = received[at:end] if end >= 0 else b""
            check(head.startswith(b"HTTP/1.1 "), f"no answer at {at}: {received[at : at + 60]!r}")
            check(not head.startswith(b"HTTP/1.1 500"), f"a page failed: {received[at : at + 400]!r}")
            size = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
            at += len(head) + 4
            follows = received[at : at + 9] in {b"HTTP/1.1 ", b""}
            at += 0 if follows else size  # HEAD has no body
            check(at <= len(received), "an answer ends early")

    async def witness(self, world: World) -> None:
        reader, writer = await asyncio.open_connection("node-0", self.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        check(answer.startswith(b"HTTP/1.1 200 "), f"the other client got {answer[:100]!r}")
        writer.close()


class HttpLogin(Http):
    """The HTTP listener of a cluster that asks who is there."""

    security = KafkaLogin.security
