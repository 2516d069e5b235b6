"""A voter whose disk came back empty: log, term and vote are forgotten, and it must not count until that is harmless."""

import pytest

from antiphon.errors import NotLeaderError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import PersistTerm, Repaired
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.members import Members
from antiphon.replication.messages import Ack, AskTerm, TermReply, VoteReply
from antiphon.replication.replica_state import Role
from tests.replication.cluster import SHARD, Cluster
from tests.replication.raft_world import with_learner


def two_of_three() -> Cluster:
    """Node 1 leads term 1; "a" is committed by nodes 1 and 3, node 2 never heard of it. Node 3 has lost its disk."""
    cluster = Cluster(3, raft=True)
    cluster.tick(11)
    assert cluster.leading == [1]
    cluster.isolate(2)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(2)
    assert cluster.replica(3).high_watermark == 2
    cluster.wipe(3)
    return cluster


def test_it_cannot_help_to_elect_who_lacks_what_it_had() -> None:
    cluster = two_of_three()
    cluster.crash(1)
    cluster.heal()
    cluster.restart(3)
    cluster.tick(100)
    assert cluster.leading == [], "node 2 would have cut off what is committed"
    assert not any(message.granted for message in cluster.between(3, 2, VoteReply))
    assert cluster.replica(3).role is Role.FENCED
    cluster.restart(1)
    cluster.tick(100)
    assert cluster[3].log == cluster[1].log
    assert not cluster.replica(3).damaged


def test_it_is_repaired_by_a_new_term_and_then_stands_in_for_another() -> None:
    cluster = two_of_three()
    cluster.heal()
    cluster.restart(3)
    cluster.tick(40)
    assert cluster[3].took(Repaired) == [Repaired()]
    assert max(cluster.leaders) == 2, "one new term was enough"
    assert cluster[3].log == cluster[1].log
    cluster.tick(100)
    assert max(cluster.leaders) == 2, "and nobody asks for more"
    (leader,) = cluster.leading
    cluster.crash(leader)
    cluster.tick(100)
    (leader,) = cluster.leading
    assert cluster[leader].data == ["a"]


def test_it_is_repaired_where_nobody_has_written() -> None:
    config = ReplicaConfig(term_start_on_empty=False)
    cluster = Cluster(3, raft=True, config=config)
    cluster.tick(11)
    assert cluster[1].log == []
    cluster.wipe(3)
    cluster.restart(3)
    cluster.tick(60)
    assert not cluster.replica(3).damaged
    (leader,) = cluster.leading
    assert 0 < cluster[3].log_end == cluster[leader].log_end <= 2, (
        "no more than a term-start entry for each term"
    )
    other = next(node for node in (1, 2) if node != leader)
    cluster.crash(other)
    cluster.crash(leader)
    cluster.restart(leader)
    cluster.tick(100)
    assert cluster.leading, "the new disk's replica votes"


def test_a_damaged_voter_of_an_empty_shard_is_repaired_in_the_next_term() -> None:
    cluster = Cluster(3, config=ReplicaConfig(term_start_on_empty=False, resend_ticks=2))
    cluster.lead(1, 1)
    cluster.crash(3)
    cluster[3].damaged = True
    cluster.restart(3)
    cluster.lead(1, 2)
    cluster.deliver()
    cluster.tick(4)
    assert cluster[3].took(Repaired) == [Repaired()]
    assert [entry.base_offset for entry in cluster[3].log] == [0]


@pytest.mark.parametrize("is_new_connection", [False, True])
def test_a_leader_of_an_empty_log_asks_until_it_has_heard_who_is_damaged(*, is_new_connection: bool) -> None:
    """Where nobody writes no entry that lacks an answer shows that the acknowledgement was lost."""
    cluster = Cluster(3, config=ReplicaConfig(term_start_on_empty=False, resend_ticks=2))
    cluster.lead(1, 1)
    cluster.crash(3)
    cluster[3].damaged = True
    cluster.restart(3)
    cluster.appoint(1, 2)
    if is_new_connection:
        cluster.drop(3)
        cluster[1].run(cluster.replica(1).peer_lost(3))
        cluster[1].run(cluster.replica(1).peer_connected(3))
    cluster.deliver_to(3)
    assert cluster.between(3, 1, Ack)[-1].damaged
    cluster.drop(1)
    cluster.tick(6)
    assert cluster[3].took(Repaired) == [Repaired()]
    assert not cluster.replica(1).needs_tick


def test_it_stays_damaged_over_a_restart_before_the_repair() -> None:
    cluster = two_of_three()
    cluster.restart(3)
    cluster.receive(1, 3, TermReply(SHARD, 1))
    assert cluster[3].took(PersistTerm), "it takes over the terms it is told of"
    cluster.crash(3)
    cluster.restart(3)
    cluster.crash(1)
    cluster.heal()
    cluster.tick(100)
    assert cluster.leading == []


def test_an_older_leader_does_not_get_its_acknowledgement() -> None:
    """Node 3 has voted for node 2 in term 2; node 1, of term 1, hears of nothing and would go on with node 3's help."""
    cluster = Cluster(3, raft=True)
    cluster.tick(11)
    cluster.isolate(1)
    for _ in range(60):  # time stands still for node 1
        for node in (2, 3):
            cluster[node].run(cluster.replica(node).tick())
        cluster.deliver()
    newer = next(node for node in cluster.leading if node != 1)
    cluster.propose(newer, "b")
    cluster.deliver()
    other = 5 - newer
    cluster.wipe(other)
    cluster.heal()
    cluster.isolate(newer)
    cluster.restart(other)
    cluster.propose(1, "x")
    cluster.sent.clear()
    cluster.tick(100)
    assert cluster.between(other, 1, Ack) == []
    assert cluster.replica(1).high_watermark <= 1
    cluster.heal()
    cluster.tick(100)
    (leader,) = cluster.leading
    assert cluster[leader].data == ["b"]
    assert not cluster.replica(other).damaged


def test_it_waits_for_as_many_answers_as_it_takes_to_know_every_term() -> None:
    cluster = Cluster(5, raft=True)
    cluster.tick(12)
    cluster.wipe(5)
    cluster.isolate(5)
    cluster.restart(5)
    replica = cluster.replica(5)
    for sender, term in ((1, 4), (1, 9), (7, 9), (5, 9), (2, 3)):
        cluster.receive(sender, 5, TermReply(SHARD, term))
    cluster[5].run(replica.tick())
    assert cluster.between(5, 3, AskTerm)[-1].floor == -1, "two nodes have answered, three make a majority"
    cluster.receive(3, 5, TermReply(SHARD, 2))
    for _ in range(20):
        cluster[5].run(replica.tick())
    assert cluster.between(5, 3, AskTerm)[-1] == AskTerm(SHARD, 9, 9)


def test_who_has_forgotten_as_well_is_no_witness() -> None:
    cluster = Cluster(3, raft=True)
    cluster.tick(11)
    cluster.wipe(2)
    cluster.wipe(3)
    cluster.restart(2)
    cluster.restart(3)
    cluster.tick(200)
    assert cluster.leading == []
    assert cluster.between(2, 3, TermReply) == cluster.between(3, 2, TermReply) == []
    with pytest.raises(NotLeaderError):
        cluster.replica(1).propose([(1, "a")])


def test_a_leader_does_not_give_up_a_majority_that_depends_on_the_damaged_one() -> None:
    cluster = Cluster(3, raft=True)
    cluster.tick(11)
    cluster.isolate(2)
    cluster.tick(25)
    cluster.crash(3)
    cluster[3].damaged = True  # its log, but not its promises
    cluster.restart(3)
    cluster.tick(60)
    assert cluster.leading == [1], "node 2 is not there to vote"
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 2
    assert cluster.replica(3).damaged
    cluster.heal()
    cluster.tick(60)
    assert not cluster.replica(3).damaged


def test_an_only_voter_that_forgot_stays_silent() -> None:
    cluster = Cluster(1, raft=True)
    cluster.wipe(1)
    cluster.restart(1)
    cluster.tick(100)
    assert cluster.leading == []


def test_who_forgot_and_asks_former_members_counts_the_first_leader_it_meets_as_one_of_then() -> None:
    """Its older self may have acknowledged that leader's entries, of which the former members know nothing."""
    cluster = with_learner()
    cluster.moved((2, 3, 4))
    leader = cluster.leader
    victim = next(node for node in (2, 3, 4) if node != leader)
    term = cluster.voter(leader).term
    cluster.wipe(victim)
    cluster.restart(victim)
    assert cluster.voter(victim).members.voting == (1, 2, 3), "by metadata that is not new"
    for former in {1, 2, 3} - {victim}:
        cluster.receive(former, victim, TermReply(SHARD, 0))
    cluster.tick(3)
    assert cluster[victim].log == cluster[leader].log
    assert cluster[victim].damaged
    cluster.tick(60)
    assert cluster.voter(cluster.leader).term > term
    assert not cluster[victim].damaged


def test_who_forgot_asks_the_members_of_now_where_former_ones_have_no_replica_any_more() -> None:
    cluster = with_learner()
    cluster.moved((1, 3, 4))
    cluster.remove(2)
    cluster.wipe(3)
    cluster.restart(3)
    assert cluster.voter(3).members.voting == (1, 2, 3), "by metadata that is not new"
    cluster.tick(60)
    assert not cluster[3].damaged
    assert cluster[3].log == cluster[cluster.leader].log


def test_who_forgot_asks_a_leader_that_calls_where_it_knows_nobody_who_is_left() -> None:
    cluster = with_learner()
    cluster.moved((1, 3, 4))
    cluster.remove(2)
    cluster.add(5)
    cluster.moved((1, 3, 4), (5,))
    cluster.moved((3, 4, 5))
    cluster.tick(60)
    assert cluster.leader in {3, 4, 5}
    cluster.remove(1)
    victim = 3
    cluster.wipe(victim)
    cluster.tick(60)
    cluster.restart(victim)
    assert cluster.voter(victim).members.voting == (1, 2, 3)
    cluster.tick(60)
    assert not cluster[victim].damaged
    assert cluster[victim].log == cluster[cluster.leader].log


def test_who_forgot_waits_for_a_majority_of_the_members_that_the_best_log_names() -> None:
    """A majority of former members may not know in which terms the members of now have elected."""
    cluster = with_learner()
    cluster.wipe(3)
    cluster.isolate(3)
    cluster.restart(3)
    then, now = Members((1, 2, 3)), Members((1, 3, 4), (1, 2, 3))

    def asks_for() -> int:
        for _ in range(20):
            cluster[3].run(cluster.voter(3).tick())
        (*_, last) = cluster.between(3, 1, AskTerm)
        assert isinstance(last, AskTerm)
        return last.floor

    cluster.receive(2, 3, TermReply(SHARD, 1, EntryId(1, 5), then))
    cluster.receive(1, 3, TermReply(SHARD, 1, EntryId(1, 9), now))
    assert asks_for() == -1
    cluster.receive(7, 3, TermReply(SHARD, 5, EntryId(1, 9), now))
    assert asks_for() == -1, "nobody asked node 7"
    cluster.receive(4, 3, TermReply(SHARD, 6, EntryId(1, 4), then))
    assert asks_for() == 6
