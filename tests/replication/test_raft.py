"""Replicas that elect their leader themselves: pre-votes, timers, persistence, and the hints of broken connections."""

from collections.abc import Callable

import pytest

from antiphon.errors import InvalidRequestError, NotLeaderError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import PersistTerm, ReadFailed
from antiphon.replication.config import ElectionConfig
from antiphon.replication.election import Campaign, ElectionTimer, is_up_to_date
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Append,
    BecomeLeader,
    Entry,
    NewTerm,
    RequestVote,
    StaleTerm,
    VoteReply,
)
from antiphon.replication.quorum import VoteResult
from antiphon.replication.replica_state import Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, term_start


def elected(nodes: int = 3, winner: int = 1, *, pre_vote: bool = True) -> Cluster:
    """A cluster in which `winner` was the first to lose patience."""
    cluster = Cluster(
        nodes,
        raft=True,
        election=ElectionConfig(pre_vote=pre_vote),
        timeout=lambda node: 10 if node == winner else 15 + node,
    )
    cluster.tick(10)
    assert cluster.leading == [winner]
    assert cluster.replica(winner).ready
    return cluster


def test_a_leader_is_elected_and_replicates() -> None:
    cluster = elected(5)
    cluster.propose(1, "a", "b")
    cluster.deliver()
    cluster.tick(2)
    assert all(
        host.data == ["a", "b"] and host.replica.high_watermark == 3 for host in cluster.hosts.values()
    )


def test_an_only_member_elects_itself_once_its_vote_is_durable() -> None:
    cluster = Cluster(1, raft=True)
    cluster[1].auto_sync = False
    cluster.tick(11)
    assert cluster.leading == []
    cluster[1].sync()
    assert cluster.leading == [1]
    cluster[1].sync()
    assert cluster.replica(1).ready
    assert not cluster.replica(1).needs_tick, "it has nobody to send heartbeats to"


def test_votes_are_asked_for_when_the_own_vote_is_durable() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False))
    cluster[1].auto_sync = False
    cluster.tick(11)
    assert cluster.replica(1).is_candidate
    assert cluster.between(1, 2, RequestVote) == []
    cluster[1].sync()
    assert cluster.between(1, 2, RequestVote) == [RequestVote(SHARD, 1, 1, EntryId(0, 0))]


def test_a_pre_vote_changes_nobodys_term() -> None:
    cluster = Cluster(raft=True)
    cluster.isolate(1)
    cluster.tick(11)
    cluster.receive(1, 2, RequestVote(SHARD, 1, 1, EntryId(0, 0), pre_vote=True))
    assert [cluster.replica(node).term for node in (1, 2, 3)] == [0, 0, 0]
    assert cluster[2].took(PersistTerm) == []
    assert cluster.between(2, 1, VoteReply) == [VoteReply(SHARD, 1, granted=True, pre_vote=True)]


def test_a_replica_that_was_cut_off_does_not_depose_a_working_leader_when_it_returns() -> None:
    cluster = elected()
    cluster.isolate(3)
    cluster.tick(60)
    term = cluster.replica(1).term
    assert cluster.replica(3).term == term, "it could win no pre-vote"
    cluster.heal()
    cluster.tick(5)
    assert cluster.leading == [1]
    assert cluster.replica(1).term == term


def test_without_pre_vote_it_does() -> None:
    cluster = elected(pre_vote=False)
    cluster.isolate(3)
    cluster.tick(60)
    cluster.heal()
    cluster.tick(60)
    assert cluster.replica(1).term > 1


def test_a_pre_vote_is_refused_while_the_leader_is_heard() -> None:
    cluster = elected()
    cluster.receive(3, 2, RequestVote(SHARD, 2, 3, EntryId(9, 9), pre_vote=True))
    cluster.receive(3, 1, RequestVote(SHARD, 2, 3, EntryId(9, 9), pre_vote=True))
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 2, granted=False, pre_vote=True)]
    assert cluster.between(1, 3, VoteReply) == [VoteReply(SHARD, 2, granted=False, pre_vote=True)]


def test_a_pre_vote_for_a_term_that_has_begun_is_answered_with_ours() -> None:
    cluster = elected()
    cluster.receive(3, 2, RequestVote(SHARD, 1, 3, EntryId(9, 9), pre_vote=True))
    assert cluster.between(2, 3, StaleTerm) == [StaleTerm(SHARD, 1)]


def test_a_broken_connection_to_the_leader_shortens_the_wait() -> None:
    cluster = elected()
    cluster.crash(1)
    for node in (2, 3):
        cluster[node].run(cluster.replica(node).peer_lost(1))
    cluster.tick(7)  # time-outs are 17 and 18, of which only what is above 10 is waited for
    assert cluster.leading == [2]


def test_a_broken_connection_to_another_follower_does_not() -> None:
    cluster = elected()
    before = cluster.replica(2).term
    cluster[2].run(cluster.replica(2).peer_lost(3))
    cluster.tick(20)
    assert cluster.replica(2).term == before
    assert cluster.leading == [1]


def test_a_hint_alone_does_not_depose_a_leader_that_others_hear() -> None:
    cluster = elected()
    cluster.isolate(2)
    cluster[2].run(cluster.replica(2).peer_lost(1))
    cluster.tick(8)
    cluster.heal()
    cluster.receive(2, 3, RequestVote(SHARD, 2, 2, cluster.replica(2).log.terms.end, pre_vote=True))
    assert cluster.between(3, 2, VoteReply) == [VoteReply(SHARD, 2, granted=False, pre_vote=True)]


def test_a_leader_that_hears_from_no_majority_gives_up() -> None:
    cluster = elected()
    cluster[1].run(cluster.replica(1).request_read(4))
    cluster.isolate(1)
    cluster.tick(20)
    assert cluster.replica(1).role is not Role.LEADER
    assert cluster[1].took(ReadFailed) == [ReadFailed(4)]
    with pytest.raises(NotLeaderError):
        cluster.replica(1).propose([(1, "a")])


def test_a_leader_that_is_heard_but_does_not_hear_gives_up() -> None:
    cluster = elected()
    cluster.cut |= {(2, 1), (3, 1)}
    cluster.tick(60)
    others = [node for node in cluster.leading if node != 1]
    assert len(others) == 1
    assert cluster.replica(1).role is not Role.LEADER


def test_heartbeats_keep_an_idle_leader_in_place() -> None:
    cluster = elected()
    cluster.tick(300)
    assert cluster.leading == [1]
    assert cluster.replica(1).term == 1


def test_a_damaged_log_neither_campaigns_nor_votes() -> None:
    cluster = Cluster(raft=True)
    cluster[3].damaged = True
    cluster.restart(3)
    cluster.isolate(3)
    cluster.tick(50)
    assert cluster.between(3, 1, RequestVote) == []
    cluster.receive(1, 3, RequestVote(SHARD, 9, 1, EntryId(8, 8)))
    assert cluster.between(3, 1, VoteReply) == [VoteReply(SHARD, 9, granted=False)]


def test_a_granted_vote_is_said_when_it_is_durable_and_a_refusal_at_once() -> None:
    cluster = Cluster(raft=True, logs={2: (term_start(1, 0),)}, terms={2: 1})
    cluster[2].auto_sync = cluster[3].auto_sync = False
    request = RequestVote(SHARD, 5, 1, EntryId(0, 0))
    cluster.receive(1, 2, request)
    cluster.receive(1, 3, request)
    assert cluster.between(2, 1, VoteReply) == [VoteReply(SHARD, 5, granted=False)]
    assert cluster.between(3, 1, VoteReply) == []
    cluster[3].sync()
    assert cluster.between(3, 1, VoteReply) == [VoteReply(SHARD, 5, granted=True)]


def test_late_and_foreign_votes_do_not_count() -> None:
    cluster = Cluster(5, raft=True, election=ElectionConfig(pre_vote=False))
    cluster.isolate(1)
    cluster.tick(11)
    assert cluster.replica(1).is_candidate
    for sender, reply in (
        (2, VoteReply(SHARD, 0, granted=True)),
        (2, VoteReply(SHARD, 1, granted=True, pre_vote=True)),
        (9, VoteReply(SHARD, 1, granted=True)),
        (1, VoteReply(SHARD, 1, granted=True)),
        (2, VoteReply(SHARD, 1, granted=True)),
        (2, VoteReply(SHARD, 1, granted=True)),
    ):
        cluster.receive(sender, 1, reply)
    assert cluster.leading == []
    cluster.receive(3, 1, VoteReply(SHARD, 1, granted=True))
    assert cluster.leading == [1]


def test_a_candidate_from_outside_gets_no_vote() -> None:
    cluster = Cluster(raft=True)
    cluster.receive(9, 1, RequestVote(SHARD, 4, 9, EntryId(3, 3)))
    assert cluster.replica(1).term == 0
    assert cluster.sent == []


def test_a_coordinators_messages_are_nothing_to_it() -> None:
    cluster = elected()
    cluster.sent.clear()
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 9))
    cluster.receive(COORDINATOR, 2, BecomeLeader(SHARD, 1, (1, 2, 3), ()))
    assert cluster.leading == [1]
    assert cluster.sent == []


def test_a_node_outside_the_ensemble_waits() -> None:
    cluster = elected()
    cluster.ensemble = (2, 3)
    cluster.restart(1)
    replica = cluster.replica(1)
    assert (replica.role, replica.needs_tick, replica.tick()) == (Role.NOT_MEMBER, False, [])
    cluster.receive(2, 1, Append(SHARD, 7, 2, EntryId(0, 0), 0, 1))
    assert replica.role is Role.NOT_MEMBER


def test_a_replica_starts_as_it_stopped() -> None:
    cluster = elected()
    for node in (1, 2, 3):
        cluster.crash(node)
        cluster.restart(node)
        assert cluster.replica(node).role is Role.FENCED
        assert cluster.replica(node).term == 1
        assert cluster.replica(node).voted_for == 1
    cluster.tick(10)
    assert cluster.leading == [1]
    assert cluster.replica(1).term == 2, "a term is never led twice"


def test_entries_of_an_uncommitted_tail_are_replaced_by_the_new_leaders() -> None:
    cluster = elected()
    cluster.isolate(1)
    cluster.propose(1, "lost")
    cluster.tick(30)
    (leader,) = [node for node in cluster.leading if node != 1]
    cluster.propose(leader, "kept")
    cluster.deliver()
    cluster.heal()
    cluster.tick(10)
    assert cluster[1].data == cluster[2].data == cluster[3].data == ["kept"]


# -- the parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "own", "expected"),
    [((2, 5), (2, 5), True), ((2, 4), (2, 5), False), ((3, 1), (2, 9), True), ((1, 9), (2, 1), False)],
)
def test_up_to_date_is_last_term_then_length(
    candidate: tuple[int, int], own: tuple[int, int], expected: bool
) -> None:
    assert is_up_to_date(EntryId(*candidate), EntryId(*own)) is expected


def test_a_campaign_counts_each_members_first_answer() -> None:
    campaign = Campaign(3, Members((1, 2, 3, 4)), is_pre_vote=False)
    assert campaign.record(1, granted=True) is VoteResult.PENDING
    assert campaign.record(2, granted=False) is VoteResult.PENDING
    assert campaign.record(2, granted=True) is VoteResult.PENDING
    assert campaign.record(7, granted=True) is VoteResult.PENDING
    assert campaign.record(3, granted=True) is VoteResult.PENDING
    assert campaign.record(4, granted=True) is VoteResult.WON
    lost = Campaign(3, Members((1, 2, 3)), is_pre_vote=False)
    lost.record(1, granted=True)
    lost.record(2, granted=False)
    assert lost.record(3, granted=False) is VoteResult.LOST


def test_a_timer_is_drawn_anew_each_time() -> None:
    draws = iter([10, 14, 19])
    timer = ElectionTimer(lambda: next(draws), 10)
    assert [timer.tick() for _ in range(10)] == [False] * 9 + [True]
    timer.rearm()
    assert timer.timeout == 14
    timer.heard_from_leader()
    assert timer.is_leader_fresh
    assert timer.timeout == 19


def test_a_lost_leader_is_counted_once() -> None:
    draws = iter([20, 16, 99])
    timer = ElectionTimer(lambda: next(draws), 10)
    timer.heard_from_leader()
    draws = iter([13, 99])
    timer.lost_leader()
    timer.lost_leader()
    assert timer.timeout == 3
    assert not timer.is_leader_fresh


@pytest.mark.parametrize(
    "make", [lambda: ElectionConfig(heartbeat_ticks=0), lambda: ElectionConfig(heartbeat_ticks=10)]
)
def test_heartbeats_must_be_more_frequent_than_elections(make: Callable[[], ElectionConfig]) -> None:
    with pytest.raises(InvalidRequestError, match="heartbeat_ticks"):
        make()


def test_a_new_leader_finds_where_each_log_parts_from_its_own_in_one_exchange_per_term() -> None:
    """The logs of the Raft paper's figure 7: node 1 is the leader of term 8, the others diverge in every way."""
    shapes = {
        1: (1, 1, 1, 4, 4, 5, 5, 6, 6, 6),
        2: (1, 1, 1, 4, 4, 5, 5, 6, 6),
        3: (1, 1, 1, 4),
        4: (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
        5: (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
        6: (1, 1, 1, 4, 4, 4, 4),
        7: (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
    }
    logs = {n: [Entry(t, i, i + 1, f"{t}.{i}") for i, t in enumerate(shape)] for n, shape in shapes.items()}
    cluster = Cluster(
        7, raft=True, logs=logs, terms=dict.fromkeys(shapes, 7), timeout=lambda node: 10 if node == 1 else 19
    )
    cluster.tick(10)
    cluster.tick(4)
    assert cluster.leading == [1]
    for node in range(2, 8):
        assert cluster[node].log == cluster[1].log, node
        rejections = [m for a, b, m in cluster.sent if (a, b) == (node, 1) and type(m).__name__ == "Reject"]
        assert len(rejections) <= 3, (node, rejections)
