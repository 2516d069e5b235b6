"""Batch and streaming reads of a log: a topic's records, or a table's changes.

Progress belongs to the query's checkpoint: its offsets are JSON such as `{"flights": {"0": 140, "1": 17}}`, exclusive ends.
Only committed records are planned for, so what a micro-batch covers can never be taken back, and the same offsets give the
same rows in the same partitions whenever they are read again: a read is exactly once by itself.

Spark builds a streaming reader twice: one lives in a process for the whole run of a query (everything but `read`), the
other one is sent to the tasks. So all that `read` needs is in the partitions.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from antiphon.errors import InvalidRequestError
from antiphon.spark import columns
from antiphon.spark.connection import Cluster
from antiphon.spark.fetching import FetchPlan, fetch_range
from antiphon.spark.offsets import Offsets, Positions, Span, advance, spans, split, to_offsets, to_positions
from antiphon.spark.options import OffsetSpec, ReadOptions
from antiphon.spark.planner import Planner
from antiphon.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

IDLE_S: Final = (
    0.05  # Spark asks for the latest offset in a tight loop; answer at most this often while nothing is new
)


class LogPartition(InputPartition):
    """Offsets of one shard that one task reads."""

    def __init__(self, span: Span, shard_id: int) -> None:
        super().__init__((span, shard_id))
        self.span = span
        self.shard_id = shard_id


def read_partition(
    options: ReadOptions, schema: Any, partition: InputPartition | None
) -> "Iterator[pa.RecordBatch]":
    """The rows of a partition, as Arrow record batches. Runs in tasks."""
    if not isinstance(partition, LogPartition):
        return  # Spark's stand-in for a read without partitions
    span = partition.span
    target = arrow_schema(schema)
    rows = columns.change_rows if options.target.is_table else columns.log_rows
    plan = FetchPlan(
        partition.shard_id,
        span.start,
        span.end,
        options.fetch_bytes,
        options.isolation,
        not options.fail_on_data_loss,
    )
    with Cluster(options.target.servers, options.target.timeout_ms) as cluster:
        for batches in fetch_range(cluster, plan, options.target.timeout_ms):
            yield from columns.sliced(rows(batches, span.start, span.end, (span.topic, span.shard), target))


def _partitions(planner: Planner, ranges: Sequence[Span]) -> list[InputPartition]:
    cut = split(list(ranges), planner.options.min_partitions)
    return [LogPartition(span, planner.shard_id((span.topic, span.shard))) for span in cut]


class LogBatchReader(DataSourceReader):
    """`spark.read` of a topic, or of a table with mode=changes. The range is fixed when the DataFrame is first planned."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Resolve both ends once; a range per shard, more with minPartitions."""
        planner = Planner(self.options)
        with planner.cluster:
            bounds = planner.bounds()
            start = planner.resolve(self.options.starting, bounds)
            end = planner.resolve(self.options.ending, bounds)
            both = {position: end[position] for position in end if position in start}
            for position, offset in both.items():
                if start[position] > offset and self.options.ending != OffsetSpec(
                    self.options.ending.default
                ):
                    raise InvalidRequestError(
                        f"{position[0]} shard {position[1]}: the start {start[position]} is after the end {offset}"
                    )
            starts = {position: start[position] for position in both}
            self._check_starts(planner, starts, bounds)
            ranges = [planner.checked(span, bounds[span.topic, span.shard]) for span in spans(starts, both)]
            return _partitions(planner, [span for span in ranges if span.size])

    @staticmethod
    def _check_starts(planner: Planner, starts: Positions, bounds: Any) -> None:
        for position, offset in starts.items():
            if offset > bounds[position].end:
                planner.lost(
                    f"{position[0]} shard {position[1]} ends at offset {bounds[position].end}, before the start {offset}"
                )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Rows of one partition."""
        return read_partition(self.options, self.schema, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream` of a topic, or of a table's changes."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self.options = options
        self.schema = schema
        self._planner: Planner | None = None
        self._target: Positions | None = None  # where trigger(availableNow=True) stops
        self._newest: Positions = {}
        self._asked_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need; connections stay where they are."""
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> Planner:
        """Made at the first use: only one of the two copies of this object talks to the cluster."""
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where the first run of a query begins."""
        bounds = self.planner.bounds()
        start = self.planner.resolve(self.options.starting, bounds)
        for position, offset in start.items():
            bound = bounds[position]
            self.planner.checked(Span(*position, offset, offset), bound)
        return to_offsets(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`, or all."""
        limit = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where the shards end now."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """End of the next micro-batch: `start` again where there is nothing new."""
        begin = to_positions(start)
        end = self._target if self._target is not None else self._fresh_ends(begin)
        if self.options.starting.only_chosen:
            end = {position: offset for position, offset in end.items() if position in begin}
        self._newest = {**begin, **end}
        return to_offsets(advance(begin, end, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def _fresh_ends(self, begin: Positions) -> Positions:
        """Committed ends; while nothing is new, waits so that an idle query asks 20 times a second and not 100."""
        wait_s = self._asked_at + IDLE_S - time.monotonic()
        if wait_s > 0 and all(begin.get(position, 0) >= end for position, end in self._newest.items()):
            time.sleep(wait_s)
        self._asked_at = time.monotonic()
        return self._ends()

    def _ends(self) -> Positions:
        return {position: bound.end for position, bound in self.planner.bounds().items()}

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """Ends as of the last look, for the query's progress: `latestOffset - endOffset` is the lag."""
        return to_offsets(self._newest) if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A range per shard, more with minPartitions; the same for the same offsets."""
        begin, stop = to_positions(start), to_positions(end)
        bounds = self.planner.bounds()
        ranges = []
        for span in spans(begin, stop):
            bound = bounds.get((span.topic, span.shard))
            if bound is None:
                self.planner.lost(f"{span.topic} has no shard {span.shard} any more")
            elif (span.topic, span.shard) not in begin:  # added after the start: from whatever it has
                first = self.planner.first((span.topic, span.shard), bound)
                ranges.append(span._replace(start=min(first, span.end)))
            else:
                ranges.append(self.planner.checked(span, bound))
        return _partitions(self.planner, [span for span in ranges if span.size])

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Rows of one partition."""
        return read_partition(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint keeps the progress, and records stay as long as the topic's retention says."""

    def stop(self) -> None:
        """Close connections (Spark mostly ends the process instead)."""
        if self._planner is not None:
            self._planner.cluster.close()
