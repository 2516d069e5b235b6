"""Deletions of records where replicas vote: members entries that say so."""

import pytest

from antiphon.errors import NotReadyError
from antiphon.replication.members import Members
from antiphon.replication.membership import Membership
from antiphon.replication.raft import RaftReplica
from tests.replication.raft_world import founded


def test_deletions_are_entries_that_changes_of_members_carry_on() -> None:
    """Also over a trim, a restart and a change of voters; a smaller one is nothing to do."""
    cluster = founded()

    def delete(before: int) -> None:
        cluster[1].run(membership(cluster.voter(1)).delete_before(before))
        cluster.tick(4)

    delete(1)
    assert cluster.voter(1).settled_members == Members((1, 2, 3), (), (), 1)
    delete(1)
    end = cluster.voter(1).log_end
    assert membership(cluster.voter(1)).delete_before(0) == []
    cluster.add(4)
    cluster.change((1, 2, 3), (4,))
    cluster.tick(6)
    cluster.change((1, 2, 4))
    assert cluster.voter(1).members.is_joint
    with pytest.raises(NotReadyError, match="under way"):
        membership(cluster.voter(1)).delete_before(2)
    with pytest.raises(NotReadyError, match="appends nothing"):
        membership(cluster.voter(2)).delete_before(2)
    cluster.tick(6)
    assert cluster.voter(4).settled_members == Members((1, 2, 4), (), (), 1)
    cluster.trim(1, end)
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.voter(1).members_at(end) == Members((1, 2, 3), (), (), 1)


def membership(voter: RaftReplica) -> Membership:
    assert voter.membership is not None
    return voter.membership
