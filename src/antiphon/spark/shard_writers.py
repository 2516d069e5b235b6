"""Sends a job's batches to the leaders of the target's shards, so that a leader recognises those that it has already.

Topics take record batches, several of each shard on their way (`pipelined`). Tables take requests, one of each shard at a
time, all shards at once: a table's sequences only rise, so a request must not overtake another.

A table's shards may be split at any time, between two runs of one epoch too, and the second run must be known as a repeat
by whatever shards there are then. So rows are cut into requests by the shards that the table was made with, which never
change, and a request is numbered and summed up as a whole; what is sent to a shard is its part of the request, under the
whole request's sequence. A shard that was split off knows the sequences that its parent had taken.
"""

import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final, NamedTuple

import msgspec
from crc32c import crc32c

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import Answer, Buffer
from antiphon.errors import (
    AlreadyAppliedError,
    AntiphonError,
    InvalidRequestError,
    OffsetMismatchError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ReplayConflictError,
    WrongShardError,
)
from antiphon.model.metadata import KeyRanges, TopicMeta
from antiphon.model.requests import (
    AppendBatch,
    Appended,
    Delete,
    OpStatus,
    Put,
    TableOp,
    TableWrite,
    TableWritten,
)
from antiphon.spark.job import Job
from antiphon.spark.pipelined import Pipeline
from antiphon.spark.rows import RowData

WAITING_BATCHES_MAX: Final = 16  # over all shards; what a task holds beyond the rows that are not cut yet
JOB_BATCHES_MAX: Final = (
    4_096  # of one epoch, shard and partition that a leader recognises when they come again
)
CONTENT_BITS: Final = 16


class Numbers:
    """Numbers a task's batches by shard, up to as many as a leader recognises."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._next: dict[int, int] = {}

    def take(self, shard: int) -> int:
        """The number of the shard's next batch; raises InvalidRequestError when there are too many."""
        number = self._next.get(shard, 0)
        if number >= JOB_BATCHES_MAX:
            raise InvalidRequestError(
                f"{self._job} has more than {JOB_BATCHES_MAX} batches for shard {shard}: limit epochs with "
                "maxOffsetsPerTrigger, or raise batchRows and batchBytes"
            )
        self._next[shard] = number + 1
        return number


def explained(job: Job, shard: int, number: int, error: AntiphonError) -> AntiphonError:
    """The error in the words of who wrote a DataFrame."""
    if isinstance(error, ProducerFencedError):
        return ProducerFencedError(
            f"{job}: a later epoch of this query has written to shard {shard} already. Either this task is left over from "
            f"an epoch that is done, or the query went back to an old copy of its checkpoint ({error.message})",
            **error.details,
        )
    if isinstance(error, ReplayConflictError | OutOfOrderSequenceError):
        return ReplayConflictError(
            f"{job}: batch {number} for shard {shard} is not the one that an earlier run of this epoch sent. With "
            "protocol=direct its rows have to come in the same order each time: sort within partitions after a shuffle, and "
            "leave query and options as they were until the epoch is through; protocol=staged does without "
            f"({error.message})",
            **error.details,
        )
    if isinstance(error, OffsetMismatchError):
        return OffsetMismatchError(
            f"{job}: a row expects offset {error.expected} in shard {shard}, whose next offset is {error.actual}: nothing "
            "of its batch was written",
            shard=shard,
            **error.details,
        )
    return error


class TopicWriters:
    """Appends record batches that carry their job's identity."""

    def __init__(self, pipeline: Pipeline, topic: TopicMeta, timeout_ms: int) -> None:
        self._pipeline = pipeline
        self._shard_ids = {shard.index: shard.shard_id for shard in topic.shards}
        self._name = topic.name
        self._timeout_ms = timeout_ms
        self.batches = 0
        self.duplicates = 0

    def write(self, job: Job, shard: int, number: int, batch: Buffer, expected: int | None = None) -> None:
        """Send a batch; waits where too many are on their way. Raises what became of earlier ones, too.

        Args:
            job: whose batch it is.
            shard: index of the shard.
            number: of the batch among those of the job for the shard, for messages.
            batch: the record batch.
            expected: the offset where it has to land, or not at all.
        """
        shard_id = self._shard_ids.get(shard)
        if shard_id is None:
            raise InvalidRequestError(f"{job} has rows for shard {shard} of {self._name}, which is not there")
        call = ShardCall(shard_id, AppendBatch(shard_id, expected, self._timeout_ms), [batch])
        self.batches += 1
        self._pipeline.submit(call, self._answered, partial(self._failed, job, shard, number))

    def finish(self) -> None:
        """Wait for the answers; afterwards all is committed."""
        self._pipeline.drain()

    def _answered(self, answer: Answer) -> None:
        appended: Appended = answer.body
        self.duplicates += appended.duplicate

    def _failed(self, job: Job, shard: int, number: int, error: AntiphonError) -> None:
        if isinstance(error, AlreadyAppliedError):
            self.duplicates += 1
            return
        raise explained(job, shard, number, error) from error


class TableRequest(msgspec.Struct, frozen=True, array_like=True):
    """Puts and deletes of one job for one of the shards that the table was made with.

    A table's leader recognises a repeated request by its sequence alone. So the sequence holds the request's number and, in
    its lower bits, a checksum of the content: a request with the number of an earlier one and other content is refused.
    """

    sequence: int
    ops: tuple[TableOp, ...]

    @property
    def number(self) -> int:
        """Of the request among those of the job for the shard."""
        return self.sequence >> CONTENT_BITS


def table_request(number: int, rows: Sequence[RowData]) -> TableRequest:
    """Rows as a request; raises InvalidRequestError for one without a key."""
    ops: list[TableOp] = []
    lengths: list[int] = []
    content: list[bytes] = []
    for key, value in rows:
        if key is None:
            raise InvalidRequestError("a row without a key cannot be put in a table")
        content.append(key)
        if value is None:
            ops.append(Delete(key))
            lengths += (len(key), -1)
        else:
            ops.append(Put(key, value))
            lengths += (len(key), len(value))
            content.append(value)
    checksum = crc32c(b"".join(content), crc32c(struct.pack(f">{len(lengths)}q", *lengths)))
    return TableRequest(sequence_of(number, checksum), tuple(ops))


def sequence_of(number: int, checksum: int) -> int:
    """The sequence of a request with this number, and this checksum of its content."""
    return number << CONTENT_BITS | (checksum & ((1 << CONTENT_BITS) - 1))


class Waiting(NamedTuple):
    """A part of a request, for one of the shards that there are now."""

    call: ShardCall
    shard: int
    number: int  # of the request within its shard
    job: Job
    only_deletes: bool = False


class TableWriters:
    """Requests of puts and deletes on their way. Use: `write` or `write_request` any number of times, then `finish`."""

    ACCEPTED: ClassVar[frozenset[int]] = frozenset({OpStatus.OK, OpStatus.KEY_NOT_FOUND})

    def __init__(self, cluster: Cluster, table: TopicMeta, job: Job, timeout_ms: int) -> None:
        self._cluster = cluster
        self._table = table
        self._job = job
        self._ranges = KeyRanges(table.shards)
        self._timeout_ms = timeout_ms
        self._numbers = Numbers(job)
        self._waiting: dict[int, deque[Waiting]] = {}  # by shard id
        self._count = 0
        self.batches = 0
        self.duplicates = 0

    @staticmethod
    def shards(table: TopicMeta) -> int:
        """How many shards the table was made with."""
        return sum(not shard.own_start for shard in table.shards)

    def write(self, shard: int, rows: Sequence[RowData]) -> None:
        """Take rows for a shard that the table was made with; sends when enough of them wait."""
        self.write_request(shard, table_request(self._numbers.take(shard), rows))

    def write_request(self, shard: int, request: TableRequest, job: Job | None = None) -> None:
        """Take a request, of another job than this object's where one is given; sends when enough of them wait."""
        for waiting in self._parts(shard, request.number, request.sequence, request.ops, job):
            self._queue(waiting)
        self._send_some()

    def take(self, waiting: "Waiting") -> None:
        """The same of a request that is for one shard."""
        self._queue(waiting)
        self._send_some()

    def _send_some(self) -> None:
        if self._count >= WAITING_BATCHES_MAX:
            self._send()

    def finish(self) -> None:
        """Send what waits; afterwards all is committed."""
        while self._count:
            self._send()

    def _parts(
        self, shard: int, number: int, sequence: int, ops: Sequence[TableOp], job: Job | None = None
    ) -> list[Waiting]:
        """What each of the shards gets of a request, as far as is known."""
        job = self._job if job is None else job
        found: dict[int, list[TableOp]] = {}
        for op in ops:
            if isinstance(op, Put | Delete):
                found.setdefault(self._ranges.shard_of(op.key).shard_id, []).append(op)
        producer_id, epoch = job.producer_id(table=True), job.producer_epoch
        return [
            Waiting(
                ShardCall(
                    shard_id,
                    TableWrite(shard_id, tuple(part), producer_id, epoch, sequence, self._timeout_ms),
                ),
                shard,
                number,
                job,
                all(isinstance(op, Delete) for op in part),
            )
            for shard_id, part in found.items()
        ]

    def _queue(self, waiting: Waiting) -> None:
        self._waiting.setdefault(waiting.call.shard_id, deque()).append(waiting)
        self._count += 1

    def _send(self) -> None:
        """One request of every shard that has one."""
        heads = [queue.popleft() for _, queue in sorted(self._waiting.items()) if queue]
        self._count -= len(heads)
        try:
            answers = self._answers(heads)
        except WrongShardError as error:
            self._moved(heads, error)
            return
        for head, answer in zip(heads, answers, strict=True):
            self._answered(head, answer)
        self.batches += len(heads)

    def _answers(self, heads: Sequence[Waiting]) -> list[Answer | None]:
        try:
            return list(self._cluster.call_all([head.call for head in heads]))
        except (ReplayConflictError, OutOfOrderSequenceError, ProducerFencedError, AlreadyAppliedError):
            # One of them was refused: ask one by one, so that the message can say which and the others get through.
            return [self._single(head) for head in heads]

    def _single(self, head: Waiting) -> Answer | None:
        try:
            return self._cluster.call(head.call)
        except AlreadyAppliedError:
            return None  # a duplicate whose answer is no longer in the log; nobody needs it
        except (ReplayConflictError, OutOfOrderSequenceError, ProducerFencedError) as error:
            if head.only_deletes and isinstance(error, OutOfOrderSequenceError):
                # Later requests are in the log, this one is not: it left no trace, for none of its keys was there.
                return None
            raise explained(head.job, head.shard, head.number, error) from error

    def _moved(self, heads: Sequence[Waiting], error: WrongShardError) -> None:
        """A shard was split: nothing of the request that told so was carried out, and others may have been.

        Send everything that waits to the shards that there are now; what was carried out is recognised there.
        """
        waiting = [*heads, *(one for queue in self._waiting.values() for one in queue)]
        tries, table = self._cluster.tries(), self._table
        while len(table.shards) <= len(self._table.shards):
            self._cluster.learn(error, tries)
            table = self._cluster.topic(self._table.name, table=True, refresh=False)
        self._table, self._ranges = table, KeyRanges(table.shards)
        self._waiting, self._count = {}, 0
        for one in sorted(waiting, key=lambda one: one.number):
            sequence, ops = one.call.body.sequence, self._ops_of(one.call)
            for part in self._parts(one.shard, one.number, sequence, ops, one.job):
                self._queue(part)

    def _ops_of(self, call: ShardCall) -> Sequence[TableOp]:
        """What a request that is sent does."""
        request: TableWrite = call.body
        return request.ops

    def _answered(self, head: Waiting, answer: Answer | None) -> None:
        if answer is None:
            self.duplicates += 1
            return
        if isinstance(answer.body, Appended):
            self.duplicates += answer.body.duplicate
            return
        written: TableWritten = answer.body
        results = written.results
        for result in results:
            if result.status not in self.ACCEPTED:
                raise InvalidRequestError(
                    f"{head.job}: shard {head.shard} refused an operation with status {result.status}"
                )
