"""Finds out where the shards of a read begin and end, and turns options into positions. Used by Spark's planners only."""

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import AntiphonError, InvalidRequestError, UnknownShardError
from antiphon.spark.connection import Cluster, ShardCall
from antiphon.spark.offsets import Position, Positions, Span
from antiphon.spark.options import EARLIEST, LATEST, OffsetSpec, ReadOptions
from antiphon.wire.requests import Fetch, Fetched, ListOffset, OffsetReply

if TYPE_CHECKING:
    from antiphon.wire.metadata import ShardMeta

LIST_LATEST: Final = -1  # timestamp of `ListOffset` that asks for the high watermark
METADATA_AGE_S: Final = 1.0  # added shards are noticed after this long


class DataLossError(AntiphonError):
    """Records that a read was to give are gone: trimmed by retention, or their topic was deleted and created again."""

    code = "data_loss"


class Bounds(NamedTuple):
    """First offset that a shard still has, and the exclusive end of what may be read."""

    start: int
    end: int


class Planner:
    """Bounds of all shards that `options` name. Connects at the first use; holds one connection per node."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.cluster = Cluster(options.target.servers, options.target.timeout_ms)
        self.shard_ids: dict[Position, int] = {}
        self.shards: dict[Position, ShardMeta] = {}
        self._asked_at = 0.0

    def refresh(self) -> None:
        """Look up the shards, unless that was done a moment ago. Raises UnknownTopicError, WrongKindError."""
        now = time.monotonic()
        if self.shard_ids and now - self._asked_at < METADATA_AGE_S:
            return
        target = self.options.target
        found: dict[Position, ShardMeta] = {}
        for number, name in enumerate(target.names):
            topic = self.cluster.topic(name, table=target.is_table, refresh=number == 0)
            found.update({(name, shard.index): shard for shard in topic.shards})
        self.shards = dict(sorted(found.items()))
        self.shard_ids = {position: shard.shard_id for position, shard in self.shards.items()}
        self._asked_at = now

    def bounds(self) -> dict[Position, Bounds]:
        """Bounds of every shard now, in one round trip per node."""
        self.refresh()
        found = {
            position: Bounds(reply.log_start, reply.high_watermark)
            for position, reply in self._list_offsets(LIST_LATEST).items()
        }
        if self.options.isolation == "uncommitted":
            return self._uncommitted(found)
        return found

    def _list_offsets(self, timestamp_ms: int) -> dict[Position, OffsetReply]:
        answers = self.cluster.call_all(
            [ShardCall(shard_id, ListOffset(shard_id, timestamp_ms)) for shard_id in self.shard_ids.values()]
        )
        return dict(zip(self.shard_ids, (answer.body for answer in answers), strict=True))

    def _uncommitted(self, committed: dict[Position, Bounds]) -> dict[Position, Bounds]:
        calls = [
            ShardCall(shard_id, Fetch(shard_id, committed[position].end, 1, 0, "uncommitted"))
            for position, shard_id in self.shard_ids.items()
        ]
        replies: list[Fetched] = [answer.body for answer in self.cluster.call_all(calls)]
        return {
            position: Bounds(committed[position].start, max(committed[position].end, reply.log_end))
            for position, reply in zip(self.shard_ids, replies, strict=True)
        }

    def resolve(self, spec: OffsetSpec, bounds: dict[Position, Bounds]) -> Positions:
        """Positions that `spec` stands for; only the chosen shards where it chooses. Raises UnknownShardError."""
        if spec.timestamp_ms is not None:
            by_time = self._list_offsets(spec.timestamp_ms)
            # No record that late: such records, should they come, come after the end.
            return {
                position: reply.offset if reply.offset >= 0 else bounds[position].end
                for position, reply in by_time.items()
            }
        if not spec.only_chosen:
            return {
                position: self.first(position, bound) if spec.default == EARLIEST else bound.end
                for position, bound in bounds.items()
            }
        positions = {}
        for topic, shards in spec.chosen.items():
            for shard, offset in shards.items():
                bound = bounds.get((topic, shard))
                if bound is None:
                    count = sum(name == topic for name, _ in bounds)
                    raise UnknownShardError(f"{topic} has shards 0 to {count - 1}, not {shard}")
                first = self.first((topic, shard), bound)
                positions[topic, shard] = {EARLIEST: first, LATEST: bound.end}.get(offset, offset)
        return positions

    def first(self, position: Position, bound: Bounds) -> int:
        """Where a shard's own log begins: what stands before is in the log of the shard that it was split off, too."""
        return min(max(bound.start, self.shards[position].own_start), bound.end)

    def checked(self, span: Span, bound: Bounds) -> Span:
        """The part of `span` that is there; DataLossError (with failOnDataLoss) where its beginning is not."""
        if span.end > bound.end:
            self.lost(
                f"{span.topic} shard {span.shard} ends at offset {bound.end}, but {span.end} was asked for: "
                "was the topic deleted and created again?"
            )
        if span.start < bound.start:
            self.lost(
                f"{span.topic} shard {span.shard} begins at offset {bound.start}, {span.start} was asked for: "
                "retention removed the records in between"
            )
        start = min(max(span.start, bound.start), bound.end)
        return span._replace(start=start, end=max(start, min(span.end, bound.end)))

    def lost(self, what: str) -> None:
        """Raise DataLossError unless the user said that it is fine."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}. To go on with what is there, set failOnDataLoss=false")

    def shard_id(self, position: Position) -> int:
        """Id of a shard that was looked up before."""
        found = self.shard_ids.get(position)
        if found is None:
            raise InvalidRequestError(f"{position[0]} has no shard {position[1]} (any more)")
        return found
