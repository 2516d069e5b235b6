"""ShareFetch: the request is read as any other message; the answer is a list of buffers with the log's own bytes in it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.coordination.share_terms import Acquired
from antiphon.kafka.fetch_codec import Frame
from antiphon.kafka.framing import RequestHeader, start_response
from antiphon.kafka.messages.share_groups import ShareFetchRequest
from antiphon.kafka.primitives import Reader, put_compact_nullable_string, put_uvarint
from antiphon.kafka.produce_codec import NodeEndpoint
from antiphon.kafka.schema import codec
from antiphon.records.batch import Buffer

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_ERROR_AT: Final = struct.Struct(">ih")  # throttle time, or a partition; error
_LEADER: Final = struct.Struct(">ii")
_ACQUIRED: Final = struct.Struct(">qqhb")  # first, last, delivery count, no tagged fields
NO_LEADER: Final = (-1, -1)


@dataclass(slots=True)
class ShareFetched:
    """What a member is told of one partition. `leader`: node and epoch, for an error that asks for them."""

    topic_id: bytes
    partition: int
    error_code: int = 0
    error_message: str | None = None
    ack_error_code: int = 0
    ack_error_message: str | None = None
    leader: tuple[int, int] = NO_LEADER
    batches: Sequence[Buffer] = ()
    size_bytes: int = 0
    acquired: Sequence[Acquired] = ()


def decode_share_fetch(reader: Reader, version: int) -> ShareFetchRequest:
    """Read a request's body; raises ProtocolViolationError."""
    request: ShareFetchRequest = codec(ShareFetchRequest, version, True).read(reader)
    return request


def encode_share_fetch(
    header: RequestHeader,
    error_code: int,
    error_message: str | None = None,
    found: Sequence[ShareFetched] = (),
    endpoints: Sequence[NodeEndpoint] = (),
    *,
    lock_ms: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """The whole response frame as buffers to be written one after the other."""
    frame = Frame(start_response(header))
    frame.out += _ERROR_AT.pack(throttle_ms, error_code)
    put_compact_nullable_string(frame.out, error_message)
    frame.out += _I32.pack(lock_ms)
    topics: dict[bytes, list[ShareFetched]] = {}
    for one in found:
        topics.setdefault(one.topic_id, []).append(one)
    put_uvarint(frame.out, len(topics) + 1)
    for topic_id, partitions in topics.items():
        frame.out += topic_id
        put_uvarint(frame.out, len(partitions) + 1)
        for one in partitions:
            _put_partition(frame, one)
        frame.out.append(0)
    put_uvarint(frame.out, len(endpoints) + 1)
    for node in endpoints:
        frame.out += _I32.pack(node.node_id)
        put_compact_nullable_string(frame.out, node.host)
        frame.out += _I32.pack(node.port)
        put_compact_nullable_string(frame.out, node.rack or None)
        frame.out.append(0)
    frame.out.append(0)
    return frame.finish()


def _put_partition(frame: Frame, one: ShareFetched) -> None:
    out = frame.out
    out += _ERROR_AT.pack(one.partition, one.error_code)
    put_compact_nullable_string(out, one.error_message)
    out += _I16.pack(one.ack_error_code)
    put_compact_nullable_string(out, one.ack_error_message)
    out += _LEADER.pack(*one.leader)
    out.append(0)
    put_uvarint(out, one.size_bytes + 1)
    if one.batches:
        frame.put_batches(one.batches, one.size_bytes)
        out = frame.out
    put_uvarint(out, len(one.acquired) + 1)
    for each in one.acquired:
        out += _ACQUIRED.pack(each.first, each.end - 1, each.deliveries, 0)
    out.append(0)
