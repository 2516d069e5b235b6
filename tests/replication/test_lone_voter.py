"""Where replicas vote, the one that is left of a shard goes on alone by an operator's word."""

import pytest

from antiphon.replication.lone_voter import HISTORY_TERMS
from antiphon.replication.members import Members
from antiphon.replication.messages import GoOnAlone, StaleTerm
from antiphon.replication.replica_state import Role
from tests.replication.cluster import SHARD
from tests.replication.raft_world import MemberCluster, founded

MARK = HISTORY_TERMS
COORDINATOR = 9


def tell(cluster: MemberCluster, node: int, mark: int = MARK) -> None:
    """The coordinator's word reaches a replica."""
    host = cluster[node]
    host.run(cluster.voter(node).receive(COORDINATOR, GoOnAlone(SHARD, mark)))


def one_left() -> MemberCluster:
    """Three voters with an entry, "a", of which two went down."""
    cluster = founded()
    cluster.tick(4)
    for node in (1, 2):
        cluster.crash(node)
    cluster.tick(30)
    assert not cluster.leading
    return cluster


def test_the_replica_that_is_left_leads_and_has_what_it_had() -> None:
    cluster = one_left()
    before = list(cluster[3].log)
    tell(cluster, 3)
    cluster.tick(4)
    assert cluster.leader == 3
    voter = cluster.voter(3)
    assert voter.term == MARK + 1
    assert voter.settled_members == Members((3,))
    assert cluster[3].log[: len(before)] == before
    cluster.propose(3, "after")
    cluster.tick(4)
    assert cluster[3].data == ["a", "after"]
    assert voter.settled == voter.log_end


def test_it_grows_back_as_any_other_does() -> None:
    cluster = one_left()
    tell(cluster, 3)
    cluster.tick(4)
    cluster.add(4)
    cluster.add(5)
    cluster.change((3,), (4, 5))
    cluster.tick(8)
    cluster.change((3, 4, 5))
    cluster.tick(12)
    assert cluster.voter(3).settled_members == Members((3, 4, 5))
    cluster.crash(3)
    cluster.tick(40)
    assert cluster.leader in {4, 5}
    assert cluster[cluster.leader].data == ["a"]


def test_a_repeated_word_does_no_harm() -> None:
    cluster = one_left()
    tell(cluster, 3)
    tell(cluster, 3)
    cluster.tick(4)
    end, term = cluster.voter(3).log_end, cluster.voter(3).term
    tell(cluster, 3)
    cluster.tick(4)
    assert (cluster.voter(3).log_end, cluster.voter(3).term) == (end, term)
    assert cluster.leader == 3


@pytest.mark.parametrize("durable", [0, 1, 2, 3, 4])
def test_a_crash_at_any_write_and_the_word_again(durable: int) -> None:
    """Its term, the entry that names it, the term that it leads in: each may be the last that became durable."""
    cluster = one_left()
    host = cluster[3]
    host.auto_sync = False
    tell(cluster, 3)
    host.sync(durable)
    cluster.crash(3)
    host.auto_sync = True
    cluster.restart(3)
    cluster.tick(2)
    tell(cluster, 3)
    cluster.tick(40)
    assert cluster.leader == 3
    assert cluster.voter(3).settled_members == Members((3,))
    assert sum(entry.members is not None for entry in cluster[3].log) == 1
    assert cluster[3].data == ["a"]


@pytest.mark.parametrize("node", [1, 2])
def test_one_of_the_old_history_takes_nothing_and_changes_nothing(node: int) -> None:
    cluster = one_left()
    tell(cluster, 3)
    cluster.tick(4)
    cluster.propose(3, "after")
    cluster.tick(4)
    cluster.restart(node)
    cluster.tick(60)
    assert cluster.voter(3).role is Role.LEADER
    assert cluster.voter(3).term == MARK + 1
    assert cluster[3].data == ["a", "after"]
    assert cluster.voter(node).term < MARK, "its promise shows what it is"
    assert cluster[node].data == ["a"]


@pytest.mark.parametrize("node", [1, 2])
def test_an_old_replica_that_is_fed_by_mistake_acknowledges_nothing(node: int) -> None:
    """The leader is told to feed it before its node has heard of the recovery."""
    cluster = one_left()
    tell(cluster, 3)
    cluster.tick(4)
    cluster.restart(node)
    cluster.change((3,), (node,))
    cluster.tick(20)
    assert cluster.voter(node).term < MARK
    [progress] = [one for one in cluster.voter(3).followers() if one.node == node]
    assert progress.ack_offset == 0


def test_who_is_past_the_mark_says_so() -> None:
    cluster = one_left()
    tell(cluster, 3, 2 * MARK)
    cluster.tick(4)
    cluster.voter(3)
    out = cluster.voter(3).receive(COORDINATOR, GoOnAlone(SHARD, MARK))
    assert out == [], "it is in a later history already"
    cluster.crash(3)
    cluster = one_left()
    host = cluster[3]
    host.run(cluster.voter(3).receive(COORDINATOR, StaleTerm(SHARD, 50)))
    cluster.tick(1)
    assert cluster.voter(3).term >= 50
    out = cluster.voter(3).receive(COORDINATOR, GoOnAlone(SHARD, 40))
    assert [one.message for one in out] == [StaleTerm(SHARD, cluster.voter(3).term)]  # type: ignore[union-attr]


def test_a_damaged_log_is_nothing_to_go_on_from() -> None:
    cluster = one_left()
    cluster.crash(3)
    cluster[3].damaged = True
    cluster.restart(3)
    tell(cluster, 3)
    cluster.tick(20)
    assert not cluster.leading
    assert cluster.voter(3).term < MARK


def test_what_was_deleted_stays_deleted() -> None:
    cluster = founded()
    membership = cluster.voter(1).membership
    assert membership is not None
    cluster[1].run(membership.delete_before(1))
    cluster.tick(6)
    for node in (1, 2):
        cluster.crash(node)
    tell(cluster, 3)
    cluster.tick(4)
    assert cluster.voter(3).settled_members == Members((3,), deleted_before=1)


def test_a_replica_without_entries_joins_any_history() -> None:
    """It may have heard of a term of the one before: what it holds cannot be told apart from nothing."""
    cluster = one_left()
    tell(cluster, 3)
    cluster.tick(4)
    cluster.add(4)
    host = cluster[4]
    host.run(cluster.voter(4).receive(COORDINATOR, StaleTerm(SHARD, 50)))
    cluster.tick(1)
    cluster.change((3,), (4,))
    cluster.tick(8)
    assert cluster.voter(4).term > MARK
    assert cluster[4].data == ["a"]
