"""The HTTP listener, for people (the dashboard) and monitors: `/healthz`, `/readyz`, `/metrics`, `/status`, `/topics`.

It answers GET, and POST for what the API is told to do (`antiphon.http.api`).

A small protocol of its own, because a node needs nothing of HTTP but one line of the request; requests are bounded in
size, connections in time and number, and nothing but the API changes anything. A connection's next request is looked
at when its last answer has been taken. Pages are made in turn, a little in each turn of the event loop. A page answers all
requests for it that came before it was made: however many ask at once, it is made once.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog

from antiphon import system
from antiphon.errors import PortInUseError
from antiphon.gateway.addresses import Addresses
from antiphon.gateway.budget import Account, Budget, Pool
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import FREE, Use, payer_of
from antiphon.http.access import (
    API,
    CHALLENGE,
    OPEN_PAGES,
    TOPICS_PAGE,
    UNAUTHORIZED,
    Reply,
    path_of,
    refused,
)
from antiphon.http.api.problems import as_problem
from antiphon.http.board import Board
from antiphon.http.bridge import WebAnswer, WebRequest
from antiphon.http.heads import body_bytes, halves, is_for_board
from antiphon.http.page import render
from antiphon.http.readiness import liveness, readiness
from antiphon.http.topics_page import topics_told
from antiphon.model.metadata import ShardStatus
from antiphon.security.authenticator import FAILED_DELAY_S, Authenticator
from antiphon.security.authorizer import EVERYTHING, Rights
from antiphon.security.listening import HANDSHAKES_MAX, Listening, serve
from antiphon.security.session import Session, session_of
from antiphon.security.tls import ServerTls, is_encrypted

BACKLOG: Final = 100
CLIENT_ID: Final = "http"  # of quotas
TOO_MANY: Final = 429
TELL_EVERY_S: Final = 5.0
TLS_START: Final = b"\x16\x03"  # how a TLS handshake begins
REQUEST_BYTES_MAX: Final = 16 * 1024
CONNECTIONS_MAX: Final = 256
BAD_STATES: Final = {"failed", "damaged", "ahead_of_leader"}
ALONE_BYTES: Final = 16 * 1024 * 1024  # of a listener that is given no part of a node's memory
IDLE_S: Final = 30.0
KERNEL_BYTES: Final = 64 * 1024  # of answers that the kernel takes for a client who does not read
KEPT_S: Final = 1.0  # a page, for others who have asked for it already
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_REASONS: Final = {one.value: one.phrase for one in HTTPStatus}


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
        self.open_connections: set[_HttpConnection] = set()
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
        try:
            self._server = await serve(
                lambda: _HttpConnection(self), host, port, sock, BACKLOG, tls, self.handshakes_max
            )
        except OSError as error:
            raise PortInUseError(
                f"{host}:{port} (http listener) cannot be used: {error.strerror or error}", port=port
            ) from None
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
        """200 when this node is part of the cluster and all of its replicas take part; `state` also tells of less."""
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
        healthy = cluster.version >= 0 and not bad
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

    def opened(self, connection: "_HttpConnection") -> bool:
        """Count a connection; False when there are too many."""
        self.open_connections.add(connection)
        return self.addresses.enter(connection.host) and len(self.open_connections) <= self.connections_max

    def closed(self, connection: "_HttpConnection") -> None:
        """A connection is gone."""
        if connection in self.open_connections:
            self.open_connections.discard(connection)
            self.addresses.leave(connection.host)


class _HttpConnection(asyncio.Protocol):
    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._account: Account = listener.pool.open()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._came = 0  # the moment at which the last of it did
        self.host = ""
        self._timer: asyncio.TimerHandle | None = None
        self._writable = True
        self._is_queued = False
        self._page_making: asyncio.Task[None] | None = None  # of the dashboard; the next request waits for it
        self._retry_s = 0
        self._place = listener.quotas.place()  # among the connections of the client's user

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # TCP connections are Transports
        # Any answer is more than this. Not 0: uvloop's TLS would then pause an empty buffer, and never go on.
        transport.set_write_buffer_limits(high=64)  # type: ignore[attr-defined]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._time_is_up)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        if not self._listener.opened(self):
            self._reply((503, TEXT, b"too many connections\n"), keep=False, body=True)
        elif not self._listener.quotas.admits(self.host):
            self._retry_s = 1
            reply = (TOO_MANY, TEXT, b"this address makes too many connections\n")
            self._reply(reply, keep=False, body=True)

    def pause_writing(self) -> None:
        self._writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self._account.outgoing(0)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._queue()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._came = self._listener.moment()
        if self._received.startswith(TLS_START):
            self._listener.heard_tls(self._transport)
            self.close()
            return
        self._account.add(len(data))
        if len(self._received) > REQUEST_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._queue()

    def _queue(self) -> None:
        """Look at the next request when it is this connection's turn."""
        if not self._is_queued and self._page_making is None and self._writable and self._received:
            self._is_queued = True
            self._listener.pool.budget.turns.add(self, self._take_turn)

    def _take_turn(self) -> None:
        self._is_queued = False
        if self._transport is None or not self._writable or self._transport.is_closing():
            return
        if not self._account.has_room and self._account.outgoing_bytes:
            self._account.wait(self._queue)
            return
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > REQUEST_BYTES_MAX:
                self._reply((431, TEXT, b"the request is too long\n"), keep=False, body=True)
            return
        lines = bytes(self._received[:end]).split(b"\r\n")
        size_bytes = body_bytes(lines)
        if end + size_bytes > REQUEST_BYTES_MAX:
            self._reply((413, TEXT, b"the form is too long\n"), keep=False, body=True)
            return
        whole = end + 4 + size_bytes
        if len(self._received) < whole:
            return  # the rest is on its way
        form = bytes(self._received[end + 4 : whole])
        del self._received[:whole]
        self._account.add(-whole)
        self._answer(lines, form)
        if self._page_making is None:
            self._next()

    def _next(self) -> None:
        """Go on, if the answer was taken and there is more."""
        if self._transport is None or not self._writable:
            return
        if len(self._received) <= REQUEST_BYTES_MAX:
            self._transport.resume_reading()
        self._queue()

    def _answer(self, lines: list[bytes], form: bytes) -> None:
        plain = {name.strip().lower(): value.strip() for name, _, value in map(halves, lines[1:])}
        headers = {name: value.lower() for name, value in plain.items()}
        session = session_of(self._listener.authenticator, self._transport)
        refusal = refused(session, path_of(lines[0]), plain.get(b"authorization", b""))
        is_api = path_of(lines[0]).startswith(API)
        if refusal is not None and is_api:
            refusal = as_problem(refusal[0], refusal[2])
        if refusal is not None and refusal[0] == UNAUTHORIZED and b"authorization" in plain:
            self._refuse_later(refusal, body=not lines[0].startswith(b"HEAD "))
            return
        if refusal is None and path_of(lines[0]) not in OPEN_PAGES:
            crowd = self._place.take(session.rights, self.host)
            if crowd is not None:
                self._retry_s = 1
                reply = (TOO_MANY, TEXT, f"{crowd.message}\n".encode())
                reply = as_problem(reply[0], reply[2]) if is_api else reply
                self._reply(reply, keep=False, body=not lines[0].startswith(b"HEAD "))
                return
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        keep = lines[0].endswith(b"1.1") and headers.get(b"connection") != b"close"
        keep = keep and (not has_body or bool(form))
        if refusal is None and is_for_board(lines[0]):
            request = WebRequest(
                lines[0].split(b" ")[0].decode("latin-1"),
                lines[0].split(b" ")[1].decode("latin-1"),
                tuple((name, value) for name, value in plain.items() if name != b"authorization"),
                form,
                is_secure=is_encrypted(self._transport),
            )
            made = self._make_page(request, session, keep=keep)
            self._page_making = asyncio.get_running_loop().create_task(made, name="dashboard page")
            return
        reply = refusal or self._page(lines[0], session)
        self._reply(reply, keep=keep and reply[0] != 400, body=not lines[0].startswith(b"HEAD "))

    def _page(self, request_line: bytes, session: Session) -> Reply:
        """The page that is asked for, or, where the client's quotas are used up, when it can be had."""
        listener = self._listener
        if not listener.quotas.on or path_of(request_line) in OPEN_PAGES:
            return listener.answer(request_line, session.rights, self._came)
        self._retry_s = math.ceil(listener.owed_s(session))
        if self._retry_s:
            return TOO_MANY, TEXT, b"your quota is used up\n"
        began_s = system.monotonic_s()
        reply = listener.answer(request_line, session.rights, self._came)
        listener.charge(session, len(reply[2]), system.monotonic_s() - began_s)
        return reply

    async def _make_page(self, request: WebRequest, session: Session, *, keep: bool) -> None:
        """Have the dashboard answer, and write that. While this lasts, the connection's next request waits."""
        listener = self._listener
        self._retry_s = math.ceil(listener.owed_s(session)) if listener.quotas.on else 0
        if self._retry_s:
            reply: Reply = TOO_MANY, TEXT, b"your quota is used up\n"
            reply = as_problem(reply[0], reply[2]) if request.path.startswith(API) else reply
            answer = WebAnswer(reply[0], (("Content-Type", reply[1]),), reply[2])
        else:
            answer = await listener.board.answer(request, session.rights)
            if listener.quotas.on:
                listener.charge(session, len(answer.body), answer.busy_s, answer.mutated)
        self._page_making = None
        headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        self._write(answer.status, headers, answer.body, keep=keep, body=request.method != "HEAD")
        self._next()

    def _reply(self, reply: Reply, *, keep: bool, body: bool) -> None:
        status, content_type, content = reply
        self._write(status, f"Content-Type: {content_type}\r\n", content, keep=keep, body=body)

    def _write(self, status: int, headers: str, content: bytes, *, keep: bool, body: bool) -> None:
        if self._transport is None:
            return
        asks = CHALLENGE if status == UNAUTHORIZED else ""
        if status == TOO_MANY:
            asks = f"Retry-After: {self._retry_s}\r\n"
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}\r\n{asks}{headers}"
            f"Content-Length: {len(content)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        ).encode("latin-1", "replace")
        self._transport.write(head + content if body else head)
        self._account.outgoing(self._transport.get_write_buffer_size())
        if not keep:
            self.close()

    def _refuse_later(self, reply: Reply, *, body: bool) -> None:
        """A login failed: who guesses passwords waits, and has to connect anew."""
        transport = self._transport
        if transport is not None:
            transport.pause_reading()
        asyncio.get_running_loop().call_later(
            FAILED_DELAY_S, lambda: self._reply(reply, keep=False, body=body)
        )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._timer is not None:
            self._timer.cancel()
        if self._page_making is not None:
            self._page_making.cancel()
        self._transport = None
        self._account.close()
        self._place.leave()
        self._listener.closed(self)

    def _time_is_up(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self._listener.pool.closed_slow += 1
            self._transport.abort()
        else:
            self.close()

    def close(self) -> None:
        """Send what is answered, then hang up; `_time_is_up` ends it where the client does not take that."""
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.close()


def _json(status: int, value: Any) -> Reply:
    return status, JSON, msgspec.json.encode(value) + b"\n"
