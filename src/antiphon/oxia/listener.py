"""Accepts connections of Oxia's clients, up to a limit, and hangs up on those that are silent or too slow."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from antiphon import system
from antiphon.gateway.addresses import Addresses
from antiphon.gateway.quotas import FREE, Quotas
from antiphon.gateway.request_times import RequestTimes
from antiphon.oxia.allowance import Bounds
from antiphon.oxia.call import Carrier, Handler
from antiphon.oxia.calls import OxiaCalls
from antiphon.oxia.connection import OxiaConnection
from antiphon.security.listening import HANDSHAKES_MAX, Listening, listen
from antiphon.security.session import OPEN, Session, session_of

if TYPE_CHECKING:
    from antiphon.gateway.budget import Pool
    from antiphon.gateway.interface import Gateway
    from antiphon.gateway.turns import Turns
    from antiphon.oxia.call import Call
    from antiphon.security.authenticator import Authenticator
    from antiphon.security.tls import ServerTls

BACKLOG: Final = 256
LOOK_S: Final = 1.0  # between two looks at connections that are silent or slow
TELL_EVERY_S: Final = 5.0
ENDLESS: Final = ("GetShardAssignments", "WriteStream", "GetNotifications", "GetSequenceUpdates", "Watch")
GOODBYE_S: Final = 0.1  # that calls have to hear that the node stops


class OxiaListenerConfig(NamedTuple):
    """What bounds the listener."""

    connections_max: int = 2_000
    handshakes_max: int = HANDSHAKES_MAX  # of TLS at once
    address_connections_max: int = 1 << 30  # of one address, this machine aside
    idle_s: float = 600.0  # a connection without a call for so long is closed
    first_call_s: float = 30.0  # and so is one that has not begun its first one by then
    calls: Bounds = Bounds()


class OxiaListener:
    """See the module's text. `start()`, then `stop()`, on the event loop of the node.

    Attributes:
        authenticator: who clients are; set before `start`, as are the quotas.
        request_times: how long calls took.
    """

    def __init__(self, gateway: "Gateway", pool: "Pool", config: OxiaListenerConfig) -> None:
        self.config = config
        self.authenticator: Authenticator | None = None
        self.quotas: Quotas = FREE
        self.request_times = RequestTimes()
        self.turns: Turns = pool.budget.turns
        self.open_connections: dict[OxiaConnection, _Seen] = {}
        self._pool = pool
        self.calls = OxiaCalls(gateway, self)
        self._addresses = Addresses(config.address_connections_max)
        self._loop = asyncio.get_running_loop()
        self._server: Listening | None = None
        self._look: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._told_s = -TELL_EVERY_S
        self._log = structlog.get_logger()

    async def start(
        self, host: str, port: int, sock: socket.socket | None = None, tls: "ServerTls | None" = None
    ) -> int:
        """Listen on `host:port`, or on a bound socket; with `tls` to TLS only. Returns the port. Raises PortInUseError."""
        most = self.config.handshakes_max
        self._server = await listen(self._made, host, port, sock, "oxia", tls, most, BACKLOG)
        self._look = self._loop.call_later(LOOK_S, self._look_around)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Listen no more, end what is carried out, and hang up."""
        if self._server is not None:
            self._server.close()
        if self._look is not None:
            self._look.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_S)
        for connection in list(self.open_connections):
            connection.go_away()

    def _made(self) -> OxiaConnection:
        return OxiaConnection(self, self._pool.open(), self.config.calls)

    # -- what connections call ----------------------------------------------------------------------------------------

    def opened(self, connection: OxiaConnection, transport: asyncio.BaseTransport) -> bool:
        """Count a connection; False when there are too many."""
        self.open_connections[connection] = _Seen(self._loop.time())
        fits = self._addresses.enter(connection.host)
        if len(self.open_connections) > self.config.connections_max or not fits:
            self.note_closed(connection, "there are too many connections")
            return False
        if not self.quotas.admits(connection.host):
            self.note_closed(connection, "its address makes more connections than its quota")
            return False
        connection.session = session_of(self.authenticator, transport, "oxia")
        return True

    def closed(self, connection: OxiaConnection) -> None:
        """A connection is gone."""
        if self.open_connections.pop(connection, None) is not None:
            self._addresses.leave(connection.host)

    def session_for(self, connection: Carrier, authorization: bytes) -> Session:
        """The session of a call: that of its connection, or another one where somebody else is said to ask."""
        session = connection.session
        if session is OPEN or self.authenticator is None:
            return session
        if authorization == connection.authorization and session.holds and not session.has_failed:
            return session
        connection.session = session_of(self.authenticator, connection.transport, "oxia")
        connection.authorization = authorization
        connection.is_shared = connection.calls_open > 1
        return connection.session

    def note_closed(self, connection: OxiaConnection, why: str) -> None:
        """A connection is closed by us: a line in the log, at most every few seconds."""
        now_s = self._loop.time()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            self._log.warning("oxia_connection_closed", client=connection.host, reason=why)

    def handler(self, path: str) -> Handler | None:
        """What carries out a method."""
        found = self.calls.handlers.get(path)
        if found is None:
            return None
        name, handler = found
        if name in ENDLESS:
            return handler

        async def timed(call: "Call") -> None:
            began_s = system.monotonic_s()
            try:
                await handler(call)
            finally:
                self.request_times[name].observe(system.monotonic_s() - began_s)

        return timed

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a call."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _look_around(self) -> None:
        now_s, config = self._loop.time(), self.config
        for connection, seen in list(self.open_connections.items()):
            connection.begin_due(now_s)
            if connection.is_shared:
                connection.end_who_is_gone()
            if not connection.session.holds:
                connection.abort()  # a user that is gone, a token that has expired
            elif connection.is_slow(now_s):
                self._pool.closed_slow += 1
                self.note_closed(connection, "the client sends, or reads, too slowly")
                connection.abort()
            elif connection.calls_begun != seen.calls or connection.calls:
                seen.at_s, seen.calls = now_s, connection.calls_begun
            elif now_s - seen.at_s > (config.idle_s if seen.calls else config.first_call_s):
                connection.go_away()
        self._look = self._loop.call_later(LOOK_S, self._look_around)


class _Seen:
    """When a connection was last seen to be used, and how many calls had begun by then."""

    __slots__ = ("at_s", "calls")

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        self.calls = 0
