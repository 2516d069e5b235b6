"""Sends a task's batches: one in flight per shard, all shards at once, in order, until each is answered.

A table's shards may be split at any time, between two runs of one epoch too, and the second run must be known as a repeat by
whatever shards there are then. So rows are cut into batches by the shards that the table was made with, which never change,
and a batch is numbered and summed up as a whole; what is sent to a shard is its part of the batch, under the whole batch's
sequence. A shard that was split off knows the sequences that its parent had taken.
"""

import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from antiphon.errors import (
    AlreadyAppliedError,
    AntiphonError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ReplayConflictError,
    WrongShardError,
)
from antiphon.records.builder import build_batch
from antiphon.spark.connection import Answer, Cluster, ShardCall
from antiphon.spark.job import EpochTime, Job, record_time_ms
from antiphon.spark.rows import RowData
from antiphon.wire.metadata import KeyRanges, TopicMeta
from antiphon.wire.requests import (
    AppendBatch,
    Appended,
    Delete,
    OpStatus,
    Put,
    TableOp,
    TableWrite,
    TableWritten,
)

WAITING_BATCHES_MAX: Final = 16  # over all shards; what a task holds beyond the rows that are not cut yet
JOB_BATCHES_MAX: Final = (
    4_096  # of one epoch, shard and partition that a leader recognises when they come again
)
CONTENT_BITS: Final = 16
SPLIT_PAUSE_S: Final = 0.02  # a split is through within a moment of the refusal that tells of it
_LENGTHS: Final = struct.Struct(">qq")


class _Waiting(NamedTuple):
    call: ShardCall
    shard: int
    number: int  # of the batch within its shard
    only_deletes: bool = False


class ShardWriters(ABC):
    """Batches on their way. Use: `write` any number of times, then `finish`."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._waiting: dict[int, deque[_Waiting]] = {}  # by shard id
        self._count = 0
        self._sent: dict[int, int] = {}
        self.batches = 0
        self.duplicates = 0

    def write(self, shard: int, rows: Sequence[RowData]) -> None:
        """Take a batch for a shard; sends when enough of them wait."""
        number = self._sent.get(shard, 0)
        if number >= JOB_BATCHES_MAX:
            raise InvalidRequestError(
                f"{self._job} has more than {JOB_BATCHES_MAX} batches for shard {shard}: limit epochs with "
                "maxOffsetsPerTrigger, or raise batchRows and batchBytes"
            )
        self._sent[shard] = number + 1
        for waiting in self._prepare(shard, number, rows):
            self._queue(waiting)
        if self._count >= WAITING_BATCHES_MAX:
            self._send()

    def finish(self) -> None:
        """Send what waits; afterwards all is committed."""
        while self._count:
            self._send()

    def _queue(self, waiting: _Waiting) -> None:
        self._waiting.setdefault(waiting.call.shard_id, deque()).append(waiting)
        self._count += 1

    def _send(self) -> None:
        """One batch of every shard that has one."""
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

    def _answers(self, heads: Sequence[_Waiting]) -> list[Answer | None]:
        try:
            return list(self._cluster.call_all([head.call for head in heads]))
        except (ReplayConflictError, OutOfOrderSequenceError, ProducerFencedError, AlreadyAppliedError):
            # One of them was refused: ask one by one, so that the message can say which and the others get through.
            return [self._single(head) for head in heads]

    def _single(self, head: _Waiting) -> Answer | None:
        try:
            return self._cluster.call(head.call)
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"{self._job}: a later epoch of this query has written to shard {head.shard} already. Either this task is "
                "left over from an epoch that is done, or the query went back to an old copy of its checkpoint "
                f"({error.message})",
                **error.details,
            ) from error
        except AlreadyAppliedError:
            return None  # a duplicate whose answer is no longer in the log; nobody needs it
        except (ReplayConflictError, OutOfOrderSequenceError) as error:
            if self._is_known(head, error):
                return None
            raise ReplayConflictError(
                f"{self._job}: batch {head.number} for shard {head.shard} is not the one that an earlier run of this epoch "
                "sent. Its rows have to come in the same order each time: sort within partitions after a shuffle, and leave "
                f"query and options as they were until the epoch is through ({error.message})",
                **error.details,
            ) from error

    def _moved(self, heads: Sequence[_Waiting], error: WrongShardError) -> None:  # noqa: ARG002 - tables find out
        """A shard was split: nothing of the batch that told so was carried out, and others may have been."""
        raise error

    @abstractmethod
    def _prepare(self, shard: int, number: int, rows: Sequence[RowData]) -> Sequence[_Waiting]: ...

    @abstractmethod
    def _answered(self, head: _Waiting, answer: Answer | None) -> None: ...

    def _is_known(self, head: _Waiting, error: AntiphonError) -> bool:  # noqa: ARG002 - tables look at them
        """Was the batch certainly written before, although the leader cannot tell any more?"""
        return False


class TopicWriters(ShardWriters):
    """Record batches; the sequence is the row's place among the task's rows for the shard."""

    def __init__(
        self,
        cluster: Cluster,
        shard_ids: Sequence[int],
        job: Job,
        timeout_ms: int,
        compression: str,
        planned: EpochTime,
    ) -> None:
        super().__init__(cluster, job)
        self._shard_ids = shard_ids
        self._timeout_ms = timeout_ms
        self._compression = compression
        self._planned = planned
        self._producer_id = job.producer_id(table=False)
        self._rows: dict[int, int] = {}

    def _prepare(self, shard: int, number: int, rows: Sequence[RowData]) -> Sequence[_Waiting]:
        first = self._rows.get(shard, 0)
        self._rows[shard] = first + len(rows)
        default_ms: int | None = None
        records = []
        for row in rows:
            time_ms = row.timestamp_ms
            if time_ms is None:
                if default_ms is None:
                    default_ms = record_time_ms(self._planned, self._job)
                time_ms = default_ms
            records.append((row.key, row.value, row.headers, time_ms))
        batch = build_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=self._job.producer_epoch,
            base_sequence=first,
            compression=self._compression,
        )
        shard_id = self._shard_ids[shard]
        call = ShardCall(shard_id, AppendBatch(shard_id, None, self._timeout_ms), [batch])
        return [_Waiting(call, shard, number)]

    def _answered(self, head: _Waiting, answer: Answer | None) -> None:  # noqa: ARG002 - the base class's signature
        appended: Any = answer.body if answer is not None else None
        if isinstance(appended, Appended) and appended.duplicate:
            self.duplicates += 1


class TableWriters(ShardWriters):
    """Requests of puts and deletes.

    A table's leader recognises a repeated request by its sequence alone. So the sequence holds the request's number and, in
    its lower bits, a checksum of the content: a request with the number of an earlier one and other content is refused.
    """

    def __init__(self, cluster: Cluster, table: TopicMeta, job: Job, timeout_ms: int) -> None:
        super().__init__(cluster, job)
        self._table = table
        self._ranges = KeyRanges(table.shards)
        self._timeout_ms = timeout_ms
        self._producer_id = job.producer_id(table=True)

    @staticmethod
    def shards(table: TopicMeta) -> int:
        """How many shards the table was made with."""
        return sum(not shard.own_start for shard in table.shards)

    def _prepare(self, shard: int, number: int, rows: Sequence[RowData]) -> Sequence[_Waiting]:
        ops: list[TableOp] = []
        checksum = 0
        for row in rows:
            if row.key is None:
                raise InvalidRequestError("a row without a key cannot be put in a table")
            ops.append(Delete(row.key) if row.value is None else Put(row.key, row.value))
            value_bytes = -1 if row.value is None else len(row.value)
            checksum = crc32c(
                _LENGTHS.pack(len(row.key), value_bytes) + row.key + (row.value or b""), checksum
            )
        sequence = number << CONTENT_BITS | (checksum & ((1 << CONTENT_BITS) - 1))
        return self._parts(shard, number, sequence, ops)

    def _parts(self, shard: int, number: int, sequence: int, ops: Sequence[TableOp]) -> list[_Waiting]:
        """What each of the shards gets of a batch, as far as is known."""
        found: dict[int, list[TableOp]] = {}
        for op in ops:
            if isinstance(op, Put | Delete):
                found.setdefault(self._ranges.shard_of(op.key).shard_id, []).append(op)
        job = self._job.producer_epoch
        return [
            _Waiting(
                ShardCall(
                    shard_id,
                    TableWrite(shard_id, tuple(part), self._producer_id, job, sequence, self._timeout_ms),
                ),
                shard,
                number,
                all(isinstance(op, Delete) for op in part),
            )
            for shard_id, part in found.items()
        ]

    def _moved(self, heads: Sequence[_Waiting], error: WrongShardError) -> None:
        """Send everything that waits to the shards that there are now; what was carried out is recognised there."""
        waiting = [*heads, *(one for queue in self._waiting.values() for one in queue)]
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            table = self._cluster.topic(self._table.name, table=True)
            if len(table.shards) > len(self._table.shards):
                break
            if time.monotonic() > deadline:
                raise error
            time.sleep(SPLIT_PAUSE_S)
        self._table, self._ranges = table, KeyRanges(table.shards)
        self._waiting, self._count = {}, 0
        for one in sorted(waiting, key=lambda one: one.number):
            request: TableWrite = one.call.body
            for part in self._parts(one.shard, one.number, request.sequence, request.ops):
                self._queue(part)

    def _answered(self, head: _Waiting, answer: Answer | None) -> None:
        if answer is None:
            self.duplicates += 1
            return
        written: TableWritten = answer.body
        for result in written.results:
            if result.status not in {OpStatus.OK, OpStatus.KEY_NOT_FOUND}:
                raise InvalidRequestError(
                    f"{self._job}: shard {head.shard} refused an operation with status {result.status}"
                )

    def _is_known(self, head: _Waiting, error: AntiphonError) -> bool:
        """Later requests are in the log, this one is not: it left no trace, for none of its keys was there to be deleted."""
        return head.only_deletes and isinstance(error, OutOfOrderSequenceError)
