"""This node's connections to the others: one per node, dialled from here, shared by all shards (S3.21, S0.25).

Whatever this node has to say to another goes over the connection that it dialled; what the other says comes over the
one that the other dialled. With `dial=leader` a follower answers its leader's Appends on the connection that the leader made
(S0.25), with `dial=follower` a leader sends on the connection that the follower made (S3.20, S4.20); in any case at most
two connections stand between two nodes, one a direction. One-way messages are lost with a connection (the replicas' ticks
make that good); requests fail with UnavailableError. A connection that is refused tells that the process is dead, at once;
one that is reset is dialled again first.
"""

import asyncio
from typing import Any, Final, Protocol

import structlog

from antiphon import system, tracing
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    TimedOutError,
    UnavailableError,
    UnprovenNodeError,
)
from antiphon.gateway.answers import AnsweredWithBulk, awaited
from antiphon.gateway.peers import Answered, PeerConnection
from antiphon.model.peer_handshake import PeerChallenge
from antiphon.model.requests import PROTOCOL_VERSION, Failure, Hello, HelloReply
from antiphon.node.config import split_address
from antiphon.node.peer_security import UNSECURED, PeerSecurity
from antiphon.node.peer_wire import decode_challenge, decode_peer_reply, with_payload
from antiphon.node.turn import Turn
from antiphon.replication.messages import (
    Ack,
    Append,
    Message,
    Reject,
    SnapshotOffer,
    Truncate,
    TruncateReply,
)
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.security.peer_key import Dialer
from antiphon.transport.connection import Connection
from antiphon.wire.frames import Buffer, Frame, encode_message, trace_of

RECONNECT_FIRST_S = 0.02
GREETED_WITHIN_S: Final = 2.0  # of dialling: the other says that it is who was meant
REQUESTS_MAX = 10_000
DROP_ABOVE = 4  # times the limit at which a connection counts as congested
ON_ACCEPTED: Final[dict[str, frozenset[type]]] = {
    "each": frozenset(),
    "leader": frozenset({Ack, Reject, TruncateReply}),
    "follower": frozenset({Append, Truncate, SnapshotOffer}),
}
"""By `dial`: what is sent on the connection that the other node made (C3)."""

NO_BULK = memoryview(b"")


def takes_feeds(connection: PeerConnection, limit_bytes: int) -> bool:
    """Is an Append sent there? It is lost where far too much waits already: the leader asks again, and finds out."""
    return not connection.congested or connection.waiting_bytes <= DROP_ABOVE * limit_bytes


class PeerEvents(Protocol):
    """What the node wants to know of its peers."""

    def peer_up(self, node_id: int) -> None:
        """Messages reach the node from now on."""

    def peer_lost(self, node_id: int, *, refused: bool) -> None:
        """The connection broke; `refused`: nobody listens there any more. May be told more than once."""

    def deliver(self, sender: int, message: ReplicaMessage) -> None:
        """A replica message arrived on this connection."""

    def peer_drained(self, node_id: int) -> None:
        """The connection was congested and is no more."""


class PeerLink:
    """The connection to one other node; dials again, with growing pauses, until `close()`."""

    def __init__(
        self,
        node_id: int,
        address: str,
        hello: Hello,
        turn: Turn,
        events: PeerEvents,
        limit_bytes: int,
        security: PeerSecurity = UNSECURED,
    ) -> None:
        self.node_id = node_id
        self.address = address
        self._other_address = ""  # where else the node may be; tried in turn with `address`
        self._hello = hello
        self._turn = turn
        self._events = events
        self._limit = limit_bytes
        self._security = security
        self._dialer: Dialer | None = None
        self._connection: Connection | None = None
        self._pending: dict[int, Answered] = {}
        self._forwarded: dict[int, AnsweredWithBulk] = {}
        self._next_id = 1
        self._kick = asyncio.Event()
        self._greeted = asyncio.Event()  # or it will not happen any more
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger().bind(peer=node_id)
        self.up = False
        self._welcomed = False
        self._closed = False
        self._cut = False
        self.reconnect_max_s = 0.5

    def start(self) -> None:
        """Begin to dial."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Hang up for good."""
        self._closed = True  # a cancellation can get lost in asyncio.wait_for
        self._kick.set()
        self._gone.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    def move(self, address: str) -> None:
        """The metadata says where the node listens.

        That may be of before a restart, while the address in the configuration is newer: a connection that stands stays,
        as the node has proved who it is, and otherwise both addresses are tried until the metadata agrees.
        """
        if not address:
            return
        if address == self.address:
            self._other_address = ""
            return
        self._other_address = address
        if not self.up:
            self._swap()
            self._kick.set()

    def may_be_at(self, address: str) -> None:
        """Where else the node may be, as somebody knew who may be wrong: it is tried in turn with `address`."""
        if address and address != self.address:
            self._other_address = address

    def _swap(self) -> None:
        if self._other_address:
            self.address, self._other_address = self._other_address, self.address

    def dial_now(self) -> None:
        """The node has just been heard of: do not wait for the next attempt."""
        if not self.up:
            self._kick.set()

    def cut(self, on: bool) -> None:
        """See Connection.cut; holds for later connections too."""
        self._cut = on
        if self._connection is not None:
            self._connection.cut(on)

    # -- sending ------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """More waits to be sent than the limit."""
        return self._connection is not None and self._connection.congested

    def send_replica_message(self, message: ReplicaMessage, frame: list[Buffer]) -> None:
        """One way, as its `frame`; lost when there is no connection; Appends also when far too much waits already."""
        connection = self._connection
        if not self.up or connection is None:
            return
        if type(message) is not Append or takes_feeds(connection, self._limit):
            connection.send(frame)

    def hold_disk(self) -> None:
        """The disk is over its budget: read nothing that makes it write."""
        if self._connection is not None:
            self._connection.hold("disk")

    def release_disk(self) -> None:
        """The disk is within its budget again."""
        if self._connection is not None:
            self._connection.release("disk")

    def send(self, body: Any) -> None:
        """One way, any body; lost when there is no connection."""
        if self.up and self._connection is not None:
            self._connection.send(encode_message(0, body))

    def request(self, body: Any, answered: Answered, payload: list[Buffer] | None = None) -> int:
        """Send a request; `answered` gets the reply or an AntiphonError. Returns its id, for `forget`."""
        connection = self._connection
        if not self.up or connection is None or len(self._pending) >= REQUESTS_MAX:
            answered(UnavailableError(f"no connection to node {self.node_id} at {self.address}"))
            return 0
        request_id = self._next_id
        self._next_id += 1
        self._pending[request_id] = answered
        connection.send(encode_message(request_id, body, payload or ()))
        return request_id

    def forward(self, body: Any, payload: memoryview, answered: AnsweredWithBulk) -> int:
        """Send a client's request; see `request`. Only on a link that is up. Returns its id, for `forget`."""
        request_id = self._next_id
        self._next_id += 1
        self._forwarded[request_id] = answered
        if self._connection is not None:
            self._connection.send(encode_message(request_id, body, [payload] if payload else ()))
        return request_id

    def forget(self, request_id: int) -> bool:
        """Wait no longer for the answer to a forwarded request; False if it came."""
        return self._forwarded.pop(request_id, None) is not None

    async def ask(self, body: Any, timeout_s: float, payload: list[Buffer] | None = None) -> Any:
        """Send a request and wait for its reply's body; raises the error that came instead, or TimedOutError."""
        future, answered = awaited()
        request_id = self.request(body, answered, payload)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(f"node {self.node_id} did not answer within {timeout_s:.1f} s") from None
        finally:
            self._pending.pop(request_id, None)

    # -- the connection -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = RECONNECT_FIRST_S
        while not self._closed:
            self._kick.clear()
            self._welcomed = False
            if await self._dial():
                await self._gone.wait()
                if self._welcomed:
                    pause_s = RECONNECT_FIRST_S
                    continue  # dial again at once: a refusal tells that the process is dead
                self._swap()  # somebody else listens there
            try:
                await asyncio.wait_for(self._kick.wait(), pause_s * system.rng().uniform(0.7, 1.3))
            except TimeoutError:
                pause_s = min(pause_s * 2, self.reconnect_max_s)

    async def _dial(self) -> bool:
        """Connect to where the node may be. Only when nobody listens at any of those places is its process gone."""
        refused = True
        for _ in range(2 if self._other_address else 1):
            self._greeted.clear()
            self._gone.clear()
            if self._closed:
                return False
            try:
                host, port = split_address(self.address)
                await asyncio.wait_for(self._connect(host, port), GREETED_WITHIN_S)
            except ConnectionRefusedError:
                self._swap()
            except (OSError, TimeoutError, AntiphonError) as error:
                refused = False
                self._log_tls_error(error)
                await self._hang_up()
                self._swap()
            else:
                return True
        if refused:
            self._events.peer_lost(self.node_id, refused=True)
        return False

    async def _connect(self, host: str, port: int) -> None:
        make = self._security.dial_context
        options: dict[str, Any] = {} if make is None else {"ssl": make(), "server_hostname": host}
        await asyncio.get_running_loop().create_connection(
            lambda: Connection(self, self._turn, self._limit), host, port, **options
        )
        await self._greeted.wait()

    async def _hang_up(self) -> None:
        """A machine that lost its power after it took the connection, or a process that hangs, never answers."""
        if self._connection is not None:
            self._connection.abort()
            await self._gone.wait()

    def _log_tls_error(self, error: Exception) -> None:
        """A node whose certificate is not taken, or that takes not ours, is not just away."""
        # As SSLCertVerificationError is
        if self._security.dial_context is not None and isinstance(error, ValueError):
            self._log.error("not_the_peer", address=self.address, answer=str(error))

    def connected(self, connection: Connection) -> None:
        """See ConnectionOwner."""
        self._connection = connection
        connection.cut(self._cut)
        key, hello = self._security.key, self._hello
        if key is None:
            connection.send(encode_message(1, hello))
        else:
            self._dialer = Dialer(
                key, hello.cluster_id or "", hello.node_id or 0, self.node_id, hello.incarnation
            )
            connection.send(encode_message(1, self._dialer.hello))
        self._next_id = 2

    def received(self, connection: Connection, frame: Frame) -> None:
        """See ConnectionOwner."""
        if self._dialer is not None:
            self._prove(connection, frame)
            return
        request_id, body = decode_peer_reply(frame.header)
        if not self.up:
            self._welcome(connection, body)
            return
        if isinstance(body, Message):
            tracing.current = None if tracing.tracer is None else trace_of(frame.header, body)
            try:
                self._events.deliver(self.node_id, with_payload(body, frame.payload))
            finally:
                tracing.current = None
            return
        answered = self._pending.pop(request_id, None)
        if answered is not None:
            answered(body.error() if isinstance(body, Failure) else body)
        elif (passed_on := self._forwarded.pop(request_id, None)) is not None:
            is_failure = isinstance(body, Failure)
            passed_on(body.error() if is_failure else body, frame.payload)

    def _prove(self, connection: Connection, frame: Frame) -> None:
        """The other side has said what it is to be proved to; raises ProtocolViolationError for anything else."""
        dialer, self._dialer = self._dialer, None
        _, body = decode_challenge(frame.header)
        if not isinstance(body, PeerChallenge) or dialer is None:
            self._welcome(connection, body)
            return
        try:
            proof = dialer.answer(body)
        except UnprovenNodeError as error:
            self._log.error("not_the_peer", address=self.address, answer=error.message)
            connection.close(error)
        else:
            connection.send(encode_message(1, proof))

    def _welcome(self, connection: Connection, body: Any) -> None:
        if isinstance(body, Failure):
            self._log.error("peer_refused_us", message=body.message)
            connection.close(body.error())
        elif (
            not isinstance(body, HelloReply)
            or body.cluster_id != self._hello.cluster_id
            or body.node_id != self.node_id
            or body.version != PROTOCOL_VERSION
        ):
            self._log.error("not_the_peer", address=self.address, answer=repr(body))
            connection.close(
                ForeignDirectoryError(f"{self.address} is not node {self.node_id} of this cluster")
            )
        else:
            self.up = self._welcomed = True
            self._greeted.set()
            self._log.info("peer_up", address=self.address)
            self._events.peer_up(self.node_id)

    def drained(self, _connection: Connection) -> None:
        """See ConnectionOwner."""
        self._events.peer_drained(self.node_id)

    def disconnected(self, _connection: Connection, reason: Exception | None) -> None:
        """See ConnectionOwner."""
        was_up, self.up = self.up, False
        self._connection = self._dialer = None
        self._greeted.set()
        self._gone.set()
        pending, self._pending = self._pending, {}
        lost = UnavailableError(f"the connection to node {self.node_id} broke")
        for answered in pending.values():
            answered(lost)
        forwarded, self._forwarded = self._forwarded, {}
        for passed_on in forwarded.values():
            passed_on(lost, NO_BULK)
        if was_up:
            self._log.warning("peer_lost", reason=str(reason) if reason else "closed")
            self._events.peer_lost(self.node_id, refused=False)
