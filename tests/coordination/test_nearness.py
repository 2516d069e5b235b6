"""Members that are given partitions with a replica in their own rack."""

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.consumer_assignors import ASSIGNORS, RANGE, SIMPLE, UNIFORM
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Beat, Beaten, Catalog, Place, Places, TopicFacts
from antiphon.coordination.nearness import NO_RACKS, Racks

A, B = b"a" * 16, b"b" * 16
Assignment = dict[str, Places]


def racks_of(members: str, *replicas: str) -> Racks:
    """`members`: their racks, in order of their names. `replicas`: of each partition of topic A."""
    return Racks(
        {str(number): rack for number, rack in enumerate(members, 1) if rack != "-"},
        {A: tuple(frozenset(each) for each in replicas)},
    )


def near(found: Assignment, racks: Racks) -> int:
    return sum(racks.is_near(member, place) for member, each in found.items() for place in each)


def of_all(members: str, topics: frozenset[bytes] = frozenset({A})) -> dict[str, frozenset[bytes]]:
    return {str(number): topics for number, _ in enumerate(members, 1)}


def test_each_member_has_what_has_a_replica_in_its_rack() -> None:
    racks = racks_of("xyz", "x", "y", "z", "z", "x", "y")
    found = ASSIGNORS[UNIFORM](of_all("xyz"), {A: 6}, {}, racks)
    assert [sorted(p for _, p in found[member]) for member in "123"] == [[0, 4], [1, 5], [2, 3]]


def test_loads_stay_even_though_all_is_in_one_rack() -> None:
    racks = racks_of("xy", *["x"] * 6)
    found = ASSIGNORS[UNIFORM](of_all("xy"), {A: 6}, {}, racks)
    assert [len(found[member]) for member in "12"] == [3, 3]
    assert near(found, racks) == 3


def test_a_member_that_joins_takes_what_is_not_near_the_others() -> None:
    racks = racks_of("xy", "x", "y", "x", "y", "x", "y")
    before = {"1": frozenset((A, index) for index in range(6))}
    found = ASSIGNORS[UNIFORM](of_all("xy"), {A: 6}, before, racks)
    assert found["1"] == {(A, 0), (A, 2), (A, 4)}


def test_who_says_no_rack_is_near_nothing_and_makes_room_for_who_does() -> None:
    racks = racks_of("-x", "x", "x", "y", "y")
    assert not racks.is_near("1", (A, 0))
    assert racks.is_near("2", (A, 0))
    assert not racks.is_near("2", (A, 4)), "a partition that came later"
    assert not racks.is_near("2", (B, 0))
    before = {"1": frozenset({(A, 0), (A, 1)}), "2": frozenset({(A, 2), (A, 3)})}
    assert ASSIGNORS[UNIFORM](of_all("-x"), {A: 4}, before, racks)["2"] == {(A, 0), (A, 1)}


def test_ranges_do_not_go_by_racks() -> None:
    racks = racks_of("yx", "x", "y")
    readers = of_all("yx")
    assert ASSIGNORS[RANGE](readers, {A: 2}, {}, racks) == ASSIGNORS[RANGE](readers, {A: 2}, {}, NO_RACKS)


def test_members_of_share_groups_have_near_ones_too() -> None:
    racks = racks_of("xy", "y", "x", "y", "x")
    found = ASSIGNORS[SIMPLE](of_all("xy"), {A: 4}, {}, racks)
    assert near(found, racks) == 4


RACKS = st.builds(
    racks_of,
    st.text("xyz-", min_size=1, max_size=6),
    *[st.sampled_from(["x", "y", "z", "xy", "yz", "xz", "xyz", ""])] * 9,
)


@given(RACKS, st.integers(0, 9), st.permutations(range(9)), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_no_move_and_no_exchange_makes_more_of_it_near(
    racks: Racks, size: int, order: list[int], had_by: int
) -> None:
    members = [str(number) for number in range(1, 7)]
    readers = dict.fromkeys(members, frozenset({A}))
    before = {members[had_by]: frozenset((A, index) for index in order[:5])}
    plain = ASSIGNORS[UNIFORM](readers, {A: size}, before, NO_RACKS)
    found = ASSIGNORS[UNIFORM](readers, {A: size}, before, racks)
    assert sorted(place for each in found.values() for place in each) == [(A, index) for index in range(size)]
    assert sorted(map(len, found.values())) == sorted(map(len, plain.values())), "as even as without racks"
    assert near(found, racks) >= near(plain, racks)
    assert found == ASSIGNORS[UNIFORM](readers, {A: size}, found, racks), "nothing changed, so nothing moves"
    owner = {place: member for member, each in found.items() for place in each}
    for one, two in itertools.permutations(owner, 2):
        mine, theirs = owner[one], owner[two]
        assert _near(racks, (mine, one), (theirs, two)) >= _near(racks, (theirs, one), (mine, two))
    for place, member in itertools.product(owner, members):
        if len(found[member]) < len(found[owner[place]]):
            assert _near(racks, (owner[place], place)) >= _near(racks, (member, place))


def _near(racks: Racks, *pairs: tuple[str, Place]) -> int:
    return sum(racks.is_near(member, place) for member, place in pairs)


@given(
    st.dictionaries(st.sampled_from("123456"), st.frozensets(st.sampled_from([A, B])), min_size=1),
    RACKS,
)
@settings(max_examples=100, deadline=None)
def test_whoever_does_not_read_a_topic_has_none_of_it(readers: Any, racks: Racks) -> None:
    everywhere = Racks(racks.members, {A: racks.replicas[A], B: racks.replicas[A]})
    sizes = {A: 9, B: 7}
    found = ASSIGNORS[UNIFORM](readers, sizes, {}, everywhere)
    read = {topic for topics in readers.values() for topic in topics}
    given_away = sorted(place for each in found.values() for place in each)
    assert given_away == sorted((t, p) for t, size in sizes.items() if t in read for p in range(size))
    assert all(place[0] in readers[member] for member, each in found.items() for place in each)


def test_a_group_is_assigned_anew_when_a_replica_moves_to_another_rack() -> None:
    """Only where a member has said where it stands."""

    def catalog(version: int, *racks: str) -> Catalog:
        return Catalog(version, {"t": TopicFacts(A, len(racks), tuple(frozenset(rack) for rack in racks))})

    def beat(group: ConsumerGroup, name: str, rack: str | None, at: Catalog, epoch: int = 0) -> Beaten:
        asked = Beat(name, epoch, rack_id=rack, rebalance_ms=1000, topics=("t",), owned=frozenset())
        found = group.heartbeat(0, asked, at)
        assert isinstance(found, Beaten)
        return found

    for with_racks in (True, False):
        group = ConsumerGroup()
        for name, rack in (("one", "x"), ("two", "y")):
            beat(group, name, rack if with_racks else None, catalog(1, "x", "y"))
        assert (
            with_racks is (group.targets["one"] == {(A, 0)} and group.targets["two"] == {(A, 1)})
            or not with_racks
        )
        epoch = group.epoch
        beat(
            group, "one", "x" if with_racks else None, catalog(2, "y", "x"), epoch=group.members["one"].epoch
        )
        assert (group.epoch > epoch) is with_racks
        if with_racks:
            assert group.targets == {"one": frozenset({(A, 1)}), "two": frozenset({(A, 0)})}


def test_a_member_that_moves_to_another_rack_is_assigned_anew() -> None:
    at = Catalog(1, {"t": TopicFacts(A, 2, (frozenset("x"), frozenset("y")))})
    group = ConsumerGroup()
    for name, rack in (("one", "x"), ("two", "y")):
        group.heartbeat(
            0, Beat(name, 0, rack_id=rack, rebalance_ms=1000, topics=("t",), owned=frozenset()), at
        )
    for name, rack in (("one", "y"), ("two", "x")):
        epoch = group.members[name].epoch
        group.heartbeat(0, Beat(name, epoch, rack_id=rack), at)
    assert group.targets == {"one": frozenset({(A, 1)}), "two": frozenset({(A, 0)})}
