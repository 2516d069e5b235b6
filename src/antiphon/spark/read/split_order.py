"""Keeps the changes of a key in order in a stream of a table whose shards are split.

A shard that is split off goes on with keys whose earlier changes are in the log of its parent. A stream that is behind, or
that takes a little at a time, would give the later changes first. So a shard that was split off is not begun before the
stream has read its parent up to where that one ended when the shard was first seen, which is after the keys had moved.
"""

from collections.abc import Mapping

from antiphon.spark.offsets import Position, Positions
from antiphon.spark.read.planner import Bounds, Planner
from antiphon.spark.read.table_cut import parents


class SplitOrder:
    """Remembers, for each shard that waits, how far its parent has to be read."""

    def __init__(self) -> None:
        self._until: Positions = {}

    def waiting(
        self, planner: Planner, begin: Positions, bounds: Mapping[Position, Bounds]
    ) -> list[Position]:
        """The shards that are not to be read in this micro-batch, which goes on from `begin`."""
        found: list[Position] = []
        for name, topic in planner.topics.items():
            if not any(shard.own_start for shard in topic.shards):
                continue
            starts = {shard.index: shard.own_start for shard in topic.shards}
            for child, parent in parents(topic.shards).items():
                position, above = (name, child), (name, parent)
                if position not in bounds or above not in begin or begin.get(position, 0) > starts[child]:
                    continue  # not read, or read alone, or begun already
                until = self._until.setdefault(position, bounds[above].end if above in bounds else 0)
                if begin[above] < until:
                    found.append(position)
        return found
