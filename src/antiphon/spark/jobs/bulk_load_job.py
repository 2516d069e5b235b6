"""Bulk load: a large DataFrame into a table, at the rate that the cluster sets, each row once.

    loaded = jobs.bulk_load(frame, "127.0.0.1:7400", "aircraft", key="tailnum", txn_id="aircraft-2026")

Rows are shuffled so that each task writes to one shard, and sorted so that it writes in the order of keys, which is what the
shards' stores like best. All that can be wrong with rows is found before the first one is written: the shuffle comes first.

**Rate.** The leaders' nodes decide (`antiphon.node.bulk_gate`): they let bulk writes through as long as their commits take
no longer than `timings.bulk_commit`, and no faster than the table's setting `bulk.bytes.per.second`, both the operator's.
`rate` bounds the job further.

**Each row once.** Tasks that run again are recognised by the leaders. With `txn_id` that holds for the whole load: a driver
that was killed is started again with the same name and data, and writes what is missing.
"""

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import is_multi
from antiphon.model.requests import TableScan
from antiphon.spark.connect import parallelism
from antiphon.spark.jobs.bulk_load_columns import ORDER_COLUMN, load_frame
from antiphon.spark.jobs.bulk_load_writer import (
    TASK_COLUMN,
    TASKS_MAX,
    LoadSpec,
    TaskResult,
    route,
    write_partition,
)
from antiphon.spark.jobs.digests import Digest, frame_digest
from antiphon.spark.jobs.job_state import JobState, same_or_refuse
from antiphon.spark.option_values import parse_servers
from antiphon.spark.servers import frame_of
from antiphon.spark.shard_writers import TableWriters
from antiphon.spark.spark_errors import our_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from antiphon.model.metadata import TopicMeta

    Writer = Callable[[LoadSpec, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 64 * 1024
TIMEOUT_MS: Final = 120_000
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
RECORD_ROOM_BYTES: Final = 512  # of a batch, beside the key and value of its only record


class BulkLoaded(NamedTuple):
    """What a load did.

    Attributes:
        table: where to.
        name: of the load, `txn_id` or one made up.
        rows: keys that were put; `deletes`: that were deleted; `superseded`: rows whose key came again, and counts once.
        bytes: of keys and values.
        batches: requests; `duplicates` of them had been carried out before, by a task that was run again.
        skipped: tasks whose rows an earlier run of this load had written.
        overloaded: times that a node had no room for a request, which was then sent again.
        waited_s: what tasks spent waiting for answers and for `rate`, summed up over them.
        tasks, seconds: how many wrote, and how long all of it took.
        digest: of the rows that were put.
        verified: the table was read back and holds exactly these rows.
    """

    table: str
    name: str
    rows: int
    deletes: int
    superseded: int
    bytes: int
    batches: int
    duplicates: int
    skipped: int
    overloaded: int
    waited_s: float
    tasks: int
    seconds: float
    digest: Digest
    verified: bool

    @property
    def rows_per_s(self) -> float:
        """Rows that were put a second, shuffle included."""
        return self.rows / self.seconds if self.seconds else 0.0


def bulk_load(
    frame: "DataFrame",
    servers: str,
    table: str,
    *,
    key: "str | Column",
    value: "str | Column | None" = None,
    order_by: "str | Column | None" = None,
    txn_id: str | None = None,
    txn_version: int = 0,
    rate: int | None = None,
    tasks_per_shard: int | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    timeout_ms: int = TIMEOUT_MS,
    verify: bool = False,
) -> BulkLoaded:
    """Put a DataFrame's rows in a table that exists.

    Args:
        frame: what to load. It is computed once (twice where tasks fail), and has to give the same rows each time.
        servers: native addresses, `host:port[,host:port...]`.
        table: the table's name.
        key: column, SQL expression or Column. Bytes as they are, text as UTF-8, anything else as text or JSON; not null.
        value: the same; null deletes the key. Default: a JSON object of all other columns.
        order_by: of rows with the same key the one that is last by this is kept; default: the one with the greatest value.
        txn_id: a name under which the data is loaded once, however often it is run. Other data needs another name.
        txn_version: counts the loads of one `txn_id`; a later one bars the earlier ones.
        rate: at most so many bytes a second, all tasks together.
        tasks_per_shard: default: so many that every core of the session has two.
        batch_rows: rows of a request; larger requests are hardly faster and make other clients wait longer.
        batch_bytes: the same in bytes, whichever is reached first.
        timeout_ms: how long a request may go unanswered, fail-overs and a cluster that is busy included.
        verify: read the table back and compare; the table has to be empty before.

    Raises:
        InvalidRequestError: a column is not there, a key is null, a row is too large: nothing was written.
        UnknownTopicError, WrongKindError: there is no such table.
        ReplayConflictError: under this `txn_id` other rows were loaded before.
        TimedOutError: the cluster was away, or too busy, for longer than `timeout_ms`: run it again.
    """
    started = time.monotonic()
    chosen = load_frame(frame, key, value, order_by)
    if min(batch_rows, batch_bytes, timeout_ms) < 1 or (rate is not None and rate < 1):
        raise InvalidRequestError("rate, batch_rows, batch_bytes and timeout_ms are at least 1")
    addresses = parse_servers(servers)
    name = f"load/{txn_id}" if txn_id is not None else f"load/{uuid.uuid4().hex}"
    with Cluster(addresses, timeout_ms) as cluster:
        meta = _loadable(cluster, table)
        slices = tasks_per_shard or slices_for(frame.sparkSession, meta)
        spec = LoadSpec(
            servers=addresses,
            table=table,
            topic_id=meta.topic_id.hex(),
            name=f"{name}/{txn_version}",
            producer=name,
            version=txn_version,
            tasks=TableWriters.shards(meta) * slices,
            slices=slices,
            batch_rows=batch_rows,
            batch_bytes=min(batch_bytes, message_bytes_max(meta) // 2),
            row_bytes_max=message_bytes_max(meta) - RECORD_ROOM_BYTES,
            timeout_ms=timeout_ms,
            rate=rate or 0,
            keeps_book=txn_id is not None,
        )
        was_empty = is_empty(cluster, meta) if verify or txn_id is not None else False
        if txn_id is not None:
            spec, was_empty = _planned(cluster, spec, was_empty=was_empty, fixed=tasks_per_shard is not None)
    if verify and not was_empty:
        raise InvalidRequestError(
            f"table {table} has rows already, so that what is loaded cannot be compared with what is there: load without "
            "verify, or into an empty table"
        )
    results = run_load(chosen, spec)
    digest = sum((result.digest for result in results), Digest())
    if verify:
        verify_table(frame.sparkSession, servers, table, digest, timeout_ms)
    return _summed(spec, results, digest, time.monotonic() - started, verified=verify)


def _loadable(cluster: Cluster, name: str) -> "TopicMeta":
    table = cluster.topic(name, table=True)
    if is_multi(table):
        raise InvalidRequestError(
            f"every replica of table {name} takes writes, and none knows what a task wrote to another one before it was run "
            "again: load into a table with writers=single"
        )
    return table


def run_load(chosen: "DataFrame", spec: LoadSpec, write: "Writer" = write_partition) -> list[TaskResult]:
    """Shuffle, sort and have tasks `write`; `chosen` has columns key and value, and perhaps `_order`."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf
    from pyspark.sql.types import IntegerType, StructField, StructType

    if spec.tasks > TASKS_MAX:
        raise InvalidRequestError(f"{spec.tasks} tasks are too many; {TASKS_MAX} is the most")
    task = StructField(TASK_COLUMN, IntegerType(), nullable=False)
    routed = chosen.mapInArrow(partial(route, spec), StructType([*chosen.schema.fields, task]))
    order = ["key", *([ORDER_COLUMN] if ORDER_COLUMN in chosen.columns else []), "value"]
    sorted_rows = routed.repartitionById(spec.tasks, sf.col(TASK_COLUMN)).sortWithinPartitions(*order)
    if spec.rate:
        cores = parallelism(chosen.sparkSession)
        spec = msgspec.structs.replace(spec, rate=max(1, spec.rate // min(cores, spec.tasks)))
    try:
        rows = sorted_rows.mapInArrow(partial(write, spec), "result string").collect()
    except PySparkException as error:
        raise plain_error(error) from error
    return sorted(
        (msgspec.json.decode(row["result"], type=TaskResult) for row in rows), key=lambda one: one.task
    )


def plain_error(error: Exception) -> Exception:
    """What a task raised, if it was one of ours, in place of Spark's account of it."""
    from antiphon import errors

    said = our_error(str(error))
    if said is None:
        return error
    name, _, message = str(said).partition(": ")
    kind = getattr(errors, name.rpartition(".")[2], None)
    if isinstance(kind, type) and issubclass(kind, errors.AntiphonError):
        return kind(message)
    return errors.AntiphonError(str(said))


def slices_for(spark: "SparkSession", table: "TopicMeta") -> int:
    """Tasks for each shard, so that every core has two."""
    cores = parallelism(spark)
    shards = TableWriters.shards(table)
    return max(1, -(-2 * cores // shards))


def message_bytes_max(table: "TopicMeta") -> int:
    """Bytes of the largest batch that the table takes."""
    try:
        return int(table.config.get("max.message.bytes", MESSAGE_BYTES_DEFAULT))
    except ValueError:
        return MESSAGE_BYTES_DEFAULT


def is_empty(cluster: Cluster, table: "TopicMeta") -> bool:
    """Has the table no row now?"""
    calls = [
        ShardCall(shard.shard_id, TableScan(shard.shard_id, b"", b"", 1, include_value=False))
        for shard in table.shards
    ]
    return not any(answer.body.rows for answer in cluster.call_all(calls))


def verify_table(
    spark: "SparkSession", servers: str, table: str, expected: Digest, timeout_ms: int
) -> Digest:
    """Read the table back; raises VerificationError unless it holds the rows of `expected`."""
    from antiphon.errors import VerificationError

    found = frame_digest(frame_of(spark, servers, timeout_ms, table=table, mode="snapshot"))
    if found != expected:
        raise VerificationError(
            f"table {table} holds {found}, what was written to it is {expected}: did anybody else write to it meanwhile?",
            expected_rows=expected.rows,
            found_rows=found.rows,
        )
    return found


def _planned(cluster: Cluster, spec: LoadSpec, *, was_empty: bool, fixed: bool) -> tuple[LoadSpec, bool]:
    """The load as its first run planned it: how rows are cut must not change. `fixed`: the caller gave the tasks."""
    book = JobState(cluster, spec.name)
    asked = {
        "table": spec.table,
        "topic_id": spec.topic_id,
        "batch_rows": spec.batch_rows,
        "batch_bytes": spec.batch_bytes,
    }
    if fixed:
        asked["slices"] = spec.slices
    stored = book.begin(
        {"job": "bulk_load", **asked, "tasks": spec.tasks, "slices": spec.slices, "was_empty": was_empty}
    )
    same_or_refuse(stored, {"job": "bulk_load", **asked}, spec.name.partition("/")[2])
    spec = msgspec.structs.replace(spec, tasks=int(stored["tasks"]), slices=int(stored["slices"]))
    return spec, bool(stored["was_empty"])


def _summed(
    spec: LoadSpec, results: list[TaskResult], digest: Digest, seconds: float, *, verified: bool
) -> BulkLoaded:
    def of(name: str) -> Any:
        return sum(getattr(result, name) for result in results)

    return BulkLoaded(
        table=spec.table,
        name=spec.name,
        rows=of("rows"),
        deletes=of("deletes"),
        superseded=of("superseded"),
        bytes=of("bytes"),
        batches=of("batches"),
        duplicates=of("duplicates"),
        skipped=of("skipped"),
        overloaded=of("overloaded"),
        waited_s=of("waited_ms") / 1000,
        tasks=len(results),
        seconds=seconds,
        digest=digest,
        verified=verified,
    )
