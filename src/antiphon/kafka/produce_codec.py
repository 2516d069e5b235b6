"""Produce, versions 0 to 12: record batches are slices of the request, never copied here.

Versions 0 to 2 carry message formats that are not stored; they are read so that they can be answered with an error that
their clients understand.
"""

import struct
from typing import Final, NamedTuple

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.framing import RequestHeader, finish_response, start_response
from antiphon.kafka.one_thread import paced
from antiphon.kafka.primitives import (
    Reader,
    put_compact_nullable_string,
    put_nullable_string,
    put_uvarint,
)

_FIRST_TIMESTAMP: Final = 2
_FIRST_TRANSACTIONAL: Final = 3
_FIRST_LOG_START: Final = 5
_FIRST_FLEXIBLE: Final = 9
_FIRST_HINTS: Final = 10
_ACKS: Final = struct.Struct(">hi")
_I32: Final = struct.Struct(">i")


class PartitionBatch(NamedTuple):
    """Records for one partition; None where the client sent null."""

    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """Batches by topic, in the order of the request. `acks`: -1 all, 0 no answer, 1 leader."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[PartitionBatch]]]


class PartitionProduced(NamedTuple):
    """Outcome for one partition.

    `leader` is a hint, (node id, leader epoch), for error 6; `record_errors` are (place in the batch, reason) of records
    that were the cause. `append_time_ms`: the time that the log gave the records; -1: they have the producer's.
    """

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    leader: tuple[int, int] | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    append_time_ms: int = -1


class NodeEndpoint(NamedTuple):
    """Address of a node that a hint names."""

    node_id: int
    host: str
    port: int
    rack: str = ""


def decode_produce(reader: Reader, version: int) -> ProduceRequest:
    """Read a request's body; raises ProtocolViolationError."""
    flexible = version >= _FIRST_FLEXIBLE
    transactional_id = None
    if version >= _FIRST_TRANSACTIONAL:
        transactional_id = reader.compact_nullable_string() if flexible else reader.nullable_string()
    acks, timeout_ms = _ACKS.unpack(reader.take(6))
    topics = _compact_topics(reader) if flexible else _topics(reader)
    if reader.remaining:
        raise ProtocolViolationError(
            f"{reader.remaining} bytes follow a Produce request of version {version}"
        )
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _topics(reader: Reader) -> list[tuple[str, list[PartitionBatch]]]:
    topics = []
    for _ in paced(reader.count()):
        name = _name(reader.nullable_string())
        partitions = [PartitionBatch(reader.i32(), reader.nullable_bytes()) for _ in paced(reader.count())]
        topics.append((name, partitions))
    return topics


def _compact_topics(reader: Reader) -> list[tuple[str, list[PartitionBatch]]]:
    topics = []
    for _ in paced(reader.compact_count()):
        name = _name(reader.compact_nullable_string())
        partitions = []
        for _ in paced(reader.compact_count()):
            partitions.append(PartitionBatch(reader.i32(), reader.compact_nullable_bytes()))
            reader.skip_tags()
        topics.append((name, partitions))
        reader.skip_tags()
    reader.skip_tags()
    return topics


def _name(name: str | None) -> str:
    if name is None:
        raise ProtocolViolationError("a topic's name must not be null")
    return name


_WITHOUT_TIMESTAMP: Final = struct.Struct(">ihq")  # versions 0 and 1: partition, error, base offset
_WITH_TIMESTAMP: Final = struct.Struct(">ihqq")  # versions 2 to 4: + log append time
_WITH_LOG_START: Final = struct.Struct(">ihqqq")  # version 5 on: + log start offset
_WITH_RECORD_ERRORS: Final = 8
_LEADER_TAG: Final = struct.Struct(">BBBiiB")


def encode_produce(
    header: RequestHeader,
    topics: list[tuple[str, list[PartitionProduced]]],
    endpoints: list[NodeEndpoint],
    throttle_ms: int = 0,
) -> bytearray:
    """The whole response frame."""
    out = start_response(header)
    version = header.version
    if version >= _FIRST_FLEXIBLE:
        _encode_compact(out, version, topics, endpoints, throttle_ms)
        finish_response(out)
        return out
    out += _I32.pack(len(topics))
    for name, partitions in topics:
        put_nullable_string(out, name)
        out += _I32.pack(len(partitions))
        for done in partitions:
            out += _fixed_part(done, version)
            if version >= _WITH_RECORD_ERRORS:
                out += _I32.pack(len(done.record_errors))
                for record, reason in done.record_errors:
                    out += _I32.pack(record)
                    put_nullable_string(out, reason)
                put_nullable_string(out, done.error_message)
    if version >= 1:
        out += _I32.pack(throttle_ms)
    finish_response(out)
    return out


def _fixed_part(done: PartitionProduced, version: int) -> bytes:
    if version >= _FIRST_LOG_START:
        return _WITH_LOG_START.pack(
            done.partition, done.error_code, done.base_offset, done.append_time_ms, done.log_start_offset
        )
    if version >= _FIRST_TIMESTAMP:
        return _WITH_TIMESTAMP.pack(done.partition, done.error_code, done.base_offset, done.append_time_ms)
    return _WITHOUT_TIMESTAMP.pack(done.partition, done.error_code, done.base_offset)


def _encode_compact(
    out: bytearray,
    version: int,
    topics: list[tuple[str, list[PartitionProduced]]],
    endpoints: list[NodeEndpoint],
    throttle_ms: int,
) -> None:
    hints = version >= _FIRST_HINTS
    put_uvarint(out, len(topics) + 1)
    for name, partitions in topics:
        put_compact_nullable_string(out, name)
        put_uvarint(out, len(partitions) + 1)
        for done in partitions:
            out += _WITH_LOG_START.pack(
                done.partition, done.error_code, done.base_offset, done.append_time_ms, done.log_start_offset
            )
            put_uvarint(out, len(done.record_errors) + 1)
            for record, reason in done.record_errors:
                out += _I32.pack(record)
                put_compact_nullable_string(out, reason)
                out.append(0)
            put_compact_nullable_string(out, done.error_message)
            put_leader_tag(out, done.leader if hints else None, tag=0)
        out.append(0)
    out += _I32.pack(throttle_ms)
    put_endpoints_tag(out, endpoints if hints else [])


def put_leader_tag(out: bytearray, leader: tuple[int, int] | None, *, tag: int) -> None:
    """A tagged section with a partition's current leader (KIP-951), or an empty one."""
    if leader is None:
        out.append(0)
    else:
        out += _LEADER_TAG.pack(1, tag, 9, leader[0], leader[1], 0)


def put_endpoints_tag(out: bytearray, endpoints: list[NodeEndpoint]) -> None:
    """A tagged section with the addresses of the nodes that hints name (KIP-951), or an empty one."""
    if not endpoints:
        out.append(0)
        return
    body = bytearray()
    put_uvarint(body, len(endpoints) + 1)
    for node in endpoints:
        body += _I32.pack(node.node_id)
        put_compact_nullable_string(body, node.host)
        body += _I32.pack(node.port)
        put_compact_nullable_string(body, node.rack or None)
        body.append(0)  # no tagged fields
    out += b"\x01\x00"
    put_uvarint(out, len(body))
    out += body
