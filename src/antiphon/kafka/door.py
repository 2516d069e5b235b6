"""The Kafka door: a listening socket whose clients are Kafka's, over the node's shards."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import structlog

from antiphon.errors import PortInUseError, ProtocolViolationError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import apis
from antiphon.kafka import error_codes as code
from antiphon.kafka.admin_api import AdminApi
from antiphon.kafka.cluster_view import ClusterView
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.fetch import FetchHandler
from antiphon.kafka.fetch_codec import decode_fetch
from antiphon.kafka.framing import RequestHeader, finish_response, start_response
from antiphon.kafka.group_api import GroupApi
from antiphon.kafka.group_coordinator import GroupCoordinator
from antiphon.kafka.group_types import DEFAULT_GROUP_CONFIG, GroupConfig
from antiphon.kafka.metadata_api import MetadataApi, api_versions
from antiphon.kafka.offsets_api import OffsetsApi
from antiphon.kafka.primitives import Reader
from antiphon.kafka.produce import ProduceHandler
from antiphon.kafka.produce_codec import decode_produce
from antiphon.kafka.schema import Message, codec, encode

BACKLOG: Final = 256
IDLE_CHECK_S: Final = 60.0
TELL_EVERY_S: Final = 5.0


class KafkaDoorConfig(NamedTuple):
    """What an operator may choose."""

    auto_create_topics: bool = True  # a client that asks for a missing topic's metadata creates it
    shards_default: int = 1  # partitions of a topic that is created without a number
    group_table_shards: int = 4
    groups: GroupConfig = DEFAULT_GROUP_CONFIG
    connections_max: int = 2_000
    idle_s: float = 600.0  # a connection without a request for so long is closed


_DEFAULT_CONFIG: Final = KafkaDoorConfig()
# A handler answers with a message, or with an encoded body where it keeps one.
_Handler = Callable[[Any, RequestHeader, Connection], Awaitable[Message | bytes]]


class KafkaDoor:
    """Serves Kafka's protocol on `host:port` (port 0: any free one) from `start()` to `stop()`.

    Clients are told the addresses in the cluster's metadata (`NodeMeta.kafka`), not this one: the node decides what it
    advertises. `address` is where the door listens.
    """

    def __init__(
        self, gateway: Gateway, host: str, port: int, config: KafkaDoorConfig = _DEFAULT_CONFIG
    ) -> None:
        self._gateway = gateway
        self._host = host
        self._wanted_port = port
        self._config = config
        self._view = ClusterView(gateway)
        self._produce = ProduceHandler(gateway, self._view)
        self._fetch = FetchHandler(gateway, self._view)
        self._metadata = MetadataApi(
            gateway,
            self._view,
            auto_create=config.auto_create_topics,
            shards_default=config.shards_default,
        )
        self._offsets = OffsetsApi(gateway, self._view)
        self._admin = AdminApi(
            gateway,
            self._view,
            auto_create=config.auto_create_topics,
            shards_default=config.shards_default,
        )
        self._coordinator = GroupCoordinator(gateway, config.groups, table_shards=config.group_table_shards)
        self._groups = GroupApi(gateway, self._view, self._coordinator)
        self._handlers = self._handler_table()
        self._connections: dict[Connection, float] = {}
        self._refusals = 0
        self._tell_refusals_s = 0.0
        self._server: asyncio.Server | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self.port = 0
        self.requests = 0  # served since the start, for metrics

    @property
    def address(self) -> str:
        """`host:port` that the door listens on."""
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
        await self._metadata.stop()
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

    def dispatch(self, header: RequestHeader, reader: Reader, answer: Answer) -> None:
        """Decode a request and begin to work on it."""
        self.requests += 1
        key, version = header.api.key, header.version
        connection = answer.connection
        if key == apis.PRODUCE:
            self._produce.start(header, decode_produce(reader, version), answer)
            return
        if key == apis.FETCH:
            work = self._fetch.run(header, decode_fetch(reader, version), answer)
            connection.start_task(self._guard(work, header, connection), "kafka Fetch")
            return
        if not header.supported:
            plain = header._replace(version=0)
            answer.send(_response(plain, api_versions(code.UNSUPPORTED_VERSION)))
            return
        request = _decode(header, reader)
        serve = self._serve(request, header, answer)
        connection.start_task(self._guard(serve, header, connection), f"kafka {header.api.name}")

    async def _serve(self, request: Message, header: RequestHeader, answer: Answer) -> None:
        body = await self._handlers[header.api.key](request, header, answer.connection)
        answer.send(_response(header, body))

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

    # -- which handler serves which API -----------------------------------------------------------------------------

    def _handler_table(self) -> dict[int, _Handler]:
        metadata, offsets, admin, groups = self._metadata, self._offsets, self._admin, self._groups

        async def serve_metadata(request: Any, header: RequestHeader, _: Connection) -> bytes:
            flexible = header.api.is_flexible(header.version)
            return await metadata.metadata(request, header.version, flexible=flexible)

        async def serve_join(request: Any, header: RequestHeader, connection: Connection) -> Message:
            return await groups.join(request, header.version, header.client_id, connection.client_host)

        return {
            2: lambda request, header, _: offsets.list_offsets(request, header.version),
            3: serve_metadata,
            8: lambda request, _, __: groups.commit(request),
            9: lambda request, header, _: groups.fetch(request, header.version),
            10: lambda request, header, _: groups.find_coordinator(request, header.version),
            11: serve_join,
            12: _at_once(lambda request, _: groups.heartbeat(request)),
            13: _at_once(lambda request, header: groups.leave(request, header.version)),
            14: lambda request, _, __: groups.sync(request),
            15: lambda request, header, _: groups.describe(request, header.version),
            16: lambda request, _, __: groups.list_groups(request),
            18: _at_once(lambda _, __: api_versions()),
            19: lambda request, _, __: admin.create_topics(request),
            20: lambda request, _, __: admin.delete_topics(request),
            21: lambda request, _, __: admin.delete_records(request),
            22: lambda request, _, __: metadata.init_producer_id(request),
            23: _at_once(lambda request, _: offsets.ends_of_epochs(request)),
            32: _at_once(lambda request, _: admin.describe_configs(request)),
            37: lambda request, _, __: admin.create_partitions(request),
            42: lambda request, _, __: groups.delete(request),
            44: lambda request, _, __: admin.alter_configs(request),
            47: lambda request, _, __: groups.delete_offsets(request),
            60: _at_once(lambda request, _: metadata.describe_cluster(request)),
        }


def _at_once(work: Callable[[Any, RequestHeader], Message]) -> _Handler:
    """A handler that has nothing to wait for."""

    async def handler(request: Any, header: RequestHeader, _: Connection) -> Message:
        return work(request, header)

    return handler


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
