"""The Kafka listener: a socket whose clients are Kafka's, over the node's shards."""

import asyncio
import socket
from collections.abc import Awaitable
from typing import Final, NamedTuple

import structlog

from antiphon.errors import PortInUseError, ProtocolViolationError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import Handler, RequestContext
from antiphon.kafka.apis import APIS, Handlers, HotHandler
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.framing import RequestHeader, finish_response, read_header, start_response
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.offsets import GroupOffsets
from antiphon.kafka.groups.types import DEFAULT_GROUP_CONFIG, GroupConfig
from antiphon.kafka.handlers.configs import ConfigHandler
from antiphon.kafka.handlers.elections import ElectionHandler
from antiphon.kafka.handlers.fetch import FetchHandler
from antiphon.kafka.handlers.group_admin import GroupAdminHandler
from antiphon.kafka.handlers.group_offsets import GroupOffsetsHandler
from antiphon.kafka.handlers.groups import GroupHandler
from antiphon.kafka.handlers.log_offsets import LogOffsetsHandler
from antiphon.kafka.handlers.metadata import MetadataHandler, served_versions
from antiphon.kafka.handlers.produce import ProduceHandler
from antiphon.kafka.handlers.topics import TopicHandler
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.primitives import Reader
from antiphon.kafka.schema import Message, codec, encode
from antiphon.kafka.topic_config import TopicDefaults

BACKLOG: Final = 256
IDLE_CHECK_S: Final = 60.0
TELL_EVERY_S: Final = 5.0


class KafkaListenerConfig(NamedTuple):
    """What an operator may choose."""

    auto_create_topics: bool = True  # a client that asks for a missing topic's metadata creates it
    shards_default: int = 1  # partitions of a topic that is created without a number
    group_table_shards: int = 4
    groups: GroupConfig = DEFAULT_GROUP_CONFIG
    connections_max: int = 2_000
    idle_s: float = 600.0  # a connection without a request for so long is closed


_DEFAULT_CONFIG: Final = KafkaListenerConfig()


def _handlers(gateway: Gateway, config: KafkaListenerConfig, coordinator: GroupCoordinator) -> Handlers:
    cache = MetadataCache(gateway)
    offsets = GroupOffsets(gateway)
    defaults = TopicDefaults(config.auto_create_topics, config.shards_default)
    return Handlers(
        produce=ProduceHandler(gateway, cache),
        fetch=FetchHandler(gateway, cache),
        metadata=MetadataHandler(gateway, cache, APIS.values(), defaults),
        log_offsets=LogOffsetsHandler(gateway, cache),
        groups=GroupHandler(cache, coordinator),
        group_offsets=GroupOffsetsHandler(gateway, coordinator, offsets),
        group_admin=GroupAdminHandler(coordinator, offsets),
        topics=TopicHandler(gateway, cache, defaults),
        configs=ConfigHandler(gateway, cache, defaults),
        elections=ElectionHandler(gateway, cache),
    )


class KafkaListener:
    """Serves Kafka's protocol on `host:port` (port 0: any free one) from `start()` to `stop()`.

    Clients are told the addresses in the cluster's metadata (`NodeMeta.kafka`), not this one: the node decides what it
    advertises. `address` is where this listens.
    """

    def __init__(
        self, gateway: Gateway, host: str, port: int, config: KafkaListenerConfig = _DEFAULT_CONFIG
    ) -> None:
        self._gateway = gateway
        self._host = host
        self._wanted_port = port
        self._config = config
        self._coordinator = GroupCoordinator(gateway, config.groups, table_shards=config.group_table_shards)
        self._handlers = _handlers(gateway, config, self._coordinator)
        self._connections: dict[Connection, float] = {}
        self._refusals = 0
        self._tell_refusals_s = 0.0
        self._server: asyncio.Server | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self.port = 0
        self.requests = 0  # served since the start, for metrics

    @property
    def address(self) -> str:
        """`host:port` that this listens on."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def start(self, sock: socket.socket | None = None) -> None:
        """Listen, on an already bound socket where one is given. Raises PortInUseError."""
        loop = asyncio.get_running_loop()
        try:
            if sock is not None:
                sock.setblocking(False)
                self._server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=BACKLOG)
            else:
                self._server = await loop.create_server(
                    lambda: Connection(self), self._host, self._wanted_port, backlog=BACKLOG
                )
        except OSError as error:
            raise PortInUseError(
                f"cannot listen on {self._host}:{self._wanted_port} for Kafka clients: {error.strerror}",
                port=self._wanted_port,
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._coordinator.start()
        self._idle_check = loop.call_later(IDLE_CHECK_S, self._close_idle)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        if self._idle_check is not None:
            self._idle_check.cancel()
        await self._handlers.metadata.stop()
        await self._coordinator.stop()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            await asyncio.sleep(0)  # what was answered goes out
        for connection in list(self._connections):
            connection.abort()  # and nobody who does not read it holds us up
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    # -- what connections call --------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> bool:
        """A client connected; refused over the limit."""
        if self._server is None or len(self._connections) >= self._config.connections_max:
            self._refused(connection)
            return False
        self._connections[connection] = asyncio.get_running_loop().time()
        return True

    def _refused(self, connection: Connection) -> None:
        self._refusals += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._tell_refusals_s:
            self._tell_refusals_s = now_s + TELL_EVERY_S
            structlog.get_logger().warning(
                "kafka connection refused",
                client=connection.client_host,
                open=len(self._connections),
                refused=self._refusals,
            )

    def disconnected(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)

    def dispatch(self, frame: memoryview, answer: Answer) -> None:
        """Decode a request and begin to work on it."""
        header, reader = read_header(frame, APIS)
        self.requests += 1
        if not header.supported:
            plain = header._replace(version=0)
            answer.send(_response(plain, served_versions(APIS.values(), code.UNSUPPORTED_VERSION)))
            return
        handler = APIS[header.api.key].handler
        work: Awaitable[None] | None
        if isinstance(handler, HotHandler):
            work = handler.start(self._handlers)(header, handler.decode(reader, header.version), answer)
        else:
            work = _serve(handler(self._handlers), header, _decode(header, reader), answer)
        if work is not None:
            guarded = self._guard(work, header, answer.connection)
            answer.connection.start_task(guarded, f"kafka {header.api.name}")

    async def _guard(self, work: Awaitable[None], header: RequestHeader, connection: Connection) -> None:
        """A failure of ours in one request closes its connection, not the node."""
        try:
            await work
        except Exception:  # noqa: BLE001 (whatever it is, it is logged, and nobody else may suffer)
            structlog.get_logger().exception(
                "kafka request failed", api=header.api.name, version=header.version
            )
            connection.fail("the request failed here", api=header.api.name)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection, seen_s in list(self._connections.items()):
            if connection.requests_since_check() or not connection.is_idle:
                self._connections[connection] = now_s
            elif now_s - seen_s > self._config.idle_s:
                connection.close()
        self._idle_check = loop.call_later(IDLE_CHECK_S, self._close_idle)


async def _serve(handler: Handler, header: RequestHeader, request: Message, answer: Answer) -> None:
    flexible = header.api.is_flexible(header.version)
    context = RequestContext(header.version, flexible, header.client_id, answer.connection.client_host)
    answer.send(_response(header, await handler(request, context)))


def _decode(header: RequestHeader, reader: Reader) -> Message:
    """Read a request's body. Bytes after it are ignored, as Kafka does: librdkafka 2.16 sends three too many in a
    Metadata request for all topics.
    """
    kind = header.api.request
    if kind is None:
        raise ProtocolViolationError(f"{header.api.name} has no plain request")
    message: Message = codec(kind, header.version, header.api.is_flexible(header.version)).read(reader)
    return message


def _response(header: RequestHeader, body: Message | bytes) -> bytearray:
    out = start_response(header)
    if isinstance(body, Message):
        encode(body, header.version, flexible=header.api.is_flexible(header.version), out=out)
    else:
        out += body
    finish_response(out)
    return out
