"""Share groups: who is given which partitions, epochs, and settings of one group."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.consumer_assignors import ASSIGNORS, SIMPLE
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Beat, Beaten, Catalog, GroupBounds, Refused, TopicFacts
from antiphon.coordination.share_group import ShareGroup
from antiphon.coordination.share_settings import (
    SETTINGS,
    check,
    duration_ms,
    members_from,
    settings_from,
    shown,
)
from antiphon.coordination.share_terms import ShareBounds
from antiphon.errors import InvalidRequestError

A, B = b"a" * 16, b"b" * 16
BOUNDS = GroupBounds(session_timeout_ms=100, max_size=9, assignors=(SIMPLE,))
READERS = st.dictionaries(st.sampled_from("123456789"), st.frozensets(st.sampled_from([A, B])), min_size=1)
SIZES = st.dictionaries(st.sampled_from([A, B]), st.integers(0, 5))


@given(READERS, READERS, SIZES, SIZES)
@settings(max_examples=300, deadline=None)
def test_every_partition_has_a_reader_and_every_reader_a_partition(
    before: Any, readers: Any, old_sizes: Any, sizes: Any
) -> None:
    old = ASSIGNORS[SIMPLE](before, old_sizes, {})
    found = ASSIGNORS[SIMPLE](readers, sizes, old)
    assert found == ASSIGNORS[SIMPLE](readers, sizes, old)
    assert set(found) == set(readers)
    for topic, size in sizes.items():
        members = [member for member, topics in readers.items() if topic in topics]
        loads = [sum((topic, at) in found[member] for member in members) for at in range(size)]
        given_away = {member: sum(place[0] == topic for place in places) for member, places in found.items()}
        if not members or not size:
            assert not any(given_away.values())
            continue
        assert min(loads) >= 1
        if len(members) > size:
            assert max(loads) - min(loads) <= 1
            assert all(given_away[member] == 1 for member in members)
        assert not any(count for member, count in given_away.items() if member not in members)
    if (before, old_sizes) == (readers, sizes):
        assert found == old, "nothing changed, so nothing moves"


def catalog(partitions: int = 2) -> Catalog:
    return Catalog(partitions, {"t": TopicFacts(A, partitions)})


def beat(group: ConsumerGroup, now_ms: int, name: str, epoch: int, partitions: int = 2) -> Beaten | Refused:
    topics = ("t",) if epoch == 0 else None
    return group.heartbeat(now_ms, Beat(name, epoch, topics=topics), catalog(partitions))


def told(answer: Beaten | Refused) -> Beaten:
    assert isinstance(answer, Beaten), answer
    return answer


def test_members_share_partitions_and_their_rows_bring_the_group_back() -> None:
    group = ShareGroup(BOUNDS)
    rows: dict[Any, Any] = {}
    one = told(beat(group, 0, "1", 0))
    assert one.assigned == frozenset({(A, 0), (A, 1)})
    two = told(beat(group, 0, "2", 0))
    three = told(beat(group, 0, "3", 0))
    assert len(two.assigned or ()) == len(three.assigned or ()) == 1
    again = told(beat(group, 1, "1", one.epoch))
    assert again.epoch > one.epoch
    assert len(again.assigned or ()) == 1
    assert told(beat(group, 2, "1", one.epoch)).assigned is not None, "the answer may have been lost"
    assert told(beat(group, 3, "1", again.epoch)).assigned is None, "it is no news"
    rows.update(group.take_changes())
    back = ShareGroup.restored(10, BOUNDS, {name: row for name, row in rows.items() if row is not None})
    assert back.members == group.members
    assert told(beat(back, 11, "1", again.epoch)) == Beaten("1", again.epoch, None)
    assert beat(back, 11, "1", again.epoch + 5) is Refused.FENCED_EPOCH
    assert beat(back, 11, "x", 4) is Refused.UNKNOWN_MEMBER
    assert back.tick(110) == ["2", "3"], "they were silent; the first was not"
    alone = told(beat(back, 111, "1", again.epoch))
    assert alone.assigned == frozenset({(A, 0), (A, 1)})
    more = told(beat(back, 112, "1", alone.epoch, 3))
    assert more.assigned == frozenset({(A, 0), (A, 1), (A, 2)}), "the topic grew"
    assert told(beat(back, 113, "1", -1)).epoch == -1
    assert not back.members


def test_a_member_whose_answers_are_lost_stays_in_the_group() -> None:
    group = ShareGroup(BOUNDS)
    one = told(beat(group, 0, "1", 0))
    for number in range(2, 6):  # each raises the epoch; the answers to the first member do not arrive
        beat(group, number, f"{number}", 0)
        again = told(beat(group, number, "1", one.epoch))
        assert again.epoch > one.epoch
        assert again.assigned is not None
    assert told(beat(group, 6, "1", again.epoch)) == Beaten("1", again.epoch, None), "this one arrived"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "share.auto.offset.reset",
            ("latest", "earliest", "by_duration:P1DT2H3M4S"),
            ("Latest", "by_duration:1"),
        ),
        ("share.delivery.count.limit", ("2", "10"), ("1", "11", "x", "-3", "")),
        ("share.isolation.level", ("read_committed",), ("committed",)),
        ("share.partition.max.record.locks", ("100", "10000"), ("99", "1e3")),
        ("share.record.lock.duration.ms", ("1000",), ("999", "3600001")),
        ("share.renew.acknowledge.enable", ("true", "false"), ("yes",)),
    ],
)
def test_settings_of_a_group(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    assert name in SETTINGS
    check(name, None)
    for value in good:
        check(name, value)
        assert shown(ShareBounds(), {name: value})[name] == value
    for value in bad:
        with pytest.raises(InvalidRequestError, match=name):
            check(name, value)
        assert settings_from(ShareBounds(), {name: value}) == settings_from(ShareBounds(), {})
    with pytest.raises(InvalidRequestError, match=r"there are consumer\..*, share\."):
        check("share.nothing", "1")


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_settings_of_members(kind: str) -> None:
    beats, sessions = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
    nodes = GroupBounds(5_000, 45_000, 7)
    for name, good, bad in (
        (beats, ("100", "600000"), ("99", "600001", "")),
        (sessions, ("500", "3600000"), ("499", "3600001", "1s")),
    ):
        for value in good:
            check(name, value)
        for value in bad:
            with pytest.raises(InvalidRequestError, match=name):
                check(name, value)
    assert members_from(kind, nodes, {}) == nodes
    assert members_from(kind, nodes, {beats: "700"}) == GroupBounds(700, 45_000, 7)
    assert members_from(kind, nodes, {beats: "1", sessions: "900"}) == GroupBounds(5_000, 900, 7)
    other = "share" if kind == "consumer" else "consumer"
    assert members_from(other, nodes, {beats: "700", sessions: "900"}) == nodes


def test_durations() -> None:
    assert duration_ms("by_duration:P1DT2H3M4S") == (((24 + 2) * 60 + 3) * 60 + 4) * 1000
    assert duration_ms("by_duration:PT0S") == 0
    assert duration_ms("latest") is None
