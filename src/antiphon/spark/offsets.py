"""Arithmetic of offset ranges: what a micro-batch takes, and how a range becomes partitions. Pure.

An `Offsets` is what Spark keeps in a query's checkpoint, JSON of the form of Spark's Kafka source with each topic's id
beside its shards: `{"topic": {"0": 140, "1": 17, "id": "5f0c..."}}`, exclusive ends. The id tells a topic from an earlier
one of the same name, whose offsets mean nothing here; `"only": true` says that the query began with a choice of the topic's
shards and leaves the others out. A `Position` is (topic, shard index).
"""

import itertools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from antiphon.spark.offset_options import ID_KEY, ONLY_KEY

Offsets = dict[str, dict[str, Any]]
Position = tuple[str, int]
Positions = dict[Position, int]


class Span(NamedTuple):
    """Offsets [start, end) of one shard of a topic."""

    topic: str
    shard: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets; at least the number of its records."""
        return self.end - self.start


def to_positions(offsets: Mapping[str, Any]) -> Positions:
    """Offsets as Spark hands them back -> (topic, shard) -> offset."""
    return {
        (topic, int(shard)): int(offset)
        for topic, shards in offsets.items()
        for shard, offset in shards.items()
        if shard not in {ID_KEY, ONLY_KEY}
    }


def ids_in(offsets: Mapping[str, Any]) -> dict[str, str]:
    """Topic -> its id, where the offsets have it."""
    return {topic: str(shards[ID_KEY]) for topic, shards in offsets.items() if ID_KEY in shards}


def narrowed_in(offsets: Mapping[str, Any]) -> set[str]:
    """Topics of which only the shards that the query began with are read."""
    return {topic for topic, shards in offsets.items() if shards.get(ONLY_KEY)}


def to_offsets(
    positions: Mapping[Position, int],
    ids: Mapping[str, str] | None = None,
    narrowed: Collection[str] = frozenset(),
) -> Offsets:
    """The reverse of `to_positions`, `ids_in` and `narrowed_in`, in a fixed order."""
    offsets: Offsets = {}
    for topic, shard in sorted(positions):
        offsets.setdefault(topic, {})[str(shard)] = positions[topic, shard]
    for topic, topic_id in (ids or {}).items():
        if topic in offsets:
            offsets[topic][ID_KEY] = topic_id
    for topic in narrowed:
        if topic in offsets:
            offsets[topic][ONLY_KEY] = True
    return offsets


def advance(start: Positions, end: Positions, offsets_max: int | None) -> Positions:
    """How far to go from `start` towards `end` with at most `offsets_max` offsets in all; never backwards.

    A limit is shared out in proportion to what each shard has waiting, so a shard that lags catches up as fast as the others
    and none starves. A shard that is missing from `start` begins at 0; one that is missing from `end` stays where it is.
    """
    waiting = {position: max(0, end[position] - start.get(position, 0)) for position in sorted(end)}
    total = sum(waiting.values())
    grants = dict(waiting)
    if offsets_max is not None and total > offsets_max:
        grants = {position: offsets_max * count // total for position, count in waiting.items()}
        left = offsets_max - sum(grants.values())
        # Largest remainder first; at most one each, since less than one each was rounded off.
        by_remainder = sorted(waiting, key=lambda p: (-(offsets_max * waiting[p] % total), p))
        for position in by_remainder[:left]:
            grants[position] += 1
    return {**start, **{position: start.get(position, 0) + grant for position, grant in grants.items()}}


def within_bytes(
    start: Positions, end: Positions, bytes_per_offset: Mapping[Position, float], bytes_max: int
) -> Positions:
    """How far to go from `start` towards `end` with about `bytes_max` bytes, shared out by what waits in each shard.

    At least one offset is taken where any waits: a record larger than the limit must not stop the stream.
    """
    waiting = {p: max(0, end[p] - start.get(p, 0)) for p in sorted(end)}
    sizes = {p: waiting[p] * max(bytes_per_offset.get(p, 0.0), 0.0) for p in waiting}
    total = sum(sizes.values())
    if total <= bytes_max:
        return {**start, **{p: start.get(p, 0) + count for p, count in waiting.items()}}
    share = bytes_max / total
    grants = {p: int(count * share) for p, count in waiting.items()}
    if not any(grants.values()):
        grants[max(waiting, key=lambda p: (waiting[p], p))] = 1
    return {**start, **{p: start.get(p, 0) + grant for p, grant in grants.items()}}


def spans(start: Positions, end: Positions) -> list[Span]:
    """What lies between two sets of positions, without empty ranges, in a fixed order."""
    return [
        Span(topic, shard, start.get((topic, shard), 0), end[topic, shard])
        for topic, shard in sorted(end)
        if end[topic, shard] > start.get((topic, shard), 0)
    ]


def split(ranges: list[Span], partitions_min: int | None, offsets_max: int | None = None) -> list[Span]:
    """Cut ranges so that there are at least `partitions_min` of about the same size, as far as there are offsets, and none
    of more than `offsets_max` offsets.
    """
    total = sum(span.size for span in ranges)
    wanted = partitions_min if partitions_min is not None and len(ranges) < partitions_min else 0
    pieces: list[Span] = []
    for span in ranges:
        count = max(1, -(-wanted * span.size // total) if total else 1)
        if offsets_max is not None:
            count = max(count, -(-span.size // offsets_max))
        count = max(1, min(span.size, count))
        cuts = [span.start + span.size * i // count for i in range(count + 1)]
        pieces += [Span(span.topic, span.shard, a, b) for a, b in itertools.pairwise(cuts)]
    return pieces
