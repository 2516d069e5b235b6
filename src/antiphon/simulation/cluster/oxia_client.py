"""A small client of Oxia's protocol for the simulated network: HTTP/2 and gRPC as far as its calls need them.

It repeats nothing, as Oxia's Python client does not. A call without an end, because the connection broke or time ran out,
raises `NoEndError`: whether it was carried out is not known then. One that ends with an error raises `CallError`.
"""

import asyncio
import base64
import struct
from typing import Any, Final, TypeVar

from hpack import Decoder

from antiphon.gateway.protobuf import Message, decode, encode
from antiphon.oxia import frames as f
from antiphon.oxia.messages import ErrorInfo, RpcStatus

SERVICES: Final = ("/io.streamnative.oxia.proto.OxiaClient/", "/io.oxia.proto.v1.OxiaClient/")
WINDOW_BYTES: Final = 64 * 1024
PATIENCE_S: Final = 5.0
_PREFIX: Final = struct.Struct(">BI")
Address = tuple[str, int]
M = TypeVar("M", bound=Message)


class NoEndError(Exception):
    """Nobody said how the call ended."""


class CallError(Exception):
    """The call ended with this code of gRPC, and perhaps a reason."""

    def __init__(self, code: int, message: str, reason: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class Stream:
    """One call: the messages that came, and its end."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._body = bytearray()
        self._end: tuple[int, str, str] | None = None

    def received(self, data: bytes) -> None:
        """Bytes of messages."""
        self._body += data
        while len(self._body) >= _PREFIX.size:
            _, size = _PREFIX.unpack_from(self._body)
            if len(self._body) < _PREFIX.size + size:
                return
            self._messages.put_nowait(bytes(self._body[_PREFIX.size : _PREFIX.size + size]))
            del self._body[: _PREFIX.size + size]

    def ended(self, code: int, message: str, reason: str = "") -> None:
        """No more comes; code -1: nobody said why."""
        if self._end is None:
            self._end = (code, message, reason)
            self._messages.put_nowait(None)

    async def next(self, timeout_s: float) -> bytes | None:
        """The next message; None: there are no more. Raises CallError, NoEndError."""
        try:
            found = await asyncio.wait_for(self._messages.get(), timeout_s)
        except TimeoutError:
            raise NoEndError("time ran out") from None
        if found is not None:
            return found
        self._messages.put_nowait(None)
        code, message, reason = self._end or (-1, "", "")
        if code < 0:
            raise NoEndError(message)
        if code > 0:
            raise CallError(code, message, reason)
        return None


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, authority: str, agent: str) -> None:
        self.closed = False
        self._authority = authority
        self._agent = agent
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a Transport
        self._write(f.PREFACE + f.settings_frame([(f.INITIAL_WINDOW_SIZE, WINDOW_BYTES)]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """See asyncio."""
        self.close()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        while len(self._received) >= f.HEADER_BYTES:
            size, kind, flags, stream_id = f.read_frame_header(self._received, 0)
            if len(self._received) < f.HEADER_BYTES + size:
                return
            payload = bytes(self._received[f.HEADER_BYTES : f.HEADER_BYTES + size])
            del self._received[: f.HEADER_BYTES + size]
            self._frame(kind, flags, stream_id, payload)

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._streams.get(stream_id)
        if kind == f.SETTINGS and not flags & f.ACK:
            self._write(f.frame(f.SETTINGS, f.ACK, 0))
        elif kind == f.DATA:
            if payload:
                self._write(f.window_update(0, len(payload)) + f.window_update(stream_id, len(payload)))
            if stream is not None:
                stream.received(payload)
        elif kind == f.HEADERS:
            headers = dict(self._decoder.decode(payload, raw=True))
            if stream is not None and flags & f.END_STREAM:
                del self._streams[stream_id]
                message = bytes(headers.get(b"grpc-message", b"")).decode()
                details = bytes(headers.get(b"grpc-status-details-bin", b""))
                stream.ended(int(headers.get(b"grpc-status", b"2")), message, _reason(details))
        elif kind == f.RST_STREAM and stream is not None:
            del self._streams[stream_id]
            stream.ended(-1, "the stream was reset")
        elif kind == f.GOAWAY:
            self.close()

    def begin(self, path: str, metadata: dict[str, str]) -> tuple[int, Stream]:
        """Begin a call."""
        stream = Stream()
        stream_id, self._next = self._next, self._next + 2
        if self.closed:
            stream.ended(-1, "the connection is closed")
            return stream_id, stream
        self._streams[stream_id] = stream
        told = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": self._authority,
            "content-type": "application/grpc",
            "te": "trailers",
            "user-agent": self._agent,
            **metadata,
        }
        block = b"".join(f.literal(name.encode(), value.encode()) for name, value in told.items())
        self._write(f.frame(f.HEADERS, f.END_HEADERS, stream_id, block))
        return stream_id, stream

    def say(self, stream_id: int, message: Message, *, last: bool) -> None:
        """Send a message of a call."""
        data = encode(message)
        body = _PREFIX.pack(0, len(data)) + bytes(data)
        for at in range(0, len(body), f.FRAME_BYTES_DEFAULT):
            piece = body[at : at + f.FRAME_BYTES_DEFAULT]
            ends = last and at + len(piece) == len(body)
            self._write(f.frame(f.DATA, f.END_STREAM if ends else 0, stream_id, piece))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def give_up(self, stream_id: int) -> None:
        """Nobody waits for this call any more."""
        if self._streams.pop(stream_id, None) is not None:
            self._write(f.rst_stream(stream_id, f.CANCEL))

    def close(self) -> None:
        """Hang up; calls have no end."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.ended(-1, "the connection broke")


def _reason(details: bytes) -> str:
    """The reason in the details of an error, where it has any."""
    if not details:
        return ""
    status = decode(RpcStatus, base64.b64decode(details + b"=" * (-len(details) % 4)))
    reason: str = decode(ErrorInfo, status.details[0].value).reason
    return reason


class OxiaClient:
    """Asks one node at a time, and another one when that is gone."""

    def __init__(self, nodes: list[Address], draw: Any, agent: str, service: str) -> None:
        self._nodes = nodes
        self._draw = draw
        self._agent = agent
        self._service = service
        self._connection: Connection | None = None
        self.metadata: dict[str, str] = {}  # of each call

    async def connection(self) -> Connection:
        """The connection that is used now. Raises NoEndError."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        host, port = self._draw.choice(self._nodes)
        loop = asyncio.get_running_loop()
        made = loop.create_connection(lambda: Connection(f"{host}:{port}", self._agent), host, port)
        try:
            _, found = await asyncio.wait_for(made, PATIENCE_S)
        except (OSError, TimeoutError):
            await asyncio.sleep(0.05)
            raise NoEndError(f"{host} does not listen") from None
        self._connection = found
        return found

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def call(self, method: str, request: Message, kind: type[M], timeout_s: float = PATIENCE_S) -> M:
        """A call with one answer. Raises CallError, NoEndError."""
        answers = await self.calls(method, request, kind, timeout_s)
        if len(answers) != 1:
            raise AssertionError(f"{method} has {len(answers)} answers")
        return answers[0]

    async def calls(
        self, method: str, request: Message, kind: type[M], timeout_s: float = PATIENCE_S
    ) -> list[M]:
        """All answers of a call that ends."""
        connection, stream_id, stream = await self.begin(method, request)
        found = []
        try:
            while (data := await stream.next(timeout_s)) is not None:
                found.append(decode(kind, data))
        except NoEndError:
            connection.give_up(stream_id)
            self.hang_up()
            raise
        return found

    async def begin(self, method: str, request: Message) -> tuple[Connection, int, Stream]:
        """Begin a call that has one request."""
        connection, stream_id, stream = await self.open_call(method)
        connection.say(stream_id, request, last=True)
        return connection, stream_id, stream

    async def open_call(self, method: str, **more: str) -> tuple[Connection, int, Stream]:
        """Begin a call, without a request yet; `more`: metadata, with `_` for `-`. Raises NoEndError."""
        connection = await self.connection()
        named = {name.replace("_", "-"): value for name, value in more.items()}
        stream_id, stream = connection.begin(self._service + method, {**self.metadata, **named})
        return connection, stream_id, stream
