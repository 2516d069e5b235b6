"""One accepted connection: it says who it is, then its frames are requests of a client, or those of another node.

A client that has used up a quota waits: its requests are kept, in their order, and begun later.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from antiphon import system, tracing
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InternalError,
    InvalidRequestError,
    NotLeaderError,
    OverloadedError,
    ProtocolViolationError,
    UnauthenticatedError,
    UnprovenNodeError,
)
from antiphon.invariants import InvariantError
from antiphon.model.requests import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Authenticate,
    AuthenticateReply,
    Hello,
    HelloReply,
)
from antiphon.native.backup_requests import BACKUP_HANDLERS
from antiphon.native.charges import NEVER_WAIT, charge_mutation, charge_request, client_id_of
from antiphon.native.cluster_requests import CLUSTER_HANDLERS
from antiphon.native.log_requests import LOG_HANDLERS
from antiphon.native.table_requests import TABLE_HANDLERS
from antiphon.security.authenticator import FAILED_DELAY_S
from antiphon.security.session import OPEN, session_of
from antiphon.wire.frames import (
    HEADER_BYTES_MAX,
    UNREADABLE,
    Decode,
    Frame,
    decode_request,
    request_id_of,
    request_of_large,
    trace_of,
    unreadable,
)

if TYPE_CHECKING:
    from antiphon.gateway.peers import Peers, PeerSession
    from antiphon.native.exchange import Exchange
    from antiphon.security.authenticator import Authenticator
    from antiphon.transport.connection import Connection

Handler = Callable[["Exchange", int, Any, memoryview], None]
"""Carries out one request: id, body, bulk bytes. It answers, now or later, or raises an AntiphonError that is the answer."""

EARLY_MAX: Final = 64  # messages that are kept while a password is checked
SPANS_MAX: Final = 1_000  # of one connection's requests
STRANGER_BYTES: Final = 64 * 1024
"""Of a frame until who is connected has said who it is, and has logged in: longer ones take memory and time to decode."""

HANDLERS: Final[dict[type, Handler]] = {
    **CLUSTER_HANDLERS,
    **LOG_HANDLERS,
    **TABLE_HANDLERS,
    **BACKUP_HANDLERS,
}


class Greets(Enum):
    """Who may say hello on a port, and how."""

    ANYBODY = "anybody"  # clients, and nodes that need no proof
    CLIENTS = "clients"
    NODES = "nodes"  # their certificates were proof enough
    PROVEN_NODES = "proven nodes"  # that know the key


class SessionOwner(Protocol):
    """Who keeps count of the sessions."""

    @property
    def authenticator(self) -> "Authenticator | None":
        """Who asks clients who they are; None: nobody."""

    def opened(self, session: "NativeSession") -> None:
        """The connection stands; it may be closed at once."""

    def greeted(self, session: "NativeSession") -> None:
        """A client, or a node (`session.peer_id`), has said who it is."""

    def closed(self, session: "NativeSession") -> None:
        """The connection is gone."""

    @property
    def greets(self) -> Greets:
        """Who may say hello here."""

    def not_understood(self, peer: str, reason: AntiphonError) -> None:
        """Whoever connected did not say who it is, but something else."""


class NativeSession:
    """See the module's text."""

    def __init__(self, exchange: "Exchange", peers: "Peers", owner: SessionOwner) -> None:
        self.exchange = exchange
        self.peer_id: int | None = None
        self._peers = peers
        self._owner = owner
        self._peer: PeerSession | None = None
        self._decode: Decode = decode_request.decode
        self.greeted = False
        self._parked: deque[tuple[int, Any, Frame]] = deque()
        exchange.resume = self._resume
        self.host = ""  # the address that it comes from; empty where that is not known
        self.is_over = False  # is it being closed?
        self._is_refused = False  # a login failed: what comes before the connection is closed is passed over
        self._is_proving = False  # is a password being checked? What comes meanwhile is looked at later
        self._early: deque[Frame] = deque()
        self.since_s = asyncio.get_running_loop().time()
        self._log = structlog.get_logger()

    @property
    def connection(self) -> "Connection | None":
        """None once it is gone."""
        return self.exchange.connection

    # -- ConnectionOwner ----------------------------------------------------------------------------------------

    def connected(self, connection: "Connection") -> None:
        """See ConnectionOwner."""
        connection.limit_frames(STRANGER_BYTES)
        address = connection.get_extra_info("peername")
        self.host = self.exchange.host = str(address[0]) if address else ""
        self.exchange.opened(connection)
        self.exchange.session = session_of(self._owner.authenticator, connection, "native")
        self.exchange.is_guarded = self.exchange.session is not OPEN
        self._owner.opened(self)

    def received(self, connection: "Connection", frame: Frame) -> None:
        """See ConnectionOwner."""
        if self._is_refused or (self._is_proving and self._keeps(frame)):
            return
        try:
            if len(frame.header) > HEADER_BYTES_MAX and self._peer is None:
                request_of_large(frame.header)
            request_id, body = self._decode(frame.header)
        except InvalidRequestError as refusal:
            self.exchange.fail(refusal.details["request_id"], refusal)
            return
        except UNREADABLE as problem:
            error = unreadable(problem)
            if not self.greeted:
                raise error from problem
            self.exchange.fail(request_id_of(frame.header), InvalidRequestError(error.message))
            return
        if tracing.tracer is not None and tracing.current is None:
            trace = trace_of(frame.header, body)
            if trace is not None:
                self._take_traced(connection, request_id, body, frame, trace)
                return
        if self._peer is not None and self._peer.received(request_id, body, frame.payload):
            return
        if not self.greeted and type(body) is not Hello:
            raise ProtocolViolationError("the first message of a connection is Hello")
        if self.exchange.mute is not None and self._parks(request_id, body, frame):
            return
        if self.exchange.quotas.all:
            self._begin(request_id, body, frame)
        else:
            self._dispatch(request_id, body, frame.payload)

    def _keeps(self, frame: Frame) -> bool:
        """Keep what came while a password is checked."""
        if len(self._early) >= EARLY_MAX:
            raise ProtocolViolationError("too many messages before a login is answered")
        self._early.append(frame)
        self.exchange.keep(_size_bytes(frame))
        return True

    def _take_traced(
        self, connection: "Connection", request_id: int, body: Any, frame: Frame, trace: str
    ) -> None:
        """What is done at once for a message that belongs to a trace is done under it. It is received once more for that."""
        tracing.current = trace if self._peer is not None else self._span(request_id, body, trace)
        try:
            self.received(connection, frame)
        finally:
            tracing.current = None

    def _span(self, request_id: int, body: Any, trace: str) -> str:
        """Begin a span of a client's request, which ends with its answer; empty: it is not recorded."""
        tracer, exchange = tracing.tracer, self.exchange
        if tracer is None or not self.greeted or len(exchange.spans) >= SPANS_MAX:
            return ""
        node, shard = exchange.gateway.node_id, getattr(body, "shard_id", None)
        span = tracer.within(type(body).__name__, trace, serves=True, node=node, shard=shard)
        if span is None:
            return ""
        exchange.spans[request_id] = span
        return span.traceparent

    def drained(self, connection: "Connection") -> None:
        """See ConnectionOwner."""
        connection.release("answers")
        self.exchange.drained()
        if self._peer is not None:
            self._peer.drained()

    def disconnected(self, connection: "Connection", reason: Exception | None) -> None:
        """See ConnectionOwner."""
        self._owner.closed(self)
        if not self.greeted and isinstance(reason, AntiphonError):
            self._owner.not_understood(connection.peer, reason)
        self._parked.clear()
        if self._peer is not None:
            self._peer.gone()
        self.exchange.gone()

    def close(self) -> None:
        """Send what is ready, then hang up."""
        if self.connection is not None:
            self.connection.close()

    # -- quotas -------------------------------------------------------------------------------------------------

    def _begin(self, request_id: int, body: Any, frame: Frame) -> None:
        """Begin a request, and charge it where there are quotas."""
        exchange = self.exchange
        charged = exchange.quotas.all and self.greeted and self._peer is None and exchange.session.is_open
        if not charged:
            self._dispatch(request_id, body, frame.payload)
            return
        began_s = system.monotonic_s()
        charge_mutation(exchange, body)
        self._dispatch(request_id, body, frame.payload)
        charge_request(exchange, body, _size_bytes(frame), system.monotonic_s() - began_s)

    def _parks(self, request_id: int, body: Any, frame: Frame) -> bool:
        """Keep a request for later while its client has to wait. Not what asks for a sign of life: the client would take
        this node for dead. Those that are kept count as open, which bounds their number and memory.
        """
        mute = self.exchange.mute
        if not self._parked and (mute is None or not mute.is_on):
            return False
        if isinstance(body, NEVER_WAIT):
            return False
        self._parked.append((request_id, body, frame))
        self.exchange.begin(request_id)
        self.exchange.keep(_size_bytes(frame))
        return True

    def _resume(self) -> None:
        """The client has waited: begin what was kept, as far as its quotas allow."""
        exchange, mute = self.exchange, self.exchange.mute
        while self._parked and exchange.connection is not None and mute is not None and not mute.is_on:
            request_id, body, frame = self._parked.popleft()
            exchange.end()
            exchange.keep(-_size_bytes(frame))
            self._begin(request_id, body, frame)

    # -- requests -----------------------------------------------------------------------------------------------

    def _dispatch(self, request_id: int, body: Any, payload: memoryview) -> None:
        exchange = self.exchange
        try:
            if type(body) is Hello:
                self._hello(request_id, body)
            elif type(body) is Authenticate:
                self._authenticate(request_id, body)
            else:
                if exchange.times is not None and not exchange.is_peers:
                    exchange.begun[request_id] = type(body).__name__, system.monotonic_s()
                if exchange.is_guarded:
                    exchange.check(body)
                HANDLERS[type(body)](exchange, request_id, body, payload)
        except NotLeaderError as error:
            if not exchange.forward(request_id, body, payload, error):
                exchange.fail(request_id, error)
        except AntiphonError as error:
            exchange.fail(request_id, error)
        except InvariantError as error:
            self._log.error("request_failed", request=type(body).__name__, exc_info=error)
            exchange.fail(request_id, InternalError(f"node {exchange.gateway.node_id}: {error}"))
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the others of the connection
            self._log.error("request_failed", request=type(body).__name__, exc_info=error)
            exchange.fail(request_id, exchange.bug(error))

    def _authenticate(self, request_id: int, body: Authenticate) -> None:
        exchange = self.exchange
        session = exchange.session
        try:
            if body.mechanism:
                session.begin(body.mechanism)
            work = session.hard_part(body.data)
            if work is not None:
                self._is_proving = True
                exchange.spawn(self._prove(request_id, body, work))
                return
            self._step(request_id, body)
        except UnauthenticatedError as error:
            self._is_refused = True
            exchange.spawn(self._refuse(request_id, error))

    async def _prove(self, request_id: int, body: Authenticate, work: Coroutine[Any, Any, None]) -> None:
        """Log in by a password, when it is checked; then go on with what came meanwhile."""
        try:
            await work
            self._step(request_id, body)
        except UnauthenticatedError as error:
            self._is_refused = True
            await self._refuse(request_id, error)
            return
        except OverloadedError as error:
            self._turn_away(request_id, error)
            return
        except AntiphonError as error:
            self.exchange.fail(request_id, error)
        finally:
            self._is_proving = False
        while self._early and not self._is_proving and self.connection is not None:
            frame = self._early.popleft()
            self.exchange.keep(-_size_bytes(frame))
            try:
                self.received(self.connection, frame)
            except AntiphonError as error:
                self.connection.close(error)
                return

    def _step(self, request_id: int, body: Authenticate) -> None:
        exchange = self.exchange
        session = exchange.session
        answer = session.step(body.data)
        refusal = None if session.has_begun else exchange.take_place()
        if refusal is not None:
            self._turn_away(request_id, refusal)
            return
        exchange.reply(request_id, AuthenticateReply(answer, done=not session.has_begun))
        self._trust()

    async def _refuse(self, request_id: int, error: UnauthenticatedError) -> None:
        """A login failed: who guesses passwords waits for the answer, and has to connect anew."""
        await asyncio.sleep(FAILED_DELAY_S)
        self._turn_away(request_id, error)

    def _turn_away(self, request_id: int, error: AntiphonError) -> None:
        self.exchange.fail(request_id, error)
        if self.connection is not None:
            self.connection.close(error)

    def _hello(self, request_id: int, body: Hello) -> None:
        exchange, gateway = self.exchange, self.exchange.gateway
        refusal = _refusal(self._owner.greets, body)
        node_id = None if body.cluster_id is None else body.node_id
        if refusal is not None:
            error: AntiphonError | None = UnprovenNodeError(refusal)
        elif body.version != PROTOCOL_VERSION:
            error = InvalidRequestError(
                f"protocol version {body.version} is not spoken here, {PROTOCOL_VERSION} is: use matching versions"
            )
        elif body.cluster_id is not None and body.cluster_id != gateway.cluster_id:
            error = ForeignDirectoryError(
                f"this is node {gateway.node_id} of cluster {gateway.cluster_id}, not of {body.cluster_id}"
            )
        else:
            exchange.client_id = client_id_of(body.who)
            error = exchange.take_place() if node_id is None else None
        if error is None:
            self.greet(request_id, node_id)
        else:
            self._turn_away(request_id, error)

    def greet(self, request_id: int, node_id: int | None) -> None:
        """Answer who has said, and proved where that is wanted, that it is a client (None) or a node."""
        gateway, session = self.exchange.gateway, self.exchange.session
        self.greeted = True
        self._trust()
        who = PROTOCOL_VERSION, gateway.cluster_id, gateway.node_id
        self.exchange.reply(request_id, HelloReply(*who, session.mechanisms, session.identity is not None))
        if node_id is not None:
            self._belongs_to(node_id)
        self._owner.greeted(self)

    def _trust(self) -> None:
        """It is known who this is: take frames as long as they may be."""
        if self.connection is not None and self.exchange.session.is_open:
            self.connection.limit_frames(FRAME_BYTES_MAX)

    def _belongs_to(self, node_id: int) -> None:
        connection = self.connection
        if connection is None:
            return  # it broke while it was greeted
        self.peer_id = node_id
        self.exchange.belongs_to_a_node()
        self._decode = self._peers.decode
        self._peer = self._peers.accepted(node_id, connection, self.exchange.begin)


def _size_bytes(frame: Frame) -> int:
    return len(frame.header) + len(frame.payload)


def _refusal(greets: Greets, body: Hello) -> str | None:
    """Why this hello is not taken on such a port; None: it is."""
    is_node = body.node_id is not None and body.cluster_id is not None
    if greets is Greets.CLIENTS and body.node_id is not None:
        return "nodes of this cluster prove who they are: connect to the address for nodes (`peer`) with the same peer_key"
    if greets is Greets.NODES and not is_node:
        return "this port is for nodes of the cluster only; clients use the native port"
    if greets is Greets.PROVEN_NODES:
        return "who is at this end is proved already"
    return None
