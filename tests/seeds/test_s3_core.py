"""Fluvio's replica election, the part that one shard's replicas show: the live replica set, LEO and HW (S3.3-S3.5,
S3.22-S3.29).

Offsets are exclusive ends: the documents' "last record" of a log is one less than its LEO here (S3.23).
"""

from dataclasses import replace

import pytest

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId, TermIndex
from antiphon.replication.actions import LostTail, ReadReady, ResetLog
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    Append,
    BecomeLeaderReply,
    ChangeMembers,
    MembersSettled,
    SnapshotOffer,
)
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import LogCondition, Role
from antiphon.replication.restored_state import RestoredState
from tests.replication.cluster import COORDINATOR, SHARD, Host, commit_by, cursor_of, term_start
from tests.replication.live_cluster import LIVE_CONFIG, LiveCluster


def led(nodes: int = 3, config: ReplicaConfig = LIVE_CONFIG) -> LiveCluster:
    """Node 1 leads, all are live, the log is empty."""
    cluster = LiveCluster(nodes, config=config)
    cluster.lead_live(1)
    return cluster


def vector() -> LiveCluster:
    """S3.25: LEO 4 at the leader, 3 at node 2, 2 at node 3; all three are live."""
    cluster = led()
    cluster.propose(1, "a", "b")
    cluster.deliver()
    cluster.isolate(3)
    cluster.propose(1, "c")
    cluster.deliver()
    cluster.isolate(2)
    cluster.propose(1, "d")
    cluster.deliver()
    assert [cluster[node].replica.log_end for node in (1, 2, 3)] == [4, 3, 2]
    return cluster


def lag_out(cluster: LiveCluster) -> None:
    """Let time pass until whoever does not keep up is proposed for removal."""
    cluster.tick(LIVE_CONFIG.live_lag_ticks + 1)
    assert cluster.proposals


def test_s3_3_the_leader_ingests_stores_forwards_and_keeps_the_live_set() -> None:
    cluster = led()
    cluster.propose(1, "a", "b")
    cluster.deliver()
    assert cluster[1].data == cluster[2].data == cluster[3].data == ["a", "b"]
    assert cluster.replica(1).live == (1, 2, 3)
    assert cluster.replica(1).high_watermark == 2


def test_s3_4_a_follower_receives_and_stores_and_tells_that_it_is_well() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    acks = cluster.between(2, 1, Ack)
    assert acks[-1].end.offset == 1
    cluster.propose(1, "b")
    cluster.deliver()
    assert len(cluster.between(2, 1, Ack)) > len(acks)
    assert [entry.data for entry in cluster[2].disk] == ["a", "b"]


@pytest.mark.parametrize("successor", [2, 3])
def test_s3_5_every_live_follower_is_a_hot_standby(successor: int) -> None:
    cluster = led()
    cluster.propose(1, "a", "b")
    cluster.deliver()
    cluster.crash(1)
    cluster.lead_live(successor, 5 - successor)
    assert cluster.replica(successor).ready
    cluster.propose(successor, "c")
    cluster.deliver()
    assert [data for data in cluster[successor].data if data in {"a", "b", "c"}] == ["a", "b", "c"]


class Unclean(LiveCluster):
    """A leader may be elected that lacks what was committed."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__(nodes, config=replace(LIVE_CONFIG, unclean=True))

    def committed(self, host: Host, high_watermark: int) -> None:
        """What was committed may be lost: that is what an unclean election is."""


def unclean(*, written: str = "") -> Unclean:
    """Nodes 2 and 3 lack "c" and "d", which node 1, live alone, has committed; it is away, and node 2 leads."""
    cluster = Unclean()
    cluster.lead_live(1)
    cluster.propose(1, "a", "b")
    cluster.deliver()
    cluster.isolate(1)
    cluster.set_live((1,))
    cluster.tell(1)
    cluster.propose(1, "c", "d")
    assert cluster.replica(1).high_watermark == 4
    cluster[1].high_watermark = 4
    cluster.crash(1)
    cluster.live = (2, 3)
    cluster.lead_live(2, 3)
    cluster.tick(2)
    if written:
        cluster.propose(2, *written)
        cluster.tick(2)
    cluster.heal()
    cluster.restart(1)
    head = cluster.fence(cluster.term, 1)[1]
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, cluster.term, 1, head))
    return cluster


@pytest.mark.parametrize("written", ["", "x", "xyz"])
def test_s3_18_who_was_live_before_an_unclean_election_gives_up_what_the_new_leader_lacks(
    written: str,
) -> None:
    cluster = unclean(written=written)
    cluster.tick(5)
    (lost,) = cluster[1].took(LostTail)
    assert (lost.from_offset, lost.to_offset) == (2, 4)
    assert cluster[1].log == cluster[2].log
    assert cluster.replica(1).settled == cluster.replica(2).log_end
    cluster.settle_live(2)
    assert list(cluster.live) == [1, 2, 3]


def test_s3_18_it_takes_a_snapshot_where_its_log_begins_too_late() -> None:
    cluster = unclean(written="xyz")
    cluster.crash(1)
    cluster.restart(1)
    cluster.trim(1, 3)
    cluster.trim(2, 3)
    head = cluster.fence(cluster.term, 1)[1]
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, cluster.term, 1, head))
    cluster.tick(3)
    assert cluster[2].snapshots == [1]
    cluster.snapshot(2, 1)
    cluster.tick(4)
    (lost,) = cluster[1].took(LostTail)
    assert (lost.from_offset, lost.to_offset) == (3, 4)
    assert cluster[1].took(ResetLog)
    assert cluster[1].log[-1] == cluster[2].log[-1]


def test_s3_18_without_that_option_nothing_that_is_settled_is_ever_cut() -> None:
    cluster = unclean(written="xyz")
    cluster.config = LIVE_CONFIG
    cluster.crash(1)
    cluster.restart(1)
    cluster.fence(cluster.term, 1)
    lacking = Append(SHARD, cluster.term, 2, EntryId(1, 2), 0, 1, tuple(cluster[2].log[2:]))
    with pytest.raises(InvariantError):
        cluster.receive(2, 1, lacking)
    assert cluster[1].data == list("abcd")


def test_s3_12_a_candidate_says_that_it_leads_when_its_promotion_is_committed_and_nothing_before() -> None:
    """Where the promotion fails, here because a live member is not reached, nothing is said to the coordinator."""
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.crash(1)
    cluster.live = (2, 3)
    cluster.fence(cluster.term + 1, 2, 3)
    cluster.isolate(3)
    before = len(cluster.told)
    cluster.elect(2, 3)
    cluster.tick(3)
    said = [message for _, message in cluster.told[before:] if isinstance(message, BecomeLeaderReply)]
    assert not said
    assert cluster.replica(2).role is Role.LEADER
    assert not cluster.replica(2).ready
    cluster.heal()
    cluster.tick(3)
    assert cluster.told[-1] == (2, BecomeLeaderReply(SHARD, cluster.term))
    assert cluster.replica(2).ready


def test_s3_16_a_follower_that_lacks_something_gets_it_from_the_new_leader_with_its_checkpoint() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.isolate(3)
    cluster.propose(1, "b", "c")
    cluster.deliver()
    cluster.crash(1)
    cluster.heal()
    cluster.elect(2, 3)
    cluster.deliver()
    cluster.tick(2)
    assert cluster[3].data == ["a", "b", "c"]
    assert cluster.replica(3).leader == 2
    assert cluster.replica(3).high_watermark == cluster.replica(2).high_watermark == 4
    sent = len(cluster.between(2, 3, Append))
    cluster.tick(10)
    assert len(cluster.between(2, 3, Append)) == sent, "nothing to say until something changes"
    cluster.propose(2, "d")
    cluster.deliver()
    assert cluster[3].data == ["a", "b", "c", "d"]


def test_s3_22_offsets_start_at_zero_and_rise_by_one_per_record() -> None:
    cluster = led()
    cluster.propose(1, *"abc")
    cluster.deliver()
    assert [(entry.base_offset, entry.next_offset) for entry in cluster[2].disk] == [(0, 1), (1, 2), (2, 3)]


def test_s3_23_leo_is_the_end_of_the_own_store_and_hw_the_end_of_what_the_live_set_holds() -> None:
    cluster = vector()
    leader = cluster.replica(1)
    assert (leader.log_end, leader.high_watermark) == (4, 2)
    assert [cursor_of(cluster, 1, node).ack_offset for node in (2, 3)] == [3, 2]


def test_s3_24_an_entry_is_committed_when_every_live_replica_has_it() -> None:
    cluster = led(5)
    cluster.isolate(5)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 0, "four of five are a majority and not all"
    cluster.heal()
    cluster.tick(3)
    assert cluster.replica(1).high_watermark == 1


def test_s3_25_leo_4_3_2_gives_hw_2_and_without_the_last_hw_3() -> None:
    cluster = vector()
    assert cluster.replica(1).high_watermark == 2
    cluster.set_live((1, 2))
    cluster.tell(1)
    assert cluster.replica(1).live == (1, 2)
    assert cluster.replica(1).high_watermark == 3


def test_s3_25_hw_passes_a_member_only_when_its_removal_is_recorded() -> None:
    cluster = vector()
    cluster.cut = {(1, 3), (3, 1)}
    lag_out(cluster)
    _, _, proposal = cluster.proposals[-1]
    assert (proposal.version, proposal.live) == (1, (1, 2))
    assert cluster.replica(1).high_watermark == 2, "node 3 could still be elected"
    assert cluster.record()
    assert cluster.replica(1).high_watermark == 2, "the leader does not know that it is recorded"
    cluster.tell(1)
    assert cluster.replica(1).high_watermark == 4


def test_s3_26_leo_and_hw_go_up_and_hw_leo_and_live_set_go_down() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick()
    down = cluster.between(1, 2, Append)[-1]
    assert (down.high_watermark, down.log_end, down.live) == (1, 1, (1, 2, 3))
    up = cluster.between(2, 1, Ack)[-1]
    assert (up.end.offset, up.high_watermark) == (1, 1)
    assert cursor_of(cluster, 1, 2).high_watermark == 1
    assert cluster.replica(2).live == (1, 2, 3), "whoever asks a follower sees the set, too"


def test_s3_26_terms_of_a_majority_say_nothing_of_it() -> None:
    cluster = LiveCluster(config=ReplicaConfig(resend_ticks=2))
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    assert {(m.live, m.log_end) for _, _, m in cluster.sent if isinstance(m, Append)} == {((), -1)}
    assert {m.high_watermark for _, _, m in cluster.sent if isinstance(m, Ack)} == {-1}


def test_s3_27_append_update_report_repeat() -> None:
    cluster = led()
    for i, data in enumerate("abc", start=1):
        cluster.propose(1, data)
        cluster.deliver()
        cluster.tick()
        assert [cluster[node].replica.log_end for node in (1, 2, 3)] == [i] * 3
        assert [cluster[node].replica.high_watermark for node in (1, 2, 3)] == [i] * 3
        assert cluster.between(3, 1, Ack)[-1].end.offset == i


def test_s3_28_who_trails_by_too_many_entries_for_too_long_is_proposed_for_removal() -> None:
    cluster = led()
    cluster[3].auto_sync = False
    late = LIVE_CONFIG.live_lag_entries_max + 1
    cluster.propose(1, *("x" * late))
    cluster.deliver()
    for _ in range(LIVE_CONFIG.live_lag_ticks - 1):
        cluster.tick()
    assert not cluster.proposals
    cluster.tick(2)
    assert cluster.proposals
    assert cluster.proposals[-1][2].live == (1, 2)


def test_s3_28_so_is_who_moves_on_all_the_time_and_trails_by_too_many_entries() -> None:
    """It is never late for long with what was written at some moment; the number of records decides."""
    cluster = led()
    cluster[3].auto_sync = False
    for _ in range(3 * LIVE_CONFIG.live_lag_ticks):
        cluster.propose(1, *"abcd")
        cluster.tick()
        cluster[3].sync(max(0, len(cluster[3].writes) - 2))
        cluster.deliver()
    trails = cluster.replica(1).log_end - cursor_of(cluster, 1, 3).ack_offset
    assert LIVE_CONFIG.live_lag_entries_max < trails <= 12
    assert cluster.proposals
    assert cluster.proposals[-1][2].live == (1, 2)


def test_s3_28_who_is_only_a_little_behind_but_never_gets_there_is_too() -> None:
    cluster = led()
    cluster[3].auto_sync = False
    cluster.propose(1, "a")
    lag_out(cluster)
    assert cluster.proposals[-1][2].live == (1, 2)


def test_s3_28_who_keeps_up_stays_however_much_is_written() -> None:
    cluster = led()
    for _ in range(5 * LIVE_CONFIG.live_lag_ticks):
        cluster.propose(1, *"abcdefgh")
        cluster.tick()
    assert not cluster.proposals


def test_s3_28_who_is_cut_off_goes_even_if_nothing_is_written() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(2)
    assert not cluster.replica(1).needs_tick
    cluster[1].run(cluster.replica(1).peer_lost(3))
    assert cluster.replica(1).needs_tick
    lag_out(cluster)
    assert cluster.proposals[-1][2].live == (1, 2)
    cluster.settle_live(1)
    assert not cluster.replica(1).needs_tick, "and then there is nothing to wait for"


def test_s3_28_a_proposal_is_repeated_until_a_record_answers_it() -> None:
    cluster = vector()
    lag_out(cluster)
    cluster.proposals.clear()
    cluster.tick(LIVE_CONFIG.resend_ticks + 1)
    assert cluster.proposals
    assert cluster.replica(1).needs_tick


def test_s3_28_fewer_than_min_live_are_not_proposed_and_commit_nothing() -> None:
    cluster = led(
        config=ReplicaConfig(resend_ticks=2, live_lag_ticks=5, min_live=2, term_start_on_empty=False)
    )
    cluster.isolate(1)
    cluster.propose(1, "a")
    cluster.tick(20)
    assert all(len(proposal.live) == 2 for _, _, proposal in cluster.proposals)
    cluster.set_live((1,))  # the coordinator has seen the others die
    cluster.tell(1)
    assert cluster.replica(1).high_watermark == 0
    cluster.heal()
    cluster.tick(3)
    cluster.settle_live(1)
    assert list(cluster.live) == [1, 2, 3]
    assert cluster.replica(1).high_watermark == 1


def test_s3_29_who_was_removed_is_fed_and_comes_back_when_it_has_caught_up() -> None:
    cluster = vector()
    cluster.cut = {(1, 3), (3, 1)}
    lag_out(cluster)
    cluster.settle_live(1)
    assert list(cluster.live) == [1, 2]
    cluster.propose(1, "e")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 5
    cluster.heal()
    cluster.tick(4)
    assert cluster[3].data == list("abcde")
    assert cluster.proposals[-1][2].live == (1, 2, 3)
    cluster.propose(1, "f")
    cluster.deliver_to(2)
    cluster.deliver_to(1)
    assert cluster.replica(1).high_watermark == 5, "it counts before it can be elected"
    cluster.settle_live(1)
    assert list(cluster.live) == [1, 2, 3]
    assert cluster.replica(1).high_watermark == 6


def test_s3_29_a_busy_leader_waits_for_who_is_nearly_there() -> None:
    cluster = led()
    cluster.set_live((1, 2))
    cluster.isolate(3)
    cluster.tell(1)
    cluster.propose(1, *"abcdefgh")
    cluster.deliver()
    cluster.tick(3)
    cluster.heal()
    for _ in range(20):
        cluster.propose(1, "x")
        cluster.tick()
    assert any(3 in proposal.live for _, _, proposal in cluster.proposals)


def test_s3_29_a_new_leader_takes_nobody_in_who_may_lack_what_its_predecessor_committed() -> None:
    cluster = led()
    cluster.live = (1,)
    cluster.isolate(1)
    cluster.lead_live(1, 2, 3)
    cluster.propose(1, "a")
    assert cluster.replica(1).high_watermark == 1
    cluster.crash(1)
    cluster.restart(1)  # and it has forgotten how far it had committed
    cluster.heal()
    cluster.term, cluster.version = cluster.term + 1, cluster.version + 1
    heads = cluster.fence(cluster.term, 1, 2, 3)
    cluster[1].auto_sync = False
    cluster.begin(1, heads)
    assert cluster.replica(1).high_watermark == 0
    cluster.receive(2, 1, Ack(SHARD, cluster.term, EMPTY, 1))
    assert not cluster.proposals, "node 2 could be elected without the entry"


def test_s3_29_who_is_no_voter_is_fed_and_never_proposed() -> None:
    cluster = LiveCluster(4)
    cluster.ensemble = cluster.live = (1, 2, 3)
    cluster.lead_live(1)
    head = cluster.fence(1, 4)[4]
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 4, head))
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(3)
    assert cluster[4].data == ["a"]
    assert not cluster.proposals
    assert not cluster.replica(1).needs_tick
    cluster.receive(COORDINATOR, 1, ChangeMembers(SHARD, 1, 1, Members((1, 2, 3, 4))))
    assert cluster.told[-1][1] == MembersSettled(SHARD, 1, 1)
    cluster.deliver()
    assert cluster.proposals[-1][2].live == (1, 2, 3, 4)
    cluster.settle_live(1)
    cluster.proposals.clear()
    cluster.receive(COORDINATOR, 1, ChangeMembers(SHARD, 1, 2, Members((1, 2, 4))))
    assert set(cluster.proposals[-1][2].live) == {1, 2, 4}, "who is no voter any more goes"
    assert 3 in [status.node for status in cluster.replica(1).followers()], (
        "and counts until that is recorded"
    )
    cluster.settle_live(1)
    assert [status.node for status in cluster.replica(1).followers()] == [2, 4]


def test_s3_30_the_new_leader_has_what_was_committed_and_the_others_follow_it() -> None:
    cluster = vector()
    cluster.heal()
    cluster.tick(4)
    cluster.propose(1, "e")
    cluster.isolate(1)
    cluster.elect(2, 3)
    cluster.deliver()
    cluster.tick(2)
    assert cluster.replica(2).role is Role.LEADER
    assert (2, BecomeLeaderReply(SHARD, 2)) in cluster.told
    assert cluster[2].data == cluster[3].data == list("abcd")


def test_s3_31_the_old_leader_comes_back_as_a_follower_and_what_nobody_had_is_cut() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.isolate(1)
    cluster.propose(1, "lost")
    cluster.lead_live(2, 3)
    cluster.propose(2, "b")
    cluster.deliver()
    cluster.heal()
    head = cluster.fence(2, 1)[1]
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, 2, 1, head))
    cluster.deliver()
    cluster.tick(3)
    assert cluster.replica(1).role is Role.FOLLOWER
    assert cluster[1].data == ["a", "b"]
    cluster.settle_live(2)
    assert list(cluster.live) == [1, 2, 3], "it is electable again, and does not lead"


def test_c1_a_read_under_the_live_rule_is_confirmed_by_all_who_may_lead_next() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.isolate(3)
    host = cluster[1]
    host.run(host.replica.request_read(1))
    cluster.tick(3)
    assert not host.took(ReadReady), "node 3 may lead a later term by now, all by itself"
    lag_out(cluster)
    cluster.settle_live(1)
    assert [read.token for read in host.took(ReadReady)] == [1]


def test_c1_only_a_live_member_is_appointed_and_the_rule_of_the_topic_does_not_matter_then() -> None:
    cluster = led()
    cluster[1].run(commit_by(cluster.replica(1), "local"))
    cluster.isolate(1)
    cluster.propose(1, "a")
    assert cluster.replica(1).high_watermark == 0
    cluster.term, cluster.live = 2, (1, 2)
    cluster.begin(3, cluster.fence(2, 2, 3))
    assert cluster.replica(3).role is Role.FENCED


def test_s3_18_a_snapshot_of_less_is_no_proof_that_the_leader_lacks_more() -> None:
    """A leader that takes a damaged log for empty sends from its own log's start, which may lie before the other's."""
    terms = TermIndex(6, 2)
    terms.append(2, 9)
    replica = Replica(
        node_id=2,
        shard=SHARD,
        ensemble=(1, 2, 3),
        restored=RestoredState(terms=terms, term=2, high_watermark=6, condition=LogCondition.DAMAGED),
        entries=EntryFactory(term_start),
        config=replace(LIVE_CONFIG, unclean=True),
    )
    older = EntryId(2, 5)
    replica.receive(1, SnapshotOffer(SHARD, 6, 1, older))
    assert not replica.snapshot_installed(older), "it is asked where its log is, and says so"
    again = replica.snapshot_installed(older)
    assert any(isinstance(action, ResetLog) for action in again), (
        "what the leader does not have is given up then"
    )
