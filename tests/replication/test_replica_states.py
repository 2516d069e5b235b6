"""The four states and eleven edges (S0.4): each legal edge is taken, each other event changes nothing."""

from collections.abc import Callable
from enum import StrEnum

import pytest

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.messages import (
    AddFollower,
    AnyMessage,
    Append,
    BecomeLeader,
    Entry,
    NewTerm,
    SnapshotOffer,
    Truncate,
)
from antiphon.replication.replica_state import (
    CANDIDACIES,
    LEADER_PHASES,
    LOG_CONDITIONS,
    TRANSITIONS,
    Event,
    LogCondition,
    Role,
    next_role,
    next_state,
)
from tests.replication.cluster import COORDINATOR, SHARD, Cluster

TERM = 5
LOG = (Entry(3, 0, 4, "old"), Entry(3, 4, 6, "tail"))


def in_role(role: Role) -> Cluster:
    """A cluster whose node 1 is in `role`, in TERM (a node outside of the ensemble has promised nothing)."""
    cluster = Cluster((1, 2, 3), logs=dict.fromkeys((1, 2, 3), LOG), terms=dict.fromkeys((1, 2, 3), 3))
    if role is Role.NOT_MEMBER:
        cluster = Cluster((2, 3, 4))
        cluster.hosts[1] = type(cluster[2])(cluster, 1)
    elif role is Role.FENCED:
        cluster.fence(TERM, 1)
    elif role is Role.FOLLOWER:
        cluster.fence(TERM, 1)
        cluster.receive(2, 1, Append(SHARD, TERM, 2, EntryId(3, 6), 0, 1))
    else:
        cluster.lead(1, TERM)
    assert cluster.replica(1).role is role
    cluster.sent.clear()
    return cluster


def message_for(event: Event, cluster: Cluster) -> tuple[int, AnyMessage]:
    """Who sends what, for an event that is otherwise in order."""
    term = cluster.replica(1).term
    leader = 1 if cluster.replica(1).role is Role.LEADER else 2
    heads = ((2, EMPTY), (3, EMPTY))
    made: dict[Event, tuple[int, AnyMessage]] = {
        Event.NEW_TERM: (COORDINATOR, NewTerm(SHARD, term + 1)),
        Event.REPLICATE: (2, Append(SHARD, term, 2, EntryId(3, 6), 0, 1)),
        Event.TRUNCATE: (2, Truncate(SHARD, term, leader, EntryId(3, 4))),
        Event.SNAPSHOT: (2, SnapshotOffer(SHARD, term, 2, EntryId(3, 40))),
        Event.BECOME_LEADER: (COORDINATOR, BecomeLeader(SHARD, term, (1, 2, 3), heads)),
        Event.ADD_FOLLOWER: (COORDINATOR, AddFollower(SHARD, term, 3, EMPTY)),
    }
    return made[event]


def test_there_are_four_states_and_eleven_edges() -> None:
    assert len(Role) == 4
    assert len(TRANSITIONS) == 11


@pytest.mark.parametrize("table", [CANDIDACIES, LEADER_PHASES, LOG_CONDITIONS])
def test_an_edge_that_a_table_lacks_is_a_bug(table: dict[tuple[StrEnum, StrEnum], StrEnum]) -> None:
    states = {type(state) for state, _ in table}.pop()
    events = {type(event) for _, event in table}.pop()
    for state in states:
        for event in events:
            if (state, event) in table:
                assert next_state(table, state, event) is table[state, event]
            else:
                with pytest.raises(InvariantError, match="no edge"):
                    next_state(table, state, event)


def test_no_state_is_a_dead_end_but_a_sound_log() -> None:
    for table in (CANDIDACIES, LEADER_PHASES, LOG_CONDITIONS):
        lasting = set(table.values()) - {state for state, _ in table}
        assert lasting <= {LogCondition.SOUND}


LEGAL = sorted(TRANSITIONS)
ILLEGAL = sorted((role, event) for role in Role for event in Event if (role, event) not in TRANSITIONS)


@pytest.mark.parametrize(("role", "event"), LEGAL)
def test_a_legal_edge_is_taken(role: Role, event: Event) -> None:
    cluster = in_role(role)
    cluster.receive(*_addressed(event, cluster))
    assert cluster.replica(1).role is next_role(role, event)


@pytest.mark.parametrize(("role", "event"), ILLEGAL)
def test_an_illegal_edge_is_refused(role: Role, event: Event) -> None:
    """Also where a message would be a violation by the sender, as an Append of another leader in a leader's term."""
    cluster = in_role(role)
    replica = cluster.replica(1)
    before = (replica.term, replica.log.terms.end, replica.high_watermark, replica.leader)
    if role is Role.LEADER and event in {Event.REPLICATE, Event.SNAPSHOT}:
        with pytest.raises(RuntimeError, match="both lead"):
            cluster.receive(*_addressed(event, cluster))
    elif (role, event) != (Role.LEADER, Event.BECOME_LEADER):  # that one is answered again, see test_replica
        cluster.receive(*_addressed(event, cluster))
    assert replica.role is role
    assert (replica.term, replica.log.terms.end, replica.high_watermark, replica.leader) == before


def _addressed(event: Event, cluster: Cluster) -> tuple[int, int, AnyMessage]:
    sender, message = message_for(event, cluster)
    return sender, 1, message


@pytest.mark.parametrize("role", [Role.FENCED, Role.FOLLOWER, Role.LEADER])
@pytest.mark.parametrize(
    "make",
    [
        lambda: NewTerm(SHARD, TERM - 1),
        lambda: Append(SHARD, TERM - 1, 2, EntryId(3, 6), 0, 1),
        lambda: SnapshotOffer(SHARD, TERM - 1, 2, EntryId(3, 40)),
        lambda: Truncate(SHARD, TERM - 1, 2, EntryId(3, 4)),
        lambda: BecomeLeader(SHARD, TERM - 1, (1, 2, 3), ((2, EMPTY),)),
        lambda: AddFollower(SHARD, TERM - 1, 2, EMPTY),
    ],
)
def test_an_older_term_is_refused_with_ours(role: Role, make: Callable[[], AnyMessage]) -> None:
    cluster = in_role(role)
    cluster.told.clear()
    cluster.receive(COORDINATOR, 1, make())
    assert cluster.replica(1).role is role
    assert [(type(m).__name__, m.term) for _, m in cluster.told] == [("StaleTerm", TERM)]


def test_messages_for_another_shard_are_ignored() -> None:
    cluster = in_role(Role.FENCED)
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD + 1, TERM + 1))
    assert cluster.replica(1).term == TERM
    assert cluster.sent == []
