"""Each assignor of each library in groups of real nodes: members join, leave, and topics get new partitions.

Each partition has one member at each moment, and members that rebalance cooperatively keep what they are to keep.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.kafka.assignors.group import Group
from tests.kafka.assignors.members import LIBRARIES
from tests.kafka.assignors.ownership import GIVEN, TAKEN, Change, Places
from tests.kafka.left_sockets import LEAVES_SOCKETS
from tests.node.processes import Processes

pytestmark = [pytest.mark.cluster, LEAVES_SOCKETS]

COOPERATIVE: Final = "cooperative-sticky"
QUICK: Final = {("confluent-kafka", COOPERATIVE), ("kafka-python", "sticky"), ("aiokafka", "roundrobin")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("assignors"), 3) as processes:
        yield processes


def taken_of(member: str, changes: list[Change]) -> Places:
    """What a member was told to give up."""
    return frozenset().union(*(c.places for c in changes if c.member == member and c.what == TAKEN))


def given_of(member: str, changes: list[Change]) -> Places:
    """What a member was given."""
    return frozenset().union(*(c.places for c in changes if c.member == member and c.what == GIVEN))


def rounds_of(cluster: Processes, library: str, assignor: str) -> None:
    """One member, another one, new partitions, a third one, and the first one goes."""
    with Group(cluster, 6) as group:
        owns = group.ownership
        first = group.join(library, assignor, "first")
        group.settled("first")
        alone = owns.of("first")
        known = len(owns.changes)
        group.join(library, assignor, "second")
        group.settled("first", "second", least=3)
        if assignor == COOPERATIVE:  # nothing else was taken, not even for a moment
            assert taken_of("first", owns.changes[known:]) == owns.of("second")
            assert owns.of("first") < alone
        group.is_read()
        before, known = (owns.of("first"), owns.of("second")), len(owns.changes)
        group.grow(8)
        group.settled("first", "second", least=4)
        if "sticky" in assignor:
            assert before[0] <= owns.of("first")
            assert before[1] <= owns.of("second")
        if assignor == COOPERATIVE:
            assert [taken_of(name, owns.changes[known:]) for name in ("first", "second")] == [frozenset()] * 2
        group.is_read()
        second, known = owns.of("second"), len(owns.changes)
        first.close()
        group.settled("second")
        if assignor == COOPERATIVE:
            assert taken_of("second", owns.changes[known:]) == frozenset()
            assert given_of("second", owns.changes[known:]) == group.all - second
        group.is_read()


@pytest.mark.parametrize(
    ("library", "assignor"),
    [
        pytest.param(library, assignor, marks=[] if (library, assignor) in QUICK else [pytest.mark.slow])
        for library, kind in LIBRARIES.items()
        for assignor in kind.assignors
    ],
)
def test_each_partition_has_one_member(cluster: Processes, library: str, assignor: str) -> None:
    rounds_of(cluster, library, assignor)


@pytest.mark.parametrize(
    ("library", "assignor"),
    [
        ("confluent-kafka", COOPERATIVE),
        pytest.param("confluent-kafka", "range", marks=pytest.mark.slow),
        pytest.param("kafka-python", "sticky", marks=pytest.mark.slow),
        pytest.param("kafka-python", COOPERATIVE, marks=pytest.mark.slow),
        pytest.param("aiokafka", "roundrobin", marks=pytest.mark.slow),
    ],
)
def test_a_static_member_that_comes_back_has_what_it_had(
    cluster: Processes, library: str, assignor: str
) -> None:
    """The others are told nothing, as long as its session lasts."""
    with Group(cluster, 6) as group:
        owns = group.ownership
        group.join(library, assignor, "stays", "static-1")
        goes = group.join(library, assignor, "goes", "static-2")
        group.settled("stays", "goes", least=3)
        had, known = owns.of("goes"), len(owns.changes)
        goes.close()
        assert owns.of("goes") == frozenset()
        group.join(library, assignor, "back", "static-2")
        group.settled("stays", "back", least=3)
        assert owns.of("back") == had
        assert [change for change in owns.changes[known:] if change.member == "stays"] == []
        group.is_read()


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_members_of_all_libraries_share_a_group(cluster: Processes, assignor: str) -> None:
    """Whoever leads assigns for the others; the leader goes twice."""
    with Group(cluster, 9) as group:
        members = []
        for library in LIBRARIES:
            members.append(group.join(library, assignor, library))
            group.settled(*(member.name for member in members))
        group.settled(*LIBRARIES, least=3)
        group.is_read()
        while len(members) > 1:
            members.pop(0).close()
            group.settled(*(member.name for member in members), least=9 // len(members))
        group.is_read()
