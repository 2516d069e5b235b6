"""Kafka's primitive types over a buffer: bounds-checked reading, appending to a bytearray.

A `Reader` walks one request. Every length and count that it meets is checked against the bytes that are left before
anything is sliced or allocated, so a hostile request costs at most its own size. What cannot be read raises
`ProtocolViolationError`; the connection that sent it is closed.
"""

import struct
from typing import Final

from antiphon.errors import InternalError, ProtocolViolationError

_U16: Final = struct.Struct(">H")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
ELEMENTS_MAX: Final = 50_000  # of all arrays and tagged sections of one request together
TEXT_BYTES_MAX: Final = 32_767  # as of an int16; Kafka's brokers take no longer one from a varint either
TOPIC_LETTERS_MAX: Final = 1_000  # of a topic's name that is looked at; from 250 on it is refused by name
VARINT_BYTES_MAX: Final = 5  # an unsigned varint of 32 bits
ZERO_UUID: Final = bytes(16)


class TooManyElementsError(ProtocolViolationError):
    """The request has more elements than are to be read."""


class Reader:
    """A cursor over a request's bytes. `position` is the next byte to read."""

    __slots__ = ("_elements_left", "buffer", "position", "size")

    def __init__(self, buffer: memoryview, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.size = len(buffer)
        self._elements_left = ELEMENTS_MAX

    def from_here(self, elements_max: int) -> "Reader":
        """Another reader at the same place, which raises TooManyElementsError for more elements than that."""
        reader = Reader(self.buffer, self.position)
        reader._elements_left = elements_max
        return reader

    def limit_elements(self, elements_max: int) -> None:
        """Read no more than so many elements from here on; raises TooManyElementsError where there are more."""
        self._elements_left = min(self._elements_left, elements_max)

    def next_bytes(self, count: int) -> bytes:
        """A copy of what comes next, at most so many bytes; they stay to be read."""
        return bytes(self.buffer[self.position : self.position + count])

    @property
    def remaining(self) -> int:
        """Bytes that are left."""
        return self.size - self.position

    def _fixed(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self.buffer, self.position)
        except struct.error as exc:
            raise ProtocolViolationError(f"request ends inside a field at byte {self.position}") from exc
        self.position += layout.size
        return int(value)

    def i8(self) -> int:
        """Signed 8-bit integer."""
        if self.position >= self.size:
            raise ProtocolViolationError(f"request ends inside a field at byte {self.position}")
        value = self.buffer[self.position]
        self.position += 1
        return value - 256 if value > 127 else value

    def boolean(self) -> bool:
        """One byte, zero or not."""
        return self.i8() != 0

    def u16(self) -> int:
        """Unsigned 16-bit integer."""
        return self._fixed(_U16)

    def i16(self) -> int:
        """Signed 16-bit integer."""
        return self._fixed(_I16)

    def i32(self) -> int:
        """Signed 32-bit integer."""
        return self._fixed(_I32)

    def i64(self) -> int:
        """Signed 64-bit integer."""
        return self._fixed(_I64)

    def f64(self) -> float:
        """64-bit floating point number."""
        try:
            (value,) = _F64.unpack_from(self.buffer, self.position)
        except struct.error as exc:
            raise ProtocolViolationError(f"request ends inside a field at byte {self.position}") from exc
        self.position += _F64.size
        return float(value)

    def uvarint(self) -> int:
        """Unsigned LEB128 of at most 32 bits."""
        value = shift = 0
        for at in range(self.position, min(self.position + VARINT_BYTES_MAX, self.size)):
            byte = self.buffer[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = at + 1
                return value
            shift += 7
        raise ProtocolViolationError(f"no varint at byte {self.position}")

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        if not 0 <= size <= self.remaining:
            raise ProtocolViolationError(
                f"a field of {size} bytes at byte {self.position}; {self.remaining} are left"
            )
        start = self.position
        self.position = start + size
        return self.buffer[start : self.position]

    def _text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as exc:
            raise ProtocolViolationError(f"text at byte {self.position - size} is not UTF-8") from exc

    def nullable_string(self) -> str | None:
        """int16 length; -1 is null."""
        size = self.i16()
        return None if size == -1 else self._text(size)

    def compact_nullable_string(self) -> str | None:
        """Varint of length + 1; 0 is null."""
        size = self.uvarint()
        if size > TEXT_BYTES_MAX + 1:
            raise ProtocolViolationError(f"a text of {size - 1} bytes; {TEXT_BYTES_MAX} are accepted")
        return None if size == 0 else self._text(size - 1)

    def nullable_bytes(self) -> memoryview | None:
        """int32 length; -1 is null."""
        size = self.i32()
        return None if size == -1 else self.take(size)

    def compact_nullable_bytes(self) -> memoryview | None:
        """Varint of length + 1; 0 is null."""
        size = self.uvarint()
        return None if size == 0 else self.take(size - 1)

    def count(self) -> int:
        """int32 number of elements, -1 for a null array. An element has at least one byte."""
        return self._checked_count(self.i32())

    def compact_count(self) -> int:
        """The same as a varint of number + 1."""
        return self._checked_count(self.uvarint() - 1)

    def _checked_count(self, count: int) -> int:
        if not -1 <= count <= self.remaining:
            raise ProtocolViolationError(f"an array of {count} elements with {self.remaining} bytes left")
        if count > 0:
            self._elements_left -= count
            if self._elements_left < 0:
                raise TooManyElementsError("a request of more elements than are accepted for its API")
        return count

    def tag_count(self) -> int:
        """Number of tagged fields that follow."""
        return self._checked_count(self.uvarint())

    def skip_tags(self, most: int = ELEMENTS_MAX) -> None:
        """Pass over a tagged-field section, of so many fields at most."""
        count = self.tag_count()
        if count > most:
            raise ProtocolViolationError(f"{count} tagged fields; {most} are accepted here")
        for _ in range(count):
            self.uvarint()
            self.take(self.uvarint())


def put_i8(out: bytearray, value: int) -> None:
    """Signed 8-bit integer."""
    out.append(value & 0xFF)


def put_boolean(out: bytearray, value: bool) -> None:
    """One byte, 1 or 0."""
    out.append(1 if value else 0)


def put_u16(out: bytearray, value: int) -> None:
    """Unsigned 16-bit integer."""
    out += _U16.pack(value)


def put_i16(out: bytearray, value: int) -> None:
    """Signed 16-bit integer."""
    out += _I16.pack(value)


def put_i32(out: bytearray, value: int) -> None:
    """Signed 32-bit integer."""
    out += _I32.pack(value)


def put_i64(out: bytearray, value: int) -> None:
    """Signed 64-bit integer."""
    out += _I64.pack(value)


def put_f64(out: bytearray, value: float) -> None:
    """64-bit floating point number."""
    out += _F64.pack(value)


def put_uuid(out: bytearray, value: bytes) -> None:
    """Sixteen bytes."""
    if len(value) != 16:
        raise InternalError(f"a uuid has 16 bytes, not {len(value)}")
    out += value


def put_uvarint(out: bytearray, value: int) -> None:
    """Unsigned LEB128."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def put_nullable_string(out: bytearray, value: str | None) -> None:
    """int16 length and UTF-8; None is -1."""
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode()
    out += _I16.pack(len(data))
    out += data


def put_compact_nullable_string(out: bytearray, value: str | None) -> None:
    """Varint of length + 1 and UTF-8; None is 0."""
    if value is None:
        out.append(0)
        return
    data = value.encode()
    put_uvarint(out, len(data) + 1)
    out += data


def put_nullable_bytes(out: bytearray, value: bytes | bytearray | memoryview | None) -> None:
    """int32 length and bytes; None is -1."""
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _I32.pack(len(value))
    out += value


def put_compact_nullable_bytes(out: bytearray, value: bytes | bytearray | memoryview | None) -> None:
    """Varint of length + 1 and bytes; None is 0."""
    if value is None:
        out.append(0)
        return
    put_uvarint(out, len(value) + 1)
    out += value


def put_count(out: bytearray, count: int) -> None:
    """Number of elements as int32."""
    out += _I32.pack(count)


def put_compact_count(out: bytearray, count: int) -> None:
    """Number of elements + 1 as varint."""
    put_uvarint(out, count + 1)
