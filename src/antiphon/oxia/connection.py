"""A client's connection: bytes of its socket through `http2.Http2` to calls, each of which runs in a task of its own.

The connection is always read, also when its client has no room left: among what it sends may be what lets answers go on.
Requests stop by HTTP/2's windows, which are not opened again without room in the connection's account. Of all that clients
send a little is taken in each turn of the event loop; the rest has its turn later (`gateway.turns`), and until then such a
connection is not read. A call is carried out from when its first message is here: until then it costs a little memory.
"""

import asyncio
from collections.abc import Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.gateway.budget import FLOOR_BYTES, Account, Patience
from antiphon.oxia.allowance import OPEN_WORK, RESET_WORK, Bounds
from antiphon.oxia.call import CALL_BYTES, KEPT_HEADERS, SEND_BYTES, Call, Handler
from antiphon.oxia.events import Event, Opened, Received, Reset, Sendable
from antiphon.oxia.http2 import ConnectionFailedError, Http2
from antiphon.oxia.read_room import ReadRoom
from antiphon.oxia.status import (
    INTERNAL,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    CallFailedError,
    failure_of,
)
from antiphon.security.session import OPEN, Session

if TYPE_CHECKING:
    from antiphon.gateway.quotas import Quotas
    from antiphon.gateway.turns import Turns

TLS_START: Final = b"\x16\x03"  # how a TLS handshake begins
AT_ONCE: Final = (
    32  # calls that are begun late, or ended with their connection, in one turn of the event loop
)
CALLS_SHARE: Final = 8  # of the memory that is free, one part may be that of a connection's calls
OUTGOING_MAX: Final = 4 * 1024 * 1024  # that the socket has not taken; whoever makes more is hung up on
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class ConnectionOwner(Protocol):
    """The listener, as its connections see it."""

    quotas: "Quotas"
    turns: "Turns"

    def opened(self, connection: "OxiaConnection", transport: asyncio.BaseTransport) -> bool:
        """Count a connection; False when it is not to be."""

    def closed(self, connection: "OxiaConnection") -> None:
        """A connection is gone."""

    def note_closed(self, connection: "OxiaConnection", why: str) -> None:
        """A connection is closed by us, and why."""

    def handler(self, path: str) -> Handler | None:
        """What carries out a method."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a call."""


class OxiaConnection(asyncio.Protocol):
    """See the module's text."""

    def __init__(self, listener: ConnectionOwner, account: Account, bounds: Bounds) -> None:
        self.http2 = Http2(bounds, listener.turns.work_max)
        self.account = account
        self.session: Session = OPEN
        self.calls: dict[int, Call] = {}
        self.authorization = b""  # with which the session was logged in
        self.is_shared = False  # are there calls of another session than that?
        self.logins = asyncio.Lock()
        self.host = ""
        self.calls_begun = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.place = listener.quotas.place()
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._writable = True
        self._answering: dict[Call, asyncio.Future[None]] = {}  # calls that wait until answers have gone
        self._half: set[Call] = set()  # calls of which a message is on its way
        self._unbegun: dict[Call, Handler] = {}  # calls whose first message is not here, in their order
        self._begins_due = False
        self._starved: dict[Call, None] = {}  # calls whose windows stay closed for want of memory
        self.calls_bytes = 0  # that calls keep beside their messages
        self.read_room = ReadRoom(self, listener.turns)
        self._unread_bytes = 0  # of what was received, counted
        self._tick_s = system.monotonic_s()
        self._sending, self._receiving = Patience(), Patience()

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # TCP connections are Transports
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        if self._listener.opened(self, transport):
            self.flush()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See asyncio."""
        self._transport = None
        self._unbegun.clear()
        self.http2.forget_all()
        self.read_room.close()
        for woken in self._answering.values():
            if not woken.done():
                woken.set_result(None)
        self._drop_all()

    def _drop_all(self) -> None:
        """End the calls, a few in each turn: a client may have many, and each has work under way."""
        dropped = list(islice(self.calls.values(), AT_ONCE))
        for call in dropped:
            self._drop(call)
        self._listener.turns.did(1 + len(dropped) * RESET_WORK)
        if self.calls:
            self._listener.turns.add(self, self._drop_all, self.client)
            return
        self.account.close()
        self.place.leave()
        self._listener.closed(self)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._writable = False

    def resume_writing(self) -> None:
        """See asyncio."""
        self._writable = True
        self._count()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self.received_bytes += len(data)
        if self.received_bytes == len(data) and data.startswith(TLS_START):
            self._listener.note_closed(self, "the client speaks TLS, and this port does not")
            self.abort()
            return
        if self.http2.is_interrupted:
            self.http2.receive_later(data)
            self._count_unread()
        elif self._listener.turns.is_busy:
            self.http2.receive_later(data)
            self._wait_for_turn()
        else:
            self._receive(data)

    def _wait_for_turn(self) -> None:
        self.http2.is_interrupted = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._listener.turns.add(self, self._receive_more, self.client)
        self._count_unread()

    def _receive(self, data: bytes) -> None:
        now_s = system.monotonic_s()
        self.http2.refill(now_s - self._tick_s)
        self._tick_s = now_s
        turns = self._listener.turns
        try:
            events = self.http2.receive(data)
        except ConnectionFailedError as error:
            turns.did(self.http2.work)
            self.account.pool.closed_floods += 1
            self._listener.note_closed(self, str(error))
            self.close()
            return
        turns.did(self.http2.work)
        for event in events:
            self._happened(event)
        if self.http2.is_interrupted:
            self._wait_for_turn()
        else:
            self._count_unread()
        self.flush_soon()

    def _receive_more(self) -> None:
        """It has its turn."""
        if self._transport is None or self._transport.is_closing():
            return
        self._receive(b"")
        if not self.http2.is_interrupted and self._transport is not None:
            self._transport.resume_reading()

    def _count_unread(self) -> None:
        held = self.http2.held_bytes
        self.account.add(held - self._unread_bytes)
        self._unread_bytes = held

    def _happened(self, event: Event) -> None:
        match event:
            case Received(stream_id, data, flow_bytes, ended):
                call = self.calls.get(stream_id)
                if call is None or call.failed is not None:
                    self.http2.consumed(stream_id, flow_bytes)
                    return
                self.account.add(len(data))
                call.flow_bytes += flow_bytes
                messages = call.received(data, ended=ended)
                if messages:
                    self.http2.completed(messages)
                if call.task is None and (messages or ended or call.failed is not None):
                    self._begin(call)
                if call.is_half_received:
                    self._half.add(call)
                else:
                    self._half.discard(call)
                if not call.waits_for_work:
                    self.give_back(call)
            case Opened():
                self._open(event)
            case Reset(stream_id):
                call = self.calls.get(stream_id)
                if call is not None:
                    self._drop(call)
            case Sendable():
                self._count()

    @property
    def client(self) -> object:
        """Whose turn it is when it is this connection's."""
        return self.session.client(self.host)

    @property
    def transport(self) -> asyncio.Transport | None:
        """Its socket's."""
        return self._transport

    # -- calls --------------------------------------------------------------------------------------------------------

    @property
    def calls_open(self) -> int:
        """Calls that have not ended."""
        return len(self.calls)

    def _open(self, opened: Opened) -> None:
        headers = dict(opened.headers)
        kept = {name: headers[name] for name in KEPT_HEADERS if name in headers}
        size_bytes = CALL_BYTES + sum(map(len, kept.values()))
        path = headers.get(b":path", b"").decode("latin-1")
        deadline_s = _deadline(headers.get(b"grpc-timeout", b""))
        call = Call(self, opened.stream_id, path, kept, deadline_s)
        if opened.ended:
            call.received(b"", ended=True)
        content_type = headers.get(b"content-type", b"")
        if headers.get(b":method") != b"POST" or not content_type.startswith(b"application/grpc"):
            call.end(CallFailedError(UNIMPLEMENTED, "this port speaks gRPC only"))
            return
        handler = self._listener.handler(path)
        if handler is None:
            call.end(CallFailedError(UNIMPLEMENTED, f"there is no method {path[:200]} here"))
            return
        if self.calls_bytes + size_bytes > max(FLOOR_BYTES, self.account.free_bytes // CALLS_SHARE):
            self.http2.refuse(call.stream_id)
            return
        self.calls[call.stream_id] = call
        self.calls_begun += 1
        call.own_bytes = size_bytes
        self.calls_bytes += size_bytes
        self.account.add(size_bytes)
        self._unbegun[call] = handler
        if opened.ended:
            self._begin(call)

    def _begin(self, call: Call) -> None:
        """Carry a call out."""
        handler = self._unbegun.pop(call, None)
        if handler is not None:
            call.task = self._listener.spawn(self._run(call, handler))

    def begin_due(self, now_s: float) -> None:
        """Calls are carried out whose message has not come in time: most end by that. Called each second."""
        oldest = next(iter(self._unbegun), None)
        if oldest is not None and oldest.is_due(now_s) and not self._begins_due:
            self._begins_due = True
            self._listener.turns.add(self, self._begin_some_due, self.client)

    def _begin_some_due(self) -> None:
        now_s, self._begins_due = asyncio.get_running_loop().time(), False
        self._listener.turns.did(AT_ONCE * OPEN_WORK)
        for call in list(islice(self._unbegun, AT_ONCE)):
            if call.is_due(now_s):
                self._begin(call)
        self.begin_due(now_s)

    async def _run(self, call: Call, handler: Handler) -> None:
        failure: CallFailedError | None = None
        try:
            await handler(call)
        except CallFailedError as error:
            failure = error
        except AntiphonError as error:
            failure = failure_of(error)
        except asyncio.CancelledError:
            failure = CallFailedError(UNAVAILABLE, "the node stops", "RESOURCE_UNAVAILABLE")
        except Exception as error:  # noqa: BLE001 - answered as a bug of this node, which its log has
            structlog.get_logger().error("oxia_request_failed", path=call.path, exc_info=error)
            failure = CallFailedError(INTERNAL, f"the node failed: {type(error).__name__}: {error}")
        if call.stream_id in self.calls:
            call.end(failure)
            self._closed(call)

    def _closed(self, call: Call) -> None:
        if self.calls.pop(call.stream_id, None) is not None:
            self._unbegun.pop(call, None)
            self._starved.pop(call, None)
            self._half.discard(call)
            self.calls_bytes -= call.own_bytes
            self.account.add(-call.own_bytes - call.close())
            self.read_room.look()
            self.http2.consumed(call.stream_id, call.flow_bytes)
            call.flow_bytes = 0

    def _drop(self, call: Call) -> None:
        """Nobody waits for it any more."""
        self._closed(call)
        if call.task is not None:
            call.task.cancel()

    def end_who_is_gone(self) -> None:
        """End the calls of users that are gone, of tokens that have expired, on a connection of several users."""
        for call in list(self.calls.values()):
            if call.session is not None and not call.session.holds:
                call.end(CallFailedError(UNAUTHENTICATED, "the user is gone, or the token has expired"))
                self._drop(call)

    def give_back(self, call: Call) -> None:
        """Let the client send on, as soon as there is room."""
        if not call.flow_bytes:
            return
        account = self.account
        account.half = account.half or call.is_half_received
        if account.has_room or account.finishes:
            self.http2.consumed(call.stream_id, call.flow_bytes)
            call.flow_bytes = 0
            self._starved.pop(call, None)
            self.flush_soon()
        else:
            self._starved[call] = None
            self.when_room()

    def when_room(self) -> None:
        """Have those who wait for room look again when there may be some."""
        self.account.wait(self._room_again)

    def _room_again(self) -> None:
        self._count()
        self.read_room.look()
        for call in list(self._starved):
            self.give_back(call)

    # -- answers ------------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the loop."""
        if not self._flushing and self._transport is not None:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what is ready."""
        self._flushing = False
        transport, outgoing = self._transport, self.http2.outgoing
        if transport is None or transport.is_closing():
            outgoing.clear()
            return
        if outgoing:
            self.sent_bytes += len(outgoing)
            transport.write(bytes(outgoing))
            outgoing.clear()
        self._count()
        if transport.get_write_buffer_size() > OUTGOING_MAX:
            self._listener.note_closed(self, "the client does not read what it asks for")
            self.abort()

    @property
    def _waiting_bytes(self) -> int:
        transport = self._transport
        return self.http2.waiting_bytes + (0 if transport is None else transport.get_write_buffer_size())

    def count_outgoing(self) -> None:
        """Count what waits to be sent."""
        self.account.outgoing(self._waiting_bytes)

    def _count(self) -> None:
        """What the client has not taken is counted; who waits for room goes on where there is some."""
        self.count_outgoing()
        self.account.half = bool(self._half)
        self.account.large_no_more(self.calls_bytes)
        self.read_room.look()
        if self._answering and self._takes_any:
            for call, woken in list(self._answering.items()):
                if self.http2.waiting_of(call.stream_id) <= SEND_BYTES and not woken.done():
                    woken.set_result(None)

    async def room_for(self, call: Call) -> None:
        """Return when a call may answer with more. Only who may is woken: a client can make many calls wait."""
        while self._transport is not None and not self._takes_more(call):
            self._answering[call] = asyncio.get_running_loop().create_future()
            try:
                await self._answering[call]
            finally:
                self._answering.pop(call, None)

    @property
    def _takes_any(self) -> bool:
        """Does the connection take more, whichever call has it?"""
        return self._writable and (not self._waiting_bytes or self.account.has_room)

    def _takes_more(self, call: Call) -> bool:
        return self.http2.waiting_of(call.stream_id) <= SEND_BYTES and self._takes_any

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_slow(self, now_s: float) -> bool:
        """Has the client not sent the rest of a message, or not read its answers, for too long? Called each second."""
        self._count()
        waiting = self._waiting_bytes
        if not waiting:
            self._sending.rest()
        elif self._sending.is_over(now_s, self.sent_bytes - waiting):
            return True
        half = self.http2.is_half_received or bool(self._half)
        if self._starved or not half:
            self._receiving.rest()
            return False
        return self._receiving.is_over(now_s, self.received_bytes)

    def go_away(self) -> None:
        """Say that no more is answered here, then hang up."""
        self.http2.go_away("the node closes this connection")
        self.close()

    def close(self) -> None:
        """Send what is ready, then hang up."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


def _deadline(timeout: bytes) -> float | None:
    """When a client gives up that says `timeout` (up to eight digits and a unit)."""
    unit = _UNITS_S.get(timeout[-1:])
    if unit is None or not timeout[:-1].isdigit() or len(timeout) > 9:
        return None
    return asyncio.get_running_loop().time() + int(timeout[:-1]) * unit
