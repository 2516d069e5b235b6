"""Messages as plain structs, and the codec that their annotations describe.

Kafka's messages change by version: a field exists from one version on, or up to one; later "flexible" versions write
lengths as varints and end each structure with tagged fields. A message here is one `msgspec.Struct` for all its versions:

    class Partition(Message, kw_only=True):
        index: I32
        leader_epoch: Annotated[I32, V(since=7)] = -1      # absent before 7: the default
        replicas: list[I32]
        rack: Annotated[str | None, V(nullable_since=1)]

and `codec(cls, version, flexible)` compiles the reader and writer of one version on first use. Handlers see one type and
no versions. The hot messages, Produce and Fetch, do not go this way: see `produce_codec` and `fetch_codec`.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from antiphon.errors import InternalError, ProtocolViolationError
from antiphon.kafka import primitives as p
from antiphon.kafka.one_thread import PIECE, paced

I8 = Annotated[int, "i8"]
I16 = Annotated[int, "i16"]
U16 = Annotated[int, "u16"]
I32 = Annotated[int, "i32"]
I64 = Annotated[int, "i64"]
F64 = Annotated[float, "f64"]
Uuid = Annotated[bytes, "uuid"]

_ANY_VERSION = 1 << 15
TOPIC_FIELDS = ("topic", "topic_name", "topic_names", "subscribed_topic_names")
NO_TOPICS = ("TopicSetting",)  # messages about topics whose field `name` is none of a topic
_M = TypeVar("_M", bound="Message")
_Read = Callable[[p.Reader], Any]
_Write = Callable[[bytearray, Any], None]


class V(NamedTuple):
    """When a field is on the wire. Versions are inclusive. A field with a `tag` is in the tagged section."""

    since: int = 0
    until: int = _ANY_VERSION
    nullable_since: int = 0
    tag: int | None = None


class Message(msgspec.Struct):
    """Base of all messages and their nested structures. Fields are in wire order."""


class _Field(NamedTuple):
    name: str
    read: _Read
    write: _Write
    tag: int | None
    default: Any


class Codec(NamedTuple):
    """Reader and writer of one message in one version."""

    read: _Read
    write: _Write


def decode(cls: type[_M], buffer: memoryview, version: int, *, flexible: bool, position: int = 0) -> _M:
    """Read a whole message; bytes left over are a violation, too."""
    reader = p.Reader(buffer, position)
    message: _M = codec(cls, version, flexible).read(reader)
    if reader.remaining:
        raise ProtocolViolationError(f"{reader.remaining} bytes follow a {cls.__name__} of version {version}")
    return message


def encode(message: Message, version: int, *, flexible: bool, out: bytearray | None = None) -> bytearray:
    """Append the message to `out` (or a new bytearray) and return it."""
    out = bytearray() if out is None else out
    codec(type(message), version, flexible).write(out, message)
    return out


@cache
def codec(cls: type[Message], version: int, flexible: bool) -> Codec:
    """Compile the reader and writer of `cls` in `version`."""
    plain: list[_Field] = []
    tagged: dict[int, _Field] = {}
    for declared in msgspec.structs.fields(cls):
        field = _field(declared, version, flexible)
        if field is None:
            if declared.required:
                reason = f"{cls.__name__}.{declared.name} is absent in version {version} and has no default"
                raise InternalError(reason)
            continue
        if _names_topics(cls, field.name):
            field = field._replace(read=_bounded(field.name, field.read))
        if field.tag is None:
            plain.append(field)
        else:
            tagged[field.tag] = field
    return Codec(_struct_reader(cls, plain, tagged, flexible), _struct_writer(plain, tagged, flexible))


def _names_topics(cls: type[Message], field: str) -> bool:
    """Is this a topic's name, or a list of them? By how messages call them."""
    is_topic = "Topic" in cls.__name__ and cls.__name__ not in NO_TOPICS
    return field in TOPIC_FIELDS or (field == "name" and is_topic)


def _bounded(name: str, read: _Read) -> _Read:
    """Names of topics are short. Longer ones than Kafka's are read as well: they are refused by name."""

    def read_bounded(reader: p.Reader) -> Any:
        value = read(reader)
        names = value if isinstance(value, list) else (value,)
        if any(one is not None and len(one) > p.TOPIC_LETTERS_MAX for one in names):
            raise ProtocolViolationError(f"{name}: a topic's name of more than {p.TOPIC_LETTERS_MAX} letters")
        return value

    return read_bounded


def _struct_reader(
    cls: type[Message],
    plain: list[_Field],
    tagged: dict[int, _Field],
    flexible: bool,
) -> _Read:
    fields = [(field.name, field.read) for field in plain]

    def read_plain(reader: p.Reader) -> Message:
        return cls(**{name: read(reader) for name, read in fields})

    def read_flexible(reader: p.Reader) -> Message:
        values = {name: read(reader) for name, read in fields}
        for _ in range(reader.tag_count()):
            tag, size = reader.uvarint(), reader.uvarint()
            field = tagged.get(tag)
            end = reader.position + size
            if field is None:
                reader.take(size)
                continue
            values[field.name] = field.read(reader)
            if reader.position != end:
                raise ProtocolViolationError(f"tagged field {tag} is not of the {size} bytes that it says")
        return cls(**values)

    return read_flexible if flexible else read_plain


def _struct_writer(plain: list[_Field], tagged: dict[int, _Field], flexible: bool) -> _Write:
    fields = [(field.name, field.write) for field in plain]
    tags = sorted(tagged.items())

    def write_plain(out: bytearray, message: Message) -> None:
        for name, write in fields:
            write(out, getattr(message, name))

    def write_flexible(out: bytearray, message: Message) -> None:
        for name, write in fields:
            write(out, getattr(message, name))
        if not tags:
            out.append(0)
            return
        present = [(tag, f) for tag, f in tags if getattr(message, f.name) != f.default]
        p.put_uvarint(out, len(present))
        for tag, field in present:
            body = bytearray()
            field.write(body, getattr(message, field.name))
            p.put_uvarint(out, tag)
            p.put_uvarint(out, len(body))
            out += body

    return write_flexible if flexible else write_plain


def _field(declared: msgspec.structs.FieldInfo, version: int, flexible: bool) -> _Field | None:
    """The field in this version, or None where it is absent."""
    name, annotation, when, kind = declared.name, declared.type, V(), None
    if get_origin(annotation) is Annotated:
        annotation, *extras = get_args(annotation)
        when = next((extra for extra in extras if isinstance(extra, V)), when)
        kind = next((extra for extra in extras if isinstance(extra, str)), None)
    if not when.since <= version <= when.until:
        return None
    if when.tag is not None and not flexible:
        return None
    options = get_args(annotation) if type(None) in get_args(annotation) else ()
    if options:
        annotation = next(option for option in options if option is not type(None))
    nullable = bool(options) and version >= when.nullable_since
    read, write = _value_codec(name, annotation, kind, version, flexible, nullable)
    if nullable and when.tag is None and isinstance(annotation, type) and issubclass(annotation, Message):
        read, write = _nullable_struct(read, write)
    made = declared.default_factory
    return _Field(name, read, write, when.tag, declared.default if made is msgspec.NODEFAULT else made())


_SCALARS: dict[str, tuple[_Read, _Write]] = {
    "i8": (p.Reader.i8, p.put_i8),
    "i16": (p.Reader.i16, p.put_i16),
    "u16": (p.Reader.u16, p.put_u16),
    "i32": (p.Reader.i32, p.put_i32),
    "i64": (p.Reader.i64, p.put_i64),
    "f64": (p.Reader.f64, p.put_f64),
    "uuid": (lambda reader: bytes(reader.take(16)), p.put_uuid),
    "bool": (p.Reader.boolean, p.put_boolean),
}


def _value_codec(
    name: str,
    annotation: Any,
    kind: str | None,
    version: int,
    flexible: bool,
    nullable: bool,
) -> tuple[_Read, _Write]:
    if get_origin(annotation) is Annotated:
        annotation, kind = get_args(annotation)[:2]
    if kind is not None or annotation is bool:
        return _SCALARS[kind or "bool"]
    if annotation is str or annotation is bytes:
        return _sized_codec(name, annotation is str, flexible, nullable)
    if get_origin(annotation) is list:
        (element,) = get_args(annotation)
        return _array_codec(
            name, _value_codec(name, element, None, version, flexible, False), flexible, nullable
        )
    return codec(annotation, version, flexible)


def _nullable_struct(read: _Read, write: _Write) -> tuple[_Read, _Write]:
    """A structure after a byte that says whether there is one."""

    def read_it(reader: p.Reader) -> Message | None:
        found: Message | None = read(reader) if reader.i8() >= 0 else None
        return found

    def write_it(out: bytearray, value: Message | None) -> None:
        p.put_i8(out, -1 if value is None else 1)
        if value is not None:
            write(out, value)

    return read_it, write_it


def _sized_codec(name: str, text: bool, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
    read: _Read
    if text:
        read = p.Reader.compact_nullable_string if flexible else p.Reader.nullable_string
        write: _Write = p.put_compact_nullable_string if flexible else p.put_nullable_string
    else:
        read_view = p.Reader.compact_nullable_bytes if flexible else p.Reader.nullable_bytes
        write = p.put_compact_nullable_bytes if flexible else p.put_nullable_bytes

        def read(reader: p.Reader) -> bytes | None:
            view = read_view(reader)
            return None if view is None else bytes(view)

    return (read, write) if nullable else _never_null(name, read, write)


def _never_null(name: str, read: _Read, write: _Write) -> tuple[_Read, _Write]:
    def checked_read(reader: p.Reader) -> Any:
        value = read(reader)
        if value is None:
            raise ProtocolViolationError(f"{name} must not be null")
        return value

    def checked_write(out: bytearray, value: Any) -> None:
        if value is None:
            raise InternalError(f"{name} must not be null")
        write(out, value)

    return checked_read, checked_write


def _array_codec(
    name: str,
    element: tuple[_Read, _Write],
    flexible: bool,
    nullable: bool,
) -> tuple[_Read, _Write]:
    read_count = p.Reader.compact_count if flexible else p.Reader.count
    put_count = p.put_compact_count if flexible else p.put_count
    read_one, write_one = element

    def read(reader: p.Reader) -> list[Any] | None:
        count = read_count(reader)
        return None if count < 0 else [read_one(reader) for _ in paced(count)]

    def write(out: bytearray, values: list[Any] | None) -> None:
        if values is None:
            put_count(out, -1)
            return
        put_count(out, len(values))
        if len(values) <= PIECE:
            for value in values:
                write_one(out, value)
            return
        for at in paced(len(values)):
            write_one(out, values[at])

    return (read, write) if nullable else _never_null(name, read, write)
