"""Where writes wait until their epoch is committed: the internal topic `__staged`, and blobs in it.

A **blob** is one record of `__staged`. Its key says what is in it (`BlobHead`), its value is what will be sent to the
target, one after the other: for a topic whole record batches, byte for byte as they will be appended; for a table requests.
Nothing of it is encoded again on the way: it is a record's value in one piece, under the checksum of the batch around it.

A blob counts only when a manifest (`epochs`) names it. Attempts that failed or came too late leave blobs that nobody
names, and the cluster trims them (`housekeeper`).
"""

import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Final, NamedTuple

import msgspec
from crc32c import crc32c

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import Buffer
from antiphon.client.blocking_topics import created, until
from antiphon.errors import (
    UNDECODABLE,
    AntiphonError,
    CorruptBatchError,
    InvalidRequestError,
    TimedOutError,
    UnknownTopicError,
)
from antiphon.model import internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import AlterTopic, CreateTopic, Fetch, Fetched
from antiphon.records.batch import (
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    UNCHECKED_BYTES,
    iter_batches,
    validate_batch,
)
from antiphon.records.varint import take_varint, varint

STAGED_TOPIC: Final = internal.STAGED_TOPIC
EPOCHS_TABLE: Final = internal.EPOCHS_TABLE
STAGED_SHARDS_MIN: Final = 3
STAGED_SHARDS_MAX: Final = 16
REPLICAS_DEFAULT: Final = 3
BLOB_BYTES_MAX: Final = 32 * 1024 * 1024  # the most that max.message.bytes can be set to
BLOB_ROOM_BYTES: Final = 64 * 1024  # of a blob's batch, for headers and the key
FETCH_BYTES: Final = 8 * 1024 * 1024
FETCH_WAIT_MS: Final = 500  # a leader that was just elected may not know yet how much is committed
_STAGED_CONFIG: Final = {
    "retention.ms": "-1",  # what is needed no more is trimmed; what is needed stays, however old
    "segment.bytes": str(64 * 1024 * 1024),
    "max.message.bytes": str(BLOB_BYTES_MAX),
}
_FIXED_FIELDS: Final = b"\x00\x00\x00"  # of a batch's only record: attributes, timestamp delta, offset delta


class BlobHead(msgspec.Struct, frozen=True, array_like=True):
    """Key of a blob: which attempt wrote it, its number there, and (target shard, bytes) of each thing in it."""

    attempt: bytes
    number: int
    parts: tuple[tuple[int, Annotated[int, msgspec.Meta(ge=0)]], ...]


class BlobAt(NamedTuple):
    """Where a blob is: offset in its shard of `__staged`, and bytes of the batch around it."""

    offset: int
    size_bytes: int


class Blob(NamedTuple):
    """A blob that was read."""

    head: BlobHead
    value: memoryview

    def parts(self) -> Iterator[tuple[int, memoryview]]:
        """(target shard, bytes) of each thing in it, in order."""
        at = 0
        for shard, size in self.head.parts:
            yield shard, self.value[at : at + size]
            at += size


_HEAD_DECODER: Final = msgspec.msgpack.Decoder(BlobHead)


# -- bytes --------------------------------------------------------------------------------------------------------


def encode_blob(head: BlobHead, parts: Sequence[Buffer], now_ms: int) -> list[Buffer]:
    """A record batch with the blob as its only record, as a list of buffers: `parts` are passed through, not copied."""
    key = msgspec.msgpack.encode(head)
    value_bytes = sum(len(part) for part in parts)
    before = _FIXED_FIELDS + varint(len(key)) + key + varint(value_bytes)
    after = b"\x00"  # no headers
    record_bytes = len(before) + value_bytes + len(after)
    before = varint(record_bytes) + before
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(before) + value_bytes + len(after)
    header = bytearray(
        HEADER_STRUCT.pack(0, length, -1, MAGIC, 0, 0, 0, now_ms, now_ms, -1, -1, -1, 1) + before
    )
    crc = crc32c(memoryview(header)[UNCHECKED_BYTES:])
    for part in parts:
        crc = crc32c(part, crc)
    struct.pack_into(">I", header, UNCHECKED_BYTES - 4, crc32c(after, crc))
    return [header, *parts, after]


def decode_blob(batch: memoryview) -> Blob:
    """Undo `encode_blob`. Raises CorruptBatchError for anything else."""
    header = validate_batch(batch)
    data = batch[HEADER_BYTES:]
    try:
        size, at = take_varint(data, 0)
        wrong = header.codec or header.record_count != 1 or size != len(data) - at
        key_size, at = take_varint(data, at + len(_FIXED_FIELDS))
        head = _HEAD_DECODER.decode(data[at : at + key_size])
        value_size, at = take_varint(data, at + key_size)
    except (IndexError, *UNDECODABLE) as error:
        raise CorruptBatchError(f"a record of {STAGED_TOPIC} that is no blob: {error}") from error
    if wrong or value_size != len(data) - at - 1 or value_size != sum(size for _, size in head.parts):
        raise CorruptBatchError(f"a record of {STAGED_TOPIC} that is no blob: its sizes do not add up")
    return Blob(head, data[at : at + value_size])


# -- the topic ----------------------------------------------------------------------------------------------------


def ensure_internal(cluster: Cluster, replicas: int) -> tuple[TopicMeta, TopicMeta]:
    """`__staged` and `__epochs`, made where they are missing, with at least as many replicas as the target has.

    A node that is down gets its replicas when it is back, as long as a majority of each shard is alive. Raises
    UnreachableError, TimedOutError, InvalidRequestError where they have fewer replicas and there is no node for more.
    """
    nodes = len(cluster.metadata(refresh=False).nodes)
    shards = min(STAGED_SHARDS_MAX, max(STAGED_SHARDS_MIN, nodes))
    wanted = (
        CreateTopic(STAGED_TOPIC, Kind.TOPIC, shards, config=_STAGED_CONFIG, internal=True),
        CreateTopic(EPOCHS_TABLE, Kind.TABLE, 1, internal=True),
    )
    staged, epochs = (_ensure(cluster, one, replicas) for one in wanted)
    return staged, epochs


def replicas_to_ask_for(cluster: Cluster, replicas: int) -> int:
    """What a request to create says for so many replicas: 0, the cluster's default, where that comes to the same.

    The default also takes nodes that are down for a moment, and a job's first start does not wait for them.
    """
    staying = sum(not node.draining for node in cluster.metadata(refresh=False).nodes)
    return 0 if replicas == min(REPLICAS_DEFAULT, staying) else replicas


def _ensure(cluster: Cluster, wanted: CreateTopic, replicas: int) -> TopicMeta:
    is_table = wanted.kind is Kind.TABLE
    try:
        found = cluster.topic(wanted.name, table=is_table, refresh=False)
    except UnknownTopicError:
        found = _created(cluster, wanted, replicas)
    alive = sum(node.alive and not node.draining for node in cluster.metadata(refresh=False).nodes)
    more = max(replicas, min(REPLICAS_DEFAULT, alive))
    if found.replicas >= more:
        return found
    try:
        cluster.call_any(AlterTopic(wanted.name, replicas=more))
    except InvalidRequestError as error:
        if found.replicas >= replicas:
            return found  # enough for this target; a node went down just now
        raise _too_few(cluster, found, replicas, error) from error
    return _wait_for(cluster, wanted.name, is_table, more)


def _created(cluster: Cluster, wanted: CreateTopic, replicas: int) -> TopicMeta:
    nodes = len(cluster.metadata(refresh=False).nodes)
    asked = replicas_to_ask_for(cluster, max(replicas, min(REPLICAS_DEFAULT, nodes)))
    return created(cluster, msgspec.structs.replace(wanted, replicas=asked))


def _too_few(cluster: Cluster, found: TopicMeta, replicas: int, error: AntiphonError) -> InvalidRequestError:
    """What a job's user is told, who asked for no replicas of an internal topic."""
    down = [node.node_id for node in cluster.metadata(refresh=False).nodes if not node.alive]
    has = f"{found.replicas} replica{'s' * (found.replicas != 1)}"
    start = f"start node {' and node '.join(map(str, down))} again" if down else "start more nodes"
    return InvalidRequestError(
        f"rows wait in {found.name} until their epoch is committed. {found.name} has {has} and must have {replicas}, as "
        f"many as what the job writes to, and none can be added now: {start}, then the job. {error.message}",
        replicas=replicas,
        down=down,
    )


def _wait_for(cluster: Cluster, name: str, is_table: bool, replicas: int) -> TopicMeta:
    """The topic as soon as metadata has it, each shard with so many replicas."""

    def seen() -> TopicMeta | None:
        with suppress(UnknownTopicError):
            found = cluster.topic(name, table=is_table, refresh=False)
            if found.shards and all(len(shard.ensemble) >= replicas for shard in found.shards):
                return found
        return None

    return until(cluster, seen, f"{name} has not {replicas} replicas of each shard")


# -- reading ------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """Blobs of one attempt in one shard of `__staged`."""

    shard_id: int
    attempt: bytes
    blobs: Sequence[BlobAt]


def read_blobs(cluster: Cluster, wanted: Sequence[Wanted]) -> Iterator[tuple[int, Blob]]:
    """(index in `wanted`, blob) of all of them, in order; the next answer is fetched while one is looked at.

    Nothing else may use `cluster` meanwhile. Raises CorruptBatchError where something else stands in a blob's place,
    OffsetOutOfRangeError where it was trimmed.
    """
    runs = [(index, run) for index, one in enumerate(wanted) for run in _runs(one.blobs)]
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-staged") as ahead:
        following = [ahead.submit(_read_run, cluster, wanted[index], run) for index, run in runs[:1]]
        for at, (index, _) in enumerate(runs):
            blobs = following.pop().result()
            if at + 1 < len(runs):
                next_index, next_run = runs[at + 1]
                following.append(ahead.submit(_read_run, cluster, wanted[next_index], next_run))
            for blob in blobs:
                yield index, blob


def _runs(blobs: Sequence[BlobAt]) -> Iterator[list[BlobAt]]:
    """Blobs that stand one after the other, up to the size of one answer."""
    run: list[BlobAt] = []
    size = 0
    for blob in blobs:
        if run and (blob.offset != run[-1].offset + 1 or size + blob.size_bytes > FETCH_BYTES):
            yield run
            run, size = [], 0
        run.append(blob)
        size += blob.size_bytes
    if run:
        yield run


def _read_run(cluster: Cluster, wanted: Wanted, run: Sequence[BlobAt]) -> list[Blob]:
    found: list[Blob] = []
    deadline = time.monotonic() + cluster.timeout_s
    while len(found) < len(run):
        left = run[len(found) :]
        request = Fetch(wanted.shard_id, left[0].offset, sum(blob.size_bytes for blob in left), FETCH_WAIT_MS)
        answer = cluster.call(ShardCall(wanted.shard_id, request))
        batches = [(header, batch) for header, batch in iter_batches(answer.payload)]
        if not batches and time.monotonic() > deadline:
            reply: Fetched = answer.body
            raise TimedOutError(
                f"shard {wanted.shard_id} of {STAGED_TOPIC} gave nothing at offset {left[0].offset} for "
                f"{cluster.timeout_s:.0f} s; its committed end is {reply.high_watermark}"
            )
        for (header, batch), at in zip(batches, left, strict=False):
            if header.base_offset != at.offset:
                break
            blob = decode_blob(batch)
            if blob.head.attempt != wanted.attempt:
                raise CorruptBatchError(
                    f"offset {at.offset} of shard {wanted.shard_id} of {STAGED_TOPIC} holds another attempt's blob"
                )
            found.append(blob)
        if batches and batches[0][0].base_offset != left[0].offset:
            raise CorruptBatchError(
                f"offset {left[0].offset} of shard {wanted.shard_id} of {STAGED_TOPIC} holds no blob"
            )
    return found
