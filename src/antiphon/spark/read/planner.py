"""Finds out where the shards of a read begin and end, and turns options into positions. Used by Spark's planners only."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.archive import catalog as archived
from antiphon.client.blocking import Cluster, ShardCall, list_offsets
from antiphon.client.log_reader import committed_end
from antiphon.errors import (
    AntiphonError,
    DataLossError,
    InvalidRequestError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import (
    Fetch,
    Fetched,
    GetStatus,
    OffsetReply,
    ReplicaStatus,
    StatusReply,
)
from antiphon.spark.offset_options import EARLIEST, LATEST, OffsetSpec
from antiphon.spark.offsets import Position, Positions, Span
from antiphon.spark.read.options import ReadOptions

if TYPE_CHECKING:
    from antiphon.model.metadata import ShardMeta

LIST_LATEST: Final = -1  # timestamp of `ListOffset` that asks for the high watermark
METADATA_AGE_S: Final = 1.0  # added shards and topics are noticed after this long


class Bounds(NamedTuple):
    """First offset that can still be read, and the exclusive end of what may be read.

    `log_start`: what is before it is in the archive only.
    """

    start: int
    end: int
    log_start: int


class Planner:
    """Bounds of all shards that `options` name. Connects at the first use; holds one connection per node.

    `missing_is_fine`: topics that are named and not there are left out (`topics` tells) rather than an error.
    """

    def __init__(self, options: ReadOptions, *, missing_is_fine: bool = False) -> None:
        self.options = options
        self.cluster = Cluster(options.target.servers, options.target.timeout_ms, options.retries)
        self.topics: dict[str, TopicMeta] = {}
        self.shards: dict[Position, ShardMeta] = {}
        self.shard_ids: dict[Position, int] = {}
        self._missing_is_fine = missing_is_fine
        self._pattern = None if options.target.pattern is None else re.compile(options.target.pattern)
        self._asked_at: float | None = None
        self._doubted: dict[str, str | None] = {}  # topics that are not what was expected, as all nodes say

    # -- shards -------------------------------------------------------------------------------------------------

    def refresh(self, *, at_once: bool = False, of_all_nodes: bool = False) -> None:
        """Look up topics and shards, unless that was done a moment ago and not `at_once`.

        `of_all_nodes`: ask every node, for one that has just started can be behind. Raises UnknownTopicError,
        UnknownShardError, WrongKindError, UnreachableError.
        """
        now = time.monotonic()
        is_fresh = self._asked_at is not None and now - self._asked_at < METADATA_AGE_S
        if is_fresh and not at_once and not of_all_nodes:
            return
        if of_all_nodes:
            self.cluster.newest_metadata()  # passes over nodes that are away, and waits while all are
        else:
            self.cluster.metadata()
        try:
            self.topics = self._find_topics()
        except UnknownTopicError:
            self.cluster.newest_metadata()
            self.topics = self._find_topics()
        chosen = self.options.target.shards
        self.shards = {
            (name, shard.index): shard
            for name, topic in sorted(self.topics.items())
            for shard in sorted(topic.shards, key=lambda shard: shard.index)
            if not chosen or shard.index in chosen[name]
        }
        for name, indexes in chosen.items():
            for index in indexes:
                if name in self.topics and (name, index) not in self.shards:
                    raise self._no_shard(name, index)
        self.shard_ids = {position: shard.shard_id for position, shard in self.shards.items()}
        self._asked_at = now

    def _find_topics(self) -> dict[str, TopicMeta]:
        target = self.options.target
        if self._pattern is not None:
            return {
                topic.name: topic
                for topic in self.cluster.metadata(refresh=False).topics
                if topic.kind == Kind.TOPIC and not topic.internal and self._pattern.fullmatch(topic.name)
            }
        found = {}
        for name in target.names:
            try:
                found[name] = self.cluster.topic(name, table=target.is_table, refresh=False)
            except UnknownTopicError:
                if not self._missing_is_fine:
                    raise
        return found

    def make_sure(self, expected: Mapping[str, str | None], positions: Iterable[Position] = ()) -> None:
        """Ask all nodes where topics are not those of the `expected` ids, or `positions` not among their shards.

        What one node says may be old, and an old checkpoint is not to be taken for a deleted topic.
        """
        self.refresh()
        now = self.ids
        doubted = {topic: now.get(topic) for topic, known in expected.items() if now.get(topic) != known}
        doubted |= {topic: now.get(topic) for topic, shard in positions if (topic, shard) not in self.shards}
        if doubted and doubted != self._doubted:
            self.refresh(of_all_nodes=True)
            self._doubted = {topic: self.ids.get(topic) for topic in doubted}

    @property
    def ids(self) -> dict[str, str]:
        """Topic -> its id in hex, for offsets."""
        return {name: topic.topic_id.hex() for name, topic in self.topics.items()}

    def shard_id(self, position: Position) -> int:
        """Id of a shard that was looked up before."""
        found = self.shard_ids.get(position)
        if found is None:
            raise InvalidRequestError(f"{position[0]} has no shard {position[1]} (any more)")
        return found

    def _no_shard(self, topic: str, shard: int) -> UnknownShardError:
        count = len(self.topics[topic].shards) if topic in self.topics else 0
        if not count:
            return UnknownShardError(f"{topic!r} is not among the topics that are read")
        return UnknownShardError(f"{topic} has shards 0 to {count - 1}, not {shard}")

    # -- bounds -------------------------------------------------------------------------------------------------

    def bounds(self) -> dict[Position, Bounds]:
        """Bounds of every shard now, in one round trip per node."""
        self.refresh()
        try:
            found = self._committed_bounds()
        except UnknownShardError:  # a topic was deleted since the metadata was looked up
            self.refresh(at_once=True)
            found = self._committed_bounds()
        return self._uncommitted(found) if self.options.isolation == "uncommitted" else found

    def _committed_bounds(self) -> dict[Position, Bounds]:
        replies = self._list_offsets(dict.fromkeys(self.shard_ids, LIST_LATEST))
        return {
            position: Bounds(self._archived_start(position, reply), self._end(reply), reply.log_start)
            for position, reply in replies.items()
        }

    def _end(self, reply: OffsetReply) -> int:
        return committed_end(reply) if self.options.isolation == "committed" else reply.high_watermark

    def _archived_start(self, position: Position, reply: OffsetReply) -> int:
        """Where the archive begins that reaches up to the log's start; the log's start where there is none."""
        log_start = reply.log_start
        if log_start <= 0:
            return log_start
        found = archived.archived_start(self.cluster, *position, log_start, reply.deleted_before)
        return min(log_start, found)

    def _list_offsets(self, times_ms: Mapping[Position, int]) -> dict[Position, OffsetReply]:
        """What each shard answers to its time, in one round trip per node."""
        asked = {self.shard_ids[position]: time_ms for position, time_ms in times_ms.items()}
        return dict(zip(times_ms, list_offsets(self.cluster, asked).values(), strict=True))

    def _uncommitted(self, committed: dict[Position, Bounds]) -> dict[Position, Bounds]:
        calls = [
            ShardCall(shard_id, Fetch(shard_id, committed[position].end, 1, 0, "uncommitted"))
            for position, shard_id in self.shard_ids.items()
        ]
        replies: list[Fetched] = [answer.body for answer in self.cluster.call_all(calls)]
        return {
            position: committed[position]._replace(end=max(committed[position].end, reply.log_end))
            for position, reply in zip(self.shard_ids, replies, strict=True)
        }

    def statuses(self) -> dict[int, ReplicaStatus]:
        """Shard id -> what its leader says of its replica, as far as leaders can be asked now."""
        found: dict[int, ReplicaStatus] = {}
        leaders = {shard.shard_id: shard.leader for shard in self.shards.values()}
        for node in sorted(set(leaders.values())):
            try:
                status = self.cluster.ask(node, GetStatus()).body
            except AntiphonError:
                continue  # a node that is gone leads nothing for long
            replicas = status.replicas if isinstance(status, StatusReply) else ()
            found.update({one.shard_id: one for one in replicas if leaders.get(one.shard_id) == node})
        return found

    # -- options to positions -------------------------------------------------------------------------------------

    def resolve(self, spec: OffsetSpec, bounds: dict[Position, Bounds]) -> Positions:
        """Positions that `spec` stands for; only the chosen shards where it chooses.

        Raises UnknownShardError, and InvalidRequestError where a time is after the last record and that was to be an error.
        """
        if spec.timestamp_ms is not None:
            return self._at_times(dict.fromkeys(bounds, spec.timestamp_ms), bounds, spec)
        if spec.chosen_ms:
            times_ms = _flat(spec.chosen_ms)
            self._check_known(times_ms, bounds)
            return self._at_times(times_ms, bounds, spec)
        if spec.chosen:
            chosen = _flat(spec.chosen)
            self._check_known(chosen, bounds)
            return {
                position: {
                    EARLIEST: self.first(position, bounds[position]),
                    LATEST: bounds[position].end,
                }.get(offset, offset)
                for position, offset in chosen.items()
            }
        return {
            position: self.first(position, bound) if spec.default == EARLIEST else bound.end
            for position, bound in bounds.items()
        }

    def _check_known(self, chosen: Mapping[Position, int], bounds: dict[Position, Bounds]) -> None:
        for position in chosen:
            if position not in bounds:
                raise self._no_shard(*position)

    def _at_times(
        self, times_ms: Mapping[Position, int], bounds: dict[Position, Bounds], spec: OffsetSpec
    ) -> Positions:
        found: Positions = {}
        for position, reply in self._list_offsets(times_ms).items():
            bound, timestamp_ms = bounds[position], times_ms[position]
            offset: int | None = reply.offset if reply.offset >= 0 else None
            if bound.start < bound.log_start:
                older = archived.archived_offset_at(
                    self.cluster, *position, timestamp_ms, bound.log_start, bound.start
                )
                offset = offset if older is None else older
            if offset is None and spec.is_strict:
                raise InvalidRequestError(
                    f"{position[0]} shard {position[1]} has no record as late as {timestamp_ms} ms since 1970; "
                    "startingOffsetsByTimestampStrategy=latest takes the end then"
                )
            # No record that late: such records, should they come, come after the end.
            found[position] = bound.end if offset is None else min(offset, bound.end)
        return found

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


def _flat(by_shard: Mapping[str, Mapping[int, int]]) -> dict[Position, int]:
    return {(topic, shard): number for topic, shards in by_shard.items() for shard, number in shards.items()}
