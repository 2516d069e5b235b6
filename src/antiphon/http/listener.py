"""The HTTP listener, for people (the dashboard) and monitors: `/healthz`, `/readyz`, `/metrics`, `/status`, `/topics`.

It answers GET, and POST for what the API (`antiphon.http.api`) and the dashboard's forms are told to do.

A small protocol of its own, because a node needs nothing of HTTP but one line of the request; requests are bounded in
size, connections in time and number, and nothing else changes anything. A connection's next request is looked
at when its last answer has been taken. Pages are made in turn, a little in each turn of the event loop. A page answers all
requests for it that came before it was made: however many ask at once, it is made once.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from antiphon.gateway.addresses import Addresses
from antiphon.gateway.budget import Budget, Pool
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import FREE, Use, payer_of
from antiphon.http.access import (
    TOPICS_PAGE,
    Reply,
)
from antiphon.http.board import Board
from antiphon.http.connection import TEXT, HttpConnection
from antiphon.http.page import render
from antiphon.http.readiness import liveness, readiness
from antiphon.http.topics_page import topics_told
from antiphon.model.findings import UNHEALTHY
from antiphon.model.metadata import ShardStatus
from antiphon.security.authorizer import EVERYTHING, Rights
from antiphon.security.listening import HANDSHAKES_MAX, Listening, listen
from antiphon.security.session import Session
from antiphon.security.tls import ServerTls

if TYPE_CHECKING:
    from antiphon.security.authenticator import Authenticator

BACKLOG: Final = 100
CLIENT_ID: Final = "http"  # of quotas
TELL_EVERY_S: Final = 5.0
CONNECTIONS_MAX: Final = 256
BAD_STATES: Final = {"failed", "damaged", "ahead_of_leader"}
ALONE_BYTES: Final = 16 * 1024 * 1024  # of a listener that is given no part of a node's memory
KEPT_S: Final = 1.0  # a page, for others who have asked for it already
JSON: Final = "application/json"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


class HttpListener:
    """Serves one node's state.

    Args:
        gateway: the node.
        metrics: renders the node's metrics in Prometheus's text format.
        status: the node's own state, as plain values for JSON.
        connections_max: how many connections there may be at once.
        pool: the listener's part of the node's memory for clients.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        metrics: Callable[[], bytes],
        status: Callable[[], dict[str, Any]],
        connections_max: int = CONNECTIONS_MAX,
        pool: Pool | None = None,
    ) -> None:
        self.pool = pool or Budget(ALONE_BYTES).pool("http", ALONE_BYTES, ALONE_BYTES)
        self._gateway = gateway
        self._metrics = metrics
        self._status = status
        self.connections_max = min(CONNECTIONS_MAX, connections_max)
        self.handshakes_max = HANDSHAKES_MAX  # of TLS at once; set before `start`, as is the next
        self.addresses = Addresses(1 << 30)
        self._server: Listening | None = None
        self.open_connections: set[HttpConnection] = set()
        self._tell_tls_s = 0.0
        self._moments = 0  # one for each time that requests come in or a page is made
        self._made: dict[str, tuple[int, Reply]] = {}  # pages, with the moment at which each was made
        self.board = Board(gateway, self._plain_page, self.pool.budget.turns)
        self.authenticator: Authenticator | None = None  # set before `start`, as are the quotas
        self.quotas = FREE
        self._pages: dict[str, Callable[[], Reply]] = {
            "/healthz": self._health,
            "/livez": lambda: _json(200, liveness()),
            "/readyz": self._readiness,
            "/metrics": lambda: (200, PROMETHEUS, self._metrics()),
            "/status": lambda: _json(200, self._status()),
            "/topics": self._topics,
        }

    async def start(
        self, host: str, port: int, sock: socket.socket | None = None, tls: ServerTls | None = None
    ) -> int:
        """Listen on `host:port`, or on a bound socket; with `tls` for HTTPS. Returns the port. Raises PortInUseError."""
        self._server = await listen(
            lambda: HttpConnection(self), host, port, sock, "http", tls, self.handshakes_max, BACKLOG
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Hang up and listen no more."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.open_connections):
            connection.close()

    def moment(self) -> int:
        """What happens now happens after everything that got a moment before."""
        self._moments += 1
        return self._moments

    def answer(self, request_line: bytes, rights: Rights = EVERYTHING, came: int | None = None) -> Reply:
        """The reply to a request, by its first line; of whom has `rights`; `came`: the moment when it did."""
        words = request_line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, TEXT, b"this is not an HTTP/1 request\n"
        if words[0] not in {b"GET", b"HEAD"}:
            return 405, TEXT, b"only GET is answered here\n"
        path = words[1].split(b"?", 1)[0].decode("latin-1")
        page = self._pages.get(path)
        if page is None:
            return 404, TEXT, f"there are: / {' '.join(sorted(self._pages))}\n".encode()
        try:
            if path == TOPICS_PAGE:  # it depends on who asks
                return self._topics(rights)
            return page() if came is None else self._made_after(came, path, page)
        except Exception as error:  # noqa: BLE001 - a page that fails must not take the connection's task along
            return 500, TEXT, f"{type(error).__name__}: {error}\n".encode()

    def _made_after(self, came: int, path: str, page: Callable[[], Reply]) -> Reply:
        made, reply = self._made.get(path, (0, None))
        if reply is None or made < came:
            reply = page()
            if not self._made:
                asyncio.get_running_loop().call_later(KEPT_S, self._made.clear)
            self._made[path] = self.moment(), reply
        return reply

    def owed_s(self, session: Session) -> float:
        """How long a client has to wait by its quotas until its next page."""
        payer, quotas = payer_of(session.rights.principal, CLIENT_ID), self.quotas
        owes = [use for use in (Use.FETCH, Use.REQUEST, Use.MUTATION) if quotas.refuses(use, payer, None)]
        return max((quotas.owed_s(use, payer) for use in owes), default=0.0)

    def charge(self, session: Session, size_bytes: int, took_s: float, mutated: int = 0) -> None:
        """Charge a page. Nobody is made to wait for it: what is owed is looked at before the next one."""
        payer = payer_of(session.rights.principal, CLIENT_ID)
        self.quotas.charge(Use.FETCH, payer, size_bytes, None)
        self.quotas.charge(Use.REQUEST, payer, took_s, None)
        if mutated:
            self.quotas.charge(Use.MUTATION, payer, mutated, None)

    def _plain_page(self, note: str) -> bytes:
        gateway = self._gateway
        return render(gateway.node_id, gateway.metadata, gateway.replica_statuses(), self._pages, note)

    def _health(self) -> Reply:
        """200 when this node is part of the cluster, all of its replicas take part, and nothing that was found says
        otherwise; `state` also tells of less.
        """
        cluster, told = self._gateway.metadata, self._gateway.status()
        bad = [one.shard_id for one in told.replicas if one.state in BAD_STATES]
        # Everybody may ask for this page, so it names no files: `antiphon status` does.
        findings = [
            {"kind": one.kind, "shard": one.shard_id, "level": one.level, "since_ms": one.since_ms}
            for one in told.findings
            if not one.mended_ms
        ]
        offline = sum(
            shard.status is not ShardStatus.ONLINE for topic in cluster.topics for shard in topic.shards
        )
        unwell = any(one["level"] == UNHEALTHY for one in findings)
        healthy = cluster.version >= 0 and not bad and not unwell
        return _json(
            200 if healthy else 503,
            {
                "healthy": healthy,
                "state": "unhealthy" if not healthy else "degraded" if findings else "ok",
                "node": self._gateway.node_id,
                "metadata_version": cluster.version,
                "failed_shards": bad,
                "findings": findings,
                "shards_without_leader": offline,
            },
        )

    def _readiness(self) -> Reply:
        found = readiness(self._gateway)
        return _json(200 if found["ready"] else 503, found)

    def _topics(self, rights: Rights = EVERYTHING) -> Reply:
        return _json(200, topics_told(self._gateway.metadata, rights))

    def heard_tls(self, transport: asyncio.BaseTransport | None) -> None:
        """A client speaks TLS where there is none: a line in the log, at most every few seconds."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._tell_tls_s:
            self._tell_tls_s = now_s + TELL_EVERY_S
            peer = None if transport is None else transport.get_extra_info("peername")
            structlog.get_logger().warning(
                "http_connection_closed",
                client=str(peer[0]) if peer else "",
                reason="the client speaks TLS (https), and this port does not",
            )

    def opened(self, connection: "HttpConnection") -> bool:
        """Count a connection; False when there are too many."""
        self.open_connections.add(connection)
        return self.addresses.enter(connection.host) and len(self.open_connections) <= self.connections_max

    def closed(self, connection: "HttpConnection") -> None:
        """A connection is gone."""
        if connection in self.open_connections:
            self.open_connections.discard(connection)
            self.addresses.leave(connection.host)


def _json(status: int, value: Any) -> Reply:
    return status, JSON, msgspec.json.encode(value) + b"\n"
