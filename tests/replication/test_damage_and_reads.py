"""Damaged logs and failed disks, what a follower may call committed, and linearizable reads."""

from typing import Any

import pytest

from antiphon.errors import (
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
)
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import (
    Commit,
    ReadFailed,
    ReadReady,
    Repaired,
    RoleChanged,
    TruncateLog,
)
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.messages import (
    AddFollower,
    Append,
    BecomeLeader,
    NewTerm,
    NewTermReply,
)
from antiphon.replication.replica_state import Role
from tests.replication.cluster import (
    COORDINATOR,
    SHARD,
    Cluster,
    cursor_of,
    diverged,
    entries,
    term_start,
    trimmed,
)

# -- damage and failed disks ---------------------------------------------------------------------------------------------


def damaged() -> Cluster:
    """Node 3 acknowledged five entries and finds three of them damaged when it restarts."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, *"abcd")
    cluster.deliver()
    cluster.tick()
    cluster.crash(3)
    cluster[3].disk = cluster[3].disk[:2]
    cluster[3].high_watermark = 5
    cluster[3].damaged = True
    cluster.restart(3)
    return cluster


def test_a_damaged_log_says_so_and_is_not_appointed() -> None:
    cluster = damaged()
    assert cluster.replica(3).high_watermark == 2
    cluster.told.clear()
    cluster.fence(2, 3)
    assert cluster.told == [(3, NewTermReply(SHARD, 2, EntryId(1, 2), 0, damaged=True))]
    cluster.receive(COORDINATOR, 3, BecomeLeader(SHARD, 2, (1, 2, 3), ((2, EMPTY),)))
    assert cluster.replica(3).role is Role.FENCED


def test_a_damaged_log_is_cut_and_refetched_and_sound_again_in_the_next_term() -> None:
    cluster = damaged()
    cluster[1].run(cluster.replica(1).peer_connected(3))
    cluster.deliver()
    cluster.tick(3)
    assert cluster[3].took(TruncateLog)[0].to_offset == 2, "the part after the damage leaves the disk first"
    assert cluster[3].log == cluster[1].log
    assert cluster.replica(3).damaged, "a late message of this term could not be told from a new one"
    cluster[3].auto_sync = False
    cluster.appoint(2, 2, 1)
    cluster.receive(COORDINATOR, 3, NewTerm(SHARD, 2))
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, 2, 3, EntryId(1, 5)))
    cluster.deliver()
    cluster.tick(3)
    assert cluster.replica(3).damaged, "not before it is durable"
    cluster[3].sync()
    assert cluster.replica(3).high_watermark == 6
    assert cluster[3].took(Repaired) == [Repaired()]
    assert not cluster.replica(3).damaged
    cluster[3].auto_sync = True
    cluster.lead(3, 3)


def test_a_leader_knows_which_follower_is_damaged_and_hears_at_once_when_it_no_longer_is() -> None:
    cluster = damaged()
    cluster[1].run(cluster.replica(1).peer_connected(3))
    cluster.deliver()
    cluster.tick(3)
    assert cursor_of(cluster, 1, 3).ack_offset == 5
    assert cursor_of(cluster, 1, 3).damaged
    assert not cursor_of(cluster, 1, 2).damaged
    cluster.appoint(2, 2, 1)
    cluster.receive(COORDINATOR, 3, NewTerm(SHARD, 2))
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, 2, 3, EntryId(1, 5)))
    cluster.deliver()
    cluster.tick(3)
    assert not cluster.replica(3).damaged
    assert not cursor_of(cluster, 2, 3).damaged, "nobody writes, and it has said so all the same"


def test_an_acknowledgement_that_the_follower_can_no_longer_honour_is_taken_back() -> None:
    cluster = damaged()
    assert cursor_of(cluster, 1, 3).ack_offset == 5
    cluster[3].auto_sync = False
    cluster[1].run(cluster.replica(1).peer_connected(3))
    cluster.deliver()
    assert cursor_of(cluster, 1, 3).ack_offset == 2


def test_a_failed_disk_stops_the_replica_for_good() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster[1].run(leader.request_read(9))
    cluster[1].run(leader.storage_failed())
    assert cluster[1].took(ReadFailed) == [ReadFailed(9)]
    assert cluster[1].seen[-2] == RoleChanged(Role.FENCED, 1, None)
    assert leader.receive(COORDINATOR, NewTerm(SHARD, 5)) == []
    assert leader.persisted(99) == []
    assert not leader.needs_tick
    with pytest.raises(NotLeaderError):
        leader.propose([(1, "a")])


# -- the high watermark of a follower --------------------------------------------------------------------------------------


def test_a_follower_commits_only_what_is_durable_so_that_it_may_be_written_down() -> None:
    """While a cut is underway the disk has other entries in the place of the committed ones."""
    cluster = diverged()
    cluster.fence(3, 3)
    cluster[3].auto_sync = False
    cluster.receive(1, 3, Append(SHARD, 3, 1, EntryId(1, 2), 4, 1, (*entries(1, 2, "b"), term_start(3, 3))))
    assert (cluster.replica(3).log_end, cluster.replica(3).high_watermark) == (4, 2)
    cluster[3].sync(1)  # the cut
    assert cluster.replica(3).high_watermark == 2
    cluster[3].sync(1)  # what came in its place
    assert cluster[3].took(Commit)[-1] == Commit(4)


def test_a_snapshot_is_committed_when_it_is_durable() -> None:
    cluster = trimmed()
    cluster[3].auto_sync = False
    cluster.snapshot(1, 3)
    assert cluster.replica(3).high_watermark < cluster.replica(3).log.terms.log_start
    cluster[3].sync()
    assert cluster[3].took(Commit)[-1] == Commit(3)


# -- reads ---------------------------------------------------------------------------------------------------------------


def test_reads_that_arrive_together_share_a_round() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.sent.clear()
    for token in range(5):
        cluster[1].run(leader.request_read(token))
    assert len(cluster.between(1, 2, Append)) == 1, "the first starts a round, the others wait for the next"
    cluster.deliver()
    assert cluster[1].took(ReadReady) == [ReadReady(token, 1) for token in range(5)]
    assert len(cluster.between(1, 2, Append)) == 2
    assert not leader.needs_tick


def test_a_read_is_not_confirmed_by_an_answer_to_an_earlier_message() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver_to(2, 3)  # their answers are underway
    cluster[1].run(leader.request_read(1))
    cluster.deliver_to(1)
    assert cluster[1].took(ReadReady) == []
    cluster.deliver()
    assert cluster[1].took(ReadReady) == [ReadReady(1, 1)], (
        "the offset is the high watermark when it was asked for"
    )


def test_a_deposed_leader_serves_no_read() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.isolate(1)
    cluster.lead(2, 2, 3)
    cluster[1].run(leader.request_read(1))
    cluster.deliver()
    cluster.tick(5)
    assert cluster[1].took(ReadReady) == []
    cluster.heal()
    cluster.tick(5)
    assert cluster[1].took(ReadFailed) == [ReadFailed(1)]
    with pytest.raises(NotLeaderError):
        leader.request_read(2)


def test_a_read_round_that_is_lost_is_asked_again_by_ticks() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster[1].run(leader.request_read(1))
    cluster.drop()
    assert leader.needs_tick
    cluster.tick(3)
    assert cluster[1].took(ReadReady) == [ReadReady(1, 1)]


def test_a_slow_disk_does_not_hold_up_reads() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster[2].auto_sync = cluster[3].auto_sync = False
    cluster.propose(1, "a")
    cluster[1].run(leader.request_read(1))
    cluster.deliver()
    assert cluster[1].took(ReadReady) == [ReadReady(1, 1)]


def test_an_only_member_commits_and_reads_by_itself() -> None:
    cluster = Cluster(1)
    leader = cluster.lead(1, 1)
    cluster[1].auto_sync = False
    cluster.propose(1, "a")
    assert leader.high_watermark == 1
    cluster[1].sync()
    assert leader.high_watermark == 2
    cluster[1].run(leader.request_read(3))
    assert cluster[1].took(ReadReady) == [ReadReady(3, 2)]
    assert not leader.needs_tick


def test_reads_and_writes_are_refused_before_the_term_has_a_committed_entry() -> None:
    cluster = Cluster()
    cluster.appoint(1, 1)
    with pytest.raises(NotReadyError):
        cluster.replica(1).propose([(1, "a")])
    with pytest.raises(NotReadyError):
        cluster.replica(1).request_read(1)


def test_waiting_reads_are_bounded() -> None:
    cluster = Cluster(config=ReplicaConfig(waiting_reads_max=2))
    leader = cluster.lead(1, 1)
    leader.request_read(1)
    leader.request_read(2)
    with pytest.raises(OverloadedError):
        leader.request_read(3)


@pytest.mark.parametrize(
    "name", ["max_in_flight_bytes", "feed_bytes_max", "resend_ticks", "waiting_reads_max"]
)
def test_settings_that_could_not_work_are_refused(name: str) -> None:
    settings: Any = {name: 0}
    with pytest.raises(InvalidRequestError, match=name):
        ReplicaConfig(**settings)


def test_an_empty_proposal_does_nothing() -> None:
    cluster = Cluster()
    assert cluster.lead(1, 1).propose([]) == []


def test_a_node_outside_the_ensemble_is_fed_but_does_not_count() -> None:
    cluster = Cluster((1, 2, 3, 4))
    cluster.ensemble = (1, 2, 3)
    heads = cluster.fence(1, 1, 2, 3, 4)
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 1, (1, 2, 3), ((2, heads[2]), (3, heads[3]))))
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 4, heads[4]))
    cluster.isolate(2, 3)
    cluster.deliver()
    cluster.tick(3)
    assert cluster[4].log == cluster[1].log, "it is fed"
    assert cluster.replica(1).high_watermark == 0, "and is no majority together with the leader"
    assert cluster[1].took(Commit) == []


def test_without_a_term_start_entry_the_first_record_of_an_empty_log_has_offset_0() -> None:
    cluster = Cluster(config=ReplicaConfig(term_start_on_empty=False, resend_ticks=2))
    leader = cluster.lead(1, 1)
    assert (leader.ready, leader.log_end, cluster.replica(2).role) == (True, 0, Role.FOLLOWER)
    cluster[1].run(leader.request_read(1))
    cluster.propose(1, "a")
    cluster.propose(1, "b")
    cluster.deliver()
    cluster.tick()
    assert cluster[1].took(ReadReady) == [ReadReady(1, 0)]
    assert cluster[3].log == cluster[1].log == list(entries(1, 0, "a", "b"))
    assert cluster.replica(3).high_watermark == 2
    cluster.lead(2, 2)
    assert cluster[2].log[-1] == term_start(2, 2), "a log that is not empty has something to commit"
