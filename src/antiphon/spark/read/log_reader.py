"""Batch and streaming reads of a log: a topic's records, or a table's changes.

Progress belongs to the query's checkpoint: its offsets are JSON such as `{"flights": {"0": 140, "1": 17, "id": "..."}}`,
exclusive ends. Only committed records are planned for, so what a micro-batch covers can never be taken back, and the same
offsets give the same rows in the same partitions whenever they are read again: a read is exactly once by itself.

Spark builds a streaming reader twice: one lives in a process for the whole run of a query (everything but `read`), the
other one is sent to the tasks. So all that `read` needs is in the partitions.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import is_multi
from antiphon.spark import worker
from antiphon.spark.offsets import (
    Offsets,
    Positions,
    Span,
    ids_in,
    narrowed_in,
    spans,
    split,
    to_offsets,
    to_positions,
)
from antiphon.spark.read.admission import Admitter
from antiphon.spark.read.grouping import grouped, parts_of
from antiphon.spark.read.options import ReadOptions
from antiphon.spark.read.planner import Bounds, Planner
from antiphon.spark.read.split_order import SplitOrder
from antiphon.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from antiphon.client.blocking import Cluster
    from antiphon.spark.offsets import Position

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
    parts = [part for part in parts_of(partition) if isinstance(part, LogPartition)]
    if not parts:
        return  # Spark's stand-in for a read without partitions
    # Planners, of which Spark starts several an epoch, do without all this.
    from antiphon.spark.read import columns
    from antiphon.spark.read.ranges import connect

    target = arrow_schema(schema)
    with connect(options) as cluster:
        for part in parts:
            for batch in _rows(cluster, options, part, target):
                yield from columns.sliced(batch)
    worker.spare_imports()


def _rows(
    cluster: "Cluster", options: ReadOptions, part: LogPartition, target: "pa.Schema"
) -> "Iterator[pa.RecordBatch]":
    from antiphon.records.unreadable import plain_limit
    from antiphon.spark.read.ranges import Place, Range, change_decoder, log_decoder, read_range

    span = part.span
    wanted = Range(Place(span.topic, span.shard, part.shard_id), span.start, span.end)
    if options.format != "raw":
        from antiphon.spark.read.formats import formatted

        return formatted(cluster, options, wanted, target)
    if options.mode == "changes":
        decoder = change_decoder(target)
    else:
        topics = cluster.metadata(refresh=False).topics
        config = next((topic.config for topic in topics if topic.name == span.topic), {})
        decoder = log_decoder(target, plain_limit(config))
    return read_range(cluster, options, wanted, decoder)


def _partitions(planner: Planner, ranges: Sequence[Span]) -> list[InputPartition]:
    options = planner.options
    cut = split(list(ranges), options.min_partitions, options.max_records_per_partition)
    parts = [LogPartition(span, planner.shard_id((span.topic, span.shard))) for span in cut]
    return grouped(parts, [span.size for span in cut], options.max_partitions)


class LogBatchReader(DataSourceReader):
    """`spark.read` of a topic, or of a table with mode=changes. The range is fixed when the DataFrame is first planned."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Resolve both ends once; a range per shard, more with minPartitions."""
        options = self.options
        planner = Planner(options)
        with planner.cluster:
            planner.refresh(of_all_nodes=True)
            bounds = planner.bounds()
            start = planner.resolve(options.starting, bounds)
            end = planner.resolve(options.ending, bounds)
            both = {position: end[position] for position in end if position in start}
            is_chosen_end = options.ending.only_chosen or options.ending.timestamp_ms is not None
            for position, offset in both.items():
                if start[position] > offset and is_chosen_end:
                    raise InvalidRequestError(
                        f"{position[0]} shard {position[1]}: the start {start[position]} is after the end {offset}"
                    )
            starts = {position: start[position] for position in both}
            self._check_starts(planner, starts, bounds)
            ranges = [planner.checked(span, bounds[span.topic, span.shard]) for span in spans(starts, both)]
            return _partitions(planner, [span for span in ranges if span.size])

    @staticmethod
    def _check_starts(planner: Planner, starts: Positions, bounds: "Mapping[Position, Bounds]") -> None:
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
        self._admitter = Admitter(options.admission)
        self._order = SplitOrder()
        self._target: Positions | None = None  # where trigger(availableNow=True) stops
        self._newest: Positions = {}
        self._is_idle = False
        self._asked_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need; connections stay where they are."""
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> Planner:
        """Made at the first use: only one of the two copies of this object talks to the cluster."""
        if self._planner is None:
            self._planner = Planner(self.options, missing_is_fine=True)
        return self._planner

    # -- how far ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where the first run of a query begins."""
        planner = Planner(self.options)  # a topic that is not there is a mistake now, and a loss later
        with planner.cluster:
            planner.refresh(of_all_nodes=True)
            bounds = planner.bounds()
            for name, topic in planner.topics.items():
                if is_multi(topic) and self.options.fail_on_data_loss:
                    raise InvalidRequestError(
                        f"every replica of {name} takes writes, so offsets are one node's own: when that node is gone, a "
                        "stream that goes on at another one may miss records or see them again. To accept that, set "
                        "failOnDataLoss=false"
                    )
            start = planner.resolve(self.options.starting, bounds)
            for position, offset in start.items():
                planner.checked(Span(*position, offset, offset), bounds[position])
            # Offsets for all shards say where to begin; offsets for some of them are a choice.
            narrowed = {topic for topic, _ in set(planner.shards) - set(start)}
            return to_offsets(start, planner.ids, narrowed)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger` or `maxBytesPerTrigger`, or all. With both, `latestOffset` goes by both."""
        admission = self.options.admission
        if admission.offsets_max is not None:
            return ReadMaxRows(admission.offsets_max)
        return ReadAllAvailable() if admission.bytes_max is None else ReadMaxBytes(admission.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where the shards end now."""
        self.planner.refresh(of_all_nodes=True)  # what is overlooked now would not be read
        self._target = {position: bound.end for position, bound in self.planner.bounds().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """End of the next micro-batch: `start` again where there is nothing new, or too little."""
        self._rest()
        planner, positions = self.planner, to_positions(start)
        planner.make_sure(ids_in(start), positions)
        bounds = planner.bounds()
        begin = self._living(start, positions)
        self._check_ends(begin, bounds)
        end = {position: bound.end for position, bound in bounds.items()}
        if self._target is not None:
            end = {position: offset for position, offset in end.items() if position in self._target}
            end = {position: min(offset, self._target[position]) for position, offset in end.items()}
        narrowed = narrowed_in(start)
        end = {p: offset for p, offset in end.items() if p[0] not in narrowed or p in positions}
        self._newest = {**begin, **end}
        for position in self._order.waiting(planner, begin, bounds):
            end.pop(position, None)
        for position in end:
            begin.setdefault(position, planner.first(position, bounds[position]))
        # Spark asks without a limit where all is to be one batch (Trigger.Once).
        is_limited = not isinstance(limit, ReadAllAvailable)
        reached = self._admitter.admit(
            planner, begin, end, is_last=self._target is not None, is_limited=is_limited
        )
        if reached is None:
            self._is_idle = True
            return start
        ids = {**ids_in(start), **planner.ids}
        found = to_offsets(reached, ids, narrowed)
        self._is_idle = found == start
        return found

    def _rest(self) -> None:
        """While nothing is new, wait so that an idle query asks 20 times a second and not 100."""
        wait_s = self._asked_at + IDLE_S - time.monotonic()
        if self._is_idle and wait_s > 0:
            time.sleep(wait_s)
        self._asked_at = time.monotonic()

    def _living(self, offsets: Mapping[str, Any], positions: Positions) -> Positions:
        """Positions in topics that are still those that they were; those of the others are lost, or begin anew."""
        planner, known = self.planner, ids_in(offsets)
        stale = set()
        for topic in sorted(offsets):
            now = planner.ids.get(topic)
            if now is None:
                planner.lost(f"{topic} is gone: it was deleted, or the options do not name it any more")
            elif known.get(topic, now) != now:
                planner.lost(
                    f"{topic} was deleted and created again: the offsets of this query are of the old one"
                )
                stale.add(topic)
        return {position: offset for position, offset in positions.items() if position[0] not in stale}

    def _check_ends(self, begin: Positions, bounds: "Mapping[Position, Bounds]") -> None:
        for position, offset in begin.items():
            end = bounds[position].end if position in bounds else offset
            if offset > end:
                self.planner.lost(
                    f"{position[0]} shard {position[1]} ends at offset {end}, and this query has read up to {offset}: "
                    "records that were committed are gone"
                )
                begin[position] = end

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """Ends as of the last look, for the query's progress: `latestOffset - endOffset` is the lag."""
        return to_offsets(self._newest) if self._newest else None

    # -- what lies in between -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A range per shard, more with minPartitions; the same for the same offsets."""
        planner = self.planner
        old, new = ids_in(start), ids_in(end)
        planner.make_sure(new, to_positions(end))
        bounds = planner.bounds()
        begin = {
            position: offset
            for position, offset in to_positions(start).items()
            if old.get(position[0]) == new.get(position[0]) or position[0] not in old
        }
        stop = to_positions(end)
        ranges = []
        for span in spans(begin, stop):
            position = (span.topic, span.shard)
            bound = bounds.get(position)
            topic_id = planner.ids.get(span.topic)
            if bound is None:
                planner.lost(f"{span.topic} has no shard {span.shard} any more")
            elif new.get(span.topic, topic_id) != topic_id:
                planner.lost(
                    f"{span.topic} was deleted and created again: offsets of this batch are of the old one"
                )
            elif position not in begin:  # added after the start: from whatever it has
                first = planner.first(position, bound)
                ranges.append(planner.checked(span._replace(start=min(first, span.end)), bound))
            else:
                ranges.append(planner.checked(span, bound))
        return _partitions(planner, [span for span in ranges if span.size])

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Rows of one partition."""
        return read_partition(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint keeps the progress, and records stay as long as the topic's retention says."""

    def stop(self) -> None:
        """Close connections (Spark mostly ends the process instead)."""
        if self._planner is not None:
            self._planner.cluster.close()
