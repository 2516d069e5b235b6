"""What a shard is to hold by the metadata, against what it holds by its log."""

import pytest

from antiphon.model.metadata import HASH_MAX, Kind, ShardMeta, TopicMeta
from antiphon.model.shard_part import ShardPart, part_of
from antiphon.table.ranges import WHOLE, OwnedRange, inherits, narrowed, releases

QUARTER = 1 << 30
HALF, LATE = 2 * QUARTER, 3 * QUARTER


def shard(shard_id: int, first: int, last: int, own_start: int = 0) -> ShardMeta:
    return ShardMeta(shard_id, shard_id, (0,), hashes=(first, last), own_start=own_start)


# Made with two shards, the second of which was split twice.
SHARDS = (
    shard(0, 0, HALF - 1),
    shard(1, HALF, HALF + 99),
    shard(2, LATE, HASH_MAX, 7),
    shard(3, HALF + 100, LATE - 1, 5),
)
TOPIC = TopicMeta("t", b"t" * 16, Kind.TABLE, 1, "oxia", SHARDS)


@pytest.mark.parametrize(
    ("index", "part"),
    [
        (0, ShardPart(0, HALF - 1, 0, HALF - 1, 0, (1, 0))),
        (1, ShardPart(HALF, HALF + 99, HALF, HASH_MAX, 0, (3, 5))),
        (2, ShardPart(LATE, HASH_MAX, HALF, HASH_MAX, 7)),
        (3, ShardPart(HALF + 100, LATE - 1, HALF, HASH_MAX, 5, (2, 7))),
    ],
)
def test_the_part_of_a_shard_and_what_it_was_a_part_of(index: int, part: ShardPart) -> None:
    assert part_of(TOPIC, SHARDS[index]) == part


def test_a_table_that_was_never_split_has_no_parts() -> None:
    plain = ShardMeta(0, 0, (0,))
    assert part_of(TopicMeta("t", b"t" * 16, Kind.TABLE, 1, "oxia", (plain,)), plain) is None


def test_a_log_that_does_not_know_of_a_split() -> None:
    first, parent, _, child = filter(None, (part_of(TOPIC, one) for one in SHARDS))
    assert not releases(WHOLE, first), "another shard was split"
    assert releases(WHOLE, parent)
    assert releases(OwnedRange(0, LATE - 1), parent), "it knows of the first split only"
    assert not releases(OwnedRange(0, HALF + 99), parent)
    assert not inherits(WHOLE, parent)
    assert inherits(WHOLE, child)
    assert not inherits(OwnedRange(HALF + 100, LATE - 1), child)
    assert not releases(OwnedRange(HALF + 100, LATE - 1), child)


def test_a_range_ends_at_its_limit() -> None:
    frozen = OwnedRange(5, HASH_MAX, frozen_from=HALF, frozen_at=7, child=9)
    assert narrowed(frozen, HALF - 1) == OwnedRange(5, HALF - 1, purging=True)
    assert narrowed(frozen, HASH_MAX) is frozen
