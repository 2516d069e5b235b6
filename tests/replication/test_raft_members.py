"""Members that change where replicas vote (S0.2): joint steps, learners, removed leaders, a coordinator's wishes."""

from itertools import pairwise

import pytest

from antiphon.errors import InvalidRequestError, NotLeaderError, NotReadyError
from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.replication.actions import MembersChanged, ResetLog
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.election import Campaign
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Append,
    ChangeMembers,
    MembersSettled,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from antiphon.replication.quorum import VoteResult
from antiphon.replication.raft import RaftReplica
from antiphon.replication.raft_members import next_members
from antiphon.replication.replica_state import Role
from antiphon.replication.restored_state import RestoredState
from tests.replication.cluster import COORDINATOR, SHARD, cursor_of, term_start
from tests.replication.raft_world import MemberCluster, founded, make_members, with_learner

THREE = Members((1, 2, 3))


# -- what to write next ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("voters", "learners", "entry"),
    [
        ((3, 2, 1), (), None),
        ((1, 2, 3), (4,), Members((1, 2, 3), (), (4,))),
        ((1, 2, 4), (), Members((1, 2, 4), (1, 2, 3))),
        ((4, 5), (6,), Members((4, 5), (1, 2, 3), (6,))),
    ],
)
def test_what_is_written_for_a_change(
    voters: tuple[int, ...], learners: tuple[int, ...], entry: Members | None
) -> None:
    assert next_members(THREE, voters, learners, settled=True) == entry


@pytest.mark.parametrize(("voters", "learners"), [((), ()), ((1, 1), ()), ((1, 2), (2,)), ((1, 2), (4, 4))])
def test_impossible_members_are_refused(voters: tuple[int, ...], learners: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="voter"):
        next_members(THREE, voters, learners, settled=True)


@pytest.mark.parametrize(("current", "settled"), [(Members((1, 2), (1, 2, 3)), True), (THREE, False)])
def test_one_change_at_a_time(current: Members, settled: bool) -> None:
    with pytest.raises(NotReadyError, match="under way"):
        next_members(current, (1, 2), (), settled=settled)


def test_a_campaign_needs_a_majority_of_both_sets() -> None:
    campaign = Campaign(3, Members((1, 4, 5), (1, 2, 3), (6,)), is_pre_vote=False)
    for voter in (1, 4, 6):
        assert campaign.record(voter, granted=True) is VoteResult.PENDING
    assert campaign.record(5, granted=True) is VoteResult.PENDING
    assert campaign.record(2, granted=False) is VoteResult.PENDING
    assert campaign.record(3, granted=True) is VoteResult.WON
    lost = Campaign(3, Members((1, 4, 5), (1, 2, 3)), is_pre_vote=False)
    for voter, granted in ((1, True), (4, True), (2, False), (3, False)):
        lost.record(voter, granted=granted)
    assert lost.result is VoteResult.LOST


# -- a change, step by step ------------------------------------------------------------------------------------------


def test_a_learner_is_fed_and_counts_nowhere() -> None:
    cluster = with_learner()
    assert cluster[4].log == cluster[1].log
    assert cluster.heard(4) == [(Members((1, 2, 3), (), (4,)), False), (Members((1, 2, 3), (), (4,)), True)]
    assert not cluster[4].damaged, "it holds what this term has committed"
    cluster.isolate(2, 3)
    before = cluster.voter(1).high_watermark
    cluster.propose(1, "b")
    cluster.deliver()
    assert cluster[4].data == ["a", "b"]
    assert cluster.voter(1).high_watermark == before
    cluster.crash(1)
    cluster.tick(80)
    assert cluster.voter(4).term == 1, "it never stands for election"


def test_a_voter_is_replaced_in_two_steps() -> None:
    cluster = with_learner()
    cluster.moved((1, 2, 4))
    joint, final = Members((1, 2, 4), (1, 2, 3)), Members((1, 2, 4))
    assert cluster.heard(1)[-4:] == [(joint, False), (joint, True), (final, False), (final, True)]
    for node in (1, 2, 4):
        assert cluster.heard(node)[-2:] == [(final, False), (final, True)]
        assert cluster.voter(node).members.voting == (1, 2, 4)
    cluster.crash(1)
    cluster.tick(40)
    assert cluster.leader in {2, 4}
    assert [entry.members for entry in cluster[2].log if entry.members][-2:] == [joint, final]


@pytest.mark.parametrize("away", [(5, 6), (2, 3)], ids=["one of the new", "one of the old"])
def test_joint_commits_need_both_majorities(away: tuple[int, ...]) -> None:
    cluster = founded(6)
    for node in (4, 5, 6):
        cluster.add(node)
    cluster.moved((1, 2, 3), (4, 5, 6))
    cluster.isolate(*away)
    mark = cluster.voter(1).high_watermark
    cluster.change((4, 5, 6))
    cluster.tick(5)
    assert cluster.voter(1).members == Members((4, 5, 6), (1, 2, 3))
    assert cluster.voter(1).high_watermark == mark
    cluster.heal()
    cluster.tick(30)
    assert cluster.voter(4).members == Members((4, 5, 6))
    assert cluster.leader in {4, 5, 6}


def test_a_removed_leader_hands_over_when_the_change_is_committed() -> None:
    cluster = with_learner()
    cluster.moved((2, 3, 4))
    assert cluster.between(1, cluster.leader, TimeoutNow)
    assert cluster.voter(1).role is not Role.LEADER
    assert cluster.leader in {2, 3, 4}
    assert cluster.voter(cluster.leader).term == 2, "one election"
    cluster.tick(80)
    assert cluster.voter(cluster.leader).term == 2, "who was removed does not disturb"
    cluster.propose(cluster.leader, "b")
    cluster.tick(3)
    assert cluster[4].data == ["a", "b"]


def test_a_removed_leader_with_nobody_to_hand_over_to_gives_up() -> None:
    cluster = with_learner()
    cluster.change((2, 3, 4))
    while cluster.voter(1).members.is_joint:
        cluster.deliver(1)
    cluster.deliver_to(2, 3, 4)
    for host in (2, 3, 4):
        cluster[1].run(cluster.voter(1).peer_lost(host))
    cluster.deliver()
    assert cluster.voter(1).role is Role.FENCED
    cluster.tick(40)
    assert cluster.leader in {2, 3, 4}


def test_a_removed_replica_that_was_not_told_is_refused_its_pre_votes() -> None:
    cluster = with_learner()
    cluster.isolate(3)
    cluster.moved((1, 2, 4))
    cluster.heal()
    cluster.tick(60)
    assert cluster.between(3, 1, RequestVote), "it still believes to be a voter"
    assert cluster.leader == 1
    assert cluster.voter(1).term == 1


def test_a_removed_replica_that_knows_does_not_campaign() -> None:
    cluster = with_learner()
    cluster.moved((1, 2, 4))
    assert cluster.voter(3).members == Members((1, 2, 4))
    cluster.isolate(3)
    cluster.sent.clear()
    cluster.tick(80)
    assert [message for source, _, message in cluster.sent if source == 3] == []


def test_a_change_that_a_leader_left_half_done_is_finished_by_the_next() -> None:
    cluster = with_learner()
    cluster.change((1, 2, 4))
    cluster.deliver_to(2, 3, 4)
    cluster.crash(1)
    cluster.tick(60)
    assert cluster.voter(cluster.leader).members == Members((1, 2, 4))
    assert cluster.voter(cluster.leader).settled_members == Members((1, 2, 4))


def test_a_change_that_only_a_dead_leader_knew_of_is_undone() -> None:
    cluster = with_learner()
    cluster.isolate(1)
    cluster.change((1, 2, 4))
    assert cluster.voter(1).members.is_joint
    cluster.tick(40)
    leader = cluster.leader
    cluster.propose(leader, "b")
    cluster.heal()
    cluster.tick(6)
    assert cluster.voter(1).members == Members((1, 2, 3), (), (4,))
    assert cluster.heard(1)[-1] == (Members((1, 2, 3), (), (4,)), True)
    cluster.moved((1, 2, 4))
    assert cluster.voter(leader).settled_members == Members((1, 2, 4))


def test_members_are_recovered_from_the_log_whatever_the_founders_were() -> None:
    cluster = with_learner()
    cluster.moved((1, 2, 4))
    for node in (1, 2, 4):
        cluster.crash(node)
    for node in (1, 2, 4):
        cluster.restart(node)
        assert cluster.voter(node).members == Members((1, 2, 4))
    cluster.tick(40)
    assert cluster.leader in {1, 2, 4}


def test_a_snapshot_brings_the_members() -> None:
    cluster = with_learner()
    cluster.propose(1, *"bcd")
    cluster.tick(3)
    cluster.add(5)
    cluster.trim(1, cluster.voter(1).high_watermark)
    cluster.change((1, 2, 3), (4, 5))
    cluster.tick(6)
    assert cluster[1].snapshots == [5]
    cluster.snapshot(1, 5)
    assert cluster[5].took(ResetLog)[0].members == Members((1, 2, 3), (), (4,))
    cluster.tick(6)
    assert cluster.voter(5).members == Members((1, 2, 3), (), (4, 5))
    cluster.crash(5)
    cluster.restart(5)
    assert cluster.voter(5).members_at(cluster[5].start.offset) == Members((1, 2, 3), (), (4,))


def test_a_trimmed_members_entry_is_remembered() -> None:
    cluster = with_learner()
    end = cluster.voter(1).log_end
    cluster.trim(1, end)
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.voter(1).members == Members((1, 2, 3), (), (4,))


# -- who may, and when -----------------------------------------------------------------------------------------------


def test_who_does_not_lead_or_is_not_ready_changes_nothing() -> None:
    cluster = founded()
    with pytest.raises(NotLeaderError):
        cluster.voter(2).propose_members((1, 2), ())
    cluster.isolate(2)
    cluster.crash(1)
    cluster.restart(1)
    for host in (1, 3):
        cluster[host].auto_sync = False
    for _ in range(16):
        cluster.tick()
        if not cluster.leading:
            cluster[1].sync()
            cluster[3].sync()
    assert cluster.leading == [1]
    with pytest.raises(NotReadyError, match="no committed entry"):
        cluster.voter(1).propose_members((1, 2), ())


def test_a_second_change_waits() -> None:
    cluster = with_learner()
    cluster.change((1, 2, 4))
    with pytest.raises(NotReadyError, match="under way"):
        cluster.voter(1).propose_members((1, 2, 3))
    cluster.tick(4)
    assert cluster.voter(1).propose_members((4, 2, 1)) == [], "nothing to do"


def test_a_voter_is_a_learner_that_has_caught_up_first() -> None:
    cluster = founded()
    cluster.add(4)
    with pytest.raises(NotReadyError, match="node 4 is no learner"):
        cluster.change((1, 2, 4))
    cluster.isolate(4)
    cluster.moved((1, 2, 3), (4,))
    with pytest.raises(NotReadyError, match="caught up"):
        cluster.change((1, 2, 4))
    wish(cluster, 5, Members((1, 2, 4)))
    assert cluster.voter(1).members == Members((1, 2, 3), (), (4,))
    cluster.heal()
    cluster.tick(6)
    wish(cluster, 5, Members((1, 2, 4)))
    cluster.tick(6)
    assert cluster.voter(4).settled_members == Members((1, 2, 4))


def test_a_fixed_ensemble_stays_as_it_is() -> None:
    replica = RaftReplica(
        node_id=1,
        shard=SHARD,
        ensemble=(1,),
        restored=RestoredState(terms=TermIndex()),
        entries=EntryFactory(term_start),
        config=ReplicaConfig(),
        election_timeout_ticks=lambda: 10,
    )
    for _ in range(10):
        replica.tick()
    for write_id in (1, 2):
        replica.persisted(write_id)
    assert replica.ready
    assert (replica.settled_members, replica.members_at(1)) == (None, None)
    with pytest.raises(InvalidRequestError, match="fixed"):
        replica.propose_members((1, 2))


def test_an_empty_log_without_a_term_start_takes_a_change_at_once() -> None:
    cluster = MemberCluster(
        timeout=lambda node: 10 if node == 1 else 19, config=ReplicaConfig(term_start_on_empty=False)
    )
    cluster.tick(10)
    assert cluster.voter(1).ready
    assert cluster.voter(1).log_end == 0
    cluster.add(4)
    cluster.moved((1, 2, 3), (4,))
    cluster.moved((1, 2, 4))
    assert [entry.base_offset for entry in cluster[4].log if entry.members] == [0, 1, 2]


def test_a_voter_leaves_a_shard_that_nobody_has_written_to() -> None:
    cluster = MemberCluster(
        timeout=lambda node: 10 if node == 1 else 19, config=ReplicaConfig(term_start_on_empty=False)
    )
    cluster.tick(12)
    cluster.moved((1, 2))
    assert cluster.voter(1).settled_members == Members((1, 2))


def test_an_only_voter_takes_others_in() -> None:
    cluster = founded(3, (1,))
    assert not cluster.voter(1).needs_tick
    for node in (2, 3):
        cluster.add(node)
    cluster.moved((1,), (2, 3))
    assert cluster.voter(1).needs_tick
    cluster.moved((1, 2, 3))
    assert cluster.voter(2).settled_members == Members((1, 2, 3))
    cluster.crash(1)
    cluster.tick(60)
    assert cluster.leader in {2, 3}


def test_a_cut_brings_the_founders_back() -> None:
    cluster = founded()
    cluster.isolate(1)
    cluster.change((1, 2, 3), (4,))
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.voter(1).members == Members((1, 2, 3), (), (4,))
    cluster.tick(40)
    cluster.heal()
    cluster.tick(6)
    assert cluster.voter(1).members == THREE


def test_who_is_no_voter_by_an_entry_that_may_be_undone_can_still_be_elected() -> None:
    """Node 1 wrote the final entry, which leaves it out, and nobody else has it; node 4 lacks what only node 1 has."""
    cluster = founded(4, (1,))
    cluster.add(4)
    cluster.moved((1,), (4,))
    cluster.change((4,))
    while cluster.voter(1).members.is_joint:
        cluster.deliver(1)
    cluster.drop()
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.voter(1).members.voting == (4,)
    cluster.tick(60)
    assert cluster.voter(4).settled_members == Members((4,))
    assert cluster.leader == 4


def test_those_that_leave_hear_of_it() -> None:
    cluster = with_learner()
    cluster.moved((1, 2, 4))
    assert cluster.heard(3)[-1] == (Members((1, 2, 4)), True)


# -- a coordinator's wish --------------------------------------------------------------------------------------------


def settled(cluster: MemberCluster) -> list[int]:
    return [message.version for node, message in cluster.told if isinstance(message, MembersSettled)]


def wish(cluster: MemberCluster, version: int, members: Members, term: int = 1, leader: int = 1) -> None:
    cluster.receive(COORDINATOR, leader, ChangeMembers(SHARD, term, version, members))


def test_a_coordinators_wish_is_carried_out_and_answered() -> None:
    cluster = with_learner()
    wish(cluster, 5, Members((1, 2, 4)))
    assert settled(cluster) == []
    wish(cluster, 5, Members((1, 2, 4)))
    cluster.tick(5)
    assert settled(cluster) == [5]
    wish(cluster, 5, Members((1, 2, 4)))
    assert settled(cluster) == [5, 5], "repeated, it is answered again"
    assert cluster.voter(1).settled_members == Members((1, 2, 4))


def test_a_wish_waits_for_the_change_under_way() -> None:
    cluster = with_learner()
    wish(cluster, 5, Members((1, 2, 4)))
    wish(cluster, 6, Members((1, 4), (), (2,)))
    cluster.tick(8)
    assert settled(cluster) == [6]
    assert cluster.voter(1).settled_members == Members((1, 4), (), (2,))


def test_a_late_wish_brings_nobody_back() -> None:
    cluster = with_learner()
    wish(cluster, 6, Members((1, 2, 4)))
    cluster.tick(6)
    wish(cluster, 5, Members((1, 2, 3)))
    wish(cluster, 7, Members((1, 2, 3)), term=0)
    wish(cluster, 7, Members(()))
    cluster.tick(6)
    assert cluster.voter(1).settled_members == Members((1, 2, 4))


def test_a_removed_leader_answers_before_it_goes() -> None:
    cluster = with_learner()
    wish(cluster, 5, Members((2, 3, 4)))
    cluster.tick(8)
    assert settled(cluster) == [5]
    assert cluster.leader != 1


# -- votes across changes --------------------------------------------------------------------------------------------


def test_a_vote_is_given_to_a_candidate_that_is_not_known_to_be_a_member() -> None:
    """The candidate has members entries that this voter lacks; it could never win otherwise."""
    cluster = founded()
    cluster.receive(4, 2, RequestVote(SHARD, 5, 4, EntryId(4, 99)))
    assert cluster.between(2, 4, VoteReply) == [VoteReply(SHARD, 5, granted=True)]


def test_a_learner_that_was_made_a_voter_votes_before_it_knows() -> None:
    """Node 5 lacks the joint entry that makes it a voter, and its vote is needed to go on."""
    cluster = founded()
    for node in (4, 5):
        cluster.add(node)
    cluster.moved((1, 2, 3), (4, 5))
    cluster.isolate(5)
    cluster.change((4, 5))
    cluster.deliver_to(2, 3, 4)
    cluster.crash(1)
    cluster.crash(3)
    cluster.underway.clear()
    cluster.heal()
    cluster.restart(1)
    cluster.crash(2)
    cluster.restart(3)
    assert cluster.voter(5).members == Members((1, 2, 3), (), (4, 5))
    cluster.tick(60)
    assert cluster.voter(5).settled_members == Members((4, 5))
    assert cluster.leader in {4, 5}


def test_a_replica_that_joins_does_not_vote_for_a_candidate_of_long_ago() -> None:
    """Nodes 2 and 3 were members once, left with their disks, and come back empty; node 1 has heard of nothing since."""
    cluster = founded()
    for node in (4, 5):
        cluster.add(node)
    cluster.moved((1, 2, 3), (4, 5))
    cluster.isolate(1)
    cluster.tick(40)
    cluster.change((4, 5))
    cluster.tick(30)
    assert cluster.leader in {4, 5}
    for node in (2, 3):
        cluster.remove(node)
        cluster.add(node)
    cluster.cut = {pair for pair in cluster.cut if not {2, 3, 1} >= set(pair)}
    cluster.change((4, 5), (2, 3))
    for node in (2, 3):
        cluster.receive(1, node, RequestVote(SHARD, 9, 1, cluster.voter(1).log.terms.end))
        assert cluster.between(node, 1, VoteReply)[-1] == VoteReply(SHARD, 9, granted=False)
    cluster.heal()
    cluster.tick(60)
    assert cluster.voter(cluster.leader).members == Members((4, 5), (), (2, 3))
    assert not cluster[2].damaged
    cluster.receive(1, 2, RequestVote(SHARD, 99, 1, EntryId(98, 99)))
    assert cluster.between(2, 1, VoteReply)[-1] == VoteReply(SHARD, 99, granted=True), "now it may"


# -- check-quorum ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("away", "gives_up"), [((2, 3), True), ((5, 6), True), ((3, 6), False)], ids=str)
def test_a_joint_leader_that_does_not_hear_both_majorities_gives_up(
    away: tuple[int, ...], gives_up: bool
) -> None:
    cluster = founded(6)
    for node in (4, 5, 6):
        cluster.add(node)
    cluster.moved((1, 2, 3), (4, 5, 6))
    for node in (3, 5, 6):
        cluster[node].auto_sync = False  # so that the joint step is not over too soon
    cluster.change((1, 5, 6))
    cluster.isolate(*away)
    cluster.tick(9)
    assert cluster.voter(1).members.is_joint
    cluster.tick(12)
    assert (cluster.voter(1).role is Role.LEADER and cluster.voter(1).term == 1) is not gives_up


def test_a_term_is_not_decided_twice_by_members_that_overlap_in_nobody() -> None:
    """From (1, 2, 3) to (4, 5, 6) and back, with an election at every step; the log has all of it."""
    cluster = founded(6, election=ElectionConfig())
    for node in (4, 5, 6):
        cluster.add(node)
    cluster.moved((1, 2, 3), (4, 5, 6))
    for voters in ((4, 5, 6), (1, 2, 3), (6, 1, 4)):
        learners = tuple(node for node in range(1, 7) if node not in voters)
        cluster.moved(voters, learners)
        cluster.tick(40)
        assert cluster.leader in voters
        cluster.propose(cluster.leader, f"by {voters}")
        cluster.tick(3)
    logs = [cluster[node].log for node in range(1, 7)]
    assert all(mine == theirs for mine, theirs in pairwise(logs))
    said = [entry.members for entry in logs[0] if entry.members]
    assert [members.is_joint for members in said] == [False, True, False, True, False, True, False]


def test_members_entries_reach_a_replica_that_knows_nothing_by_an_append() -> None:
    cluster = founded()
    cluster.add(4)
    replica = cluster.voter(4)
    assert (replica.role, replica.needs_tick) == (Role.NOT_MEMBER, False)
    entry = make_members(1, 0, Members((1, 2, 3), (), (4,)))
    cluster.receive(1, 4, Append(SHARD, 1, 1, EntryId(0, 0), 0, 1, (entry,)))
    assert replica.role is Role.FOLLOWER
    assert cluster[4].took(MembersChanged) == [MembersChanged(Members((1, 2, 3), (), (4,)), committed=False)]


def test_a_learner_whose_disk_was_lost_asks_for_terms_and_is_fed_again() -> None:
    cluster = with_learner()
    cluster.wipe(4)
    cluster.restart(4)
    assert cluster.voter(4).role is Role.FENCED
    cluster.tick(30)
    assert cluster[4].log == cluster[cluster.leader].log
    assert not cluster[4].damaged


def test_no_change_makes_the_vote_of_a_damaged_voter_necessary() -> None:
    """It votes again once a later term has committed an entry, for which it must not be needed."""
    cluster = with_learner()
    cluster.isolate(2)
    cluster[3].damaged = True
    cluster.restart(3)
    cluster.tick(2)
    assert cluster.leader == 1
    assert cursor_of(cluster, 1, 3).ack_offset == cluster[1].log_end
    with pytest.raises(NotReadyError, match=r"only \[1\] would vote"):
        cluster.voter(1).propose_members((1, 3))
    cluster.heal()
    cluster.tick(60)
    assert not cluster[3].damaged
    cluster.moved((1, 3))
    assert cluster.voter(cluster.leader).settled_members == Members((1, 3))


def test_no_change_makes_the_vote_of_a_voter_necessary_that_only_rejects() -> None:
    """raft 9407812: it had not said yet that it is damaged, and nobody could be elected when the leader was gone."""
    cluster = with_learner()
    leading = cluster.voter(1).in_term.leading
    assert leading is not None
    cursor = leading.replicator.progress[3]
    assert cursor.round_echoed > 0
    assert not cursor.damaged
    cursor.ack_offset = leading.tracker.term_start  # as where it rejects what it is sent: its log ends before
    with pytest.raises(NotReadyError, match=r"only \[1\] would vote"):
        cluster.voter(1).propose_members((1, 3))


def test_no_change_makes_the_vote_of_a_voter_that_is_gone_necessary() -> None:
    cluster = with_learner()
    cluster.crash(3)
    cluster.voter(1).peer_lost(3)
    with pytest.raises(NotReadyError, match=r"only \[1\] would vote"):
        cluster.voter(1).propose_members((1, 3))
    cluster.moved((1, 2))
    assert cluster.voter(1).settled_members == Members((1, 2))
