"""S1 and S0.2 where the members of a replicated log change while it runs: what each claim means with two voting sets."""

import pytest

from antiphon.errors import NotReadyError
from antiphon.replication.members import Members
from antiphon.replication.messages import RequestVote
from antiphon.replication.replica_state import Role
from tests.replication.raft_world import MemberCluster, founded, with_learner


def to_four(cluster: MemberCluster) -> None:
    """Make node 4 a voter too; nothing is delivered yet."""
    cluster.change((1, 2, 3, 4))


def test_s0_02_the_replication_factor_changes_while_writes_go_on() -> None:
    cluster = founded(5, (1,))
    written = ["a"]
    for node in (2, 3, 4, 5):
        cluster.add(node)
    cluster.moved((1,), (2, 3, 4, 5))
    for voters in ((1, 2), (1, 2, 3), (1, 2, 3, 4, 5), (1, 3, 5), (3,)):
        learners = tuple(node for node in range(1, 6) if node not in voters)
        cluster.change(voters, learners)
        for _ in range(6):
            written.append(f"{len(written)}")
            cluster.propose(cluster.leader, written[-1])
            cluster.tick()
        cluster.tick(20)
        members = cluster.voter(cluster.leader).settled_members
        assert members is not None
        assert set(members.voters) == set(voters)
    assert [cluster[node].data for node in range(1, 6)] == [written] * 5


def test_s1_01_members_are_consensus_state_in_the_log() -> None:
    cluster = with_learner()
    to_four(cluster)
    cluster.tick(5)
    said = [[entry.members for entry in cluster[node].log if entry.members] for node in (1, 2, 3, 4)]
    assert (
        said
        == [
            [
                Members((1, 2, 3), (), (4,)),
                Members((1, 2, 3, 4), (1, 2, 3)),
                Members((1, 2, 3, 4)),
            ]
        ]
        * 4
    )


def test_s1_11_the_high_water_mark_is_what_a_majority_of_both_sets_has() -> None:
    cluster = with_learner()
    for node in (3, 4):
        cluster[node].auto_sync = False
    to_four(cluster)
    mark = cluster.voter(1).high_watermark
    cluster.deliver()
    assert cluster.voter(1).high_watermark == mark, "2 of 3, but 2 of 4"
    cluster[3].sync()
    cluster.deliver()
    assert cluster.voter(1).high_watermark > mark


def test_s1_17_a_new_member_gets_every_entry_even_after_a_crash() -> None:
    cluster = founded()
    cluster.propose(1, *"bcdef")
    cluster.add(4)
    cluster.change((1, 2, 3), (4,))
    cluster.deliver(3)
    cluster.crash(4)
    cluster.tick(4)
    cluster.restart(4)
    cluster.tick(10)
    assert cluster[4].data == list("abcdef")
    assert cluster[4].log == cluster[1].log


def test_s1_09_members_that_were_cut_off_count_no_longer() -> None:
    cluster = with_learner()
    cluster.isolate(1)
    to_four(cluster)
    assert cluster.voter(1).members.voting == (1, 2, 3, 4)
    cluster.tick(40)
    cluster.heal()
    cluster.tick(6)
    assert cluster.voter(1).members.voting == (1, 2, 3)


def test_s1_29_a_majority_of_one_set_does_not_make_a_leader() -> None:
    """The joint entry is on 1, 4 and 5 only: they are all of the new voters, and of the old ones there is only 1."""
    cluster = founded(5)
    for node in (4, 5):
        cluster.add(node)
    cluster.moved((1, 2, 3), (4, 5))
    cluster.isolate(2, 3)
    cluster.change((1, 4, 5))
    cluster.deliver()
    assert cluster.voter(4).members.is_joint
    cluster.tick(100)
    assert [node for node in cluster.leading if node in {1, 4, 5}] == []
    (leader,) = [node for node in cluster.leading if node in {2, 3}]
    cluster.heal()
    cluster.tick(40)
    assert cluster.leader in {2, 3, leader}
    assert {cluster.voter(node).members.voting for node in range(1, 6)} == {(1, 2, 3)}


def test_s1_34_an_older_terms_members_are_committed_by_an_entry_of_the_current_term_only() -> None:
    cluster = with_learner()
    to_four(cluster)
    cluster.deliver_to(2, 3, 4)
    cluster.crash(1)
    cluster.underway.clear()
    assert cluster.voter(2).settled_members != cluster.voter(2).members
    for node in (2, 3, 4):
        cluster[node].auto_sync = False
    while not cluster.leading:
        for node in (2, 3, 4):
            cluster[node].sync()
        cluster.tick()
    (leader,) = cluster.leading
    assert cluster.voter(leader).settled_members == Members((1, 2, 3), (), (4,)), "all of them hold the entry"
    for _ in range(4):
        for node in (2, 3, 4):
            cluster[node].sync()
        cluster.deliver()
    cluster.tick(3)
    for node in (2, 3, 4):
        cluster[node].sync()
    cluster.tick(3)
    assert cluster.voter(leader).members == Members((1, 2, 3, 4))


def test_s1_36_a_new_leader_changes_no_members_before_its_no_op_is_committed() -> None:
    cluster = with_learner()
    cluster.crash(1)
    for node in (2, 3):
        cluster[node].auto_sync = False
    while not cluster.leading:
        for node in (2, 3):
            cluster[node].sync()
        cluster.tick()
    (leader,) = cluster.leading
    with pytest.raises(NotReadyError):
        cluster.voter(leader).propose_members((2, 3))


def test_s1_23_only_voters_become_candidates() -> None:
    cluster = with_learner()
    cluster.isolate(4)
    cluster.tick(100)
    assert cluster.voter(4).role is not Role.LEADER
    assert cluster.between(4, 1, RequestVote) == []
