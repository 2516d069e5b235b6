"""Which shard of a table answers for which keys at a cut: a set of positions, one a shard. Pure.

The log of a shard that was split off another one (its parent) begins with copies of its keys; its own part begins at
`own_start`. A cut that reaches a child's own part sees its keys there, and no more what the parent has of them. A cut that
does not reach it finds the keys in the parent, or in whoever the parent was split off from. So every key is one shard's,
however the positions of parent and child fit together: clocks of different nodes may not agree on what was first.
"""

from collections.abc import Mapping, Sequence

from antiphon.model.metadata import KeyRanges, ShardMeta

Hashes = tuple[int, int]
"""First and last hash of a range of keys."""


def parents(shards: Sequence[ShardMeta]) -> dict[int, int]:
    """Index of each shard that was split off -> index of the shard that it was split off from.

    A child takes the upper part of its parent's hashes. So, splits undone from the last to the first, the parent is the one
    just below the child.
    """
    ranges = _ranges(shards)
    found: dict[int, int] = {}
    for shard in sorted(shards, key=lambda shard: -shard.index):
        if shard.own_start:
            first, last = ranges.pop(shard.index)
            below = next(index for index, (_, end) in ranges.items() if end == first - 1)
            found[shard.index] = below
            ranges[below] = (ranges[below][0], last)
    return found


def answering(shards: Sequence[ShardMeta], until: Mapping[int, int]) -> dict[int, tuple[Hashes, ...]]:
    """Index of each shard that is read up to a position in `until` -> the hashes that it answers for there.

    For a shard that has no position, or one before its own part, those answer that it was split off from; for a shard that
    was not split off, nobody. `shards` are all of the table's.
    """
    above = parents(shards)
    starts = {shard.index: shard.own_start for shard in shards}
    found: dict[int, list[Hashes]] = {}
    for index, hashes in _ranges(shards).items():
        holder = index
        while until.get(holder, -1) < starts[holder] and holder in above:
            holder = above[holder]
        if holder in until:
            found.setdefault(holder, []).append(hashes)
    return {index: tuple(sorted(found[index])) for index in sorted(found)}


def _ranges(shards: Sequence[ShardMeta]) -> dict[int, Hashes]:
    ranges = KeyRanges(shards)
    return {shard.index: ranges.range_of(shard) for shard in shards}
