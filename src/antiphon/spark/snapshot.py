"""Batch reads of a table's state: now, or as of an offset or a time.

Now: each shard is scanned in key order. Writes go on meanwhile, so a scan alone would show some keys older than others; the
changes that were committed during the scan are read too and replace what they touch. The result is exactly the state at one
offset per shard, the committed end when its scan was through. The rows wait in a temporary file, so memory holds only the
changed ones.

As of an offset or a time: the changes from the beginning of the log up to there are folded, which needs a log that is whole.
"""

import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from antiphon.errors import DataLossError
from antiphon.records.batch import Buffer, iter_batches
from antiphon.records.changes import Change, decode_changes
from antiphon.records.split_entries import Release, split_entry_of
from antiphon.spark import columns
from antiphon.spark.connection import Cluster, ShardCall
from antiphon.spark.fetching import FetchPlan, fetch_range
from antiphon.spark.options import ReadOptions
from antiphon.spark.planner import LIST_LATEST, Planner
from antiphon.spark.schema import arrow_schema
from antiphon.wire.metadata import key_hash
from antiphon.wire.requests import ListOffset, Row, TableRows, TableScan, Version

if TYPE_CHECKING:
    import pyarrow as pa

SCAN_ROWS: Final = 10_000


class _Found(NamedTuple):
    key: bytes
    value: bytes
    version: Version
    offset: int | None


class SnapshotPartition(InputPartition):
    """One shard of the table. `until` is the exclusive offset that is asked for; None: now.

    `hashes`: the key hashes that the shard holds now, where the table was ever split.
    """

    def __init__(self, shard: int, shard_id: int, until: int | None, hashes: tuple[int, ...] = ()) -> None:
        super().__init__((shard, shard_id, until, hashes))
        self.shard = shard
        self.hashes = hashes
        self.shard_id = shard_id
        self.until = until


class _Task(NamedTuple):
    cluster: Cluster
    options: ReadOptions
    partition: SnapshotPartition
    schema: "pa.Schema"


class SnapshotReader(DataSourceReader):
    """`spark.read` of a table: a row a key."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """One per shard."""
        planner = Planner(self.options)
        as_of = self.options.as_of
        with planner.cluster:
            planner.refresh()
            if as_of is None:
                return [
                    SnapshotPartition(index, shard.shard_id, None, shard.hashes)
                    for (_, index), shard in planner.shards.items()
                ]
            bounds = planner.bounds()
            # "As of t" includes what happened at t.
            if as_of.timestamp_ms is not None:
                as_of = type(as_of)(as_of.default, as_of.timestamp_ms + 1)
            found: list[InputPartition] = []
            for (name, shard), until in planner.resolve(as_of, bounds).items():
                bound = bounds[name, shard]
                if bound.start > 0:
                    raise DataLossError(
                        f"table {name} shard {shard} has its changes from offset {bound.start} on only: "
                        "its past cannot be rebuilt"
                    )
                if until > bound.end:
                    raise DataLossError(
                        f"table {name} shard {shard} ends at offset {bound.end}, before {until}"
                    )
                known = planner.shards[name, shard]
                if until > known.own_start or not known.own_start:  # before, its keys were another shard's
                    found.append(SnapshotPartition(shard, known.shard_id, until, known.hashes))
            return found

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one shard."""
        if not isinstance(partition, SnapshotPartition):
            return
        with Cluster(self.options.target.servers, self.options.target.timeout_ms) as cluster:
            task = _Task(cluster, self.options, partition, arrow_schema(self.schema))
            if partition.until is None:
                yield from _now(task)
            else:
                folded = _fold(task, 0, partition.until, as_of=True)
                yield from _rows(task, _kept(folded))


def _now(task: _Task) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.compute as pc

    before = _committed(task)
    with tempfile.TemporaryFile() as spool:
        with pa.ipc.new_stream(spool, task.schema) as writer:
            for batch in _rows(task, _scan(task)):
                writer.write_batch(batch)
        changed = _fold(task, before, _committed(task))
        keys = pa.array(list(changed), pa.binary())
        spool.seek(0)
        with pa.ipc.open_stream(spool) as reader:
            for batch in reader:
                fresh = batch.filter(pc.invert(pc.is_in(batch.column("key"), keys))) if changed else batch
                yield from columns.sliced(fresh)
        yield from _rows(task, _kept(changed))


def _committed(task: _Task) -> int:
    shard_id = task.partition.shard_id
    reply = task.cluster.call(ShardCall(shard_id, ListOffset(shard_id, LIST_LATEST))).body
    return int(reply.high_watermark)


def _scan(task: _Task) -> Iterator[_Found]:
    shard_id, start = task.partition.shard_id, b""
    while True:
        reply: TableRows = task.cluster.call(
            ShardCall(shard_id, TableScan(shard_id, start, b"", SCAN_ROWS, hashes=task.partition.hashes))
        ).body
        last: Row | None = None
        for last in reply.rows:
            if last is not None:
                yield _Found(last.key, last.value or b"", last.version, None)
        if not reply.more or last is None:
            return
        start = last.key + b"\0"  # the smallest key after it


def _fold(task: _Task, start: int, end: int, *, as_of: bool = False) -> dict[bytes, Change]:
    """The last change of every key that changed in offsets [start, end); `as_of`: without keys that were released there."""
    last: dict[bytes, Change] = {}
    if end <= start:
        return last
    options = task.options
    plan = FetchPlan(
        task.partition.shard_id, start, end, options.fetch_bytes, "committed", log_start_moves=False
    )
    for batches in fetch_range(task.cluster, plan, options.target.timeout_ms):
        for change in decode_changes(batches, start):
            if change.offset < end:
                last[change.key] = change
        if as_of and task.partition.hashes:
            for first in _released(batches, end):
                last = {key: change for key, change in last.items() if key_hash(key) < first}
    return last


def _released(batches: "Iterable[Buffer]", end: int) -> Iterator[int]:
    """First hashes of the keys that went to another shard by entries in these batches, before offset `end`.

    No change of such a key follows its release, so it does not matter that it is looked at after all changes.
    """
    for batch in batches:
        for header, one in iter_batches(batch):
            if header.is_control and header.base_offset < end:
                entry = split_entry_of(one)
                if isinstance(entry, Release):
                    yield entry.first


def _kept(folded: dict[bytes, Change]) -> Iterator[_Found]:
    for change in folded.values():
        if change.value is not None:
            version = Version(change.version_id, change.modifications, change.created_ms, change.modified_ms)
            yield _Found(change.key, change.value, version, change.offset)


def _rows(task: _Task, found: Iterator[_Found]) -> "Iterator[pa.RecordBatch]":
    rows: list[_Found] = []
    for row in found:
        rows.append(row)
        if len(rows) == SCAN_ROWS:
            yield _batch(task, rows)
            rows = []
    if rows:
        yield _batch(task, rows)


def _batch(task: _Task, rows: list[_Found]) -> "pa.RecordBatch":
    import pyarrow as pa

    keys, values, versions, offsets = zip(*rows, strict=True)
    made = columns.version_columns([(v.id, v.modifications, v.created_ms, v.modified_ms) for v in versions])
    made["key"] = pa.array(keys, pa.binary())
    made["value"] = pa.array(values, pa.binary())
    made["kind"] = columns.kinds(made["value"], made["modifications"])
    made["table"] = pa.array([task.options.target.name] * len(rows), pa.string())
    made["partition"] = pa.array([task.partition.shard] * len(rows), pa.int32())
    made["offset"] = pa.array(offsets, pa.int64())
    made["timestamp"] = made["modified"]
    return columns.fitted(made, task.schema)
