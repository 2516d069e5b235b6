"""Batch reads of a table's state: now, or as of an offset or a time.

Now: where a shard's log is whole and not large, the changes in it are folded, which takes a fraction of the work for the
reader and for the node. Otherwise the shard is scanned in key order. Writes go on meanwhile, so a scan alone would show some
keys older than others; the changes that were committed during the scan are read too and replace what they touch. Either way
the result is exactly the state at one offset per shard: the committed end as of the planning, or when its scan was through.
The rows of a scan wait in a temporary file, so memory holds only the changed ones. A shard that is split meanwhile is
scanned anew, by the shards that have its keys then.

As of an offset or a time: the changes from the beginning of the log up to there are folded, which needs a log that is whole,
in the cluster or in the archive. The state has to fit into the task's memory.
"""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from antiphon.archive import catalog as archived
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import DataLossError, InvalidRequestError
from antiphon.model.metadata import KeyRanges, is_multi
from antiphon.model.requests import ListOffset, OffsetReply, TableRows, TableScan
from antiphon.model.rows import Row
from antiphon.records.batch import iter_batches
from antiphon.records.split_entries import Release, split_entry_of
from antiphon.spark import worker
from antiphon.spark.offset_options import OffsetSpec
from antiphon.spark.read import columns
from antiphon.spark.read.grouping import grouped, parts_of
from antiphon.spark.read.options import ReadOptions
from antiphon.spark.read.planner import LIST_LATEST, Planner
from antiphon.spark.read.ranges import Decoder, Place, Range, change_decoder, connect, read_range
from antiphon.spark.read.table_cut import Hashes, answering
from antiphon.spark.schema import arrow_schema, table_schema

if TYPE_CHECKING:
    import pyarrow as pa

SCAN_ROWS: Final = 10_000
FOLD_BYTES_MAX: Final = 256 * 1024 * 1024  # of a log that is folded rather than the store scanned


class Holder(NamedTuple):
    """A shard and the hashes of the keys that it is asked for; none: all, of a table that was never split."""

    shard: int
    shard_id: int
    hashes: tuple[int, ...]


class SnapshotPartition(InputPartition):
    """The keys of one shard of the table. `until` is the exclusive offset up to which its log is folded; None: scan it.

    `is_now`: that is the committed end, and if the log cannot be folded the store is scanned. `hashes`: the ranges of hashes
    that the shard answers for. `is_split`: was the table ever split? `unreached`: ids of shards that the cut names before
    they were split off.
    """

    def __init__(
        self,
        place: tuple[int, int],
        until: int | None,
        hashes: tuple[Hashes, ...],
        *,
        is_split: bool,
        is_now: bool = False,
        drops_released: bool = False,
        unreached: tuple[int, ...] = (),
    ) -> None:
        super().__init__((*place, until, hashes))
        self.shard, self.shard_id = place
        self.until = until
        self.hashes = hashes
        self.is_split = is_split
        self.is_now = is_now
        self.drops_released = drops_released
        self.unreached = unreached


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
        """One per shard that has what is asked for, or fewer with maxPartitions."""
        planner = Planner(self.options)
        with planner.cluster:
            planner.refresh(of_all_nodes=True)
            if self.options.as_of is not None:
                found = _partitions_as_of(planner, self.options.as_of)
            else:
                found = _partitions_now(planner)
        return grouped(
            found, [1] * len(found), self.options.max_partitions
        )  # keys are hashed: shards are alike

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one shard, or of several."""
        parts = [part for part in parts_of(partition) if isinstance(part, SnapshotPartition)]
        if not parts:
            return
        with connect(self.options) as cluster:
            for part in parts:
                task = _Task(cluster, self.options, part, arrow_schema(self.schema))
                is_now = part.until is None or part.is_now
                for batch in _now(task) if is_now or part.until is None else _as_of(task, part.until):
                    yield from columns.sliced(batch)
        worker.spare_imports()


# -- as of ----------------------------------------------------------------------------------------------------------


def _partitions_as_of(planner: Planner, as_of: OffsetSpec) -> list[InputPartition]:
    name, keys = planner.options.target.name, planner.options.keys
    shards = planner.topics[name].shards
    if is_multi(planner.topics[name]):
        raise InvalidRequestError(
            f"every replica of table {name} takes writes, so there is no one order of its changes: "
            "only its state of now can be read"
        )
    bounds = planner.bounds()
    if as_of.is_number and len(shards) > 1:
        raise InvalidRequestError(
            f"table {name} has {len(shards)} shards, each with offsets of its own: give asOfOffset as "
            f'{{"{name}": {{"0": 23, ...}}}}'
        )
    is_time = as_of.timestamp_ms is not None
    if as_of.timestamp_ms is not None:  # "as of t" includes what happened at t
        as_of = OffsetSpec(as_of.default, as_of.timestamp_ms + 1)
    until = {shard: offset for (_, shard), offset in planner.resolve(as_of, bounds).items()}
    known = {shard.index: shard for shard in shards}
    unreached = tuple(known[index].shard_id for index, end in until.items() if end < known[index].own_start)
    is_split = any(shard.hashes for shard in shards)
    found: list[InputPartition] = []
    for index, hashes in answering(shards, until).items():
        if keys is not None and not keys.is_within(hashes):
            continue
        bound = bounds[name, index]
        if bound.start > 0:
            raise DataLossError(
                f"table {name} shard {index} has its changes from offset {bound.start} on only: its past cannot be rebuilt"
            )
        if until[index] > bound.end:
            raise DataLossError(
                f"table {name} shard {index} ends at offset {bound.end}, before {until[index]}"
            )
        found.append(
            SnapshotPartition(
                (index, known[index].shard_id),
                until[index],
                hashes,
                is_split=is_split,
                drops_released=not is_time,
                unreached=unreached,
            )
        )
    return found


def _as_of(task: _Task, until: int) -> "Iterator[pa.RecordBatch]":
    from antiphon.spark.read import table_fold

    partition = task.partition
    place = Place(task.options.target.name, partition.shard, partition.shard_id)
    folded, released = _fold(task, Range(place, 0, until), drop_deleted=True)
    hashes: Sequence[Hashes] = partition.hashes
    if partition.drops_released:
        for release in released:
            if release.child in partition.unreached:
                raise InvalidRequestError(
                    f"table {place.topic}: asOfOffset asks for shard {place.shard} as of offset {until}, when it had handed "
                    "keys over to another shard, and for that one before it had them. Ask for it as of its own start "
                    f"({release.start}) or later, or for shard {place.shard} as of an earlier offset"
                )
            hashes = [(first, min(last, release.first - 1)) for first, last in hashes]
    for rows in table_fold.joined(folded, columns.ROWS_MAX):
        yield _fitted(task, table_fold.within(rows, hashes) if partition.is_split else rows)


def _fold(task: _Task, wanted: Range, *, drop_deleted: bool) -> "tuple[list[pa.RecordBatch], list[Release]]":
    """The last change of every key that changed in a range, and the keys that were handed over there."""
    from antiphon.spark.read.table_fold import Fold

    schema = arrow_schema(table_schema())
    decoder = change_decoder(schema)
    fold = Fold(drop_deleted=drop_deleted)
    released: list[Release] = []
    lowest = wanted.end  # of the log, where the rest is archived
    keys = task.options.keys

    def from_log(
        batches: Sequence[memoryview], start: int, end: int, place: tuple[str, int]
    ) -> "pa.RecordBatch":
        nonlocal lowest
        for piece in batches:
            for header, batch in iter_batches(piece):
                lowest = min(lowest, header.base_offset)
                if header.is_control and header.base_offset < end:
                    _note(batch, released)
        return decoder.from_log(batches, start, end, place)

    if wanted.end > wanted.start:
        for changes in read_range(
            task.cluster, task.options, wanted, Decoder(from_log, decoder.from_archive)
        ):
            fold.add(changes if keys is None else keys.of(changes))
    if lowest > wanted.start and task.partition.is_split:
        for entry in archived.archived_split_entries(
            task.cluster, wanted.place.topic, wanted.place.shard, wanted.start, lowest
        ):
            _note(memoryview(entry), released)
    return fold.result(), released


def _note(batch: memoryview, released: list[Release]) -> None:
    entry = split_entry_of(batch)
    if isinstance(entry, Release):
        released.append(entry)


# -- now ------------------------------------------------------------------------------------------------------------


def _partitions_now(planner: Planner) -> list[InputPartition]:
    topic = planner.topics[planner.options.target.name]
    ranges = KeyRanges(topic.shards)
    keys = planner.options.keys
    # A shard's log has all keys; some of them are sooner found in its store.
    statuses = {} if is_multi(topic) or keys is not None else planner.statuses()
    sizes = {shard_id: status.size_bytes for shard_id, status in statuses.items()}
    ends = planner.bounds() if sizes else {}
    found: list[InputPartition] = []
    for position, shard in planner.shards.items():
        if keys is not None and not keys.is_within([ranges.range_of(shard)]):
            continue
        bound = ends.get(position)
        is_whole = bound is not None and bound.log_start == 0
        until = bound.end if bound is not None and is_whole else None
        if sizes.get(shard.shard_id, FOLD_BYTES_MAX + 1) > FOLD_BYTES_MAX:
            until = None
        found.append(
            SnapshotPartition(
                (shard.index, shard.shard_id),
                until,
                (ranges.range_of(shard),),
                is_split=ranges.is_split,
                is_now=True,
            )
        )
    return found


def _now(task: _Task) -> "Iterator[pa.RecordBatch]":
    """The state at the committed end as of the planning, or at a later one."""
    if task.partition.until is not None:
        rows = _as_of(task, task.partition.until)
        try:
            first = next(rows, None)  # everything is folded by then
        except DataLossError:  # trimmed meanwhile
            first, rows = None, _scanned_state(task)
        if first is not None:
            yield first
        yield from rows
    else:
        yield from _scanned_state(task)


def _scanned_state(task: _Task) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    from antiphon.spark.read import table_fold

    with tempfile.TemporaryFile() as spool:

        def attempt() -> "list[pa.RecordBatch]":
            spool.seek(0)
            spool.truncate()  # nothing of an earlier attempt was handed on yet
            return _scan_all(task, _holders(task), spool)

        changed = task.cluster.across_splits(attempt)
        spool.seek(0)
        with pa.ipc.open_stream(spool) as reader:
            for batch in reader:
                yield table_fold.without_keys(batch, changed).select(task.schema.names)
        for rows in table_fold.joined(changed, columns.ROWS_MAX):
            yield _fitted(task, table_fold.with_values(rows))


def _holders(task: _Task) -> list[Holder]:
    """The shards that hold the partition's keys now."""
    topic = task.cluster.topic(task.options.target.name, table=True, refresh=False)
    parts = KeyRanges(topic.shards).parts_of(*task.partition.hashes[0])
    return [Holder(shard.index, shard.shard_id, hashes) for shard, hashes in parts]


def _scan_all(task: _Task, holders: Sequence[Holder], spool: IO[bytes]) -> "list[pa.RecordBatch]":
    """Scan all holders into the spool; returns what changed meanwhile: the last change of each key that did."""
    import pyarrow as pa

    changed: list[pa.RecordBatch] = []
    has_key = "key" in task.schema.names
    schema = task.schema if has_key else task.schema.append(pa.field("key", pa.binary()))
    with pa.ipc.new_stream(spool, schema) as writer:
        for holder in holders:
            before = _committed(task, holder)
            for rows in _scan(task, holder):
                writer.write_batch(_scanned(task, holder, rows, schema))
            place = Place(task.options.target.name, holder.shard, holder.shard_id)
            changed += _fold(task, Range(place, before, _committed(task, holder)), drop_deleted=False)[0]
    return changed


def _committed(task: _Task, holder: Holder) -> int:
    reply: OffsetReply = task.cluster.call(
        ShardCall(holder.shard_id, ListOffset(holder.shard_id, LIST_LATEST))
    ).body
    return reply.high_watermark


def _scan(task: _Task, holder: Holder) -> Iterator[Sequence[Row]]:
    """Pages of rows; the next one is on its way while one is made into columns."""
    keys = task.options.keys
    first, end = (keys.start, keys.end) if keys is not None else (b"", b"")

    def page(start: bytes) -> TableRows:
        request = TableScan(holder.shard_id, start, end, SCAN_ROWS, hashes=holder.hashes)
        reply: TableRows = task.cluster.call(ShardCall(holder.shard_id, request)).body
        return reply

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-scan") as ahead:
        waiting = ahead.submit(page, first)
        while True:
            reply = waiting.result()
            rows = [row for row in reply.rows if row is not None]
            if not reply.more or not rows:
                if rows:
                    yield rows
                return
            waiting = ahead.submit(page, rows[-1].key + b"\0")  # from the smallest key after it
            yield rows


def _scanned(task: _Task, holder: Holder, rows: Sequence[Row], schema: "pa.Schema") -> "pa.RecordBatch":
    import numpy as np
    import pyarrow as pa

    from antiphon.records.arrow import binaries, constants, version_columns

    versions = [row.version for row in rows]
    numbers = np.empty((len(rows), 4), np.int64)
    numbers[:, 0] = [version.id for version in versions]
    numbers[:, 1] = [version.modifications for version in versions]
    numbers[:, 2] = [version.created_ms for version in versions]
    numbers[:, 3] = [version.modified_ms for version in versions]
    made = version_columns(numbers)
    made["key"] = binaries([row.key for row in rows])
    made["value"] = binaries([row.value or b"" for row in rows])
    made["kind"] = columns.kinds(made["value"], made["modifications"])
    place = constants(len(rows), task.options.target.name, holder.shard)
    made["table"], made["partition"] = place["topic"], place["partition"]
    made["offset"] = pa.nulls(len(rows), pa.int64())
    made["timestamp"] = made["modified"]
    return columns.fitted(made, schema)


def _fitted(task: _Task, rows: "pa.RecordBatch") -> "pa.RecordBatch":
    """Changes as rows of the state."""
    made = {name: rows.column(name) for name in rows.schema.names}
    made["timestamp"] = made["modified"]
    return columns.fitted(made, task.schema)
