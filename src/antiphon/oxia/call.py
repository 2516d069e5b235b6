"""One call of gRPC on a connection: its messages, one after the other, and what is answered.

The bytes that a call holds are counted in its connection's account: what arrives until its message was taken and dealt
with, what is answered until the socket has it. The client may send as many bytes again when a message is taken, or while a
message is still on its way and there is room.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from antiphon.gateway.protobuf import INNER_FIELDS_MAX, BadMessageError, Decoding, Message, decode, encode
from antiphon.oxia.status import (
    DEADLINE_EXCEEDED,
    HEADERS_OK,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    TRAILERS_OK,
    UNIMPLEMENTED,
    CallFailedError,
    trailers_of,
)

if TYPE_CHECKING:
    from antiphon.gateway.budget import Account
    from antiphon.gateway.quotas import Place
    from antiphon.oxia.http2 import Http2
    from antiphon.oxia.read_room import ReadRoom
    from antiphon.security.session import Session

M = TypeVar("M", bound=Message)

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024  # of a client's message
SMALL_BYTES: Final = 16 * 1024  # of a message that is read at once
INBOX_MAX: Final = 1_024  # messages that wait
SEND_BYTES: Final = 512 * 1024  # that a call may have waiting before it makes more
CALL_BYTES: Final = 4_096  # that a call keeps beside its messages, about
COPIED_BYTES: Final = 16 * 1024  # of a message: larger ones wait as they are
KEPT_HEADERS: Final[tuple[bytes, ...]] = (b":authority", b"authorization", b"shard-id", b"user-agent")
REQUEST_S: Final = 30.0  # that a call may be open whose one message does not come
_PREFIX: Final = struct.Struct(">BI")


class Carrier(Protocol):
    """The connection of a call, as the call and its handler see it.

    Attributes:
        authorization: with which the session was logged in.
        is_shared: are there calls of others than the one whose session it is?
        logins: held while a login is looked at.
    """

    http2: "Http2"
    account: "Account"
    session: "Session"
    authorization: bytes
    is_shared: bool
    logins: asyncio.Lock
    host: str
    place: "Place"
    calls_bytes: int
    read_room: "ReadRoom"

    @property
    def transport(self) -> Any:
        """Its socket's."""

    @property
    def calls_open(self) -> int:
        """Calls that have not ended."""

    def give_back(self, call: "Call") -> None:
        """Let the client send on, as soon as there is room."""

    def count_outgoing(self) -> None:
        """Count what waits to be sent."""

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the loop."""

    async def room_for(self, call: "Call") -> None:
        """Return when a call may answer with more."""


class Call:
    """See the module's text.

    Attributes:
        path: which method.
        headers: the others that the client sent, by name.
        deadline_s: by the loop's clock, when the client gives up; None: never.
        session: who asks; None: nobody has looked.
    """

    def __init__(
        self,
        connection: Carrier,
        stream_id: int,
        path: str,
        headers: dict[bytes, bytes],
        deadline_s: float | None,
    ) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.path = path
        self.headers = headers
        self.deadline_s = deadline_s
        self.session: Session | None = None
        self.task: asyncio.Task[None] | None = None
        self.own_bytes = 0  # that are counted for the call itself
        self.flow_bytes = 0  # that the client may not send again yet
        self.failed: CallFailedError | None = None
        self._body = bytearray()
        self._inbox: deque[bytes] = deque()
        self._held = 0  # bytes that are counted for what is under work
        self._read = 0  # and for what was read for the answer, and is not sent
        self._over = False  # the client sends no more
        self._begun = False
        self._arrived = asyncio.Event()
        self._opened_s = asyncio.get_running_loop().time()

    # -- the client's messages ----------------------------------------------------------------------------------------

    @property
    def is_half_received(self) -> bool:
        """Is a message on its way?"""
        return bool(self._body)

    @property
    def waits_for_work(self) -> bool:
        """Are there messages that nobody has taken?"""
        return bool(self._inbox)

    def received(self, data: bytes, *, ended: bool) -> int:
        """Bytes of messages came. Returns how many messages they complete."""
        self._body += data
        body, before = self._body, len(self._inbox)
        while len(body) >= _PREFIX.size and self.failed is None:
            compressed, size = _PREFIX.unpack_from(body)
            if compressed:
                self._fail(UNIMPLEMENTED, "compressed messages are not taken: leave grpc-encoding out")
            elif size > MESSAGE_BYTES_MAX:
                self._fail(
                    RESOURCE_EXHAUSTED, f"a message has {MESSAGE_BYTES_MAX} bytes at most, this has {size}"
                )
            elif len(body) < _PREFIX.size + size:
                break
            else:
                self._inbox.append(bytes(memoryview(body)[_PREFIX.size : _PREFIX.size + size]))
                del body[: _PREFIX.size + size]
                if len(self._inbox) > INBOX_MAX:
                    self._fail(RESOURCE_EXHAUSTED, f"more than {INBOX_MAX} messages wait for their answer")
        if ended and body and self.failed is None:
            self._fail(INVALID_ARGUMENT, "the request ends in the middle of a message")
        self._over = self._over or ended
        self._arrived.set()
        return len(self._inbox) - before

    def is_due(self, now_s: float) -> bool:
        """Has its first message had the time to come?"""
        return now_s >= self._opened_s + REQUEST_S

    def _fail(self, code: int, message: str) -> None:
        self.failed = CallFailedError(code, message)
        self._held += len(self._body)  # counted until the call is over
        self._body.clear()

    async def message(self) -> bytes | None:
        """The next message; None: there are no more. Raises CallFailedError."""
        while not self._inbox:
            if self.failed is not None:
                raise self.failed
            if self._over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._take()

    def _take(self) -> bytes:
        found = self._inbox.popleft()
        self._held += len(found) + _PREFIX.size
        self.connection.give_back(self)
        return found

    def more(self) -> bytes | None:
        """Another message that is here already; None: there is none now."""
        return self._take() if self._inbox and self.failed is None else None

    async def request(self, kind: type[M]) -> M:
        """The one message of a call that has one."""
        return await self.parsed(kind, await self.one_message())

    async def one_message(self) -> bytes:
        """The message of a call that has one. It has to come soon."""
        try:
            async with asyncio.timeout_at(self._opened_s + REQUEST_S):
                data = await self.message()
        except TimeoutError:
            raise CallFailedError(
                DEADLINE_EXCEEDED, f"the request's message did not come within {REQUEST_S:.0f} s"
            ) from None
        if data is None:
            raise CallFailedError(INTERNAL, "the request has no message")
        return data

    async def parsed(self, kind: type[M], data: bytes) -> M:
        """A message as what it has to be; a large one is read in several turns. Raises CallFailedError."""
        try:
            if len(data) <= SMALL_BYTES:
                return decode(kind, data, INNER_FIELDS_MAX)
            reading = Decoding(kind, data)
            await self.turn()
            while not reading.step():
                await self.turn()
            return reading.message
        except BadMessageError as error:
            raise CallFailedError(
                INVALID_ARGUMENT, f"this is no {kind.__name__}: {error}; nothing was carried out"
            ) from None

    def dealt_with(self) -> None:
        """What was taken is answered: its bytes are counted no more."""
        held, self._held = self._held, 0
        self.connection.account.add(-held)

    # -- what is read for the answer ----------------------------------------------------------------------------------

    @property
    def read_bytes(self) -> int:
        """That are counted for what was read, or will be."""
        return self._read

    def may_read(self, size_bytes: int) -> bool:
        """Is there room for so many bytes now, and nobody who waits for some?"""
        return self.connection.read_room.is_there(size_bytes)

    def has_room_for_little(self, size_bytes: int) -> bool:
        """May so many bytes be held whatever others hold?"""
        connection = self.connection
        return connection.account.fits(size_bytes, min(connection.calls_bytes, connection.account.held_bytes))

    async def reserve(self, size_bytes: int) -> None:
        """Return when there is room for so many bytes, which are counted from then on."""
        await self.connection.read_room.enter(size_bytes)
        self._read += size_bytes

    async def turn(self) -> None:
        """Return when it is the turn of the call's connection."""
        await self.connection.read_room.turn()

    def keep(self, size_bytes: int) -> None:
        """Of all that was read so many bytes are left."""
        change, self._read = size_bytes - self._read, size_bytes
        self.connection.account.add(change)
        if change < 0:
            self.connection.read_room.look()

    # -- answers ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Does anybody wait for an answer?"""
        return self.connection.http2.is_open(self.stream_id)

    async def send(self, message: Message | bytes | bytearray) -> None:
        """Answer with a message; returns when there is room for the next one."""
        size_bytes = self.post(message)
        if self._read:  # the connection counts it from now on
            self.connection.count_outgoing()
            self.keep(max(0, self._read - size_bytes))
        await self.connection.room_for(self)

    def post(self, message: Message | bytes | bytearray) -> int:
        """Answer with a message now, however much waits; it must not change afterwards. Returns its size."""
        data = encode(message) if isinstance(message, Message) else message
        self._begin()
        prefix, http2 = _PREFIX.pack(0, len(data)), self.connection.http2
        if len(data) < COPIED_BYTES:
            http2.send_data(self.stream_id, prefix + data)
        else:
            http2.send_data(self.stream_id, prefix)
            http2.send_data(self.stream_id, data)
        self.connection.flush_soon()
        return len(data)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.connection.http2.send_headers(self.stream_id, HEADERS_OK)

    def end(self, failure: CallFailedError | None = None) -> None:
        """No more comes."""
        trailers = TRAILERS_OK if failure is None else trailers_of(failure)
        if not self._begun:
            self._begun, trailers = True, HEADERS_OK + trailers
        self.connection.http2.send_end(self.stream_id, trailers)
        self.connection.flush_soon()

    def close(self) -> int:
        """The call is over; returns how many bytes it still held, and lets go of all."""
        left = self._read + self._held + len(self._body) + sum(len(one) + _PREFIX.size for one in self._inbox)
        self._held = self._read = 0
        self._body.clear()
        self._inbox.clear()
        return left


Handler = Callable[[Call], Coroutine[Any, Any, None]]
"""What carries out a method; what it raises is what the call ends with."""
