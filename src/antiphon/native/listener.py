"""Accepts connections on the native port, up to a limit, and stops reading from them when the node has too much in hand.

Other nodes use the same port, unless they have to prove that they are nodes: then they have a port of their own, which is
another one of these. Clients never shut the nodes off from each other: beyond the limit a few more connections are
let in, which have to say within a moment that they are nodes.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from antiphon.errors import UnauthenticatedError, UnprovenNodeError
from antiphon.gateway.addresses import Addresses
from antiphon.gateway.quotas import FREE
from antiphon.gateway.request_times import RequestTimes
from antiphon.native.exchange import Exchange, NativeLimits
from antiphon.native.keyed_session import KeyedSession
from antiphon.native.metadata_answers import MetadataAnswers
from antiphon.native.session import Greets, NativeSession
from antiphon.security.listening import listen
from antiphon.transport.connection import Connection, EndOfTurn
from antiphon.transport.listening import bound_address

if TYPE_CHECKING:
    from antiphon.errors import AntiphonError
    from antiphon.gateway.budget import Pool
    from antiphon.gateway.interface import Gateway
    from antiphon.gateway.peers import Peers
    from antiphon.security.authenticator import Authenticator
    from antiphon.security.listening import Listening
    from antiphon.security.peer_key import PeerKey
    from antiphon.security.tls import ServerTls
    from antiphon.transactions.asking import TransactionAsker

PEER_ROOM: Final = 16  # connections beyond the limit that wait to say that they are nodes
PEER_PATIENCE_S: Final = 2.0
TELL_EVERY_S: Final = 5.0
LOOK_S: Final = 1.0  # between two looks at connections that are silent or slow
LOGIN_S: Final = 30.0  # what a client may take until it has logged in


class RefusalCount(Protocol):
    """Where connections that were turned away are counted."""

    connections_refused: int
    nodes_refused: int


class NativeListener:
    """See the module's text. `start()`, `close()`, then `hang_up()`, on the event loop of the node."""

    def __init__(
        self,
        gateway: "Gateway",
        peers: "Peers",
        turn: EndOfTurn,
        limits: NativeLimits,
        counters: RefusalCount,
        pool: "Pool",
        greets: Greets = Greets.ANYBODY,
        key: "PeerKey | None" = None,
    ) -> None:
        self.limits = limits
        self.greets = greets
        self._key = key
        self._pool = pool
        self._look: asyncio.TimerHandle | None = None
        self._addresses = Addresses(limits.address_connections)
        self._seen: dict[
            int, tuple[float, int]
        ] = {}  # session -> when it was seen to be used, and bytes by then
        self.sessions: dict[int, NativeSession] = {}
        self.authenticator: Authenticator | None = None  # set before `start`, as are the quotas
        self.quotas = FREE
        self.asker: TransactionAsker | None = None
        self.request_times = RequestTimes()
        self._gateway = gateway
        self._peers = peers
        self._turn = turn
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._server: Listening | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._metadata_answers = MetadataAnswers(gateway)
        self._trials: dict[int, asyncio.TimerHandle] = {}  # sessions over the limit
        self._refusal_told_s = self._stranger_told_s = -TELL_EVERY_S
        self._log = structlog.get_logger()

    def bound(self, connections: int, of_address: int) -> None:
        """Hold at most so many connections from now on, and of one address; those that are open stay."""
        self.limits = self.limits._replace(connections=connections, address_connections=of_address)
        self._addresses.most = of_address

    async def start(
        self,
        host: str,
        port: int,
        sock: socket.socket | None,
        public_host: str,
        tls: "ServerTls | None" = None,
    ) -> str:
        """Listen on `sock`, or on `host:port`; returns the address as others reach it. Raises PortInUseError."""
        self._server = await listen(self._accept, host, port, sock, "native", tls, self.limits.handshakes)
        self._look = self._loop.call_later(LOOK_S, self._look_around)
        return bound_address(self._server, public_host)

    def close(self) -> None:
        """Accept no more connections; those that there are stay."""
        if self._server is not None:
            self._server.close()

    async def hang_up(self) -> None:
        """Send what is ready on each connection and close it; end what is still carried out."""
        if self._look is not None:
            self._look.cancel()
        for session in list(self.sessions.values()):
            session.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> Connection:
        exchange = Exchange(self._gateway, self.limits, self._spawn, self._pool.open())
        exchange.quotas, exchange.asker, exchange.times = self.quotas, self.asker, self.request_times
        exchange.metadata_answers = self._metadata_answers
        session = (
            NativeSession(exchange, self._peers, self)
            if self._key is None
            else KeyedSession(exchange, self._peers, self, self._key)
        )
        return Connection(session, self._turn, self.limits.connection_write_bytes)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- SessionOwner -------------------------------------------------------------------------------------------

    def opened(self, session: NativeSession) -> None:
        """See SessionOwner."""
        self.sessions[id(session)] = session
        beyond = len(self.sessions) - self.limits.connections
        nodes_only = self.greets in {Greets.NODES, Greets.PROVEN_NODES}
        fits = self._addresses.enter(session.host) or nodes_only
        if nodes_only and beyond > 0:
            self._turn_away(self._silent(session))
        elif not fits and (self.greets is Greets.CLIENTS or len(self._trials) >= PEER_ROOM):
            self._turn_away(session, "too_many_connections_of_an_address")
            return
        elif beyond > PEER_ROOM:
            self._turn_away(session)
            return
        if not nodes_only and (beyond > 0 or not fits):
            self._trials[id(session)] = self._loop.call_later(PEER_PATIENCE_S, self._turn_away, session)
        elif nodes_only:
            self._trials[id(session)] = self._loop.call_later(PEER_PATIENCE_S, _give_up, session)

    def _silent(self, newest: NativeSession) -> NativeSession:
        """Who makes room for a node: the oldest one that said nothing, of the address that has most of those."""
        silent = [
            one for one in self.sessions.values() if not one.greeted and one is not newest and not one.is_over
        ]
        if not silent:
            return newest
        ((busiest, _),) = Counter(one.host for one in silent).most_common(1)
        return next(one for one in silent if one.host == busiest)

    def greeted(self, session: NativeSession) -> None:
        """See SessionOwner."""
        if session.peer_id is None:
            crowded = id(session) in self._trials
            if crowded or not self.quotas.admits(session.host):
                self._turn_away(session, "too_many_connections" if crowded else "too_many_new_connections")

    def closed(self, session: NativeSession) -> None:
        """See SessionOwner."""
        trial = self._trials.pop(id(session), None)
        if trial is not None:
            trial.cancel()
        if self.sessions.pop(id(session), None) is not None:
            self._addresses.leave(session.host)
        self._seen.pop(id(session), None)

    def _look_around(self) -> None:
        """Close connections of clients that are silent or too slow."""
        now_s, limits = self._loop.time(), self.limits
        self.quotas.follow()
        if self.authenticator is not None:
            self.authenticator.log_left_out()
        for key, session in list(self.sessions.items()):
            connection = session.connection
            if session.peer_id is not None or connection is None:
                continue
            stranger = _why_hang_up(session, now_s)
            if stranger is not None:
                connection.close(stranger)
                continue
            if session.exchange.is_slow(now_s):
                self._pool.closed_slow += 1
                self._log.warning("slow_client_closed", peer=connection.peer)
                connection.abort()
                continue
            seen_s, seen_bytes = self._seen.get(key, (now_s, 0))
            if connection.received_bytes != seen_bytes and session.greeted:
                self._seen[key] = now_s, connection.received_bytes
            elif not session.exchange.is_idle:
                self._seen[key] = now_s, seen_bytes
            elif now_s - seen_s > (limits.idle_s if session.greeted else limits.hello_s):
                connection.close()
            else:
                self._seen[key] = seen_s, seen_bytes
        self._look = self._loop.call_later(LOOK_S, self._look_around)

    def not_understood(self, peer: str, reason: "AntiphonError") -> None:
        """See SessionOwner."""
        self._counters.nodes_refused += isinstance(reason, UnprovenNodeError)
        now_s = self._loop.time()
        if now_s - self._stranger_told_s >= TELL_EVERY_S:
            self._stranger_told_s = now_s
            self._log.warning("native_connection_closed", peer=peer, reason=reason.message)

    def _turn_away(self, session: NativeSession, why: str = "too_many_connections") -> None:
        connection = session.connection
        if connection is None or session.peer_id is not None:
            return
        self._counters.connections_refused += 1
        now_s = self._loop.time()
        if now_s - self._refusal_told_s >= TELL_EVERY_S:
            self._refusal_told_s = now_s
            self._log.warning(
                why,
                peer=connection.peer,
                limit=self.limits.connections,
                refused=self._counters.connections_refused,
            )
        session.is_over = True
        connection.close()

    # -- Intake -------------------------------------------------------------------------------------------------

    def hold_clients(self) -> None:
        """See Intake."""
        for session in self.sessions.values():
            if session.connection is not None and session.peer_id is None:
                session.connection.hold("budget")

    def release_clients(self) -> None:
        """See Intake."""
        for session in self.sessions.values():
            if session.connection is not None:
                session.connection.release("budget")

    def hold_disk(self) -> None:
        """See Intake."""
        for session in self.sessions.values():
            if session.connection is not None:
                session.connection.hold("disk")

    def release_disk(self) -> None:
        """See Intake."""
        for session in self.sessions.values():
            if session.connection is not None:
                session.connection.release("disk")


def _why_hang_up(session: NativeSession, now_s: float) -> UnauthenticatedError | None:
    """What ends the connection of a user that is gone, of a token that has expired, of who does not log in; or None."""
    client = session.exchange.session
    if not client.holds:
        return UnauthenticatedError("the user is gone, or the token has expired")
    if not client.is_open and now_s - session.since_s > LOGIN_S:
        return UnauthenticatedError(f"no login within {LOGIN_S:.0f} s")
    return None


def _give_up(session: NativeSession) -> None:
    """Who has not proved by now that it is a node is none."""
    connection = session.connection
    if connection is not None and not session.greeted:
        connection.close(UnprovenNodeError(f"it did not say which node it is within {PEER_PATIENCE_S:.0f} s"))
