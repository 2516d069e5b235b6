"""Large messages in small inputs: an input says which piece of its first message is repeated, and how often.

So a change of a few bytes, or a kept input of a hundred, gives a listener megabytes.
"""

import struct
from typing import Final

REPEATED: Final = 4  # in the first byte of an input
LARGE_BYTES_MAX: Final = 2 * 1024 * 1024
REQUESTS_MAX: Final = 4_000
_HEAD: Final = struct.Struct(">IHH")  # how often, where the piece begins, how long it is


def large_input(how: int, message: bytes, times: int, start: int, size: int) -> bytes:
    """An input whose only message has `size` bytes from `start` on `times` over."""
    head = bytes([how | REPEATED]) + _HEAD.pack(times, start, size)
    return head + len(message).to_bytes(2, "big") + message


def split(data: bytes) -> tuple[bytes, tuple[int, int, int]]:
    """The messages of an input, and what is repeated."""
    if not data[0] & REPEATED or len(data) < 1 + _HEAD.size:
        return data[1:], (1, 0, 0)
    times, start, size = _HEAD.unpack_from(data, 1)
    return data[1 + _HEAD.size :], (times, start, size)


def enlarged(message: bytes, repeated: tuple[int, int, int]) -> bytes:
    """A message with its piece repeated, up to a bound."""
    times, start, size = repeated
    start = min(start, len(message))
    piece = message[start : start + size]
    if not piece:
        return message
    times = min(times, max(1, (LARGE_BYTES_MAX - len(message)) // len(piece)))
    if start == 0 or b"\r\n\r\n" in piece:  # whole requests, each of which is answered
        times = min(times, REQUESTS_MAX)
    return message[:start] + piece * times + message[start + len(piece) :]


def kafka_inputs(how: int) -> list[bytes]:
    """Requests with more partitions than there are, below and above the bound of elements, and a name that never ends."""
    found = []
    for count in (5_000, 49_000, 120_000):
        topic = struct.pack(">ih3si", 1, 3, b"log", count)
        produce = struct.pack(">hhihhhi", 0, 3, 1, -1, -1, 1, 1000) + topic
        fetch = struct.pack(">hhihiiiib", 1, 4, 1, -1, -1, 0, 0, 1 << 20, 0) + topic
        offsets = struct.pack(">hhihib", 2, 2, 1, -1, -1, 0) + topic
        for head, piece in (
            (produce, struct.pack(">ii", 0, -1)),
            (fetch, struct.pack(">iqi", 0, 0, 1 << 20)),
            (offsets, struct.pack(">iq", 0, -1)),
        ):
            found.append(large_input(how, head + piece, count, len(head), len(piece)))
    head = struct.pack(">hhih", 18, 3, 1, -1) + b"\x00\xff\xff\x7f"
    return [*found, large_input(how, head + b"n", LARGE_BYTES_MAX, len(head), 1)]


def native_inputs(how: int) -> list[bytes]:
    """Frames whose payload, and whose header, are much too large for what they say."""
    nested = b"\x00\x02\x93\x01" + b"\x91"
    return [
        large_input(how, b"\x00\x01\x93" + b"p", LARGE_BYTES_MAX, 3, 1),
        large_input(how, nested, 60_000, 4, 1),
    ]


def http_inputs() -> list[bytes]:
    """Headers without end, a path, a request after the other."""
    lines = b"GET /healthz HTTP/1.1\r\n"
    return [
        large_input(0, lines + b"X-A: b\r\n", 200_000, len(lines), 8),
        large_input(0, b"GET /a HTTP/1.1\r\n\r\n", LARGE_BYTES_MAX, 5, 1),
        large_input(0, lines + b"\r\n", 2_000, 0, len(lines) + 2),
        large_input(0, lines + b"Content-Length: 9999999\r\n\r\nz", LARGE_BYTES_MAX, len(lines) + 27, 1),
    ]
