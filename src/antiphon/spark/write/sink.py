"""Writes to topics and tables, exactly once, by one of two protocols.

- **staged** (the default): tasks put their rows, as the very batches that will be appended, in the internal topic
  `__staged`; `commit` decides what belongs to the epoch by putting one row in a table, and then appends that to the target.
  Whatever Spark runs again, with the same rows or with others (after a shuffle), the epoch is what was decided first. Rows
  are in the target only once the epoch is decided. See `staging.epochs`, `staging.commit`.
- **direct**: tasks append to the target; `commit` has nothing left to do. Rows are written once and not twice, and readable
  at once, before their epoch is complete. What makes it exactly once is that everything that a task sends is a function of
  its rows: an attempt that repeats another one sends the same batches as the same producer, and the leader answers with
  where they are already. That stands and falls with the same rows coming in the same order when Spark repeats an epoch.
  Antiphon's own source, files and Kafka do that; after a shuffle the order is anybody's, so sort there. An epoch that comes
  again with other rows is refused with ReplayConflictError, never written beside the first.

By both, an epoch that comes after a later one of its query (an old copy of the checkpoint, a driver that was left over) is
refused with ProducerFencedError.

- **Topics**: columns value, and any of key, headers, partition (or shard), timestamp, and with protocol=direct
  expectedOffset. Adding shards to a topic changes where keys go; do it while no epoch is unfinished.
- **Tables**: columns key and value; a null value deletes the key. Rows of one key keep their order only within a partition.
- **Batch writes** are one epoch; the option `txnId` gives it a name, under which a job that is run again writes nothing
  twice. `txnVersion` counts on under one name (a later one bars the earlier). Without a name every run is a new
  one. Only `mode("append")`.

What can never be written is told once, on the driver: a target that is not there when the write is planned, before there are
tasks; a row that the target does not take when all tasks are done, for Spark would try a task that fails four times.
"""

import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from antiphon.client.blocking import Cluster
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.spark import worker
from antiphon.spark.job import Job, epoch_time, plan_of
from antiphon.spark.rows import EXPECTED, check_columns
from antiphon.spark.traced import planned, under
from antiphon.spark.write.options import WriteOptions
from antiphon.spark.write.task import Task, TaskResult, commit_results, target_of, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What one task did."""

    def __init__(self, result: TaskResult) -> None:
        self.result = result


class Refused(WriterCommitMessage):
    """A row of a task can never be written."""

    def __init__(self, error: AntiphonError) -> None:
        self.error = error


def _results(messages: "Sequence[WriterCommitMessage | None]") -> list[TaskResult]:
    """What the tasks did; raises what one of them was refused with."""
    for message in messages:
        if isinstance(message, Refused):
            raise message.error
    return [message.result for message in messages if isinstance(message, Written)]


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`. Made anew for every micro-batch on the driver, and sent to its tasks."""

    def __init__(self, options: WriteOptions, schema: Any, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        self.options = options
        self.trace = planned(options.target.name)
        # What is staged is pinned by the manifest, so any time will do; otherwise a repeated epoch has to find the same.
        self.planned = epoch_time(options.checkpoint if options.protocol == "direct" else None)
        worker.spare_imports()

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written | Refused:
        """Write a task's rows."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        epoch = context.getLocalProperty(_EPOCH) if context is not None else None
        if context is None or query_id is None or epoch is None:
            raise InvalidRequestError("a streaming write runs only within a streaming query")
        job = Job(query_id, int(epoch), context.partitionId())
        with under("spark task", self.trace, epoch=job.epoch, partition=job.partition):
            return _written(Task(self.options, job, self.planned), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Staged: make the epoch's rows part of the target. Direct: nothing is left to do.

        Raises what a row was refused with.
        """
        results = _results(messages)
        if self.options.protocol == "staged":
            with under("spark commit", self.trace, epoch=batchId):
                commit_results(self.options, results, plan_of(self.options.checkpoint, batchId))
        worker.spare_imports()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is undone: Spark also calls this after a commit that failed half way, and runs the same epoch again.

        What was staged and belongs to no epoch is trimmed by the cluster.
        """


class BatchSink(DataSourceArrowWriter):
    """`df.write.mode("append")`."""

    def __init__(self, options: WriteOptions, schema: Any, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        names = [field.name for field in schema.fields]
        named, to_topic = options.txn_id is not None, not options.target.is_table
        if options.protocol == "direct" and named and to_topic and "timestamp" not in names:
            raise InvalidRequestError(
                "with txnId and protocol=direct give a column timestamp: a run that repeats this one has to send the same "
                "records; protocol=staged does without"
            )
        self.options = options
        self.trace = planned(options.target.name)
        self.txn_id = f"batch/{options.txn_id or uuid.uuid4().hex}"
        self.now_ms = time.time_ns() // 1_000_000
        worker.spare_imports()

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written | Refused:
        """Write a task's rows."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        job = Job(self.txn_id, self.options.txn_version, partition)
        with under("spark task", self.trace, epoch=job.epoch, partition=job.partition):
            return _written(Task(self.options, job, self.now_ms), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Staged: make the rows part of the target. Direct: nothing is left to do.

        Raises what a row was refused with.
        """
        results = _results(messages)
        if self.options.protocol == "staged":
            with under("spark commit", self.trace, epoch=self.options.txn_version):
                commit_results(self.options, results, b"")
        worker.spare_imports()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Direct: rows that were written stay; run the job again with the same txnId to complete it.

        Staged: nothing is in the target, unless the epoch was decided; then the cluster completes it.
        """


def _written(task: Task, rows: "Iterator[pa.RecordBatch]") -> Written | Refused:
    written: Written | Refused
    try:
        written = Written(write_rows(task, rows))
    except AntiphonError as error:
        if "row" not in error.details:
            raise
        written = Refused(error)
        for _ in rows:
            pass  # Spark wants its rows taken
    worker.spare_imports()
    return written


def _check(options: WriteOptions, schema: Any, *, overwrite: bool) -> None:
    if overwrite and options.target.is_table:
        raise InvalidRequestError(
            'a table\'s rows are replaced by key: write with mode("append"); a stream in update or complete mode '
            "goes through foreachBatch(antiphon.spark.upserts(...))"
        )
    if overwrite:
        raise InvalidRequestError('a log only grows: write with mode("append") or outputMode("append")')
    check_columns(schema, table=options.target.is_table)
    if options.protocol == "staged" and EXPECTED in [field.name for field in schema.fields]:
        raise InvalidRequestError(
            f'a column {EXPECTED} needs option("protocol", "direct"): staged rows are appended when their epoch is decided, '
            "and a condition that fails then could not stop the epoch any more"
        )
    with Cluster(options.target.servers, options.target.timeout_ms) as cluster:
        target_of(cluster, options.target)
