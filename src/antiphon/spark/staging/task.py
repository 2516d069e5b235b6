"""What a task does with its batches when they are staged: puts them in blobs, and says where those are.

A task's blobs are all in one shard of `__staged`, chosen by its partition. They are gathered to a size that a leader takes
in one write, and several are on their way. Nothing of this needs to be repeatable: an attempt that is run again stages anew,
under an id of its own, and only what the manifest names counts.
"""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from antiphon.client.blocking import ShardCall
from antiphon.client.blocking_link import Answer, Buffer
from antiphon.errors import BatchTooLargeError
from antiphon.model.metadata import TopicMeta
from antiphon.model.requests import AppendBatch, Appended
from antiphon.spark.pipelined import Pipeline
from antiphon.spark.staging.blobs import BLOB_BYTES_MAX, BLOB_ROOM_BYTES, BlobHead, encode_blob
from antiphon.spark.staging.epochs import Part, now_ms

BLOB_BYTES: Final = 2 * 1024 * 1024
BLOB_PARTS_MAX: Final = 1_000
INLINE_BLOBS_MAX: Final = 16  # more go into an index blob, so that thousands of tasks make a small manifest
INDEX_NUMBER: Final = -1


class Stager:
    """One attempt's blobs. Use: `add` any number of times, then `finish`."""

    def __init__(self, pipeline: Pipeline, staged: TopicMeta, partition: int, timeout_ms: int) -> None:
        self._pipeline = pipeline
        self._partition = partition
        self._timeout_ms = timeout_ms
        self._shard_id = shard_for(staged, partition)
        self._attempt = uuid.uuid4().bytes
        self._parts: list[tuple[int, Buffer]] = []
        self._bytes = 0
        self._number = 0
        self._places: dict[int, tuple[int, int]] = {}

    def add(self, shard: int, data: Buffer) -> None:
        """Take what will be sent to a shard of the target; raises BatchTooLargeError above what a blob can hold."""
        if len(data) > BLOB_BYTES_MAX - BLOB_ROOM_BYTES:
            raise BatchTooLargeError(
                f"a batch of {len(data)} bytes cannot be staged, at most {BLOB_BYTES_MAX - BLOB_ROOM_BYTES} can; write it "
                "with protocol=direct, or lower batchBytes",
                size_bytes=len(data),
                limit_bytes=BLOB_BYTES_MAX - BLOB_ROOM_BYTES,
            )
        full = self._bytes + len(data) > BLOB_BYTES or len(self._parts) >= BLOB_PARTS_MAX
        if self._parts and full:
            self._send()
        self._parts.append((shard, data))
        self._bytes += len(data)

    def finish(self, rows: int) -> Part:
        """Wait until all of it is committed; says where it is."""
        if self._parts:
            self._send()
        self._pipeline.drain()
        blobs = tuple(self._places[number] for number in range(self._number))
        index = None
        if len(blobs) > INLINE_BLOBS_MAX:
            self._append(INDEX_NUMBER, [(0, msgspec.msgpack.encode(blobs))])
            self._pipeline.drain()
            index, blobs = self._places[INDEX_NUMBER], blobs[:1]
        return Part(self._partition, self._attempt, rows, self._shard_id, blobs, index)

    def _send(self) -> None:
        self._append(self._number, self._parts)
        self._number += 1
        self._parts, self._bytes = [], 0

    def _append(self, number: int, parts: Sequence[tuple[int, Buffer]]) -> None:
        head = BlobHead(self._attempt, number, tuple((shard, len(data)) for shard, data in parts))
        batch = encode_blob(head, [data for _, data in parts], now_ms())
        size_bytes = sum(len(part) for part in batch)
        request = AppendBatch(self._shard_id, None, self._timeout_ms, internal=True)
        call = ShardCall(self._shard_id, request, batch)
        self._pipeline.submit(call, partial(self._placed, number, size_bytes))

    def _placed(self, number: int, size_bytes: int, answer: Answer) -> None:
        appended: Appended = answer.body
        self._places[number] = (appended.base_offset, size_bytes)


def shard_for(staged: TopicMeta, partition: int) -> int:
    """Id of the shard of `__staged` that a partition's blobs go to."""
    shards = sorted(staged.shards, key=lambda shard: shard.index)
    return shards[partition % len(shards)].shard_id
