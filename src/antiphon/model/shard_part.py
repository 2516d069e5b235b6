"""The part of its table that a shard is to hold, by the metadata. What it does hold is in its log (`antiphon.table.ranges`).

Both agree, but where a shard most of whose replicas were lost went on from one that had not heard of a split.
"""

from typing import NamedTuple

from antiphon.model.metadata import ABSENT_NODE, HASH_MAX, KeyRanges, ShardMeta, TopicMeta


class ShardPart(NamedTuple):
    """See the module's text.

    Attributes:
        first, last: hashes of its keys.
        first_ever, last_ever: the same of the shard of before all splits that it is a part of.
        own_start: 0, or the offset before which its log repeats that of the shard that it was split off.
        following: the shard that holds the hashes from `last` + 1 on, and where that one's own log begins.
    """

    first: int
    last: int
    first_ever: int
    last_ever: int
    own_start: int = 0
    following: tuple[int, int] = (ABSENT_NODE, 0)


def part_of(topic: TopicMeta, shard: ShardMeta) -> ShardPart | None:
    """The part of a shard that is one of its topic's. None: no shard of the table was ever split."""
    if not shard.hashes:
        return None
    first, last = shard.hashes
    ranges = KeyRanges(topic.shards)
    # Shards hand over the upper part of their keys: where a shard began never changes.
    begins = [start for start, one in ranges.starts() if not one.own_start]
    first_ever = max((one for one in begins if one <= first), default=0)
    last_ever = min((one - 1 for one in begins if one > first), default=HASH_MAX)
    if last == HASH_MAX:
        return ShardPart(first, last, first_ever, last_ever, shard.own_start)
    above = ranges.shard_of_hash(last + 1)
    following = (above.shard_id, above.own_start)
    return ShardPart(first, last, first_ever, last_ever, shard.own_start, following)
