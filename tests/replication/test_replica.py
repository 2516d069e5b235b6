"""Replicas led by a coordinator's choice: repeated and late messages, truncation, messages lost on the way."""

from collections import deque
from typing import Any

import pytest

from antiphon.errors import ProtocolViolationError
from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import (
    AppendLog,
    LeaderReady,
    TruncateLog,
)
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    Append,
    BecomeLeader,
    BecomeLeaderReply,
    NewTerm,
    NewTermReply,
    Reject,
    StaleTerm,
    Truncate,
    TruncateReply,
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
)

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
    assert (cluster.replica(3).role, cluster.replica(3).log.terms.end) == (Role.FOLLOWER, EntryId(1, 2))


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


def test_a_follower_answers_once_it_is_heard_from_on_its_connection() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cursor_of(cluster, 1, 3).answers
    cluster[1].run(leader.peer_lost(3))
    cluster[1].run(leader.peer_connected(3))
    assert not cursor_of(cluster, 1, 3).answers
    cluster.deliver()
    assert cursor_of(cluster, 1, 3).answers


def test_a_follower_that_promised_again_and_has_not_answered_is_asked_again() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster[1].run(leader.peer_lost(3))
    cluster[1].run(leader.peer_connected(3))
    cluster.drop(3)  # as one that has not promised this term takes no notice
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 1, 3, EntryId(1, cluster.replica(3).log_end)))
    cluster.deliver()
    assert cursor_of(cluster, 1, 3).answers


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
