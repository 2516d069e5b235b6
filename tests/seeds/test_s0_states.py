"""S0, Oxia's replication protocol: the four states of a replica, and what leads from one to another."""

from random import Random

import msgspec
import pytest

from antiphon.errors import NotLeaderError
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import (
    AppendLog,
    PersistTerm,
    ReadFailed,
    ReadReady,
    RoleChanged,
    Send,
    TruncateLog,
)
from antiphon.replication.config import ElectionConfig
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    Append,
    Entry,
    NewTerm,
    NewTermReply,
    SnapshotOffer,
    StaleTerm,
    Truncate,
    TruncateReply,
)
from antiphon.replication.progress import ProgressState
from antiphon.replication.replica_state import TRANSITIONS, Event, Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, Host, term_start
from tests.replication.raft_world import MemberCluster
from tests.replication.test_replica_states import ILLEGAL, TERM, in_role, message_for


@pytest.mark.parametrize(("role", "event"), ILLEGAL)
def test_s0_04_only_the_eleven_edges_exist(role: Role, event: Event) -> None:
    assert len(TRANSITIONS) == 11
    cluster = in_role(role)
    sender, message = message_for(event, cluster)
    try:
        cluster.receive(sender, 1, message)
    except RuntimeError as error:
        assert "both lead" in str(error)  # noqa: PT017 - either way the role stays
    assert cluster.replica(1).role is role


def test_s0_04_a_node_outside_of_the_ensemble_is_made_a_follower_by_nobody_but_a_new_term() -> None:
    for event in (Event.REPLICATE, Event.TRUNCATE, Event.SNAPSHOT, Event.BECOME_LEADER, Event.ADD_FOLLOWER):
        cluster = in_role(Role.NOT_MEMBER)
        sender, message = message_for(event, cluster)
        cluster.receive(sender, 1, msgspec.structs.replace(message, term=TERM + 4))
        assert (cluster.replica(1).role, cluster.replica(1).term) == (Role.NOT_MEMBER, 0), event
        assert [action for action in cluster[1].seen if not isinstance(action, Send)] == []


def test_s0_04_where_members_are_in_the_log_an_append_brings_the_new_term_with_it() -> None:
    """The divergence of shards that vote: NotMember still goes through Fenced, and that promise is durable first."""
    cluster = MemberCluster(2, (1,))
    cluster.add(2)
    cluster[2].auto_sync = False
    cluster.receive(1, 2, Append(SHARD, 0, 1, EMPTY, 0, 1))
    assert cluster.replica(2).role is Role.NOT_MEMBER, "no newer term, no new role"
    cluster.receive(1, 2, Append(SHARD, 3, 1, EMPTY, 0, 1, (Entry(3, 0, 1, "x"),)))
    assert [action.role for action in cluster[2].took(RoleChanged)] == [Role.FENCED, Role.FOLLOWER]
    kinds = [type(action) for action in cluster[2].seen]
    assert kinds.index(PersistTerm) < kinds.index(AppendLog)
    assert cluster.between(2, 1, Ack) == [], "nothing is said in the term before its promise is durable"
    cluster[2].sync()
    assert [ack.end for ack in cluster.between(2, 1, Ack)] == [EntryId(3, 1)]
    fixed = Cluster((2, 3, 4), raft=True)
    fixed.hosts[1] = type(fixed[2])(fixed, 1)
    fixed.receive(2, 1, Append(SHARD, 3, 2, EMPTY, 0, 1))
    assert fixed.replica(1).role is Role.NOT_MEMBER, "where the ensemble is fixed, it is refused"


# From one role to another there are these; the other five of the eleven edges lead from a role to itself.
CHANGES = {
    (Role.NOT_MEMBER, Role.FENCED),
    (Role.FOLLOWER, Role.FENCED),
    (Role.LEADER, Role.FENCED),
    (Role.FENCED, Role.FOLLOWER),
    (Role.FENCED, Role.LEADER),
}


class Watched(Cluster):
    """Notes each change of a role that a replica tells of, and that it is in that role then."""

    changes: set[tuple[Role, Role]]
    roles: dict[int, Role]

    def role_changed(self, host: Host, action: RoleChanged) -> None:
        super().role_changed(host, action)
        before = self.roles.get(host.node, Role.FENCED)
        if before is not action.role:
            self.changes.add((before, action.role))
        self.roles[host.node] = action.role


@pytest.mark.parametrize("raft", [False, True])
def test_s0_04_whoever_elects_the_leader_roles_change_along_these_edges_only(raft: bool) -> None:
    random = Random(4)
    cluster = Watched(5, raft=raft, election=ElectionConfig(pre_vote=False))
    cluster.changes, cluster.roles = set(), {}
    for term in range(1, 60):
        if not raft:
            cluster.appoint(random.randrange(1, 6), term)
        for _ in range(8):
            for node in cluster.leading:
                if cluster.replica(node).ready:
                    cluster.propose(node, term)
            cluster.deliver(random.randrange(12))
            cluster.tick()
        cluster.heal()
        cluster.isolate(random.randrange(1, 6))
        told = cluster.roles.items()
        assert all(cluster.replica(node).role is role for node, role in told), "what is told is what they are"
    assert cluster.changes == CHANGES - {(Role.NOT_MEMBER, Role.FENCED)}, (
        "all of them were seen, and no other"
    )


def test_s0_04_no_role_changes_without_passing_through_fenced() -> None:
    assert all(
        Role.FENCED in {before, after}
        for (before, _), after in TRANSITIONS.items()
        if before is not after and before is not Role.NOT_MEMBER
    )
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.lead(2, 2)
    assert [action.role for action in cluster[1].took(RoleChanged)] == [
        Role.FENCED,
        Role.LEADER,
        Role.FENCED,
        Role.FOLLOWER,
    ]


def test_s0_05_not_member_is_who_is_not_in_the_ensemble() -> None:
    cluster = in_role(Role.NOT_MEMBER)
    assert 1 not in cluster.replica(1).members.voting
    assert cluster.replica(1).receive(2, Append(SHARD, 1, 2, EMPTY, 0, 1)) == []
    assert [cluster.replica(node).role for node in (2, 3, 4)] == [Role.FENCED] * 3, "members, before any term"


@pytest.mark.parametrize("led_before", [False, True])
def test_s0_06_fenced_serves_no_client(led_before: bool) -> None:
    cluster = Cluster()
    if led_before:
        cluster.lead(1, 1)
        cluster.propose(1, "a")
        cluster.deliver()
    cluster.fence(2)
    assert cluster.replica(1).role is Role.FENCED
    with pytest.raises(NotLeaderError):
        cluster.replica(1).propose([(1, "a")])
    with pytest.raises(NotLeaderError):
        cluster.replica(1).request_read(1)


def test_s0_06_a_read_that_waits_fails_when_its_leader_is_fenced() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[1].run(cluster.replica(1).request_read(5))
    cluster.fence(2, 1)
    cluster.deliver()
    assert cluster[1].took(ReadFailed) == [ReadFailed(5)]
    assert cluster[1].took(ReadReady) == []


def test_s0_07_a_follower_takes_the_feed_of_its_terms_leader_only() -> None:
    cluster = Cluster()
    cluster.lead(1, 5)
    stale = Append(SHARD, 4, 3, EMPTY, 0, 1, (Entry(4, 0, 1, "old"),))
    before = list(cluster[2].log)
    cluster.receive(3, 2, stale)
    assert cluster[2].log == before
    assert cluster.replica(2).leader == 1
    assert cluster.between(2, 3, StaleTerm) == [StaleTerm(SHARD, 5)]
    cluster.fence(6, 2)  # a new term has begun, and nobody leads it yet
    cluster.receive(1, 2, Append(SHARD, 5, 1, EntryId(5, 1), 0, 9, (Entry(5, 1, 2, "late"),)))
    assert cluster[2].log == before
    assert (cluster.replica(2).role, cluster.replica(2).leader) == (Role.FENCED, None)


@pytest.mark.parametrize("role", list(Role))
def test_s0_35_a_new_term_is_accepted_in_every_state_and_fences(role: Role) -> None:
    cluster = in_role(role)
    term = cluster.replica(1).term + 1
    cluster.told.clear()
    for _ in range(2):
        cluster.receive(COORDINATOR, 1, NewTerm(SHARD, term))
        assert cluster.replica(1).role is Role.FENCED
    replies = [message for _, message in cluster.told if isinstance(message, NewTermReply)]
    assert [reply.term for reply in replies] == [term, term]
    assert replies[0] == replies[1]


def test_s0_35_a_promise_is_said_when_it_is_durable() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[1].auto_sync = False
    cluster.propose(1, "a")
    cluster.told.clear()
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 2))
    assert cluster.told == []
    cluster[1].sync()
    assert cluster.told == [(1, NewTermReply(SHARD, 2, EntryId(1, 2), 0))]


def test_s0_36_truncate_turns_a_diverged_fenced_node_into_a_follower() -> None:
    log = (term_start(1, 0), Entry(1, 1, 2, "a"), Entry(1, 2, 3, "lost"))
    cluster = Cluster(logs={2: log}, terms={2: 1})
    cluster.fence(3, 2)
    cluster.receive(1, 2, Truncate(SHARD, 3, 1, EntryId(1, 2)))
    assert cluster.replica(2).role is Role.FOLLOWER
    assert cluster[2].took(TruncateLog)[0].to_offset == 2
    assert cluster.between(2, 1, TruncateReply) == [TruncateReply(SHARD, 3, EntryId(1, 2))]


def test_s0_36_the_leader_truncates_whose_head_is_not_in_its_log() -> None:
    start = (term_start(1, 0), Entry(1, 1, 2, "a"))
    logs = {1: (*start, term_start(3, 2)), 2: (*start, Entry(1, 2, 3, "x"), Entry(1, 3, 4, "y"))}
    cluster = Cluster(logs=logs, terms={1: 3, 2: 1})
    cluster.appoint(1, 4)
    assert cluster.between(1, 2, Truncate) == [Truncate(SHARD, 4, 1, EntryId(1, 2))]
    cluster.deliver()
    cluster.tick(2)
    assert cluster[2].log == cluster[3].log == cluster[1].log


@pytest.mark.parametrize("role", [Role.FENCED, Role.FOLLOWER])
def test_s0_37_a_snapshot_installs_state_on_a_fenced_or_following_node(role: Role) -> None:
    cluster = in_role(role)
    term = cluster.replica(1).term
    cluster.receive(2, 1, SnapshotOffer(SHARD, term, 2, EntryId(4, 40)))
    cluster[1].run(cluster.replica(1).snapshot_installed(EntryId(4, 40)))
    replica = cluster.replica(1)
    assert (replica.role, replica.log.terms.end, replica.high_watermark) == (
        Role.FOLLOWER,
        EntryId(4, 40),
        40,
    )


def test_s0_38_add_follower_extends_a_running_leader_without_a_new_term() -> None:
    cluster = Cluster()
    cluster.lead(1, 1, 2)
    cluster.propose(1, "a")
    cluster.deliver()
    assert [status.node for status in cluster.replica(1).followers()] == [2]
    head = cluster.fence(1, 3)[3]
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 3, head))
    cluster.deliver()
    assert cluster.replica(1).term == 1
    assert cluster[3].log == cluster[1].log
    assert cluster.replica(1).followers()[1].state is ProgressState.REPLICATE
