"""One connection to one node: requests out, replies matched by their id, in any order.

Frames that are written in one turn of the event loop leave in one system call. A connection that has open requests and
receives nothing sends a ping. Without an answer it is closed, so that a stopped or unreachable node does not block its
clients until their time is over. Every request without a reply when the connection ends fails with
`ConnectionLostError`.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon import tracing
from antiphon.client.addresses import parse_address
from antiphon.client.connection_errors import ConnectionLostError, NoHelloError
from antiphon.client.greeting import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, Greeting
from antiphon.client.tls import HUNG_UP, HUNG_UP_ON_TLS, context_for, why_no_tls
from antiphon.errors import AntiphonError, ProtocolViolationError
from antiphon.model.requests import Failure, GetMetadata
from antiphon.security.account import Account
from antiphon.wire.frames import Buffer, FrameDecoder, decode_reply, encode_message, traced_frame

if TYPE_CHECKING:
    import ssl

    from antiphon.client.tls import Dialing

LIFE_CHECK_S: Final = 0.25
SILENCE_S_MAX: Final = (
    0.5  # with requests open; then the node is asked for a sign of life, and the others for news of it
)
LIFELESS_S_MAX: Final = 3.0  # silence after which the connection is given up

Answer = Callable[[Any, memoryview], None]
"""Called once per request with its reply, or with the AntiphonError that it failed with, and the reply's bulk bytes."""

NOTHING: Final = memoryview(b"")
_PING: Final = GetMetadata(known_version=(1 << 62), wait_ms=0)


class Connection(asyncio.Protocol):
    """Use `open_connection`. All methods belong to one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cluster_id = ""
        self.lost: AntiphonError | None = None
        self.congested = False
        self.on_silence: Callable[[Connection], None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._answers: dict[int, Answer] = {}
        self._next_id = 1
        self._out: list[Buffer] = []
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pinging = False
        self._uncongested: list[Callable[[], None]] = []

    # -- requests -----------------------------------------------------------------------------------------------

    def send(
        self, body: Any, answer: Answer, payload: Sequence[Buffer] = (), trace: str | None = None
    ) -> None:
        """Send a request; `answer` is called later, never from within this call. `trace`: its `traceparent`.

        Raises the connection's AntiphonError when it is lost already, and FrameTooLargeError.
        """
        if self.lost is not None:
            raise self.lost
        request_id = self._next_id
        frame = encode_message(request_id, body, payload)
        if trace is not None:
            frame = traced_frame(frame, trace)
        self._next_id = request_id + 1
        if not self._answers and self._timer is None:
            self._heard_at = self._loop.time()
            self._timer = self._loop.call_later(LIFE_CHECK_S, self._check_life)
        self._answers[request_id] = answer
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += frame

    async def request(
        self, body: Any, payload: Sequence[Buffer] = (), trace: str | None = None
    ) -> tuple[Any, memoryview]:
        """Send a request and wait for its reply and bulk bytes; raises the error that it failed with.

        `trace`: what it belongs to, empty for none; None: what the program does now.
        """
        future: asyncio.Future[tuple[Any, memoryview]] = self._loop.create_future()

        def answer(reply: Any, bulk: memoryview) -> None:
            if future.done():
                return
            if isinstance(reply, AntiphonError):
                future.set_exception(reply)
            else:
                future.set_result((reply, bulk))

        if trace is None and tracing.tracer is not None:
            trace = tracing.tracer.parent()
        self.send(body, answer, payload, trace or None)
        return await future

    def when_uncongested(self, call: Callable[[], None]) -> None:
        """Call once when the socket takes bytes again, or the connection ends."""
        self._uncongested.append(call)

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.writelines(self._out)
        self._out = []

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._heard_at = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                request_id, body = decode_reply(frame.header)
                answer = self._answers.pop(request_id, None)
                if answer is None:
                    raise ProtocolViolationError(
                        f"{self.address} answered request {request_id}, which is not open"
                    )
                if type(body) is Failure:
                    body = body.error()
                answer(body, frame.payload)
        except AntiphonError as error:
            self.abort(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        reason = f": {exc}" if exc is not None else ""
        self._end(ConnectionLostError(f"the connection to {self.address} was lost{reason}"))
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.congested = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.congested = False
        waiting, self._uncongested = self._uncongested, []
        for call in waiting:
            call()

    # -- the end ------------------------------------------------------------------------------------------------

    def abort(self, error: AntiphonError) -> None:
        """Close the connection; open requests fail with `error`."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Hang up and wait until the socket is closed."""
        self.abort(ConnectionLostError(f"the connection to {self.address} was closed by this client"))
        if self._transport is not None:
            await self.closed

    def _end(self, error: AntiphonError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._out = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            self._loop.call_soon(answer, error, NOTHING)
        self.resume_writing()

    def _check_life(self) -> None:
        self._timer = None
        if not self._answers or self.lost is not None:
            return
        silence_s = self._loop.time() - self._heard_at
        if silence_s > LIFELESS_S_MAX:
            self.abort(ConnectionLostError(f"{self.address} said nothing for {silence_s:.1f} s"))
            return
        if silence_s > SILENCE_S_MAX and not self._pinging:
            self._pinging = True
            if self.on_silence is not None:
                self.on_silence(self)
            self.send(_PING, self._alive)
        self._timer = self._loop.call_later(LIFE_CHECK_S, self._check_life)

    @property
    def silent(self) -> bool:
        """Was a ping sent that has no answer yet?"""
        return self._pinging and self.lost is None

    def _alive(self, _reply: Any, _payload: memoryview) -> None:
        self._pinging = False


async def open_connection(
    address: str,
    who: str,
    cluster_id: str | None,
    account: Account | None = None,
    tls: "Dialing | None" = None,
) -> Connection:
    """Connect and say hello.

    Raises ConnectionLostError when nobody answers within 2 s, ForeignDirectoryError when `cluster_id` is given and the node
    is of another cluster, InvalidRequestError when it speaks another version, ProtocolViolationError when it is no node,
    UnauthenticatedError when it wants a login and `account` (by default the environment's) is not taken, or when its
    certificate is not trusted. `tls`: see `context_for`.
    """
    host, port = parse_address(address)
    context = context_for(tls, host, port)
    connection = Connection(address)
    greeting = Greeting(address, who, account, cluster_id)
    try:
        await _log_in(connection, greeting, await _say_hello(connection, greeting, host, port, context))
    except BaseException:
        await connection.close()
        raise
    connection.cluster_id = greeting.cluster_id
    return connection


async def _say_hello(
    connection: Connection, greeting: Greeting, host: str, port: int, context: "ssl.SSLContext | None"
) -> Any:
    """Connect; returns what the node answers to the hello."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await _dial(connection, host, port, context)
            reply, _ = await connection.request(greeting.first())
    except ConnectionLostError as error:
        hint = HUNG_UP if context is None else HUNG_UP_ON_TLS
        raise NoHelloError(f"{error.message} {hint}") from error
    except AntiphonError:  # some are TimeoutErrors, too
        raise
    except TimeoutError:
        raise NoHelloError(f"{connection.address} did not answer within {CONNECT_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise ConnectionLostError(f"{connection.address} cannot be reached: {error}") from error
    return reply


async def _dial(connection: Connection, host: str, port: int, context: "ssl.SSLContext | None") -> None:
    """Connect, with TLS where there is a context. Raises OSError and AntiphonError."""
    loop = asyncio.get_running_loop()
    if context is None:
        await loop.create_connection(lambda: connection, host, port)
        return
    try:
        await loop.create_connection(lambda: connection, host, port, ssl=context, server_hostname=host)
    except OSError as error:
        problem = why_no_tls(connection.address, error)
        if isinstance(problem, AntiphonError):
            raise problem from error
        raise ConnectionLostError(problem) from error


async def _log_in(connection: Connection, greeting: Greeting, reply: Any) -> None:
    """What is said after the hello, to which the node has answered `reply`."""
    try:
        async with asyncio.timeout(LOGIN_TIMEOUT_S):
            while (request := greeting.next(reply)) is not None:
                reply, _ = await connection.request(request)
    except AntiphonError:
        raise
    except TimeoutError:
        raise ConnectionLostError(f"{connection.address} did not answer a login") from None
