"""Protobuf messages as rows, by the descriptors that `protoc --descriptor_set_out --include_imports` writes."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError as ProtobufError

from antiphon.errors import InvalidRequestError
from antiphon.lake.values.decoding import DecodeError, Decoder, RowDecoder, ValueSpec, unframed
from antiphon.lake.values.options import ValueOptions, bytes_of, required_schema

DEPTH_MAX: Final = 30
VARINT_BYTES_MAX: Final = 5
_PLAIN: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"

Reader = Callable[[Any], Any]


def spec(options: ValueOptions) -> ValueSpec:
    """See `spec.Format`, as for the others."""
    schema = required_schema(options)
    if not options.message:
        raise InvalidRequestError("format protobuf needs message, the full name of the values' message type")
    return ValueSpec(
        "protobuf",
        descriptors=bytes_of(schema),
        message=options.message,
        confluent=options.framing == "confluent",
    )


def fixed_columns(spec: ValueSpec) -> pa.Schema:
    """Those of the message."""
    return decoder(spec, pa.schema([])).columns


def decoder(spec: ValueSpec, columns: pa.Schema) -> Decoder:  # noqa: ARG001 - the message has them
    """See `ProtobufDecoder`."""
    return ProtobufDecoder(spec.descriptors or b"", spec.message or "", confluent=spec.confluent)


def learnt(spec: ValueSpec, values: Sequence[bytes | None], source: str) -> ValueSpec:  # noqa: ARG001 - as it is
    """There is nothing to learn."""
    return spec


class ProtobufDecoder(RowDecoder):
    """Reads values as messages of type `message` (its full name), found in a FileDescriptorSet.

    Message fields and fields with presence are null where they are not set; others have their default. Enums are names,
    timestamps and wrappers of well-known types what they stand for, uint64 a decimal.
    """

    def __init__(self, descriptors: bytes, message: str, *, confluent: bool) -> None:
        self._class = _message_class(descriptors, message)
        descriptor: Descriptor = self._class.DESCRIPTOR
        kind, self._reader = _message(descriptor, message, ())
        super().__init__(kind)
        self._confluent = confluent
        self._index = _index_in_file(descriptor)

    def read(self, value: bytes) -> dict[str, Any]:
        """One message; raises DecodeError."""
        if self._confluent:
            _, payload = unframed(value)
            path, at = _message_path(payload)
            if path != self._index:
                raise DecodeError(f"message number {path} of its file, where {self._index} is expected")
            value = bytes(payload[at:])
        found = self._class()
        try:
            found.ParseFromString(value)
        except ProtobufError as error:
            raise DecodeError(f"no {self._class.DESCRIPTOR.full_name}: {error}") from error
        row: dict[str, Any] = self._reader(found)
        return row


def _message_class(descriptors: bytes, name: str) -> Any:
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except ProtobufError as error:
        raise InvalidRequestError(
            f"the descriptor file is none: {error}; make it with protoc --include_imports --descriptor_set_out"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        found = pool.FindMessageTypeByName(name)
    except KeyError as error:
        known = sorted(
            f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type
        )
        raise InvalidRequestError(
            f"there is no message {name!r} in the descriptor file; there is {', '.join(known) or 'none'}"
        ) from error
    except TypeError as error:
        raise InvalidRequestError(
            f"the descriptor file is not complete: {error}; make it with protoc --include_imports"
        ) from error
    return message_factory.GetMessageClass(found)


def _index_in_file(descriptor: Descriptor) -> list[int]:
    path: list[int] = []
    one: Descriptor | None = descriptor
    while one is not None:
        above = one.containing_type
        beside = one.file.message_types_by_name if above is None else above.nested_types_by_name
        path.insert(0, list(beside).index(one.name))
        one = above
    return path


def _message_path(payload: memoryview) -> tuple[list[int], int]:
    """Which message of its file a value is, as Confluent's framing says, and where the message begins."""
    count, at = _varint(payload, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= DEPTH_MAX:
        raise DecodeError(f"{count} message indexes in the framing")
    path = []
    for _ in range(count):
        index, at = _varint(payload, at)
        path.append(index)
    return path, at


def _varint(payload: memoryview, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(VARINT_BYTES_MAX):
        if at >= len(payload):
            raise DecodeError("the framing is cut short")
        byte = payload[at]
        at += 1
        found |= (byte & 0x7F) << (7 * shift)
        if not byte & 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise DecodeError("a number of the framing is too long")


# -- types ----------------------------------------------------------------------------------------------------------


def _message(descriptor: Descriptor, where: str, above: tuple[str, ...]) -> tuple[pa.DataType, Reader]:
    """A message's struct type, and what reads a message into a dict of it."""
    name = descriptor.full_name
    if name in above or len(above) >= DEPTH_MAX:
        raise InvalidRequestError(f"{where} contains itself ({name}): that has no columns")
    fields: list[pa.Field] = []
    readers: list[tuple[str, Reader]] = []
    for one in descriptor.fields:
        kind, reader = _field(one, f"{where}.{one.name}", (*above, name))
        fields.append(pa.field(one.name, kind))
        readers.append((one.name, reader))
    if not fields:
        raise InvalidRequestError(f"{where} is a message without fields")
    return pa.struct(fields), lambda found: {name: reader(found) for name, reader in readers}


def _field(field: FieldDescriptor, where: str, above: tuple[str, ...]) -> tuple[pa.DataType, Reader]:
    """A field's type, and what reads it from its message."""
    name = field.name
    kind, convert = _value(field, where, above)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        keys, values = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        key_kind, key_of = _value(keys, where, above)
        value_kind, value_of = _value(values, where, above)
        return pa.map_(key_kind, value_kind), lambda found: [
            (key_of(key), value_of(value)) for key, value in getattr(found, name).items()
        ]
    if field.is_repeated:
        return pa.list_(kind), lambda found: [convert(item) for item in getattr(found, name)]
    if field.has_presence:
        return kind, lambda found: convert(getattr(found, name)) if found.HasField(name) else None
    return kind, lambda found: convert(getattr(found, name))


def _value(field: FieldDescriptor, where: str, above: tuple[str, ...]) -> tuple[pa.DataType, Reader]:
    """The type of one value of a field, and what converts it."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        name = field.message_type.full_name
        if field.message_type.GetOptions().map_entry:
            return pa.null(), lambda found: found  # a map is made of its keys and values
        if name == _TIMESTAMP:
            return pa.timestamp("us", "UTC"), lambda found: found.seconds * 1_000_000 + found.nanos // 1000
        if name in _WRAPPERS:
            kind, convert = _value(field.message_type.fields_by_name["value"], where, above)
            return kind, lambda found: convert(found.value)
        return _message(field.message_type, where, above)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return pa.string(), lambda found: names.get(found, str(found))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary(), lambda found: found
    return _PLAIN[field.cpp_type], lambda found: found
