"""Feeding followers that are behind: the window, late and stale feeds, snapshots."""

import pytest

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import ResetLog
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.messages import (
    Ack,
    Append,
    Entry,
)
from antiphon.replication.progress import ProgressState
from tests.replication.cluster import Cluster, cursor_of, trimmed

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
    assert cluster.replica(1).entries_read(3, old, 200) == []
    cluster[1].late_feeds = False
    cluster.lead(1, 3)
    stale = (*old[:-1], Entry(1, old[-1].base_offset, old[-1].next_offset + 1, "never was"))
    assert cluster.replica(1).entries_read(3, stale, 200) == [], "not what this log holds"


def test_entries_of_a_cut_tail_are_never_fed() -> None:
    """A ReadEntries is read before the tail is cut, and answered when the node leads again, at the very same offset."""
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
    assert cluster.replica(1).entries_read(2, [dead], 100) == []


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
    assert cluster.replica(1).entries_read(2, [], 0) == []
    cluster.tick()
    assert len(cluster[1].feeds) == 2


# -- snapshots -----------------------------------------------------------------------------------------------------------


def test_a_follower_that_ends_before_the_leaders_log_begins_gets_a_snapshot() -> None:
    cluster = trimmed()
    assert cluster[1].snapshots == [3]
    assert cursor_of(cluster, 1, 3).state is ProgressState.SNAPSHOT
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


# -- appending now, sending later -----------------------------------------------------------------------------------------


def _append(cluster: Cluster, data: str) -> None:
    cluster[1].run([cluster.replica(1).append_batch(1, data)])


def test_what_is_appended_one_by_one_goes_out_as_one_message() -> None:
    cluster = Cluster(2)
    cluster.lead(1, 1)
    cluster.deliver()
    before = len(cluster.between(1, 2, Append))
    for data in "abc":
        _append(cluster, data)
        assert cluster.replica(1).log_end == cluster[1].log_end
    assert len(cluster.between(1, 2, Append)) == before, "nothing is sent unasked"
    cluster[1].run(cluster.replica(1).send_appended())
    (message,) = cluster.between(1, 2, Append)[before:]
    assert [entry.data for entry in message.entries] == ["a", "b", "c"]
    assert cluster.replica(1).send_appended() == [], "once"
    cluster.deliver()
    assert cluster[2].log == cluster[1].log
    assert cluster.replica(1).high_watermark == cluster[1].log_end


def test_entries_that_are_not_sent_yet_are_fed_to_whoever_asks_and_not_sent_twice() -> None:
    cluster = Cluster(2)
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    _append(cluster, "b")
    cluster.deliver()  # the acknowledgement of "a" starts a feed of what is behind it
    assert cluster[2].data[-1] == "b"
    sent = len(cluster.between(1, 2, Append))
    cluster[1].run(cluster.replica(1).send_appended())
    assert len(cluster.between(1, 2, Append)) == sent
    _append(cluster, "c")
    cluster.propose(1, "d")
    (message,) = [m for m in cluster.between(1, 2, Append)[sent:] if m.entries]
    assert [entry.data for entry in message.entries] == ["c", "d"], "what comes later takes it along"
    cluster.deliver()
    assert cluster[2].log == cluster[1].log


def test_what_was_not_sent_when_leadership_ended_is_never_sent() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.deliver()
    sent = len(cluster.between(1, 2, Append))
    _append(cluster, "late")
    cluster.fence(2)
    assert cluster.replica(1).send_appended() == []
    cluster.tick()
    assert len(cluster.between(1, 2, Append)) == sent
