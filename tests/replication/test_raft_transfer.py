"""Handing leadership over to a chosen follower, where replicas vote."""

import pytest

from antiphon.errors import InvalidRequestError, NotLeaderError, NotReadyError
from antiphon.replication.messages import RequestVote, TimeoutNow, TransferLeadership
from tests.replication.cluster import COORDINATOR, SHARD
from tests.replication.raft_world import founded, with_learner


def test_leadership_is_handed_over_without_waiting() -> None:
    cluster = founded()
    cluster.propose(1, "b")
    cluster.receive(COORDINATOR, 1, TransferLeadership(SHARD, 1, 3))
    assert not cluster.voter(1).ready
    with pytest.raises(NotReadyError, match="hands") as refused:
        cluster.voter(1).propose([(1, "c")])
    assert refused.value.details["leader"] == 3, "who comes next is where to go"
    cluster.deliver()
    assert cluster.leader == 3
    assert cluster.voter(3).term == 2
    votes = cluster.between(3, 2, RequestVote)
    assert [(vote.pre_vote, vote.transfer) for vote in votes] == [(False, True)], "nobody is asked twice"
    assert cluster[3].data == ["a", "b"]


def test_the_target_gets_everything_first() -> None:
    cluster = founded()
    cluster.isolate(3)
    cluster.propose(1, "b")
    cluster.deliver()
    cluster[1].run(cluster.voter(1).transfer_leadership(3))
    cluster.tick(2)
    assert cluster.between(1, 3, TimeoutNow) == []
    cluster.heal()
    cluster.tick(5)
    assert cluster.leader == 3


def test_a_hand_over_that_comes_to_nothing_is_given_up() -> None:
    cluster = founded()
    cluster.crash(3)
    cluster[1].run(cluster.voter(1).transfer_leadership(3))
    cluster.tick(9)
    assert not cluster.voter(1).ready
    cluster.tick(1)
    assert cluster.voter(1).ready
    assert cluster.leader == 1
    cluster.propose(1, "b")


def test_a_lost_word_to_the_target_is_repeated() -> None:
    cluster = founded()
    cluster[1].run(cluster.voter(1).transfer_leadership(3))
    cluster.drop()
    cluster.tick(4)
    assert cluster.leader == 3


def test_a_transfer_is_for_leaders_and_to_voters() -> None:
    cluster = with_learner()
    with pytest.raises(NotLeaderError):
        cluster.voter(2).transfer_leadership(1)
    with pytest.raises(InvalidRequestError, match="no voter"):
        cluster.voter(1).transfer_leadership(4)
    assert cluster.voter(1).transfer_leadership(1) == []
    cluster.sent.clear()
    for message in (TransferLeadership(SHARD, 0, 3), TransferLeadership(SHARD, 1, 4)):
        cluster.receive(COORDINATOR, 1, message)
    assert cluster.voter(1).ready
    assert cluster.sent == []


def test_only_the_leader_it_follows_makes_a_follower_stand() -> None:
    cluster = with_learner()
    cluster.receive(3, 2, TimeoutNow(SHARD, 1, 3))
    cluster.receive(1, 2, TimeoutNow(SHARD, 0, 1))
    cluster.receive(1, 4, TimeoutNow(SHARD, 1, 1))
    assert [cluster.voter(node).term for node in (2, 4)] == [1, 1]
    cluster.receive(1, 2, TimeoutNow(SHARD, 1, 1))
    assert cluster.voter(2).term == 2


def test_a_hand_over_ends_when_its_target_leaves() -> None:
    cluster = founded(2, (1, 2))
    cluster.change((1,))
    cluster.isolate(2)
    cluster[1].run(cluster.voter(1).transfer_leadership(2))
    cluster.heal()
    cluster.tick(4)
    cluster.propose(cluster.leader, "b")
    assert cluster.leader in {1, 2}
