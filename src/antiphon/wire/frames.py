"""Frames of the native protocol, sans-IO: bytes in, frames out, and back.

A frame is `u32 length | u32 header length | header | payload`, integers big-endian; `length` counts everything after itself.
The header is the msgpack array `[request_id, body]` (`model.requests`), the payload is bulk bytes that are never copied here
where that can be: frames that arrive whole are views of the chunk that came in. A peer that breaks the rules gets an
error at the first byte that shows it, before anything of the announced size is buffered.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from antiphon.errors import FrameTooLargeError, InvalidRequestError, ProtocolViolationError
from antiphon.model.messages import Reply, Request
from antiphon.model.requests import FRAME_BYTES_MAX, TableGet, TableWrite
from antiphon.model.transactions import SendOffsets

Buffer = bytes | bytearray | memoryview
Decode = Callable[[Buffer], tuple[int, Any]]
"""Header of a frame -> (request id, body)."""

PREFIX = struct.Struct(">II")
LENGTH_BYTES = 4  # of the first integer
TLS_STARTS = (0x1603, 0x1503)  # how a TLS handshake or alert begins
LARGE: Final = {one.__name__: one for one in (TableWrite, TableGet, SendOffsets)}
# Their operations and offsets never get more fields: those that nobody knows would be read past, in any number.
HEADER_BYTES_MAX: Final = 4 * 1024 * 1024  # of requests that are not one of LARGE
HEAD_BYTES: Final = 64  # hold the id of a request and its name
_INTEGERS: Final = {
    0xCC: 2,
    0xCD: 3,
    0xCE: 5,
    0xCF: 9,
    0xD0: 2,
    0xD1: 3,
    0xD2: 5,
    0xD3: 9,
}  # msgpack's, with sizes
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}  # bytes of their lengths
SMALL_BYTES = 4096  # pieces of a frame below this are joined as they come


class Frame(msgspec.Struct, frozen=True):
    """One received frame; both parts are views that keep the chunk they came in alive."""

    header: memoryview
    payload: memoryview


class FrameDecoder:
    """Cuts a byte stream into frames.

    `limit_bytes` bounds `length`; the buffer never holds more than one frame and one chunk. `buffered_bytes` are those of
    the frame that is not complete yet. After an error the position in the stream is unknown, and every further call raises
    the same error.
    """

    __slots__ = ("_error", "_limit_bytes", "_need_bytes", "_parts", "buffered_bytes")

    def __init__(self, limit_bytes: int = FRAME_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes | bytearray] = []  # never many small ones: each costs more than its bytes
        self.buffered_bytes = 0
        self._need_bytes = PREFIX.size  # nothing can be decoded while fewer bytes than this are there
        self._error: Exception | None = None

    def limit(self, limit_bytes: int) -> None:
        """Bound the frames that follow."""
        self._limit_bytes = limit_bytes

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order.

        Raises FrameTooLargeError or ProtocolViolationError; frames before the bad one in the same chunk are lost with it.
        """
        if self._error is not None:
            raise self._error
        if not data:
            return []
        if self._parts:
            self._join(data)
            if self.buffered_bytes < self._need_bytes:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
            self.buffered_bytes = 0
        frames: list[Frame] = []
        view = memoryview(data)
        at, size = 0, len(data)
        need, limit_bytes = PREFIX.size, self._limit_bytes
        while size - at >= PREFIX.size:
            length, header_bytes = PREFIX.unpack_from(data, at)
            if length > limit_bytes or header_bytes > length - LENGTH_BYTES:
                self._error = _refused(length, header_bytes, limit_bytes)
                raise self._error
            need = LENGTH_BYTES + length
            if size - at < need:
                break
            body = at + PREFIX.size
            at += need
            frames.append(Frame(view[body : body + header_bytes], view[body + header_bytes : at]))
            need = PREFIX.size
        if at < size:
            self._parts.append(data[at:] if at else data)
            self.buffered_bytes = size - at
        self._need_bytes = need
        return frames

    def _join(self, data: bytes) -> None:
        """More of a frame that is not complete."""
        if len(data) < SMALL_BYTES:
            last = self._parts[-1]
            if type(last) is not bytearray:
                last = bytearray()
                self._parts.append(last)
            last += data
        else:
            self._parts.append(data)
        self.buffered_bytes += len(data)


def check_prefix(length: int, header_bytes: int) -> None:
    """Refuse a frame by its first eight bytes: raises FrameTooLargeError, ProtocolViolationError."""
    if length > FRAME_BYTES_MAX or header_bytes > length - LENGTH_BYTES:
        raise _refused(length, header_bytes, FRAME_BYTES_MAX)


def _refused(length: int, header_bytes: int, limit_bytes: int) -> FrameTooLargeError | ProtocolViolationError:
    if length >> 16 in TLS_STARTS and length > limit_bytes:
        return ProtocolViolationError(
            "one side of the connection speaks TLS and the other does not: give both the same settings of TLS"
        )
    if length > limit_bytes:
        return FrameTooLargeError(
            f"the peer announced a frame of {length} bytes; {limit_bytes} is the most that is accepted",
            size_bytes=length,
            limit_bytes=limit_bytes,
        )
    return ProtocolViolationError(
        f"a frame of {length} bytes cannot hold a header of {header_bytes} bytes: "
        "is this Antiphon's native port, and the peer an Antiphon client?"
    )


_encode = msgspec.msgpack.Encoder().encode
_id_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


def encode_frame(header: bytes, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """The frame as a list for `transport.writelines`; the parts of `payload` are passed through, not copied.

    Raises FrameTooLargeError where a peer would refuse it.
    """
    payload_bytes = 0
    for part in payload:
        payload_bytes += len(part)  # views of bytes: their length is their size
    length = LENGTH_BYTES + len(header) + payload_bytes
    if length > FRAME_BYTES_MAX:
        raise FrameTooLargeError(
            f"a frame of {length} bytes is above the limit of {FRAME_BYTES_MAX}; send less at a time",
            size_bytes=length,
            limit_bytes=FRAME_BYTES_MAX,
        )
    head = PREFIX.pack(length, len(header)) + header
    return [head, *payload] if payload_bytes else [head]


def encode_message(request_id: int, body: Any, payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """The frame of `[request_id, body]`, where `body` is any struct of the protocol."""
    header = _encode((request_id, body))
    length = LENGTH_BYTES + len(header)
    if payload or length > FRAME_BYTES_MAX:
        return encode_frame(header, payload)
    return [PREFIX.pack(length, len(header)) + header]


# -- traces -------------------------------------------------------------------------------------------------------

# A `traceparent` is one more element at the end of a message's body, which is an array: who does not know it reads past it.
_TRACE: Final = b"\xd9\x37"  # msgpack: a text of 55 bytes
_TRACE_BYTES: Final = 55


def traced_frame(frame: list[Buffer], traceparent: str) -> list[Buffer]:
    """A frame of `encode_message` whose message also says to which trace it belongs, if there is room for that."""
    first = bytes(frame[0])
    _, header_bytes = PREFIX.unpack_from(first)
    header = first[PREFIX.size : PREFIX.size + header_bytes]
    at = 1 + _INTEGERS.get(header[1], 1)
    kind = header[at]
    text = traceparent.encode()
    if kind & 0xF0 != 0x90 or len(text) != _TRACE_BYTES or header_bytes > HEADER_BYTES_MAX - HEAD_BYTES * 2:
        return frame
    count = (kind & 0x0F) + 1
    marker = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    traced = header[:at] + marker + header[at + 1 :] + _TRACE + text
    rest = [first[PREFIX.size + header_bytes :], *frame[1:]]
    payload_bytes = sum(map(len, rest))
    length = LENGTH_BYTES + len(traced) + payload_bytes
    if length > FRAME_BYTES_MAX:
        return frame
    return [PREFIX.pack(length, len(traced)) + traced, *(part for part in rest if part)]


def trace_of(header: Buffer, body: Any) -> str | None:
    """The `traceparent` at the end of a message; None where it has none."""
    if len(header) <= HEAD_BYTES or len(header) > HEADER_BYTES_MAX:
        return None
    end = bytes(header[-_TRACE_BYTES - len(_TRACE) :])
    if not end.startswith(_TRACE):
        return None
    try:
        _, fields, _ = _head_of(bytes(header[:HEAD_BYTES]))
        return end[len(_TRACE) :].decode("ascii") if fields > len(type(body).__struct_fields__) + 1 else None
    except (ProtocolViolationError, UnicodeDecodeError):
        return None


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `MessageDecoder.decode` raises."""


class MessageDecoder:
    """Decodes headers whose bodies are of one union of structs.

    Attributes:
        decode: the same as a call, for those who make many; it raises one of `UNREADABLE`, which `unreadable` explains.
    """

    __slots__ = ("decode",)

    def __init__(self, bodies: Any) -> None:
        self.decode: Decode = msgspec.msgpack.Decoder(tuple[int, bodies]).decode

    def __call__(self, header: Buffer) -> tuple[int, Any]:
        """(request id, body); raises ProtocolViolationError when it is not of the union."""
        try:
            return self.decode(header)
        except UNREADABLE as error:
            raise unreadable(error) from error


def unreadable(error: Exception) -> ProtocolViolationError:
    """What is said of a message that is not of the union."""
    return ProtocolViolationError(f"a message that this version cannot read: {error}")


def request_id_of(header: Buffer) -> int:
    """The id of a message whose body cannot be read, so that the refusal can name it.

    Raises ProtocolViolationError if even the id cannot be read: the connection is then unusable.
    """
    if len(header) > HEADER_BYTES_MAX:
        return _head_of(bytes(header[:HEAD_BYTES]))[0]
    try:
        return _id_decoder.decode(header)[0]
    except UNREADABLE as error:
        raise ProtocolViolationError(f"a header that is not [request id, body]: {error}") from error


def request_of_large(header: Buffer) -> int:
    """The id of a request with a header of more than HEADER_BYTES_MAX, by its first bytes.

    Raises InvalidRequestError, with the id, where such a request cannot be that long. Decoding holds the event loop, and
    what is not known is read past: only requests that need it are long, and those have nothing that is not known.
    """
    request_id, fields, name = _head_of(bytes(header[:HEAD_BYTES]))
    kind = LARGE.get(name)
    if kind is None:
        problem = f"a request has a header of at most {HEADER_BYTES_MAX} bytes, not {len(header)}"
    elif fields > len(kind.__struct_fields__) + 1:
        problem = (
            f"a {name} of more than {HEADER_BYTES_MAX} bytes has no fields that this version does not know"
        )
    else:
        return request_id
    raise InvalidRequestError(problem, request_id=request_id)


def _head_of(start: bytes) -> tuple[int, int, str]:
    """Request id, number of the body's elements, and the first of those."""
    unpacker = msgspec.msgpack.Decoder(tuple[int, tuple[str]])
    try:
        at = 1 + _INTEGERS.get(start[1], 1)
        kind = start[at]
        wide = _ARRAYS.get(kind, 0)
        fields = int.from_bytes(start[at + 1 : at + 1 + wide], "big") if wide else kind & 0x0F
        tag = at + 1 + wide
        end = tag + 1 + (start[tag] & 0x1F)  # names of requests are short
        request_id, (name,) = unpacker.decode(start[:at] + b"\x91" + start[tag:end])
    except (*UNREADABLE, IndexError) as error:
        raise ProtocolViolationError(f"a header that is not [request id, body]: {error}") from error
    return request_id, fields, name


decode_request = MessageDecoder(Request)
"""Header of a client's frame -> (request id, one of `model.requests.Request`)."""
decode_reply = MessageDecoder(Reply)
"""Header of a node's answer -> (request id, one of `model.requests.Reply`)."""
