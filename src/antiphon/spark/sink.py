"""Writes to topics and tables, exactly once.

A row goes straight to its shard's leader, and is there to be read, replicated, before Spark hears of it; `commit` has
nothing left to do. What makes it exactly once is that everything that a task sends is a function of its rows: an attempt
that repeats another one sends the same batches as the same producer, and the leader answers with where they are already.
(See `job` for who writes, `rows` for what is sent.) Readers may see the rows of an epoch before all of them are there.

That stands and falls with the same rows coming in the same order when Spark repeats an epoch. Antiphon's own source, files
and Kafka do that; after a shuffle the order is anybody's, so sort there: `df.repartition("key").sortWithinPartitions("key",
"offset")`. An epoch that comes again with other rows is refused with ReplayConflictError, never written beside the first.

- **Topics**: columns value, and any of key, headers, partition (or shard), timestamp. Keys choose shards as Kafka's clients
  do; rows without a key take turns. Records without a timestamp get the epoch's. Adding shards to a topic changes where keys
  go; do it while no epoch is unfinished.
- **Tables**: columns key and value; a null value deletes the key. Rows of one key keep their order only within a partition.
- **Batch writes** are one epoch; the option `txnId` gives it a name, under which a job that is run again writes nothing
  twice. `txnVersion` counts on under one name (a later one bars the earlier). Without a name every run is a new
  one. Only `mode("append")`.
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

from antiphon.errors import InvalidRequestError
from antiphon.spark.connection import Cluster
from antiphon.spark.job import EpochTime, Job, epoch_time
from antiphon.spark.rows import Cutter, Router, check_columns, rows_of
from antiphon.spark.shard_writers import ShardWriters, TableWriters, TopicWriters
from antiphon.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What one task did. `duplicates` of the batches had been written by an earlier attempt."""

    def __init__(self, rows: int, batches: int, duplicates: int) -> None:
        self.rows = rows
        self.batches = batches
        self.duplicates = duplicates


def write_rows(
    options: WriteOptions, job: Job, planned: EpochTime, batches: "Iterator[pa.RecordBatch]"
) -> Written:
    """Write one task's rows. Raises what the leaders refuse with, ReplayConflictError and ProducerFencedError among it."""
    target = options.target
    with Cluster(target.servers, target.timeout_ms) as cluster:
        topic = cluster.topic(target.name, table=target.is_table)
        shard_ids = [shard.shard_id for shard in sorted(topic.shards, key=lambda shard: shard.index)]
        count = TableWriters.shards(topic) if target.is_table else len(shard_ids)
        router = Router(target.name, count, table=target.is_table)
        cutter = Cutter(options.batch_rows, options.batch_bytes)
        writers: ShardWriters = (
            TableWriters(cluster, topic, job, target.timeout_ms)
            if target.is_table
            else TopicWriters(cluster, shard_ids, job, target.timeout_ms, options.compression, planned)
        )
        rows_written = 0
        for batch in batches:
            for row in rows_of(batch):
                shard = router.shard(row)
                full = cutter.add(shard, row)
                if full is not None:
                    writers.write(shard, full)
                rows_written += 1
        for shard, rows in cutter.rest():
            writers.write(shard, rows)
        writers.finish()
        return Written(rows_written, writers.batches, writers.duplicates)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`. Made anew for every micro-batch on the driver, and sent to its tasks."""

    def __init__(self, options: WriteOptions, schema: Any, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        self.options = options
        self.planned = epoch_time(options.checkpoint)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Write a task's rows."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        epoch = context.getLocalProperty(_EPOCH) if context is not None else None
        if context is None or query_id is None or epoch is None:
            raise InvalidRequestError("a streaming write runs only within a streaming query")
        return write_rows(
            self.options, Job(query_id, int(epoch), context.partitionId()), self.planned, iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is left to do: every row is committed in its shard."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is undone: Spark runs the same epoch again, and what is there already is recognised."""


class BatchSink(DataSourceArrowWriter):
    """`df.write.mode("append")`."""

    def __init__(self, options: WriteOptions, schema: Any, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        names = [field.name for field in schema.fields]
        if options.txn_id is not None and not options.target.is_table and "timestamp" not in names:
            raise InvalidRequestError(
                "with txnId give a column timestamp: a run that repeats this one has to send the same records"
            )
        self.options = options
        self.txn_id = f"batch/{options.txn_id or uuid.uuid4().hex}"
        self.planned = EpochTime(None, time.time_ns() // 1_000_000)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Write a task's rows."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return write_rows(
            self.options, Job(self.txn_id, self.options.txn_version, partition), self.planned, iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: every row is committed in its shard."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Rows that were written stay; run the job again with the same txnId to complete it."""


def _check(options: WriteOptions, schema: Any, *, overwrite: bool) -> None:
    if overwrite and options.target.is_table:
        raise InvalidRequestError(
            'a table\'s rows are replaced by key: write with mode("append"); a stream in update or complete mode '
            "goes through foreachBatch(antiphon.spark.upserts(...))"
        )
    if overwrite:
        raise InvalidRequestError('a log only grows: write with mode("append") or outputMode("append")')
    check_columns(schema, table=options.target.is_table)
