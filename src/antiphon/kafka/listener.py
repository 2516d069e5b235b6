"""The Kafka listener: a socket whose clients are Kafka's, over the node's shards."""

import asyncio
import socket
from collections.abc import Awaitable, Mapping
from typing import Final

import structlog

from antiphon import system
from antiphon.errors import NotReadyError, ProtocolViolationError
from antiphon.gateway.addresses import Addresses
from antiphon.gateway.budget import FLOOR_BYTES, Budget, Pool
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import Payer, Steps, Use, payer_of
from antiphon.gateway.request_times import RequestTimes
from antiphon.kafka import error_codes as code
from antiphon.kafka.answer_sizes import BODY_BYTES_MAX, AnswerSizes, Key
from antiphon.kafka.api import (
    API_VERSIONS,
    ELEMENTS_OF,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Handler,
    RequestContext,
)
from antiphon.kafka.apis import APIS, HotHandler, ServedApi
from antiphon.kafka.archived.reader import ArchiveReader
from antiphon.kafka.bodies import decoded, encoded
from antiphon.kafka.composition import handlers_of
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.error_answers import refused
from antiphon.kafka.framing import RequestHeader, read_header
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.hosted import HostedGroups
from antiphon.kafka.groups.offset_expiry import OffsetExpiry
from antiphon.kafka.groups.share_partitions import SharePartitions
from antiphon.kafka.groups.types import GroupConfig
from antiphon.kafka.handlers.logins import HANGS_UP, bare_login
from antiphon.kafka.handlers.metadata import served_versions
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.inbox import Inbox
from antiphon.kafka.listener_config import KafkaListenerConfig
from antiphon.kafka.messages.security import SaslAuthenticateResponse
from antiphon.kafka.one_thread import OneThread
from antiphon.kafka.primitives import ELEMENTS_MAX, Reader, TooManyElementsError
from antiphon.kafka.schema import Message
from antiphon.kafka.topic_config import TopicDefaults
from antiphon.security.listening import Listening, listen
from antiphon.security.tls import ServerTls
from antiphon.shares import asking
from antiphon.transactions.service import TransactionService

LARGE_REQUEST_BYTES: Final = 16 * 1024
INLINE_ELEMENTS: Final = 256  # of a Produce or Fetch request that is decoded in the turn in which it arrives
BACKLOG: Final = 256
BULKY: Final = {
    "Metadata",
    "OffsetFetch",
}  # have long answers to short requests, as all Describe... and List...
LOOK_S: Final = 1.0  # between two looks at connections that are silent or slow
TELL_EVERY_S: Final = 5.0
BEFORE_LOGIN: Final = {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}


_DEFAULT_CONFIG: Final = KafkaListenerConfig()
_ALONE_BYTES: Final = 128 * 1024 * 1024  # of a listener that is given no part of a node's memory


class _Seen:
    """When a connection was last seen to be used, and how many requests it had sent by then."""

    __slots__ = ("at_s", "requests", "since_s")

    def __init__(self, now_s: float) -> None:
        self.at_s = self.since_s = now_s
        self.requests = 0


class KafkaListener:
    """Serves Kafka's protocol on `host:port` (port 0: any free one) from `start()` to `stop()`.

    Clients are told the addresses in the cluster's metadata (`NodeMeta.kafka`), not this one. `pool` is the listener's part
    of the node's memory for clients, `transactions` the node's part in them, which somebody else starts and stops.
    """

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int,
        transactions: TransactionService,
        config: KafkaListenerConfig = _DEFAULT_CONFIG,
        pool: Pool | None = None,
    ) -> None:
        self._gateway = gateway
        self._host = host
        self._wanted_port = port
        self._config = config
        self._coordinator = GroupCoordinator(gateway, config.groups, table_shards=config.group_table_shards)
        self.expiry = OffsetExpiry(gateway, self._coordinator, transactions.offsets, transactions.pending)
        self._aside = OneThread()
        self._shares = SharePartitions(gateway, transactions.share_asker, config.groups.share)
        self.topics = TopicDefaults(config.auto_create_topics, config.shards_default, config.topics_on_demand)
        guarded = config.authenticator is not None and config.authenticator.on
        self.archive = ArchiveReader(gateway, config.archive_bytes, self._aside, guarded=guarded)
        self._handlers = handlers_of(
            gateway,
            config,
            self._coordinator,
            transactions,
            self._aside,
            self._shares,
            self.topics,
            self.archive,
        )
        self.clients = self._handlers.telemetry.clients
        self.hosted = transactions.told_groups.host = HostedGroups(gateway, self._coordinator, self._shares)
        self._pool = pool or Budget(_ALONE_BYTES).pool("kafka", _ALONE_BYTES, _ALONE_BYTES // 4)
        self._inbox = Inbox()
        self._sizes = AnswerSizes()
        self._learning = asyncio.Lock()  # held while an answer is made only to know its size
        self._apis: Mapping[int, ServedApi] = APIS
        self._connections: dict[Connection, _Seen] = {}
        self._addresses = Addresses(config.address_connections_max)
        self._refusals = 0
        self._tell_refusals_s = 0.0
        self._server: Listening | None = None
        self._look: asyncio.TimerHandle | None = None
        self.port = 0
        self.requests = 0  # served since the start, for metrics
        self.request_times = RequestTimes()

    @property
    def address(self) -> str:
        """`host:port` that this listens on."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    @property
    def connections_max(self) -> int:
        """Above so many, they are turned away."""
        return self._config.connections_max

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def groups(self) -> GroupConfig:
        """Bounds and delays of groups, as they are now."""
        return self._coordinator.config

    def settings_changed(self, topics: TopicDefaults, groups: GroupConfig) -> None:
        """The node's settings are these from now on."""
        self.topics.become(topics)
        self._coordinator.take(groups)
        self._shares.take(groups.share)
        self.expiry.settings_changed()

    async def start(self, sock: socket.socket | None = None, tls: ServerTls | None = None) -> None:
        """Listen, on an already bound socket where one is given; with `tls` to TLS only. Raises PortInUseError."""
        loop = asyncio.get_running_loop()
        most = self._config.handshakes_max
        self._server = await listen(
            self._made, self._host, self._wanted_port, sock, "kafka", tls, most, BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._coordinator.start()
        self.expiry.start()
        self._look = loop.call_later(LOOK_S, self._look_around)

    def _made(self) -> Connection:
        return Connection(self, self._pool.open(), self._inbox)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        if self._look is not None:
            self._look.cancel()
        await self._handlers.metadata.stop()
        await self.archive.stop()
        await self._shares.stop()
        await self.expiry.stop()
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
        """A client connected; refused over the limit, and where its address makes more connections than its quota."""
        config = self._config
        host = connection.client_host
        full = self._server is None or len(self._connections) >= config.connections_max
        crowded = not self._addresses.enter(host)
        if full or crowded or not config.quotas.admits(host):
            self._addresses.leave(host)
            self._refused(connection)
            return False
        connection.quotas = config.quotas
        connection.session = connection.session_with(config.authenticator)
        if not connection.has_place():
            self._addresses.leave(host)
            return False
        self._connections[connection] = _Seen(asyncio.get_running_loop().time())
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
        if self._connections.pop(connection, None) is not None:
            self._addresses.leave(connection.client_host)
        self._handlers.fetch.sessions.ended(connection)
        self._handlers.share_fetch.ended(connection)

    def dispatch(self, frame: memoryview, answer: Answer) -> None:
        """Decode a request and begin to work on it."""
        self.requests += 1
        session = answer.connection.session
        if session.takes_bare_messages and session.has_begun:
            answer.connection.hold(answer)
            answer.connection.start_task(bare_login(frame, answer), "kafka login")
            return
        header, reader = read_header(frame, self._apis)
        answer.times = self.request_times[header.api.name]
        if not session.is_open and header.api.key not in BEFORE_LOGIN:
            raise ProtocolViolationError(f"{header.api.name} before a login")
        if not header.supported:
            plain = header._replace(version=0)
            answer.send(encoded(plain, served_versions(self._apis.values(), 0, code.UNSUPPORTED_VERSION)))
            return
        handler = self._apis[header.api.key].handler
        work: Awaitable[None] | None
        if isinstance(handler, HotHandler):
            work = self._begin(handler, header, reader, answer)
        else:
            if header.api.key == SASL_AUTHENTICATE:
                answer.connection.hold(answer)  # a password is checked in a thread
            work = self._serve_in_turn(handler(self._handlers), header, reader, answer)
        if work is not None:
            guarded = self._guard(work, header, answer)
            answer.connection.start_task(guarded, f"kafka {header.api.name}")

    def _begin(
        self, handler: HotHandler, header: RequestHeader, reader: Reader, answer: Answer
    ) -> Awaitable[None] | None:
        """Decode a request to an API with a codec of its own, and begin to carry it out."""
        start, quotas = handler.start(self._handlers), self._config.quotas
        began_s = system.monotonic_s() if quotas.times_requests else 0.0
        try:
            request = handler.decode(reader.from_here(INLINE_ELEMENTS), header.version)
        except TooManyElementsError:
            work: Awaitable[None] | None = self._begin_large(handler, header, reader, answer)
        else:
            work = start(header, request, answer)
        if not quotas.times_requests:
            return work
        payer = _payer(header, answer)
        quotas.charge(Use.REQUEST, payer, system.monotonic_s() - began_s, answer)
        return None if work is None else self._timed(work, payer, answer)

    def _begin_large(
        self, handler: HotHandler, header: RequestHeader, reader: Reader, answer: Answer
    ) -> Awaitable[None]:
        """The same for a request of many elements: a thread decodes it, and the connection's next requests wait."""
        answer.connection.hold(answer)

        async def work() -> None:
            try:
                client = answer.connection.client
                request = await self._aside.run(handler.decode, reader, header.version, client=client)
                more = handler.start(self._handlers)(header, request, answer)
                if more is not None:
                    await more
            finally:
                answer.connection.go_on(answer)

        return work()

    async def _timed(self, work: Awaitable[None], payer: Payer | None, answer: Answer) -> None:
        """The rest of the work. What it takes is known when the answer is sent: the client waits, and is not told."""
        steps = Steps(work)
        await steps
        self._config.quotas.charge(Use.REQUEST, payer, steps.took_s, answer)

    async def _serve_in_turn(
        self, handler: Handler, header: RequestHeader, reader: Reader, answer: Answer
    ) -> None:
        """Decode, carry out and answer a request that may take long, when it is its connection's turn.

        A large one is decoded, and its answer encoded, in a thread, which leaves the event loop to others meanwhile.
        """
        asking.set(answer.connection.client)
        reader.limit_elements(ELEMENTS_OF.get(header.api.key, ELEMENTS_MAX))
        api, key = header.api, (header.api.key, header.version, reader.next_bytes(BODY_BYTES_MAX + 1))
        reads = api.name in BULKY or api.name.startswith(("Describe", "List"))
        async with answer.connection.first:
            expected = self._sizes.of(key) if reads else 0
            if expected is None and reader.size <= LARGE_REQUEST_BYTES and not answer.may_begin(None):
                expected = await self._learn_size(handler, header, reader, answer, key)
            await self._room(answer, expected)
        aside = self._aside if reader.size > LARGE_REQUEST_BYTES else None
        quotas, payer = self._config.quotas, _payer(header, answer)
        work = _carried_out(handler, header, reader, answer, payer, aside)
        if quotas.times_requests:
            steps = Steps(work)
            response = await steps
            quotas.charge(Use.REQUEST, payer, steps.took_s, answer)
        else:
            response = await work
        if isinstance(response, bytes) and len(response) > FLOOR_BYTES:
            await self._room(answer, len(response))  # it is shared until here
        if isinstance(response, SaslAuthenticateResponse) and not answer.connection.has_place():
            answer.connection.abort()  # as Kafka's brokers do above their limits: clients come again, after a while
            return
        told = (header, response, answer.throttle_ms)
        if aside is None:
            frame = encoded(*told)
        else:
            answer.reserve(reader.size)  # about, until it is known
            frame = await aside.run(encoded, *told, client=answer.connection.client)
        if reads:
            self._sizes.note(key, len(frame))
        answer.send(frame)
        if isinstance(response, SaslAuthenticateResponse) and response.error_code in HANGS_UP:
            answer.connection.close()

    async def _learn_size(
        self, handler: Handler, header: RequestHeader, reader: Reader, answer: Answer, key: Key
    ) -> int:
        """The size of an answer that nobody has asked for lately, where there is no room: made, and let go of.

        Most are small, and whoever holds all the room may keep it for half a minute. One is made at a time.
        """
        async with self._learning:
            known = self._sizes.of(key)
            if known is not None:
                return known
            await answer.next_turn()
            again = reader.from_here(ELEMENTS_OF.get(header.api.key, ELEMENTS_MAX))
            response = await _carried_out(handler, header, again, answer, _payer(header, answer), None)
            size_bytes = len(encoded(header, response, answer.throttle_ms))
            self._sizes.note(key, size_bytes)
            return size_bytes

    async def _room(self, answer: Answer, expected_bytes: int | None) -> None:
        """Return when it is the connection's turn and there is room for the answer."""
        await answer.next_turn()
        while not answer.may_begin(expected_bytes):
            await answer.connection.wait_for_room(LOOK_S)
            await answer.next_turn()

    async def _guard(self, work: Awaitable[None], header: RequestHeader, answer: Answer) -> None:
        """A failure of ours in one request closes its connection, not the node."""
        connection = answer.connection
        try:
            await work
            if header.api.key == SASL_AUTHENTICATE:
                connection.go_on(answer)
        except (ProtocolViolationError, NotReadyError) as error:
            # Not ready is a node that knows no rights yet, for which Kafka has no code.
            connection.fail(error.message)
        except Exception:  # noqa: BLE001 (whatever it is, it is logged, and nobody else may suffer)
            structlog.get_logger().exception(
                "kafka request failed", api=header.api.name, version=header.version
            )
            connection.fail("the request failed here", api=header.api.name)

    def _look_around(self) -> None:
        """Close connections that are silent, or whose client is too slow."""
        loop = asyncio.get_running_loop()
        now_s, config = loop.time(), self._config
        for connection, seen in list(self._connections.items()):
            if not connection.session.holds:
                connection.abort()  # a user that is gone, a token that has expired
            elif not connection.session.is_open and now_s - seen.since_s > config.first_request_s:
                connection.close()
            elif connection.is_slow(now_s):
                self._pool.closed_slow += 1
                connection.fail("the client sent the rest of a request, or read its answers, too slowly")
            elif connection.requests != seen.requests or not connection.is_idle:
                seen.at_s, seen.requests = now_s, connection.requests
            elif now_s - seen.at_s > (config.idle_s if seen.requests else config.first_request_s):
                connection.close()
        self._look = loop.call_later(LOOK_S, self._look_around)


def _payer(header: RequestHeader, answer: Answer) -> Payer | None:
    """Who pays for a request; nobody before a login."""
    session = answer.connection.session
    return payer_of(session.rights.principal, header.client_id) if session.is_open else None


async def _carried_out(
    handler: Handler,
    header: RequestHeader,
    reader: Reader,
    answer: Answer,
    payer: Payer | None,
    aside: OneThread | None,
) -> Message | bytes:
    """The response to a request, which is decoded `aside`, if that is given."""
    if aside is None:
        request = decoded(header, reader)
    else:
        request = await aside.run(decoded, header, reader, client=answer.connection.client)
    connection = answer.connection
    flexible = header.api.is_flexible(header.version)
    context = RequestContext(
        header.version,
        flexible,
        header.client_id,
        connection.client_host,
        connection.session,
        payer,
        answer,
        answer.next_turn,
        connection.client_port,
        connection.software,
    )
    try:
        return await handler(request, context)
    except RefusedError as error:
        return refused(header.api, request, header.version, error.error_code, error.reason)
