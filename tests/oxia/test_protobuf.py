"""Oxia's messages as bytes: as another codec has them, and what is refused."""

from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from antiphon.gateway.protobuf import (
    ELEMENTS_MAX,
    FIELDS_MAX,
    INNER_FIELDS_MAX,
    PIECE_FIELDS,
    BadMessageError,
    Decoding,
    Field,
    Kind,
    Message,
    decode,
    encode,
    put_varint,
)
from antiphon.oxia import messages as m

_TYPES = {
    Kind.INT: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    Kind.UINT: descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    Kind.BOOL: descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    Kind.FIXED32: descriptor_pb2.FieldDescriptorProto.TYPE_FIXED32,
    Kind.FIXED64: descriptor_pb2.FieldDescriptorProto.TYPE_FIXED64,
    Kind.BYTES: descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    Kind.TEXT: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    Kind.KEY: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    Kind.MESSAGE: descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}
MESSAGES = [kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, Message)]
KINDS = sorted((kind for kind in MESSAGES if kind is not Message), key=lambda kind: kind.__name__)


def _others() -> dict[str, Any]:
    """The same messages by Google's library."""
    file = descriptor_pb2.FileDescriptorProto(name="oxia.proto", package="t", syntax="proto3")
    for kind in KINDS:
        made = file.message_type.add(name=kind.__name__)
        for field in kind.FIELDS:
            made_field = made.field.add(name=field.name, number=field.number, type=_TYPES[field.kind])
            made_field.label = 3 if field.many else 1
            if field.of is not None:
                made_field.type_name = f".t.{field.of.__name__}"
            if field.optional:
                made_field.proto3_optional = True
                made.oneof_decl.add(name=f"_{field.name}")
                made_field.oneof_index = len(made.oneof_decl) - 1
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        kind.__name__: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{kind.__name__}"))
        for kind in KINDS
    }


OTHERS = _others()
_VALUES = {
    Kind.INT: st.integers(-(1 << 63), (1 << 63) - 1),
    Kind.UINT: st.integers(0, (1 << 64) - 1),
    Kind.BOOL: st.booleans(),
    Kind.FIXED32: st.integers(0, (1 << 32) - 1),
    Kind.FIXED64: st.integers(0, (1 << 64) - 1),
    Kind.BYTES: st.binary(max_size=200),
    Kind.TEXT: st.text(max_size=40),
    Kind.KEY: st.text(max_size=40).map(str.encode),
}


def _value(field: Field) -> st.SearchStrategy:
    one = _message(field.of) if field.of is not None else _VALUES[field.kind]
    return st.lists(one, max_size=3) if field.many else st.none() | one if field.optional else one


def _message(kind: type[Message]) -> st.SearchStrategy:
    return st.fixed_dictionaries({field.name: _value(field) for field in kind.FIELDS}).map(
        lambda values: kind(**values)
    )


@given(st.sampled_from(KINDS).flatmap(_message))
def test_another_codec_reads_and_writes_the_same(message: Message) -> None:
    data = bytes(encode(message))
    assert decode(type(message), data) == message
    other = OTHERS[type(message).__name__].FromString(data)
    assert decode(type(message), other.SerializeToString()) == message


@given(st.sampled_from(KINDS), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(kind: type[Message], data: bytes) -> None:
    try:
        found = decode(kind, data)
    except BadMessageError:
        return
    assert decode(kind, bytes(encode(found))) == found


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        (m.PutRequest, b"\x0a\x05abc", "beyond the end"),
        (m.PutRequest, b"\x0a\x01\xff", "UTF-8"),
        (m.PutRequest, b"\x18" + b"\xff" * 10, "does not end"),
        (m.PutRequest, b"\x0b", "wire type 3"),
        (m.Version, b"\x19\x00", "beyond the end"),
        (m.PutRequest, b"\x02\x00", "impossible number"),
    ],
)
def test_what_is_no_message_is_refused(kind: type[Message], data: bytes, why: str) -> None:
    with pytest.raises(BadMessageError, match=why):
        decode(kind, data)


def test_elements_are_bounded() -> None:
    assert len(decode(m.WriteRequest, b"\x12\x00" * ELEMENTS_MAX).puts) == ELEMENTS_MAX
    with pytest.raises(BadMessageError, match="elements"):
        decode(m.WriteRequest, b"\x12\x00" * (ELEMENTS_MAX + 1))


def read_whole(reading: Decoding[Any]) -> int:
    """Read all of a message; how many pieces it took."""
    steps = 1
    while not reading.step():
        steps += 1
    return steps


LARGE = {
    "puts": b"\x12\x03\x0a\x01a" * 30_000,
    "fields that nobody knows": b"\x78\x01" * 50_000,
    "one field again and again": b"\x08\x01" * 50_000,
    "both": (b"\x08\x05" + b"\x12\x06\x0a\x01a\x12\x01v" + b"\x78\x01") * 9_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_message_is_read_in_pieces_of_a_bounded_size(name: str) -> None:
    reading, read = Decoding(m.WriteRequest, LARGE[name]), []
    fields = type(reading._reader).fields

    def counted(self: Any, *args: Any, **how: Any) -> Any:
        found = fields(self, *args, **how)
        read.append(0 if how else args[-1] - found[1])
        return found

    with patch.object(type(reading._reader), "fields", counted):
        steps = read_whole(reading)
    assert steps > 10
    assert max(read) <= PIECE_FIELDS + INNER_FIELDS_MAX
    assert reading.message == decode(m.WriteRequest, LARGE[name])


def test_fields_are_bounded_however_little_they_leave() -> None:
    with pytest.raises(BadMessageError, match="1000000 fields"):
        read_whole(Decoding(m.WriteRequest, b"\x78\x01" * (FIELDS_MAX + PIECE_FIELDS)))
    with pytest.raises(BadMessageError, match="1000000 fields"):
        decode(m.WriteRequest, b"\x78\x01" * (FIELDS_MAX + 1))


@pytest.mark.parametrize(
    "put",
    [
        b"\x78\x01" * (INNER_FIELDS_MAX + 1),
        bytes(encode(m.PutRequest(key=b"s", sequence_key_delta=[1] * INNER_FIELDS_MAX))),
        bytes(encode(m.PutRequest(secondary_indexes=[m.SecondaryIndex(index_name="i")] * INNER_FIELDS_MAX))),
    ],
)
def test_one_message_inside_of_a_clients_cannot_hold_up_the_others(put: bytes) -> None:
    data = bytearray(b"\x12")
    put_varint(data, len(put))
    with pytest.raises(BadMessageError, match="4096 fields"):
        Decoding(m.WriteRequest, bytes(data) + put).step()


def test_fields_that_nobody_knows_are_passed_over() -> None:
    unknown = b"\xa2\x06\x03abc" + b"\x98\x06\x01" + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh"
    assert decode(m.GetRequest, b"\x0a\x01k" + unknown) == m.GetRequest(key=b"k")
