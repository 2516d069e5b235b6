"""One task's part of a write, and the commit of all tasks' parts, without anything of Spark's."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.client.blocking import Cluster
from antiphon.errors import InvalidRequestError, ProducerFencedError, UnknownTopicError
from antiphon.model.metadata import TopicMeta, is_multi
from antiphon.spark.job import EpochTime, Job, record_time_ms
from antiphon.spark.option_values import Target
from antiphon.spark.pipelined import Pipeline
from antiphon.spark.rows import TableRows
from antiphon.spark.shard_writers import Numbers, TableWriters, TopicWriters, table_request
from antiphon.spark.staging.blobs import ensure_internal
from antiphon.spark.staging.commit import Place, commit_epoch
from antiphon.spark.staging.epochs import Epoch, Epochs, Part, now_ms
from antiphon.spark.staging.task import Stager
from antiphon.spark.write.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from antiphon.spark.write.topic_rows import TopicRows

KEEP_S: Final = 300.0  # between two looks at whether what is staged is still protected
MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588  # of a topic that sets no max.message.bytes


@dataclass(frozen=True)
class Task:
    """Who writes what how. `planned`: the time of records that have none."""

    options: WriteOptions
    job: Job
    planned: EpochTime | int

    def time_ms(self) -> int:
        """The time of records that have none; raises InvalidRequestError where a repeat could not find it again."""
        if isinstance(self.planned, int):
            return self.planned
        return record_time_ms(self.planned, self.job)


@dataclass(frozen=True)
class TaskResult:
    """What one task did.

    Attributes:
        query: whose epoch it was; with `epoch` its number.
        target_id: id of the topic or table.
        rows: rows that the task was given.
        batches: batches that it made; `duplicates` of them were in the target already (direct).
        part: where they are staged; None: there are none.
        is_decided: the epoch was stored already, by an earlier run of it; nothing was staged.
    """

    query: str
    epoch: int
    target_id: bytes
    rows: int
    batches: int
    duplicates: int = 0
    part: Part | None = None
    is_decided: bool = False


def write_rows(task: Task, batches: "Iterator[pa.RecordBatch]") -> TaskResult:
    """Write one task's rows. Raises what the leaders refuse with, ReplayConflictError and ProducerFencedError among it."""
    target = task.options.target
    with (
        Cluster(target.servers, target.timeout_ms) as cluster,
        Pipeline(target.servers, target.timeout_ms) as pipeline,
    ):
        topic = target_of(cluster, target)
        pipeline.adopt(cluster)
        if task.options.protocol == "direct":
            return _direct(task, cluster, pipeline, topic, batches)
        return _staged(task, cluster, pipeline, topic, batches)


def target_of(cluster: Cluster, target: Target) -> TopicMeta:
    """The topic or table that is written to, as the cluster says it is now.

    Raises UnknownTopicError and WrongKindError, and InvalidRequestError where no job can write to it exactly once.
    """
    try:
        found = cluster.topic(target.name, table=target.is_table)
    except UnknownTopicError:  # made a moment ago, and the node that was asked may not know it yet
        cluster.newest_metadata()
        found = cluster.topic(target.name, table=target.is_table, refresh=False)
    if is_multi(found):
        raise InvalidRequestError(
            f"every replica of {target.name} takes writes, and none knows what a task wrote to another before it was "
            "run again, so rows could be there twice: write to a topic or table with writers=single"
        )
    return found


def _direct(
    task: Task, cluster: Cluster, pipeline: Pipeline, topic: TopicMeta, batches: "Iterator[pa.RecordBatch]"
) -> TaskResult:
    timeout_ms = task.options.target.timeout_ms
    writers: TableWriters | TopicWriters
    rows: TableRows | TopicRows
    if task.options.target.is_table:
        writers, rows = TableWriters(cluster, topic, task.job, timeout_ms), _table_rows(task, topic)
        for batch in batches:
            for shard, cut in rows.add(batch):
                writers.write(shard, cut)
        for shard, cut in rows.rest():
            writers.write(shard, cut)
    else:
        writers, rows = TopicWriters(pipeline, topic, timeout_ms), _topic_rows(task, topic)
        for batch in batches:
            for ready in rows.add(batch):
                writers.write(task.job, ready.shard, ready.number, ready.batch, ready.expected)
        for ready in rows.rest():
            writers.write(task.job, ready.shard, ready.number, ready.batch, ready.expected)
    writers.finish()
    job = task.job
    return TaskResult(job.query_id, job.epoch, topic.topic_id, rows.rows, writers.batches, writers.duplicates)


def _staged(
    task: Task, cluster: Cluster, pipeline: Pipeline, topic: TopicMeta, batches: "Iterator[pa.RecordBatch]"
) -> TaskResult:
    job, target = task.job, task.options.target
    keeper = _Keeper(cluster, topic, job)
    stager: Stager | None = None
    rows: TableRows | TopicRows = _table_rows(task, topic) if target.is_table else _topic_rows(task, topic)
    made = _requests(task, rows, batches) if isinstance(rows, TableRows) else _batches(rows, batches)
    count = 0
    for shard, data in made:
        if stager is None or keeper.is_due:
            staged = keeper.keep()
            if staged is None:
                for _ in batches:
                    pass  # Spark wants its rows taken
                return TaskResult(job.query_id, job.epoch, topic.topic_id, 0, 0, is_decided=True)
            if stager is None:
                stager = Stager(pipeline, staged, job.partition, target.timeout_ms)
        stager.add(shard, data)
        count += 1
    part = stager.finish(rows.rows) if stager is not None else None
    return TaskResult(job.query_id, job.epoch, topic.topic_id, rows.rows, count, part=part)


class _Keeper:
    """Keeps what a task stages from being trimmed."""

    def __init__(self, cluster: Cluster, target: TopicMeta, job: Job) -> None:
        self._cluster = cluster
        self._target = target
        self._job = job
        self._staged: TopicMeta | None = None
        self._epochs: Epochs | None = None
        self._kept_s = 0.0

    @property
    def is_due(self) -> bool:
        """Has it been a while?"""
        return time.monotonic() - self._kept_s > KEEP_S

    def keep(self) -> TopicMeta | None:
        """The topic to stage in; None where the epoch is decided already. Raises ProducerFencedError in a late epoch."""
        if self._staged is None or self._epochs is None:
            self._staged, table = ensure_internal(self._cluster, self._target.replicas)
            self._epochs = Epochs(self._cluster, table)
        shard_ids = [shard.shard_id for shard in self._staged.shards]
        job = self._job
        self._kept_s = time.monotonic()
        decided = self._epochs.open(self._target.topic_id, job.query_id, job.epoch, shard_ids)
        if decided is None:
            return self._staged
        if decided.epoch.number == job.epoch:
            return None
        raise ProducerFencedError(
            f"{job}: epoch {decided.epoch.number} of this query is written already. Either this task is left over from an "
            "epoch that is done, or the query went back to an old copy of its checkpoint",
            epoch=job.epoch,
            current=decided.epoch.number,
        )


def _batches(rows: "TopicRows", batches: "Iterator[pa.RecordBatch]") -> Iterator[tuple[int, bytearray]]:
    for batch in batches:
        for ready in rows.add(batch):
            yield ready.shard, ready.batch
    for ready in rows.rest():
        yield ready.shard, ready.batch


def _requests(
    task: Task, rows: TableRows, batches: "Iterator[pa.RecordBatch]"
) -> Iterator[tuple[int, bytes]]:
    numbers = Numbers(task.job)
    encode = msgspec.msgpack.encode
    for batch in batches:
        for shard, cut in rows.add(batch):
            yield shard, encode(table_request(numbers.take(shard), cut))
    for shard, cut in rows.rest():
        yield shard, encode(table_request(numbers.take(shard), cut))


def _topic_rows(task: Task, topic: TopicMeta) -> "TopicRows":
    from antiphon.spark.write.topic_rows import Cut, TopicRows  # numpy, which the driver's part does without

    options = task.options
    cut = Cut(options.batch_rows, options.batch_bytes, limit_of(topic), options.compression)
    return TopicRows(task.job, topic.name, len(topic.shards), cut, task.time_ms)


def _table_rows(task: Task, table: TopicMeta) -> TableRows:
    options = task.options
    return TableRows(
        task.job, TableWriters.shards(table), options.batch_rows, options.batch_bytes, limit_of(table)
    )


def limit_of(topic: TopicMeta) -> int:
    """Bytes of the largest batch that a topic or table takes."""
    value = topic.config.get("max.message.bytes", "")
    return int(value) if value.isdigit() else MAX_MESSAGE_BYTES_DEFAULT


def commit_results(options: WriteOptions, results: Sequence[TaskResult], plan: bytes) -> Epoch | None:
    """Commit an epoch that tasks have staged; returns what is stored of it, None where it has no rows.

    Args:
        options: of the write.
        results: what the tasks said, one a partition.
        plan: what Spark noted about the epoch before it ran it; empty where that is not known.

    Raises what `commit_epoch` raises.
    """
    if not any(result.part is not None or result.is_decided for result in results):
        return None
    first = results[0]
    for result in results:
        if (result.query, result.epoch, result.target_id) != (first.query, first.epoch, first.target_id):
            raise InvalidRequestError(
                f"tasks of one write say that they wrote epoch {result.epoch} of {result.query} and epoch {first.epoch} of "
                f"{first.query}: was {options.target.name} deleted and made again meanwhile?"
            )
    parts = tuple(result.part for result in results if result.part is not None)
    oldest: dict[int, int] = {}
    for part in parts:
        oldest[part.shard_id] = min(oldest.get(part.shard_id, part.first_offset), part.first_offset)
    epoch = Epoch(
        query=first.query,
        number=first.epoch,
        target=options.target.name,
        target_id=first.target_id,
        is_table=options.target.is_table,
        plan=plan,
        rows=sum(part.rows for part in parts),
        decided_ms=now_ms(),
        applied_ms=0,
        oldest=oldest,
        parts=parts,
        once=first.query.startswith("batch/") and options.txn_id is None,
    )
    incomplete = any(result.is_decided for result in results)
    place = Place(options.target.servers, options.target.timeout_ms)
    return commit_epoch(place, epoch, must_be_stored=incomplete).epoch
