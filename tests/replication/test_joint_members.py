"""Members change while a coordinator's leader leads on: learners first, then both majorities, then the new voters (S0.2)."""

from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import ReadReady
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    BecomeLeader,
    BecomeLeaderReply,
    ChangeMembers,
    MembersSettled,
    NewTerm,
    StaleTerm,
)
from antiphon.replication.replica_state import Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, commit_by, cursor_of

JOINT = Members((1, 4, 5), (1, 2, 3))


def change(cluster: Cluster, leader: int, version: int, members: Members) -> None:
    cluster.receive(COORDINATOR, leader, ChangeMembers(SHARD, cluster.replica(leader).term, version, members))


def told(cluster: Cluster, kind: type) -> list[object]:
    return [message for _, message in cluster.told if isinstance(message, kind)]


def join(cluster: Cluster, leader: int, *nodes: int) -> None:
    """The nodes promise the leader's term and are fed."""
    term = cluster.replica(leader).term
    for node, head in cluster.fence(term, *nodes).items():
        cluster.receive(COORDINATOR, leader, AddFollower(SHARD, term, node, head))


def growing() -> Cluster:
    """Nodes 1, 2 and 3 are the voters, 1 leads; 4 and 5 are there and listen to nobody yet."""
    cluster = Cluster(5)
    cluster.ensemble = (1, 2, 3)
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    return cluster


def test_s0_2_while_joint_both_majorities_commit() -> None:
    cluster = growing()
    join(cluster, 1, 4, 5)
    cluster.deliver()
    change(cluster, 1, 1, JOINT)
    cluster.isolate(4, 5)
    cluster.propose(1, "b")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 2, "the new voters have not got it"
    cluster.heal()
    cluster.isolate(2, 3)
    cluster.propose(1, "c")
    cluster.tick(5)
    assert cluster.replica(1).high_watermark == 3, "both sets have b, only one has c"
    cluster.heal()
    cluster.tick(5)
    assert cluster.replica(1).high_watermark == 4


def test_s0_2_settled_is_said_when_the_new_voters_hold_what_was_committed() -> None:
    cluster = growing()
    change(cluster, 1, 1, JOINT)
    assert not told(cluster, MembersSettled)
    join(cluster, 1, 4)
    cluster.deliver()
    assert told(cluster, MembersSettled) == [MembersSettled(SHARD, 1, 1)]
    change(cluster, 1, 1, JOINT)
    assert len(told(cluster, MembersSettled)) == 2, "a repeated request is answered again"
    change(cluster, 1, 0, Members((1, 2, 3)))
    assert cluster.replica(1).members == JOINT, "an older record changes nothing"


def test_s0_2_who_is_no_member_any_more_is_not_fed() -> None:
    cluster = growing()
    join(cluster, 1, 4, 5)
    change(cluster, 1, 1, JOINT)
    cluster.deliver()
    change(cluster, 1, 2, Members(JOINT.voters))
    before = len(cluster.sent)
    cluster.propose(1, "b")
    cluster.deliver()
    assert {to for source, to, _ in cluster.sent[before:] if source == 1} == {4, 5}
    assert cluster.replica(1).high_watermark == 3
    assert [status.node for status in cluster.replica(1).followers()] == [4, 5]


def test_s0_2_a_leader_that_is_on_its_way_out_leads_without_counting() -> None:
    cluster = growing()
    join(cluster, 1, 4, 5)
    change(cluster, 1, 1, Members((3, 4, 5), (1, 2, 3)))
    cluster.deliver()
    change(cluster, 1, 2, Members((3, 4, 5)))
    cluster.isolate(4)
    cluster.propose(1, "b")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 3, "3 and 5 have it"
    cluster.isolate(5)
    cluster.propose(1, "c")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 3, "the leader's own disk is not one of the new voters'"


def test_s0_2_an_election_while_joint_needs_promises_of_both_majorities() -> None:
    cluster = growing()
    join(cluster, 1, 4, 5)
    change(cluster, 1, 1, JOINT)
    cluster.deliver()
    heads = cluster.fence(2, 1, 4, 5)

    def appoint(node: int, *others: int) -> None:
        known = tuple((other, heads[other]) for other in others)
        message = BecomeLeader(SHARD, 2, JOINT.voters, known, outgoing=JOINT.outgoing, members_version=1)
        cluster.receive(COORDINATOR, node, message)

    appoint(4, 1, 5)
    assert cluster.replica(4).role is Role.FENCED, "of 1, 2 and 3 only one has promised"
    heads |= cluster.fence(2, 2)
    appoint(4, 1, 2, 5)
    cluster.deliver()
    assert cluster.replica(4).role is Role.LEADER
    assert cluster.replica(4).members == JOINT
    assert told(cluster, BecomeLeaderReply)[-1] == BecomeLeaderReply(SHARD, 2)
    assert told(cluster, MembersSettled)[-1] == MembersSettled(SHARD, 2, 1)


def test_s0_2_who_is_on_its_way_out_may_lead_for_the_new_voters_may_lack_what_is_committed() -> None:
    cluster = growing()
    heads = cluster.fence(2, 1, 2, 4, 5)
    message = BecomeLeader(
        SHARD, 2, JOINT.voters, tuple((n, heads[n]) for n in (1, 4, 5)), outgoing=JOINT.outgoing
    )
    cluster.receive(COORDINATOR, 4, message)
    assert isinstance(cluster.told[-1][1], StaleTerm), "its log is not the best"
    cluster.receive(COORDINATOR, 2, message)
    cluster.deliver()
    assert cluster.replica(2).role is Role.LEADER


def test_s0_2_an_old_term_cannot_be_told_of_new_members() -> None:
    cluster = growing()
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 2))
    cluster.receive(COORDINATOR, 1, ChangeMembers(SHARD, 1, 1, JOINT))
    assert isinstance(cluster.told[-1][1], StaleTerm)
    assert cluster.replica(1).members == Members((1, 2, 3))


def test_s0_2_a_joint_term_is_reported_when_the_new_voters_have_settled_it_whatever_acknowledges() -> None:
    cluster = growing()
    for host in cluster.hosts.values():
        host.run(commit_by(host.replica, "local"))
    heads = cluster.fence(2, 1, 2, 3, 4, 5)
    cluster.isolate(4, 5)
    del heads[1]
    others = tuple((node, head) for node, head in heads.items())
    message = BecomeLeader(SHARD, 2, JOINT.voters, others, outgoing=JOINT.outgoing, members_version=3)
    cluster.receive(COORDINATOR, 1, message)
    cluster.deliver()
    assert cluster.replica(1).ready, "its own disk is enough to serve"
    assert BecomeLeaderReply(SHARD, 2) not in told(cluster, BecomeLeaderReply), (
        "but not to forget the outgoing"
    )
    cluster.heal()
    cluster.tick(5)
    assert BecomeLeaderReply(SHARD, 2) in told(cluster, BecomeLeaderReply)


def test_s0_2_reads_are_confirmed_by_both_majorities() -> None:
    cluster = growing()
    join(cluster, 1, 4, 5)
    change(cluster, 1, 1, JOINT)
    cluster.deliver()
    cluster.isolate(4, 5)
    host = cluster[1]
    host.run(host.replica.request_read(1))
    cluster.tick(5)
    assert not host.took(ReadReady)
    cluster.heal()
    cluster.tick(5)
    assert [read.token for read in host.took(ReadReady)] == [1]


def back_on_an_empty_disk(cluster: Cluster) -> EntryId:
    """Node 3's replica is removed and made anew; it promises the term. The leader noticed nothing of it."""
    cluster.wipe(3)
    cluster[3].damaged = cluster[3].forgot = False
    cluster.restart(3)
    return cluster.fence(1, 3)[3]


def test_s0_2_a_member_that_was_removed_and_comes_back_empty_counts_by_what_it_has_now() -> None:
    cluster = growing()
    cluster.tick(3)
    assert cursor_of(cluster, 1, 3).ack_offset == 2
    late = Ack(SHARD, 1, EntryId(1, 2), 1)
    head = back_on_an_empty_disk(cluster)
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 3, head))
    assert cursor_of(cluster, 1, 3).ack_offset == 0
    cluster.receive(3, 1, late)
    assert cursor_of(cluster, 1, 3).ack_offset == 0, "what it said before it was removed"
    change(cluster, 1, 1, Members((3,), (1, 2, 3)))
    assert not told(cluster, MembersSettled)
    cluster.deliver()
    cluster.tick(3)
    assert cluster[3].data == ["a"]
    assert told(cluster, MembersSettled)


def test_s0_2_so_does_one_that_the_leader_has_forgotten_in_between() -> None:
    cluster = growing()
    change(cluster, 1, 1, Members((1, 2)))
    late = Ack(SHARD, 1, EntryId(1, 2), 1)
    head = back_on_an_empty_disk(cluster)
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 3, head))
    cluster.receive(3, 1, late)
    assert cursor_of(cluster, 1, 3).ack_offset == 0
    cluster.tick(3)
    assert cursor_of(cluster, 1, 3).ack_offset == 2


def test_s0_38_a_repeated_request_of_before_costs_a_question_and_nothing_else() -> None:
    cluster = growing()
    cluster.tick(3)
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 3, EMPTY))
    cluster.deliver()
    assert cursor_of(cluster, 1, 3).ack_offset == 2
    assert cluster.replica(1).high_watermark == 2
