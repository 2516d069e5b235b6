"""The part of a bulk load that runs in Spark's tasks: rows to their task, and a task's rows to their shard.

A task's rows are all of one shard that the table was made with, sorted by key, so the leader's store takes them in order and
a key that comes several times is sent once, as it comes last. What a task sends is a function of its rows: it writes as a
producer of its own (`antiphon.spark.job`), and where it is run again the leader answers with what was carried out already.
Requests are marked as bulk, so the leader's node lets them through at the rate that it sees fit; one that it has no room for
(`overloaded`) comes again after a pause.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import Answer, Buffer
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    OverloadedError,
    ReplayConflictError,
    UnknownTopicError,
)
from antiphon.model.loads import LoadRows
from antiphon.model.requests import Delete, Put, TableOp
from antiphon.records.packed_rows import unpacked
from antiphon.spark.job import Job
from antiphon.spark.jobs.digests import Digest
from antiphon.spark.jobs.job_state import JobState
from antiphon.spark.shard_writers import JOB_BATCHES_MAX, TableRequest, TableWriters, Waiting, sequence_of

if TYPE_CHECKING:
    import pyarrow as pa

    from antiphon.client.routing.tries import Tries
    from antiphon.model.metadata import TopicMeta
    from antiphon.spark.jobs.bulk_load_rows import Request

TASK_COLUMN: Final = "_task"
TASKS_MAX: Final = 1 << 20


class LoadSpec(msgspec.Struct, frozen=True):
    """All that a task has to know.

    `producer` and `version` make the tasks' identity; `name` is the load's in the book of jobs. `rate` is in bytes a second
    for one task; 0: no limit of the job's own.
    """

    servers: tuple[tuple[str, int], ...]
    table: str
    topic_id: str
    name: str
    producer: str
    version: int
    tasks: int
    slices: int
    batch_rows: int
    batch_bytes: int
    row_bytes_max: int
    timeout_ms: int
    rate: int = 0
    keeps_book: bool = False


class TaskResult(msgspec.Struct):
    """What one task did.

    Attributes:
        rows: keys that were put; `deletes`: keys that were deleted; `superseded`: rows whose key came again later.
        bytes: of keys and values that were put.
        batches: requests; `duplicates` of them had been carried out for an earlier attempt.
        overloaded: times that a node had no room; `waited_ms`: spent waiting for answers and for the job's own rate.
        total: digest of the rows that were put, with `rows`.
        skipped: an earlier run of this load had written the part; nothing was sent.
    """

    task: int
    rows: int = 0
    deletes: int = 0
    superseded: int = 0
    bytes: int = 0
    batches: int = 0
    duplicates: int = 0
    overloaded: int = 0
    waited_ms: int = 0
    total: int = 0
    skipped: bool = False

    @property
    def digest(self) -> Digest:
        """Of what was put."""
        return Digest(self.rows, self.total)


def route(spec: LoadSpec, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Add the column that says which task writes a row. Raises InvalidRequestError, before anything is written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from antiphon.records.arrow_encode import shards_by_key

    for batch in batches:
        keys, values = batch.column("key"), batch.column("value")
        if keys.null_count:
            raise InvalidRequestError(
                "there are rows without a key: filter them out, or give another key; nothing was written"
            )
        sizes = pc.add(pc.binary_length(keys), pc.fill_null(pc.binary_length(values), 0))
        largest = pc.max(sizes).as_py() if batch.num_rows else 0
        if largest > spec.row_bytes_max:
            raise InvalidRequestError(
                f"a row has {largest} bytes of key and value, table {spec.table} takes {spec.row_bytes_max} "
                "(max.message.bytes): nothing was written"
            )
        tasks = pa.array(shards_by_key(keys, spec.tasks, table=True), pa.int32())
        yield pa.RecordBatch.from_arrays([*batch.columns, tasks], [*batch.schema.names, TASK_COLUMN])


def write_partition(spec: LoadSpec, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Write the rows of one task, sorted by key; gives one row, its result as JSON."""
    import pyarrow as pa

    loader = _Loader(spec)
    try:
        for batch in batches:
            if batch.num_rows:
                tasks = batch.column(TASK_COLUMN)
                loader.begin(tasks[0].as_py(), tasks[-1].as_py())
                loader.take(batch.column("key"), batch.column("value"))
        result = loader.finish()
    finally:
        loader.close()
    if result is not None:
        yield pa.RecordBatch.from_pydict({"result": [msgspec.json.encode(result).decode()]})


class _Loader:
    """One task's rows on their way."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._cluster = LoadCluster(spec.servers, spec.timeout_ms)
        self._result: TaskResult | None = None
        self._table: TopicMeta | None = None
        self._known: dict[str, Any] | None = None
        self._writers: BulkWriters | None = None
        self._chunk = 0
        from antiphon.spark.jobs.bulk_load_rows import RequestMaker

        self._maker = RequestMaker(spec.batch_rows, spec.batch_bytes)
        self._digest = Digest()
        self._rate_limiter = RateLimiter(spec.rate)

    def begin(self, task: int, last: int) -> None:
        """The number of the task is known with its first row."""
        if self._result is None:
            self._result = TaskResult(task)
            self._table = self._cluster.topic(self._spec.table, table=True)
            if self._table.topic_id.hex() != self._spec.topic_id:
                raise UnknownTopicError(
                    f"table {self._spec.table} was deleted and created again while it was loaded",
                    name=self._spec.table,
                )
            if self._spec.keeps_book:
                self._known = JobState(self._cluster, self._spec.name).part(task)
        if self._result.task != task or last != task:
            raise InvalidRequestError(
                "rows of several tasks are in one partition: the plan was changed on its way"
            )

    def take(self, keys: "pa.Array", values: "pa.Array") -> None:
        """Rows, sorted by key."""
        for request in self._maker.add(keys, values):
            self._write(request)

    def _write(self, request: "Request") -> None:
        result = self._result
        if result is None:
            raise InvalidRequestError("a task without rows writes nothing")
        self._digest += request.digest()
        result.bytes += request.content_bytes
        result.rows += request.rows - request.removals
        result.deletes += request.removals
        result.batches += 1
        if self._known is None:
            writers = self._next_writers()
            self._rate_limiter.wait(request.size_bytes)
            writers.load(result.task // self._spec.slices, request)

    def _next_writers(self) -> "BulkWriters":
        """A leader recognises so many requests of a producer when they come again: the next ones are another producer's."""
        result, table = self._result, self._table
        if result is None or table is None:
            raise InvalidRequestError("a task without rows writes nothing")
        chunk = (result.batches - 1) // JOB_BATCHES_MAX
        if self._writers is None or chunk != self._chunk:
            self._settle()
            self._chunk = chunk
            job = Job(self._spec.producer, self._spec.version, result.task + chunk * TASKS_MAX)
            self._writers = BulkWriters(self._cluster, table, job, self._spec.timeout_ms)
        return self._writers

    def _settle(self) -> None:
        """Wait until everything that was sent is committed."""
        writers, self._writers = self._writers, None
        if writers is not None and self._result is not None:
            writers.finish()
            self._result.duplicates += writers.duplicates
            self._table = writers.table

    def finish(self) -> TaskResult | None:
        """Everything is committed, and the book says so. None: there were no rows."""
        result = self._result
        if result is None:
            return None
        for request in self._maker.rest():
            self._write(request)
        result.superseded = self._maker.superseded
        self._settle()
        result.total = self._digest.total
        result.overloaded = self._cluster.overloaded
        result.waited_ms = int((self._cluster.waited_s + self._rate_limiter.waited_s) * 1000)
        said = {"rows": result.rows, "deletes": result.deletes, "total": str(result.total)}
        if self._known is not None:
            if {name: self._known.get(name) for name in said} != said:
                raise ReplayConflictError(
                    f"part {result.task} of load {self._spec.name!r} was written by an earlier run with other rows "
                    f"({self._known.get('rows')} then, {result.rows} now): load other data under another name"
                )
            result.skipped = True
        elif self._spec.keeps_book:
            JobState(self._cluster, self._spec.name).part_done(result.task, said)
        return result

    def close(self) -> None:
        """Close connections."""
        self._cluster.close()


class RateLimiter:
    """Keeps a sender at no more than `rate` bytes a second; 0: no limit."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._next_s = 0.0
        self.waited_s = 0.0

    def wait(self, size_bytes: int) -> None:
        """Wait until so many bytes more may be sent."""
        if not self._rate:
            return
        now = time.monotonic()
        pause_s = self._next_s - now
        if pause_s > 0:
            time.sleep(pause_s)
            self.waited_s += pause_s
        self._next_s = max(self._next_s, now) + size_bytes / self._rate


class LoadCluster(Cluster):
    """A `Cluster` that counts how often a node had no room, and how long answers took."""

    overloaded = 0
    waited_s = 0.0

    def _refused(self, call: ShardCall, error: AntiphonError, tries: "Tries") -> None:
        self.overloaded += isinstance(error, OverloadedError)
        super()._refused(call, error, tries)

    def call_all(self, calls: Sequence[Any]) -> list[Answer]:
        """See Cluster."""
        started = time.monotonic()
        try:
            return super().call_all(calls)
        finally:
            self.waited_s += time.monotonic() - started


class BulkWriters(TableWriters):
    """Loads that can wait. Where the table was split, or nodes do not know loads, the same as puts and deletes."""

    def __init__(self, cluster: Cluster, table: "TopicMeta", job: Job, timeout_ms: int) -> None:
        super().__init__(cluster, table, job, timeout_ms)
        self._by_puts = False

    @property
    def table(self) -> "TopicMeta":
        """The table as it is known now: it may have been split since."""
        return self._table

    def load(self, shard: int, request: "Request") -> None:
        """Take a request for a shard that the table was made with; sends when enough of them wait."""
        number, table, job = self._numbers.take(shard), self._table, self._job
        sequence = sequence_of(number, request.checksum)
        if self._by_puts or self._ranges.is_split:
            ops = _operations(request.payload, request.rows)
            self.write_request(shard, TableRequest(sequence, ops))
            return
        (shard_id,) = [one.shard_id for one in table.shards if one.index == shard]
        producer = job.producer_id(table=True), job.producer_epoch
        body = LoadRows(shard_id, request.rows, *producer, sequence, self._timeout_ms)
        only_deletes = request.removals == request.rows
        call = ShardCall(shard_id, body, [request.payload])
        self.take(Waiting(call, shard, number, job, only_deletes))

    def _answers(self, heads: "Sequence[Waiting]") -> list[Answer | None]:
        try:
            return super()._answers(heads)
        except InvalidRequestError:
            if not any(isinstance(head.call.body, LoadRows) for head in heads):
                raise
        self._by_puts = True  # a node of an earlier version: all of it means the same there as puts
        return super()._answers([self._as_puts(head) for head in heads])

    def _as_puts(self, head: "Waiting") -> "Waiting":
        body = head.call.body
        if not isinstance(body, LoadRows):
            return head
        (same,) = self._parts(head.shard, head.number, body.sequence, self._ops_of(head.call), head.job)
        return same

    def _ops_of(self, call: ShardCall) -> Sequence[TableOp]:
        body = call.body
        if isinstance(body, LoadRows):
            (payload,) = call.payload
            return _operations(payload, body.rows)
        return super()._ops_of(call)

    def _parts(
        self, shard: int, number: int, sequence: int, ops: Sequence[TableOp], job: Job | None = None
    ) -> "list[Waiting]":
        return [
            one._replace(call=one.call._replace(body=msgspec.structs.replace(one.call.body, bulk=True)))
            for one in super()._parts(shard, number, sequence, ops, job)
        ]


def _operations(payload: Buffer, rows: int) -> tuple[TableOp, ...]:
    return tuple(Delete(key) if value is None else Put(key, value) for key, value in unpacked(payload, rows))
