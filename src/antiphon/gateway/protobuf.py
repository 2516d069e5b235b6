"""Protocol Buffers' wire format, as far as the messages of listeners use it: Oxia's, and metrics of Kafka's clients.

Messages are classes with a table of fields.

The bytes come from strangers. Nothing is trusted: numbers and lengths that do not fit, texts that are no UTF-8, and more
elements than `ELEMENTS_MAX` raise `BadMessageError`. Fields that nobody knows are passed over, as everywhere in this format.
No length is believed before the bytes are there, and an element costs memory in proportion to its bytes, but for a small
constant that the bound on elements covers.

A field takes time even where it leaves nothing: nobody knows it, or it is there a million times and the last one counts. So
fields are bounded too, and large messages are read in pieces (`Decoding`), between which others have their turn.
"""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

ELEMENTS_MAX: Final = 100_000  # messages inside of one, and other elements of lists
FIELDS_MAX: Final = 1_000_000  # of a message with all that is in it
INNER_FIELDS_MAX: Final = 4_096  # of one message inside of a client's, with all that is in it
REST_MESSAGES: Final = 256
PIECE_FIELDS: Final = 4_096  # that are read in one go: 2 to 6 ms
_FIXED32: Final = struct.Struct("<I")
_FIXED64: Final = struct.Struct("<Q")
_SFIXED64: Final = struct.Struct("<q")
_DOUBLE: Final = struct.Struct("<d")
_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5
_U64: Final = (1 << 64) - 1


class BadMessageError(Exception):
    """These bytes are not a message of this kind."""


class TooManyFieldsError(BadMessageError):
    """They have more fields, or elements, than are read."""


class Kind:
    """What a field holds. Plain numbers: an enum's members are looked up five times as slowly."""

    INT: Final = 0  # int64
    UINT: Final = 1  # uint64
    BOOL: Final = 2
    FIXED32: Final = 3
    FIXED64: Final = 4
    BYTES: Final = 5
    TEXT: Final = 6  # string
    KEY: Final = 7  # string, kept as bytes
    MESSAGE: Final = 8
    SFIXED64: Final = 9
    DOUBLE: Final = 10


_INT, _UINT, _BOOL, _OF_BYTES, _KEY, _MESSAGE = (
    Kind.INT,
    Kind.UINT,
    Kind.BOOL,
    Kind.BYTES,
    Kind.KEY,
    Kind.MESSAGE,
)
_WIRES: Final = (
    _VARINT, _VARINT, _VARINT, _I32, _I64, _BYTES, _BYTES, _BYTES, _BYTES, _I64, _I64,
)  # fmt: skip
"""By kind."""
_ZERO: Final[tuple[Any, ...]] = (0, 0, False, 0, 0, b"", "", b"", None, 0, 0.0)
"""What a field is that is not there, by kind."""
_LAYOUTS: Final = {
    Kind.FIXED32: _FIXED32, Kind.FIXED64: _FIXED64, Kind.SFIXED64: _SFIXED64, Kind.DOUBLE: _DOUBLE,
}  # fmt: skip


class Field(NamedTuple):
    """One field of a message. `optional`: it is None where it is not there, and written whatever it holds."""

    number: int
    name: str
    kind: int
    of: "type[Message] | None" = None
    many: bool = False
    optional: bool = False


class Message:
    """A message. Classes below it list their fields in `FIELDS`; attributes have the fields' names.

    What a field is that is not there is an attribute of the class, so that making a message costs nothing for each field.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    BY_TAG: ClassVar[dict[int, Field]] = {}

    def __init_subclass__(cls) -> None:
        cls.BY_TAG = {}
        for field in cls.FIELDS:
            wire = _WIRES[field.kind]
            cls.BY_TAG[field.number << 3 | wire] = field
            if field.many and wire != _BYTES:
                cls.BY_TAG[field.number << 3 | _BYTES] = field  # packed
            absent = () if field.many else None if field.optional else _ZERO[field.kind]
            setattr(cls, field.name, absent)

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            _plain(getattr(self, field.name)) == _plain(getattr(other, field.name)) for field in self.FIELDS
        )

    __hash__ = None  # type: ignore[assignment]  # they change

    def __repr__(self) -> str:
        told = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({told})"


M = TypeVar("M", bound=Message)


def decode(
    kind: type[M],
    data: bytes,
    inner_max: int = FIELDS_MAX,
    fields_max: int = FIELDS_MAX,
    rest: Callable[[], None] | None = None,
) -> M:
    """Read a message. Raises BadMessageError, TooManyFieldsError.

    Args:
        kind: of the message.
        data: its bytes.
        inner_max: fields that one inside of it may have.
        fields_max: fields that there may be.
        rest: called after every `REST_MESSAGES` messages in it, by who does not want to hold the interpreter for long.
    """
    made = kind()
    most = min(inner_max, fields_max)
    reader = _Reader(data, most) if rest is None else _RestingReader(data, most, rest)
    at, left = reader.fields(made, 0, len(data), fields_max)
    if at < len(data) or left < 0:
        raise _too_many(fields_max)
    return made


class Decoding(Generic[M]):
    """Reads a client's message in pieces. `message` has what was read; it is whole when `step` has returned True."""

    def __init__(self, kind: type[M], data: bytes) -> None:
        self.message = kind()
        self._reader = _Reader(data, INNER_FIELDS_MAX)
        self._at = self._fields = 0

    def step(self) -> bool:
        """Read another piece; was it the last one? Raises BadMessageError."""
        end = len(self._reader.data)
        self._at, left = self._reader.fields(self.message, self._at, end, PIECE_FIELDS)
        self._fields += PIECE_FIELDS - left
        if self._fields > FIELDS_MAX:
            raise _too_many(FIELDS_MAX)
        return self._at >= end


def _too_many(most: int) -> TooManyFieldsError:
    return TooManyFieldsError(f"more than {most} fields")


class _Reader:
    __slots__ = ("data", "elements", "inner_max")

    def __init__(self, data: bytes, inner_max: int) -> None:
        self.data = data
        self.elements = 0
        self.inner_max = inner_max

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and where what follows begins."""
        data, value, shift = self.data, 0, 0
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _U64, at
            shift += 7
        raise BadMessageError("a number that does not end")

    def inner(self, kind: type[Message], at: int, end: int, most: int) -> tuple[Message, int]:
        """A message inside of another one, which may have so many fields; and how many it may have no more."""
        made = kind()
        at, left = self.fields(made, at, end, most, is_inner=True)
        if at < end:
            raise _too_many(self.inner_max)
        return made, left

    def fields(
        self, made: Message, at: int, end: int, most: int, *, is_inner: bool = False
    ) -> tuple[int, int]:
        """Read about so many fields of a message between two places; returns where the next one begins, and how many are
        left of `most`: less than none where the last one was a large message.
        """
        value: Any
        data, by_tag, values = self.data, made.BY_TAG, made.__dict__
        while at < end and most > 0:
            most -= 1
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = self.varint(at - 1, end)
            field = by_tag.get(tag)
            if field is None:
                at = self._skip(tag, at, end)
                continue
            _, name, of_kind, of, many, _ = field
            if tag & 7 == _BYTES:
                if at < end and data[at] < 0x80:
                    size = data[at]
                    at += 1
                else:
                    size, at = self.varint(at, end)
                until = at + size
                if until > end:
                    raise BadMessageError("a length beyond the end of the message")
                if of_kind is _MESSAGE:
                    room = most if is_inner else self.inner_max
                    value, left = self.inner(of or Message, at, until, room)
                    most -= room - left
                elif many and of_kind is _UINT:
                    room = most if is_inner else self.inner_max
                    most -= self._packed(values.setdefault(name, []), at, until, room)
                    at = until
                    continue
                else:
                    value = data[at:until]
                    if of_kind is not _OF_BYTES and not (of_kind is _KEY and value.isascii()):
                        value = _text(name, of_kind, value)
                at = until
            else:
                value, at = self._number(of_kind, tag & 7, at, end)
            if many:
                self._count()
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        return at, most

    def _number(self, kind: int, wire: int, at: int, end: int) -> tuple[Any, int]:
        if wire == _VARINT:
            value, at = self.varint(at, end)
            if kind is _INT and value >> 63:
                value -= 1 << 64
            return (bool(value) if kind is _BOOL else value), at
        layout = _LAYOUTS[kind]
        if layout.size > end - at:
            raise BadMessageError("a number beyond the end of the message")
        return layout.unpack_from(self.data, at)[0], at + layout.size

    def _count(self) -> None:
        self.elements += 1
        if self.elements > ELEMENTS_MAX:
            raise TooManyFieldsError(f"more than {ELEMENTS_MAX} elements")

    def _packed(self, into: list[int], at: int, end: int, most: int) -> int:
        """Numbers without tags, of which there may be so many; returns how many there are."""
        before = len(into)
        while at < end:
            value, at = self.varint(at, end)
            self._count()
            into.append(value)
            if len(into) - before > most:
                raise _too_many(self.inner_max)
        return len(into) - before

    def _skip(self, tag: int, at: int, end: int) -> int:
        """Pass over a field that nobody knows, and return where the next one begins."""
        wire = tag & 7
        if not tag >> 3 or tag >> 32:
            raise BadMessageError("a field with an impossible number")
        if wire == _VARINT:
            return self.varint(at, end)[1]
        if wire == _BYTES:
            size, at = self.varint(at, end)
        elif wire == _I64:
            size = 8
        elif wire == _I32:
            size = 4
        else:
            raise BadMessageError(f"wire type {wire}")
        if size > end - at:
            raise BadMessageError("a field beyond the end of the message")
        return at + size


class _RestingReader(_Reader):
    __slots__ = ("_rest", "_since")

    def __init__(self, data: bytes, inner_max: int, rest: Callable[[], None]) -> None:
        super().__init__(data, inner_max)
        self._rest = rest
        self._since = 0

    def inner(self, kind: type[Message], at: int, end: int, most: int) -> tuple[Message, int]:
        self._since += 1
        if self._since > REST_MESSAGES:
            self._since = 0
            self._rest()
        return super().inner(kind, at, end, most)


def _text(name: str, kind: int, value: bytes) -> Any:
    """A text that is not ASCII, or is wanted as one."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise BadMessageError(f"{name} is no UTF-8") from None
    return value if kind is _KEY else text


def _plain(value: Any) -> Any:
    """A list that is not there is an empty one."""
    return list(value) if isinstance(value, list | tuple) else value


def put_varint(out: bytearray, value: int) -> None:
    """Write a number; negative ones as 64 bits."""
    value &= _U64
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_sized(out: bytearray, tag: int, data: bytes | bytearray) -> None:
    """Write a field that is bytes; the tag has one byte."""
    out.append(tag)
    size = len(data)
    if size < 0x80:
        out.append(size)
    else:
        put_varint(out, size)
    out += data


def encode(message: Message) -> bytearray:
    """Write a message."""
    out = bytearray()
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if field.many:
            _put_list(out, field, value)
        elif value is not None and (field.optional or value != _ZERO[field.kind]):
            _put(out, field, value)
    return out


def _put_list(out: bytearray, field: Field, values: list[Any]) -> None:
    if field.kind is _UINT and values:
        packed = bytearray()
        for value in values:
            put_varint(packed, value)
        put_varint(out, field.number << 3 | _BYTES)
        put_varint(out, len(packed))
        out += packed
        return
    for value in values:
        _put(out, field, value)


def _put(out: bytearray, field: Field, value: Any) -> None:
    kind = field.kind
    wire = _WIRES[kind]
    put_varint(out, field.number << 3 | wire)
    if wire == _VARINT:
        put_varint(out, int(value))
    elif wire == _BYTES:
        if kind is _MESSAGE:
            value = encode(value)
        elif kind is Kind.TEXT:
            value = value.encode()
        put_varint(out, len(value))
        out += value
    else:
        out += _LAYOUTS[kind].pack(value)
