"""Arithmetic of offset ranges: what a micro-batch takes, and how a range becomes partitions. Pure.

An `Offsets` is what Spark keeps in a query's checkpoint, JSON of the same form as in Spark's Kafka source:
`{"topic": {"0": 140, "1": 17}}`, exclusive ends. A `Position` is (topic, shard index).
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

Offsets = dict[str, dict[str, int]]
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
    }


def to_offsets(positions: Mapping[Position, int]) -> Offsets:
    """The reverse of `to_positions`, in a fixed order."""
    offsets: Offsets = {}
    for topic, shard in sorted(positions):
        offsets.setdefault(topic, {})[str(shard)] = positions[topic, shard]
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


def spans(start: Positions, end: Positions) -> list[Span]:
    """What lies between two sets of positions, without empty ranges, in a fixed order."""
    return [
        Span(topic, shard, start.get((topic, shard), 0), end[topic, shard])
        for topic, shard in sorted(end)
        if end[topic, shard] > start.get((topic, shard), 0)
    ]


def split(ranges: list[Span], partitions_min: int | None) -> list[Span]:
    """Cut ranges so that there are at least `partitions_min` of about the same size, as far as there are offsets."""
    if partitions_min is None or not ranges or len(ranges) >= partitions_min:
        return ranges
    total = sum(span.size for span in ranges)
    pieces: list[Span] = []
    for span in ranges:
        count = min(span.size, max(1, -(-partitions_min * span.size // total)))
        cuts = [span.start + span.size * i // count for i in range(count + 1)]
        pieces += [Span(span.topic, span.shard, a, b) for a, b in itertools.pairwise(cuts)]
    return pieces
