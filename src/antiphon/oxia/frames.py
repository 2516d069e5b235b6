"""HTTP/2's frames (RFC 9113): how they look, and what both ends of a connection have to know of them. Pure."""

import struct
from collections.abc import Sequence
from typing import Final

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
"""Types of frames."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
MAX_HEADER_LIST_SIZE: Final = 6
"""Settings."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = (1 << 31) - 1
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_MAX: Final = (1 << 24) - 1
SIZE_UPDATES_MAX: Final = 2  # of HPACK's table at the beginning of a block of headers (RFC 7541, 4.2)
_HEADER: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">I")
_GOAWAY: Final = struct.Struct(">II")


def frame(kind: int, flags: int, stream_id: int, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """A whole frame."""
    size = len(payload)
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def frame_header(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """The first nine bytes of a frame whose payload follows."""
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def read_frame_header(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int, int, int]:
    """(size of the payload, type, flags, stream) of a frame that begins at `at`."""
    high, low, kind, flags, stream_id = _HEADER.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream_id & WINDOW_MAX


def settings_frame(settings: Sequence[tuple[int, int]]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in settings))


def read_settings(payload: bytes | memoryview) -> list[tuple[int, int]]:
    """What a SETTINGS frame says; its size is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, size: int) -> bytes:
    """Allow the other side so many bytes more."""
    return frame(WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(size))


def rst_stream(stream_id: int, code: int) -> bytes:
    """End a stream at once."""
    return frame(RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def goaway(last_stream_id: int, code: int, why: str = "") -> bytes:
    """Say that the connection ends, and why."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + why.encode()[:256])


def number_in(payload: bytes | memoryview) -> int:
    """The 31 bits that WINDOW_UPDATE has, or the code of RST_STREAM."""
    found: int = _NUMBER.unpack(payload)[0]
    return found


def literal(name: bytes, value: bytes) -> bytes:
    """A header field of HPACK (RFC 7541) that is in no table and is to be put in none."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    """A string without Huffman's code: its length as a number with a prefix of seven bits."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    out, rest = bytearray(b"\x7f"), size - 0x7F
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out) + text


def check_size_updates(block: bytearray) -> None:
    """A block may begin with few updates of the table's size. Raises ValueError."""
    at = updates = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        updates += 1
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = block[at] >= 0x80
            at += 1
    if updates > SIZE_UPDATES_MAX:
        raise ValueError("the table's size is set again and again")
