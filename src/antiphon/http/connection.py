"""One connection of the HTTP listener: requests one after the other, each answered when the answer before it was taken.

A page is written when there is room for it in the node's memory for clients (`gateway.budget`). Nobody knows how large one
is before it is made. So one that does not fit is let go of, and made again when there is room for its size.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon import system
from antiphon.errors import OverloadedError
from antiphon.http.access import API, CHALLENGE, OPEN_PAGES, UNAUTHORIZED, Reply, path_of, refused
from antiphon.http.api.problems import as_problem
from antiphon.http.bridge import WebAnswer, WebRequest
from antiphon.http.heads import body_bytes, halves, is_for_board
from antiphon.security.authenticator import FAILED_DELAY_S
from antiphon.security.authorization import hard_part
from antiphon.security.session import Session, session_of
from antiphon.security.tls import is_encrypted

if TYPE_CHECKING:
    from antiphon.gateway.budget import Account, Pool
    from antiphon.gateway.quotas import Quotas
    from antiphon.http.board import Board
    from antiphon.security.authenticator import Authenticator
    from antiphon.security.authorizer import Rights

TOO_MANY: Final = 429
TLS_START: Final = b"\x16\x03"  # how a TLS handshake begins
REQUEST_BYTES_MAX: Final = 16 * 1024
IDLE_S: Final = 30.0
KERNEL_BYTES: Final = 64 * 1024  # of answers that the kernel takes for a client who does not read
TEXT: Final = "text/plain; charset=utf-8"

_REASONS: Final = {one.value: one.phrase for one in HTTPStatus}


class Site(Protocol):
    """What a connection shows: the listener's pages, with who may see them."""

    pool: "Pool"
    board: "Board"
    quotas: "Quotas"
    authenticator: "Authenticator | None"

    def moment(self) -> int:
        """What happens now happens after everything that got a moment before."""

    def answer(self, request_line: bytes, rights: "Rights", came: int | None) -> Reply:
        """The reply to a request, by its first line."""

    def owed_s(self, session: Session) -> float:
        """How long a client has to wait by its quotas until its next page."""

    def charge(self, session: Session, size_bytes: int, took_s: float, mutated: int = 0) -> None:
        """Charge a page."""

    def heard_tls(self, transport: asyncio.BaseTransport | None) -> None:
        """A client speaks TLS where there is none."""

    def opened(self, connection: "HttpConnection") -> bool:
        """Count a connection; False when there are too many."""

    def closed(self, connection: "HttpConnection") -> None:
        """A connection is gone."""


class HttpConnection(asyncio.Protocol):
    """See the module's text."""

    def __init__(self, listener: Site) -> None:
        self._listener = listener
        self._account: Account = listener.pool.open()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._came = 0  # the moment at which the last of it did
        self.host = ""
        self._client: object = ""  # who shares its turns with other connections
        self._timer: asyncio.TimerHandle | None = None
        self._writable = True
        self._is_queued = False
        self._page_making: asyncio.Task[None] | None = None  # of the dashboard; the next request waits for it
        self._is_refused = False  # a login failed: nothing else is looked at before it is answered
        self._retry_s = 0
        self._put_off: tuple[list[bytes], bytes, int] | None = (
            None  # a request, whose answer has so many bytes
        )
        self._place = listener.quotas.place()  # among the connections of the client's user

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = transport  # type: ignore[assignment]  # TCP connections are Transports
        # Any answer is more than this. Not 0: uvloop's TLS would then pause an empty buffer, and never go on.
        transport.set_write_buffer_limits(high=64)  # type: ignore[attr-defined]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._time_is_up)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        self._client = f"address {self.host}"  # until a request says who it is
        if not self._listener.opened(self):
            self._reply((503, TEXT, b"too many connections\n"), keep=False, body=True)
        elif not self._listener.quotas.admits(self.host):
            self._retry_s = 1
            reply = (TOO_MANY, TEXT, b"this address makes too many connections\n")
            self._reply(reply, keep=False, body=True)

    def pause_writing(self) -> None:
        """The client does not take its answer."""
        self._writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It has taken it."""
        self._writable = True
        self._account.outgoing(0)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._queue()

    def data_received(self, data: bytes) -> None:
        """So much of its requests came."""
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
        is_busy = self._is_queued or self._page_making is not None or self._put_off is not None
        if not is_busy and not self._is_refused and self._writable and self._received:
            self._is_queued = True
            self._listener.pool.budget.turns.add(self, self._take_turn, self._client)

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
        if self._transport is None or not self._writable or self._is_refused:
            return
        if len(self._received) <= REQUEST_BYTES_MAX:
            self._transport.resume_reading()
        self._queue()

    def _answer(self, lines: list[bytes], form: bytes) -> None:
        """Answer a request, as soon as it is known who asks: a password is checked in a thread."""
        plain = {name.strip().lower(): value.strip() for name, _, value in map(halves, lines[1:])}
        session = session_of(self._listener.authenticator, self._transport, "http")
        is_open = path_of(lines[0]) in OPEN_PAGES
        work = None if is_open else hard_part(session, plain.get(b"authorization", b""))
        if work is None:
            self._answer_as(session, lines, plain, form)
        else:
            proving = self._answer_proved(work, session, lines, plain, form)
            self._page_making = asyncio.get_running_loop().create_task(proving, name="http login")

    async def _answer_proved(
        self,
        work: Coroutine[Any, Any, None],
        session: Session,
        lines: list[bytes],
        plain: dict[bytes, bytes],
        form: bytes,
    ) -> None:
        try:
            await work
        except OverloadedError as error:
            self._page_making, self._retry_s = None, 1
            is_api = path_of(lines[0]).startswith(API)
            reply: Reply = TOO_MANY, TEXT, f"{error.message}\n".encode()
            self._reply(as_problem(reply[0], reply[2]) if is_api else reply, keep=False, body=True)
            return
        await self._listener.pool.budget.turns.next(self, self._client)
        self._page_making = None
        self._answer_as(session, lines, plain, form)
        if self._page_making is None:
            self._next()

    def _answer_as(
        self, session: Session, lines: list[bytes], plain: dict[bytes, bytes], form: bytes
    ) -> None:
        headers = {name: value.lower() for name, value in plain.items()}
        refusal = refused(session, path_of(lines[0]), plain.get(b"authorization", b""))
        self._client = session.client(self.host)
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
                client=self.host,
            )
            made = self._make_page(request, session, (lines, form), keep=keep)
            self._page_making = asyncio.get_running_loop().create_task(made, name="dashboard page")
            return
        page = refusal or self._page(lines, form, session)
        if page is not None:
            self._reply(page, keep=keep and page[0] != 400, body=not lines[0].startswith(b"HEAD "))

    def _page(self, lines: list[bytes], form: bytes, session: Session) -> Reply | None:
        """The page that is asked for, or, where quotas are used up, when it can be had. None: it comes later."""
        listener, request_line = self._listener, lines[0]
        is_free = not listener.quotas.all or path_of(request_line) in OPEN_PAGES
        self._retry_s = 0 if is_free else math.ceil(listener.owed_s(session))
        if self._retry_s:
            return TOO_MANY, TEXT, b"your quota is used up\n"
        began_s = system.monotonic_s()
        reply = listener.answer(request_line, session.rights, self._came)
        if self._lacks_room(lines, form, len(reply[2])):
            return None
        if not is_free:
            listener.charge(session, len(reply[2]), system.monotonic_s() - began_s)
        return reply

    # -- answers without room -----------------------------------------------------------------------------------

    def _lacks_room(self, lines: list[bytes], form: bytes, size_bytes: int) -> bool:
        """Is there no room for a page of so many bytes? Then it is let go of, and made again when there is."""
        if self._may_have(size_bytes) or not lines[0].startswith(b"GET "):
            return False
        self._put_off = lines, form, size_bytes
        self._account.wait(self._look_again)
        return True

    def _may_have(self, size_bytes: int) -> bool:
        """One page of the node may be larger than the room; the client has taken all others."""
        return self._account.fits(size_bytes) or self._account.is_large

    def _look_again(self) -> None:
        if self._transport is None or self._put_off is None:
            return
        if self._may_have(self._put_off[2]):
            self._listener.pool.budget.turns.add(self, self._answer_late, self._client)
        else:
            self._account.wait(self._look_again)

    def _answer_late(self) -> None:
        if self._transport is None or self._put_off is None:
            return
        lines, form, _ = self._put_off
        self._put_off = None
        self._answer(lines, form)
        if self._page_making is None:
            self._next()

    async def _make_page(
        self, request: WebRequest, session: Session, received: tuple[list[bytes], bytes], *, keep: bool
    ) -> None:
        """Have the dashboard answer, and write that. While this lasts, the connection's next request waits."""
        listener = self._listener
        self._retry_s = math.ceil(listener.owed_s(session)) if listener.quotas.all else 0
        if self._retry_s:
            reply: Reply = TOO_MANY, TEXT, b"your quota is used up\n"
            reply = as_problem(reply[0], reply[2]) if request.path.startswith(API) else reply
            answer = WebAnswer(reply[0], (("Content-Type", reply[1]),), reply[2])
        else:
            answer = await listener.board.answer(request, session.rights, self._client)
            if self._lacks_room(*received, len(answer.body)):
                self._page_making = None
                return
            if listener.quotas.all:
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
        self._account.large_no_more()
        if not keep:
            self.close()

    def _refuse_later(self, reply: Reply, *, body: bool) -> None:
        """A login failed: who guesses passwords waits, and has to connect anew."""
        transport, self._is_refused = self._transport, True
        if transport is not None:
            transport.pause_reading()
        asyncio.get_running_loop().call_later(
            FAILED_DELAY_S, lambda: self._reply(reply, keep=False, body=body)
        )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client is gone."""
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
