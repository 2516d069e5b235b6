"""Replicas led by a coordinator's choice: repeated and late messages, lost ones, snapshots, damage, and the window."""

from collections import deque
from typing import Any

import pytest

from antiphon.errors import (
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    ProtocolViolationError,
)
from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import (
    AppendLog,
    Commit,
    LeaderReady,
    ReadFailed,
    ReadReady,
    Repaired,
    ResetLog,
    RoleChanged,
    TruncateLog,
)
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.follower_cursor import CursorState
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    Append,
    BecomeLeader,
    BecomeLeaderReply,
    Entry,
    NewTerm,
    NewTermReply,
    Reject,
    StaleTerm,
    Truncate,
    TruncateReply,
)
from antiphon.replication.replica_state import Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, term_start


def entries(term: int, base: int, *data: object) -> tuple[Entry, ...]:
    return tuple(Entry(term, base + i, base + i + 1, item) for i, item in enumerate(data))


def cursor_of(cluster: Cluster, leader: int, node: int) -> Any:
    return next(one for one in cluster.replica(leader).followers() if one.node == node)


# -- repeated and late messages of the coordinator ------------------------------------------------------------------------


def test_a_repeated_new_term_is_answered_again_and_does_not_depose() -> None:
    cluster = Cluster()
    cluster.lead(1, 4)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.told.clear()
    for node in (1, 2, 3):
        cluster.receive(COORDINATOR, node, NewTerm(SHARD, 4))
    assert [(n, m.head) for n, m in cluster.told if isinstance(m, NewTermReply)] == [
        (1, EntryId(4, 2)),
        (2, EntryId(4, 2)),
        (3, EntryId(4, 2)),
    ]
    assert cluster.leading == [1]
    assert cluster.replica(2).role is Role.FOLLOWER


def test_a_leader_that_is_asked_again_names_only_what_is_durable() -> None:
    cluster = Cluster()
    cluster.lead(1, 4)
    cluster[1].auto_sync = False
    cluster.propose(1, "a")
    cluster.told.clear()
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 4))
    cluster[1].sync()
    assert [m.head for _, m in cluster.told if isinstance(m, NewTermReply)] == [EntryId(4, 1)]


def test_a_repeated_become_leader_is_answered_again() -> None:
    cluster = Cluster()
    cluster.lead(1, 4)
    cluster.told.clear()
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 4, (1, 2, 3), ((2, EMPTY),)))
    assert cluster.told == [(1, BecomeLeaderReply(SHARD, 4))]
    assert len(cluster[1].took(LeaderReady)) == 1


def test_a_become_leader_that_is_repeated_too_early_is_answered_once_ready() -> None:
    cluster = Cluster()
    cluster.appoint(1, 4)
    cluster.told.clear()
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 4, (1, 2, 3), ((2, EMPTY),)))
    assert cluster.told == []
    cluster.deliver()
    assert cluster.told == [(1, BecomeLeaderReply(SHARD, 4))]


def test_a_node_does_not_lead_again_the_term_that_it_had_promised_before_a_restart() -> None:
    """Its followers may hold, and have committed, entries of that term that its own disk lost."""
    cluster = Cluster()
    cluster.lead(1, 4)
    cluster[1].auto_sync = False
    cluster.propose(1, "committed by 2 and 3 alone")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 2
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.replica(1).log_end == 1
    cluster.told.clear()
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 4, (1, 2, 3), ((2, EMPTY), (3, EMPTY))))
    assert cluster.told == [(1, StaleTerm(SHARD, 4))]
    assert cluster.replica(1).role is Role.FENCED


@pytest.mark.parametrize(
    ("ensemble", "heads", "why"),
    [
        ((1, 2, 3), (), "nobody else has promised"),
        ((2, 3, 4), ((2, EMPTY), (3, EMPTY)), "it is not in the ensemble"),
        ((1, 2, 3), ((2, EntryId(3, 9)),), "another log is better"),
        ((1, 2, 3), ((8, EMPTY), (9, EMPTY)), "those who promised are not in the ensemble"),
    ],
)
def test_an_appointment_that_would_not_be_safe_is_refused(ensemble: Any, heads: Any, why: str) -> None:
    cluster = Cluster()
    cluster.fence(4, 1)
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 4, ensemble, heads))
    assert cluster.replica(1).role is Role.FENCED, why


def test_an_appointment_waits_for_the_promise_to_be_durable() -> None:
    cluster = Cluster()
    cluster[1].auto_sync = False
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 4))
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 4, (1, 2, 3), ((2, EMPTY),)))
    assert cluster.replica(1).role is Role.FENCED


def test_a_newer_promise_takes_back_the_answer_to_an_older_one() -> None:
    cluster = Cluster()
    cluster[1].auto_sync = False
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 4))
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 5))
    cluster[1].sync()
    assert [m.term for _, m in cluster.told] == [5]


# -- truncation -----------------------------------------------------------------------------------------------------------


def diverged() -> Cluster:
    """Node 3 has entries of term 2 that nobody else has; node 1 is to lead term 3."""
    start = (term_start(1, 0), *entries(1, 1, "a", "b"))
    logs = {1: start, 2: start, 3: (*start[:2], term_start(2, 2), *entries(2, 3, "x", "y"))}
    return Cluster(logs=logs, terms={1: 1, 2: 1, 3: 2})


def test_a_diverged_follower_is_truncated_and_catches_up() -> None:
    cluster = diverged()
    cluster.fence(3, 2, 3)
    cluster.appoint(1, 3, 2)
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 3, 3, EntryId(2, 5)))
    assert cluster.between(1, 3, Truncate) == [Truncate(SHARD, 3, 1, EntryId(1, 3))]
    cluster.deliver()
    cluster.tick(4)
    assert cluster[3].log == cluster[1].log
    assert cluster[3].took(TruncateLog)[0].to_offset == 2


def test_a_truncate_that_names_a_point_which_the_follower_has_is_obeyed() -> None:
    cluster = diverged()
    cluster.fence(3, 3)
    cluster.receive(1, 3, Truncate(SHARD, 3, 1, EntryId(1, 2)))
    assert cluster.between(3, 1, TruncateReply) == [TruncateReply(SHARD, 3, EntryId(1, 2))]
    assert (cluster.replica(3).role, cluster.replica(3).head) == (Role.FOLLOWER, EntryId(1, 2))


def test_a_late_truncate_does_not_cut_what_was_acknowledged_meanwhile() -> None:
    cluster = diverged()
    cluster.fence(3, 3)
    late = Truncate(SHARD, 3, 1, EntryId(1, 2))
    cluster.receive(1, 3, late)
    cluster.receive(1, 3, Append(SHARD, 3, 1, EntryId(1, 2), 3, 1, (*entries(1, 2, "b"), term_start(3, 3))))
    cluster.receive(1, 3, late)
    assert cluster.replica(3).log_end == 4, "as a follower it takes no Truncate"
    cluster.crash(3)
    cluster.restart(3)
    cluster.receive(1, 3, late)
    assert cluster.replica(3).log_end == 4, "after a restart its log still has entries of the leader's term"
    assert cluster.replica(3).role is Role.FENCED


def test_an_answer_to_a_truncate_waits_for_the_disk() -> None:
    cluster = diverged()
    cluster.fence(3, 3)
    cluster[3].auto_sync = False
    cluster.receive(1, 3, Truncate(SHARD, 3, 1, EntryId(1, 2)))
    assert cluster.between(3, 1, TruncateReply) == []
    cluster[3].sync()
    assert len(cluster.between(3, 1, TruncateReply)) == 1


# -- messages lost, repeated, reordered ------------------------------------------------------------------------------------


def test_a_lost_append_in_the_middle_is_sent_again_from_the_hint() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.drop(3)
    cluster.propose(1, "b")
    cluster.propose(1, "c")
    cluster.deliver()
    assert cluster[3].log == cluster[1].log
    assert len(cluster.between(3, 1, Reject)) == 2, (
        "both later ones are rejected, and the second rejection is stale"
    )
    pushes = [m for m in cluster.between(1, 3, Append) if m.entries and m.entries[0].data == "a"]
    assert len(pushes) == 2


def test_a_lost_tail_is_found_by_ticks() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.drop(2, 3)
    assert cluster.replica(1).needs_tick
    cluster.tick(4)
    assert cluster[2].log == cluster[3].log == cluster[1].log
    assert not cluster.replica(1).needs_tick


def test_a_lost_acknowledgement_is_asked_for_by_ticks() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver_to(2, 3)
    cluster.drop(1)
    assert cluster.replica(1).high_watermark == 1
    cluster.tick(3)
    assert cluster.replica(1).high_watermark == 2
    assert sum(len(m.entries) for m in cluster.between(1, 2, Append)) == 2, "no entry was sent twice"


def test_appends_in_the_wrong_order_end_in_the_same_log() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    for data in "abcd":
        cluster.propose(1, data)
    cluster.underway = deque(reversed(cluster.underway))
    cluster.deliver()
    cluster.tick(4)
    assert cluster[1].data == cluster[2].data == cluster[3].data == list("abcd")


def test_a_repeated_append_changes_nothing_and_is_acknowledged_again() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    again = [(s, to, m) for s, to, m in cluster.underway if to == 2]
    cluster.deliver()
    appended = len(cluster[2].took(AppendLog))
    acks = len(cluster.between(2, 1, Ack))
    for one in again:
        cluster.receive(*one)
    assert len(cluster[2].took(AppendLog)) == appended
    assert len(cluster.between(2, 1, Ack)) == acks + 1


def test_an_old_append_about_trimmed_offsets_is_acknowledged_not_rejected() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    old = next((s, to, m) for s, to, m in cluster.underway if to == 2)
    cluster.propose(1, "b")
    cluster.deliver()
    cluster.tick()
    cluster.trim(2, 3)
    cluster.sent.clear()
    cluster.receive(*old)
    assert cluster.between(2, 1, Reject) == []
    assert cluster.between(2, 1, Ack)[0].end == EntryId(1, 3)


def test_a_slow_disk_is_not_sent_the_same_entries_again() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[2].auto_sync = False
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(10)
    assert sum(len(m.entries) for m in cluster.between(1, 2, Append)) == 2
    assert cursor_of(cluster, 1, 2).ack_offset == 1
    cluster[2].sync()
    cluster.deliver()
    assert cursor_of(cluster, 1, 2).ack_offset == 2


def test_a_leader_that_is_idle_needs_no_tick_and_one_with_a_lagging_follower_does() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    assert not leader.needs_tick
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(3)
    assert leader.needs_tick
    cluster[1].run(leader.peer_lost(3))
    assert not leader.needs_tick, "nothing is sent to a node that is not connected"
    cluster.heal()
    cluster[1].run(leader.peer_connected(3))
    cluster.deliver()
    cluster.tick(2)
    assert cluster[3].log == cluster[1].log
    assert not leader.needs_tick


def test_a_follower_that_restarts_is_caught_up_when_it_connects() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster[1].run(leader.peer_lost(3))
    cluster.crash(3)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.restart(3)
    cluster[1].run(leader.peer_connected(3))
    cluster.deliver()
    cluster.tick(2)
    assert cluster[3].log == cluster[1].log
    assert cluster.replica(3).role is Role.FOLLOWER


def test_entries_that_do_not_follow_each_other_are_a_violation() -> None:
    cluster = Cluster()
    cluster.fence(1)
    gap = (*entries(1, 0, "a"), *entries(1, 2, "c"))
    with pytest.raises(ProtocolViolationError, match="expected at 1"):
        cluster.receive(2, 1, Append(SHARD, 1, 2, EMPTY, 0, 1, gap))
    with pytest.raises(ProtocolViolationError):
        cluster.receive(2, 1, Append(SHARD, 1, 2, EMPTY, 0, 1, entries(2, 0, "of a later term")))
    assert cluster.replica(1).log_end == 0


def test_two_leaders_of_one_term_stop_the_replica_that_sees_them() -> None:
    cluster = Cluster()
    cluster.fence(1)
    cluster.receive(2, 1, Append(SHARD, 1, 2, EMPTY, 0, 1))
    with pytest.raises(InvariantError, match="both lead term 1"):
        cluster.receive(3, 1, Append(SHARD, 1, 3, EMPTY, 0, 1))


# -- the window and feeding ----------------------------------------------------------------------------------------------


def test_the_window_bounds_what_is_underway_and_one_push_always_may_be() -> None:
    cluster = Cluster(2, config=ReplicaConfig(max_in_flight_bytes=250, feed_bytes_max=200, resend_ticks=2))
    cluster.lead(1, 1)
    for data in "abcdefgh":  # 100 bytes each
        cluster.propose(1, data)
    pushed = [m for m in cluster.between(1, 2, Append) if m.entries][1:]
    assert [len(m.entries) for m in pushed] == [1, 1, 1], (
        "one more starts a feed for the last 50 bytes of room"
    )
    cluster.deliver()
    assert cluster[2].log == cluster[1].log
    assert all(len(m.entries) <= 2 for m in cluster.between(1, 2, Append)), "a feed stays within its bound"


def test_an_entry_larger_than_the_window_is_sent_alone() -> None:
    cluster = Cluster(2, config=ReplicaConfig(max_in_flight_bytes=10, feed_bytes_max=10))
    cluster.lead(1, 1)
    for _ in range(3):
        cluster.propose(1, b"x" * 1000)
    assert len([m for m in cluster.between(1, 2, Append) if m.entries]) == 2
    cluster.deliver()
    assert cluster[2].log == cluster[1].log


def test_a_group_larger_than_a_feed_is_split() -> None:
    cluster = Cluster(2, config=ReplicaConfig(feed_bytes_max=300))
    cluster.lead(1, 1)
    cluster.propose(1, *"abcdefghij")
    cluster.deliver()
    assert cluster[2].log == cluster[1].log
    assert max(len(m.entries) for m in cluster.between(1, 2, Append)) == 3


def test_a_feed_that_is_answered_after_a_change_of_term_is_ignored() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(3)
    cluster.propose(1, "a", "b")
    cluster.deliver()
    cluster[1].late_feeds = True
    cluster.heal()
    cluster.tick(3)
    feed = cluster[1].feeds[0]
    old = [e for e in cluster[1].log if e.base_offset >= feed.from_offset]
    cluster.lead(2, 2)
    assert cluster.replica(1).fed(3, old, 200) == []
    cluster[1].late_feeds = False
    cluster.lead(1, 3)
    stale = (*old[:-1], Entry(1, old[-1].base_offset, old[-1].next_offset + 1, "never was"))
    assert cluster.replica(1).fed(3, stale, 200) == [], "not what this log holds"


def test_entries_of_a_cut_tail_are_never_fed() -> None:
    """A Feed is read before the tail is cut, and answered when the node leads again, at the very same offset."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(1)
    cluster.propose(1, "never committed")
    dead = cluster[1].log[-1]
    cluster.lead(2, 2, 3)
    cluster.propose(2, "b")
    cluster.deliver()
    cluster.heal()
    cluster[1].late_feeds = True
    cluster.fence(3)
    cluster.replica(1)
    cluster.lead(2, 4)
    cluster.tick(3)
    cluster.appoint(1, 5)
    assert [feed.from_offset for feed in cluster[1].feeds][-2:] == [cluster.replica(1).log_end - 1] * 2
    assert cluster.replica(1).fed(2, [dead], 100) == []


def test_a_feed_that_nobody_answers_is_asked_for_again() -> None:
    cluster = Cluster()
    cluster[1].late_feeds = True
    cluster.appoint(1, 1)
    assert len(cluster[1].feeds) == 2
    cluster[1].feeds.clear()
    cluster.tick(2)
    assert [feed.to for feed in cluster[1].feeds] == [2, 3]


def test_an_empty_answer_to_a_feed_waits_for_the_next_tick() -> None:
    cluster = Cluster(2)
    cluster[1].late_feeds = True
    cluster.appoint(1, 1)
    assert cluster.replica(1).fed(2, [], 0) == []
    cluster.tick()
    assert len(cluster[1].feeds) == 2


# -- snapshots -----------------------------------------------------------------------------------------------------------


def trimmed() -> Cluster:
    """Node 1 leads and has trimmed its log beyond what node 3, which was away, has."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(3)
    cluster.propose(1, *"abcd")
    cluster.deliver()
    cluster.tick()
    cluster.trim(1, 3)
    cluster.heal()
    cluster.tick(4)
    return cluster


def test_a_follower_that_ends_before_the_leaders_log_begins_gets_a_snapshot() -> None:
    cluster = trimmed()
    assert cluster[1].snapshots == [3]
    assert cursor_of(cluster, 1, 3).state is CursorState.SNAPSHOT
    cluster.snapshot(1, 3)
    cluster.deliver()
    cluster.tick(3)
    assert cluster[3].took(ResetLog) == [ResetLog(cluster[3].took(ResetLog)[0].write_id, EntryId(1, 3))]
    assert cluster[3].log == cluster[1].log
    assert cluster.replica(3).high_watermark == 5


def test_a_snapshot_that_fails_is_tried_again_by_ticks() -> None:
    cluster = trimmed()
    cluster[1].snapshots.clear()
    cluster[1].run(cluster.replica(1).snapshot_failed(3))
    assert cluster[1].snapshots == [], "not at once"
    cluster.tick(3)
    assert cluster[1].snapshots == [3]


def test_a_snapshot_is_dropped_when_the_log_has_come_that_far_by_itself() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(2).snapshot_installed(EntryId(1, 2)) == []
    assert cluster.replica(1).snapshot_installed(EntryId(1, 9)) == [], "a leader takes none"


def test_an_acknowledgement_waits_until_the_reset_is_durable() -> None:
    cluster = trimmed()
    cluster[3].auto_sync = False
    cluster.snapshot(1, 3)
    acks = len(cluster.between(3, 1, Ack))
    cluster.deliver()
    assert len(cluster.between(3, 1, Ack)) == acks
    cluster[3].sync()
    assert cluster.between(3, 1, Ack)[-1].end == EntryId(1, 3)


def test_a_leader_that_trims_past_a_slow_follower_sends_it_a_snapshot() -> None:
    cluster = Cluster(config=ReplicaConfig(max_in_flight_bytes=100, feed_bytes_max=100, resend_ticks=2))
    cluster.lead(1, 1)
    cluster.isolate(3)
    for data in "abcd":
        cluster.propose(1, data)
    cluster.deliver()
    cluster.trim(1, 5)
    cluster.heal()
    cluster.tick(4)
    assert cluster[1].snapshots == [3]
    cluster.snapshot(1, 3)
    cluster.deliver()
    assert cluster.replica(3).log_end == 5


def test_a_log_cannot_be_trimmed_beyond_what_is_committed() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    with pytest.raises(InvariantError):
        cluster.replica(1).trimmed(2)


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
    assert cluster.replica(3).high_watermark < cluster.replica(3).log_start
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
