"""Nothing in a request is without a bound: decoding one holds the event loop, and what it makes is memory."""

import struct
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from antiphon.errors import InvalidRequestError, ProtocolViolationError
from antiphon.model.messages import Request
from antiphon.model.metadata import SHARDS_MAX
from antiphon.model.placement import NODES_MAX, PlaceReplicas
from antiphon.model.requests import (
    FRAME_BYTES_MAX,
    CreateTopic,
    GetMetadata,
    Put,
    TableWrite,
)
from antiphon.wire.frames import (
    HEADER_BYTES_MAX,
    LARGE,
    MessageDecoder,
    decode_request,
    encode_message,
    request_id_of,
    request_of_large,
)
from tests.memory import allocated_at_most

MIB = 1024 * 1024
ARRAYS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType, inspect.DictType)


def parts(found: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The type and all that is in it, with where it stands."""
    yield where, found
    match found:
        case inspect.StructType():
            for field in found.fields:
                yield from parts(field.type, f"{where}.{field.name}")
        case inspect.UnionType():
            for one in found.types:
                yield from parts(one, where if not isinstance(one, inspect.StructType) else one.cls.__name__)
        case inspect.DictType():
            yield from parts(found.key_type, f"{where}[key]")
            yield from parts(found.value_type, f"{where}[value]")
        case inspect.TupleType():
            for one in found.item_types:
                yield from parts(one, f"{where}[]")
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            yield from parts(found.item_type, f"{where}[]")


def whole(bodies: Any) -> list[tuple[str, Any]]:
    return list(parts(inspect.type_info(bodies), ""))


def test_every_array_and_map_of_a_request_has_a_bound() -> None:
    unbounded = [w for w, found in whole(Request) if isinstance(found, ARRAYS) and found.max_length is None]
    assert unbounded == []


def test_no_part_of_a_request_may_be_anything() -> None:
    assert [w for w, found in whole(Request) if isinstance(found, inspect.AnyType | inspect.RawType)] == []


def test_the_elements_of_what_may_be_long_have_no_fields_that_are_read_past() -> None:
    for kind in LARGE.values():
        for where, found in whole(kind):
            if isinstance(found, inspect.StructType) and found.cls not in LARGE.values():
                assert found.forbid_unknown_fields, where


def array32(count: int, of: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + of * count


@pytest.mark.parametrize("form", ["node ids", "empty shards"])
def test_a_long_placement_is_refused_before_it_is_decoded(form: str) -> None:
    count = 10_000_000
    if form == "node ids":
        header = b"\x92\x01\x93\xadPlaceReplicas\x01" + array32(count, b"\x01")
    else:
        start = b"\x92\x01\x9a\xabCreateTopic\xa1t\xa5topic\x01\x00\xa4oxia\x80\xc2\xc2"
        header = start + array32(count, b"\x90")
    began_s = time.thread_time()
    with allocated_at_most(MIB), pytest.raises(ProtocolViolationError):
        decode_request(header)
    assert time.thread_time() - began_s < 0.02


def test_a_placement_of_every_shard_on_every_node_it_may_have_is_read() -> None:
    body = CreateTopic("t", placement=(tuple(range(NODES_MAX)),) * SHARDS_MAX)
    (frame,) = encode_message(7, body)
    assert decode_request(memoryview(frame)[8:]) == (7, body)
    (frame,) = encode_message(7, PlaceReplicas(1, tuple(range(NODES_MAX))))
    assert decode_request(memoryview(frame)[8:])[0] == 7


def header_of(request_id: int, fields: tuple[Any, ...], more: bytes = b"", count: int = 0) -> bytes:
    """A request with `count` further elements in its body, `more` each."""
    inside = b"".join(map(msgspec.msgpack.encode, fields))
    head = b"\xdd" + struct.pack(">I", len(fields) + count)
    return b"\x92" + msgspec.msgpack.encode(request_id) + head + inside + more * count


@pytest.mark.parametrize("request_id", [1, 200, 60_000, 1 << 20, 1 << 40])
def test_only_requests_that_need_it_are_long(request_id: int) -> None:
    header = header_of(request_id, ("GetMetadata", 1, 1), b"\xc0", 20_000_000)
    began_s = time.thread_time()
    with pytest.raises(InvalidRequestError, match=f"at most {HEADER_BYTES_MAX}") as refused:
        request_of_large(header)
    assert refused.value.details == {"request_id": request_id}
    assert request_id_of(header) == request_id
    assert time.thread_time() - began_s < 0.05


def test_what_is_long_has_no_unknown_fields() -> None:
    known = TableWrite(1, (Put(b"k", bytes(2 * HEADER_BYTES_MAX)),))
    (frame,) = encode_message(1 << 33, known)
    assert request_of_large(memoryview(frame)[8:]) == 1 << 33
    fields = ("TableWrite", *msgspec.structs.astuple(known))
    with pytest.raises(InvalidRequestError, match="does not know"):
        request_of_large(header_of(3, fields, b"\xc0", 1))
    operation = ("TableWrite", 1, [[0, b"k", b"v", None, None]])
    with pytest.raises(ProtocolViolationError):
        decode_request(header_of(3, operation))


@pytest.mark.parametrize(
    "start", [b"", b"\x92", b"\x92\x01", b"\x92\x01\x91", b"\x92\xa1x\x91\xa1x", b"\xc0" * 9]
)
def test_a_long_header_of_something_else_ends_the_connection(start: bytes) -> None:
    with pytest.raises(ProtocolViolationError):
        request_of_large(start + b"\xff" * (2 * HEADER_BYTES_MAX))


def test_short_requests_of_later_versions_are_read() -> None:
    header = header_of(3, ("GetMetadata", 1, 1), b"\xc0", 9)
    assert decode_request(header) == (3, GetMetadata(1, 1))
    assert isinstance(MessageDecoder(Request), MessageDecoder)
    assert HEADER_BYTES_MAX < FRAME_BYTES_MAX
