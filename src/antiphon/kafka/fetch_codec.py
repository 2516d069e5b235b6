"""Fetch, versions 4 to 16: a response is a list of buffers, in which the log's own memory stands between headers.

`encode_fetch` returns `[header, batch, batch, ..., header, batch, ...]` for the transport's `writelines`: record bytes are
never copied into a response. What a fetch session is: `fetch_sessions`.
"""

import struct
from collections.abc import Sequence
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
from antiphon.kafka.produce_codec import NodeEndpoint, put_endpoints_tag, put_leader_tag
from antiphon.records.batch import Buffer

_FIRST_LOG_START: Final = 5
_FIRST_SESSIONS: Final = 7
_FIRST_EPOCHS: Final = 9
_FIRST_ZSTD: Final = 10
_FIRST_RACK: Final = 11
_FIRST_FLEXIBLE: Final = 12
FIRST_TOPIC_IDS: Final = 13
_FIRST_TAGGED_REPLICA: Final = 15
_FIRST_ENDPOINTS: Final = 16
_JOIN_OVER: Final = 64  # so many buffers, where they are small, cost more as buffers than one copy does
_JOIN_BELOW_BYTES: Final = 4096
_GATHER_BYTES: Final = 64 * 1024

_I32: Final = struct.Struct(">i")
_LIMITS: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation
_SESSION: Final = struct.Struct(">ii")
_PARTITION_V4: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")


NOWHERE: Final = -1


class PartitionWanted(NamedTuple):
    """From where to read one partition. `leader_epoch` is -1 where the client does not check it."""

    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int


class TopicWanted(NamedTuple):
    """A topic by name (up to version 12) or by id."""

    name: str | None
    topic_id: bytes | None
    partitions: list[PartitionWanted]


class FetchRequest(NamedTuple):
    """`isolation` 0: read uncommitted, to the high watermark; 1: read committed, to the last stable offset.

    `forgotten`: partitions that leave the session, by the topic's name or id. `rack`: where the client stands; empty: it
    does not say, and reads from leaders. `reads_zstd`: clients of before Kafka 2.1 do not (KIP-110).
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[TopicWanted]
    forgotten: Sequence[tuple[str | bytes, Sequence[int]]] = ()
    rack: str = ""
    reads_zstd: bool = True


class PartitionFetched(NamedTuple):
    """What was read. `batches` are whole RecordBatches of `size_bytes` together. `aborted`: see FetchResult.

    `read_at`: the node to read from instead, nearer to the client (KIP-392); NOWHERE: here.
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    batches: Sequence[Buffer] = ()
    size_bytes: int = 0
    leader: tuple[int, int] | None = None
    stable_end: int = -1
    aborted: Sequence[tuple[int, int, int]] = ()
    read_at: int = NOWHERE


class TopicFetched(NamedTuple):
    """Partitions of one topic, named as the request named it."""

    name: str | None
    topic_id: bytes | None
    partitions: list[PartitionFetched]


def decode_fetch(reader: Reader, version: int) -> FetchRequest:
    """Read a request's body; raises ProtocolViolationError."""
    if version < _FIRST_TAGGED_REPLICA:
        reader.i32()  # replica id: only Kafka's own followers have one
    max_wait_ms, min_bytes, max_bytes, isolation = _LIMITS.unpack(reader.take(_LIMITS.size))
    session = (0, -1)
    if version >= _FIRST_SESSIONS:
        session = _SESSION.unpack(reader.take(_SESSION.size))
    flexible = version >= _FIRST_FLEXIBLE
    count = reader.compact_count() if flexible else reader.count()
    topics = [_topic_wanted(reader, version, flexible=flexible) for _ in paced(count)]
    forgotten = _forgotten(reader, version, flexible=flexible) if version >= _FIRST_SESSIONS else []
    rack: str | None = ""
    if flexible:
        rack = reader.compact_nullable_string()
        reader.skip_tags()
    elif version >= _FIRST_RACK:
        rack = reader.nullable_string()
    if reader.remaining:
        raise ProtocolViolationError(f"{reader.remaining} bytes follow a Fetch request of version {version}")
    return FetchRequest(
        *(
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation,
            session[0],
            session[1],
            topics,
            forgotten,
            rack or "",
        ),
        reads_zstd=version >= _FIRST_ZSTD,
    )


def _topic_wanted(reader: Reader, version: int, *, flexible: bool) -> TopicWanted:
    name = topic_id = None
    if version >= FIRST_TOPIC_IDS:
        topic_id = bytes(reader.take(16))
    else:
        name = reader.compact_nullable_string() if flexible else reader.nullable_string()
        if name is None:
            raise ProtocolViolationError("a topic's name must not be null")
    count = reader.compact_count() if flexible else reader.count()
    partitions = [_partition_wanted(reader, version) for _ in paced(count)]
    if flexible:
        reader.skip_tags()
    return TopicWanted(name, topic_id, partitions)


def _partition_wanted(reader: Reader, version: int) -> PartitionWanted:
    if version >= _FIRST_FLEXIBLE:
        index, epoch, offset, _, _, limit = _PARTITION_V12.unpack(reader.take(_PARTITION_V12.size))
        reader.skip_tags()
        return PartitionWanted(index, epoch, offset, limit)
    if version >= _FIRST_EPOCHS:
        index, epoch, offset, _, limit = _PARTITION_V9.unpack(reader.take(_PARTITION_V9.size))
        return PartitionWanted(index, epoch, offset, limit)
    if version >= _FIRST_LOG_START:
        index, offset, _, limit = _PARTITION_V5.unpack(reader.take(_PARTITION_V5.size))
    else:
        index, offset, limit = _PARTITION_V4.unpack(reader.take(_PARTITION_V4.size))
    return PartitionWanted(index, -1, offset, limit)


def _forgotten(reader: Reader, version: int, *, flexible: bool) -> list[tuple[str | bytes, Sequence[int]]]:
    """Partitions that the client drops from its fetch session."""
    found: list[tuple[str | bytes, Sequence[int]]] = []
    for _ in range(reader.compact_count() if flexible else reader.count()):
        key: str | bytes | None
        if version >= FIRST_TOPIC_IDS:
            key = bytes(reader.take(16))
        else:
            key = reader.compact_nullable_string() if flexible else reader.nullable_string()
        if key is None:
            raise ProtocolViolationError("a forgotten topic's name must not be null")
        count = max(0, reader.compact_count() if flexible else reader.count())
        found.append((key, struct.unpack(f">{count}i", reader.take(4 * count))))
        if flexible:
            reader.skip_tags()
    return found


_HEAD_V4: Final = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_ABORTED: Final = struct.Struct(">qq")  # producer id, first offset
_HEAD_V5: Final = struct.Struct(">ihqqq")  # + log start offset


class Frame:
    """A response under construction: headers gather in `out`, batches are put between them. `out` is another one then."""

    def __init__(self, out: bytearray) -> None:
        self.out = out
        self.headers = [out]
        self.buffers: list[Buffer] = [out]
        self.batch_bytes = 0

    def put_batches(self, batches: Sequence[Buffer], size_bytes: int) -> None:
        """Put the log's bytes here."""
        if len(batches) > _JOIN_OVER and size_bytes < len(batches) * _JOIN_BELOW_BYTES:
            self.buffers.append(b"".join(batches))
        else:
            self.buffers.extend(batches)
        self.batch_bytes += size_bytes
        self.out = bytearray()
        self.headers.append(self.out)
        self.buffers.append(self.out)

    def finish(self) -> list[Buffer]:
        """All of the response, with its length."""
        finish_response(self.headers[0], self.batch_bytes + sum(map(len, self.headers[1:])))
        return self.buffers


def encode_fetch(
    header: RequestHeader,
    error_code: int,
    topics: Sequence[TopicFetched],
    endpoints: list[NodeEndpoint],
    *,
    isolation: int = 0,
    throttle_ms: int = 0,
    session_id: int = 0,
) -> list[Buffer]:
    """The whole response frame as buffers to be written one after the other."""
    version = header.version
    flexible = version >= _FIRST_FLEXIBLE
    frame = Frame(start_response(header))
    frame.out += _I32.pack(throttle_ms)
    if version >= _FIRST_SESSIONS:
        frame.out += struct.pack(">hi", error_code, session_id)
    if flexible:
        put_uvarint(frame.out, len(topics) + 1)
    else:
        frame.out += _I32.pack(len(topics))
    for topic in topics:
        _put_topic(frame, topic, version, isolation)
    if flexible:
        put_endpoints_tag(frame.out, endpoints if version >= _FIRST_ENDPOINTS else [])
    return frame.finish()


def gathered(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: small neighbours become one. A transport takes a few at a time."""
    found: list[Buffer] = []
    together: list[Buffer] = []
    size_bytes = 0
    for buffer in buffers:
        if len(buffer) >= _GATHER_BYTES or size_bytes >= _GATHER_BYTES:
            found.append(b"".join(together))
            together, size_bytes = [], 0
        if len(buffer) >= _GATHER_BYTES:
            found.append(buffer)
        else:
            together.append(buffer)
            size_bytes += len(buffer)
    return [*found, b"".join(together)]


def _put_topic(frame: Frame, topic: TopicFetched, version: int, isolation: int) -> None:
    flexible = version >= _FIRST_FLEXIBLE
    if version >= FIRST_TOPIC_IDS:
        frame.out += topic.topic_id or bytes(16)
    elif flexible:
        put_compact_nullable_string(frame.out, topic.name)
    else:
        put_nullable_string(frame.out, topic.name)
    if flexible:
        put_uvarint(frame.out, len(topic.partitions) + 1)
        for fetched in topic.partitions:
            _put_partition_compact(frame, fetched, isolation)
        frame.out.append(0)
        return
    frame.out += _I32.pack(len(topic.partitions))
    for fetched in topic.partitions:
        _put_partition(frame, fetched, version, isolation)


def _put_partition(frame: Frame, fetched: PartitionFetched, version: int, isolation: int) -> None:
    out, end, stable_end = frame.out, fetched.high_watermark, fetched.stable_end
    if version >= _FIRST_LOG_START:
        out += _HEAD_V5.pack(fetched.partition, fetched.error_code, end, stable_end, fetched.log_start_offset)
    else:
        out += _HEAD_V4.pack(fetched.partition, fetched.error_code, end, stable_end)
    out += _I32.pack(len(fetched.aborted) if isolation else -1)  # -1: not asked for
    for producer_id, first_offset, _ in fetched.aborted if isolation else ():
        out += _ABORTED.pack(producer_id, first_offset)
    if version >= _FIRST_RACK:
        out += _I32.pack(fetched.read_at)
    out += _I32.pack(fetched.size_bytes)
    if fetched.batches:
        frame.put_batches(fetched.batches, fetched.size_bytes)


def _put_partition_compact(frame: Frame, fetched: PartitionFetched, isolation: int) -> None:
    out, end, stable_end = frame.out, fetched.high_watermark, fetched.stable_end
    out += _HEAD_V5.pack(fetched.partition, fetched.error_code, end, stable_end, fetched.log_start_offset)
    put_uvarint(out, len(fetched.aborted) + 1 if isolation else 0)
    for producer_id, first_offset, _ in fetched.aborted if isolation else ():
        out += _ABORTED.pack(producer_id, first_offset)
        out.append(0)
    out += _I32.pack(fetched.read_at)
    put_uvarint(out, fetched.size_bytes + 1)
    if fetched.batches:
        frame.put_batches(fetched.batches, fetched.size_bytes)
    put_leader_tag(frame.out, fetched.leader, tag=1)
