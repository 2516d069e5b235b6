"""Offset arithmetic: what an epoch takes and how it is cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.spark.offsets import (
    Positions,
    Span,
    advance,
    ids_in,
    narrowed_in,
    spans,
    split,
    to_offsets,
    to_positions,
    within_bytes,
)

positions = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), st.integers(0, 10_000), max_size=8
)


def test_offsets_are_the_json_of_sparks_kafka_source() -> None:
    found = to_offsets({("b", 0): 3, ("a", 1): 2, ("a", 0): 1})
    assert found == {"a": {"0": 1, "1": 2}, "b": {"0": 3}}
    assert list(found) == ["a", "b"]
    assert to_positions(found) == {("a", 0): 1, ("a", 1): 2, ("b", 0): 3}


def test_offsets_say_of_which_topic_they_are() -> None:
    found = to_offsets({("a", 1): 2, ("b", 0): 3}, {"a": "00ff", "gone": "11"}, {"b"})
    assert found == {"a": {"1": 2, "id": "00ff"}, "b": {"0": 3, "only": True}}
    assert to_positions(found) == {("a", 1): 2, ("b", 0): 3}
    assert (ids_in(found), narrowed_in(found)) == ({"a": "00ff"}, {"b"})


def test_a_limit_is_shared_in_proportion() -> None:
    start: Positions = {("a", 0): 0, ("a", 1): 100}
    assert advance(start, {("a", 0): 30, ("a", 1): 110}, 8) == {("a", 0): 6, ("a", 1): 102}


@settings(max_examples=100, deadline=None)
@given(positions, positions, st.one_of(st.none(), st.integers(1, 12_000)))
def test_advance_never_goes_back_or_too_far(start: Positions, end: Positions, limit: int | None) -> None:
    got = advance(start, end, limit)
    for position, offset in start.items():
        assert got[position] >= offset
    for position, offset in end.items():
        assert got[position] <= max(offset, start.get(position, 0))
    waiting = sum(max(0, offset - start.get(position, 0)) for position, offset in end.items())
    taken = sum(offset - start.get(position, 0) for position, offset in got.items())
    assert taken == (waiting if limit is None else min(waiting, limit))


@settings(max_examples=100, deadline=None)
@given(positions, positions, st.floats(0, 500), st.integers(1, 1_000_000))
def test_bytes_are_bounded_and_something_is_taken(
    start: Positions, end: Positions, size: float, limit: int
) -> None:
    sizes = {position: size * (1 + position[1]) for position in end}
    got = within_bytes(start, end, sizes, limit)
    taken = {position: got[position] - start.get(position, 0) for position in got}
    assert all(0 <= taken[p] <= max(0, end.get(p, 0) - start.get(p, 0)) for p in taken)
    waiting = any(end[p] > start.get(p, 0) for p in end)
    assert (sum(taken.values()) > 0) == waiting
    assert sum(taken.values()) <= 1 or sum(taken[p] * sizes[p] for p in end) <= limit * 1.0001


@settings(max_examples=100, deadline=None)
@given(positions, positions, st.integers(1, 40), st.none() | st.integers(1, 3_000))
def test_splitting_covers_every_offset_once(
    start: Positions, end: Positions, partitions: int, size_max: int | None
) -> None:
    ranges = spans(start, end)
    assert all(span.size > 0 for span in ranges)
    cut = split(ranges, partitions, size_max)
    assert all(span.size <= (size_max or span.size) for span in cut)
    assert [(s.topic, s.shard, o) for s in cut for o in range(s.start, s.end)] == [
        (s.topic, s.shard, o) for s in ranges for o in range(s.start, s.end)
    ]
    assert all(span.size > 0 for span in cut)
    assert len(cut) >= min(partitions, sum(span.size for span in ranges))


def test_without_a_wish_a_shard_is_a_partition() -> None:
    ranges = [Span("a", 0, 0, 1000), Span("a", 1, 5, 6)]
    assert split(ranges, None) == ranges
    assert split(ranges, 2) == ranges
    assert split([], 4, 3) == []
