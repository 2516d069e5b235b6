"""S0, Oxia's replication protocol: what the pure protocol carries of it, claim by claim.

What needs a table, a disk or a socket (S0.18, S0.19, S0.24's stores, S0.32, S0.33) is shown where those live.
"""

import pytest

from antiphon.errors import NotLeaderError, NotReadyError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import (
    AppendLog,
    Commit,
    LeaderReady,
    ReadEntries,
    ReadReady,
    Send,
)
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.messages import (
    Ack,
    Append,
    BecomeLeader,
    BecomeLeaderReply,
    Entry,
    Reject,
)
from antiphon.replication.quorum import commit_point
from antiphon.replication.replica_state import Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, term_start


def test_s0_01_one_leader_and_any_number_of_followers() -> None:
    for nodes in (1, 2, 3, 5):
        cluster = Cluster(nodes)
        cluster.lead(1, 1)
        assert cluster.leading == [1]
        roles = [cluster.replica(node).role for node in range(2, nodes + 1)]
        assert roles == [Role.FOLLOWER] * (nodes - 1)
        cluster.propose(1, "a")
        cluster.deliver()
        assert cluster.replica(1).high_watermark == 2


def test_s0_02_the_ensemble_may_be_another_in_the_next_term() -> None:
    cluster = Cluster((1, 2, 3, 4, 5))
    cluster.ensemble = (1, 2, 3)
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.ensemble = (1, 2, 3, 4, 5)
    cluster.lead(1, 2)
    assert cluster.replica(1).members.voting == (1, 2, 3, 4, 5)
    cluster.isolate(2, 3)
    cluster.propose(1, "b")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 4, "1, 4 and 5 are a majority of five"
    assert cluster[5].log == cluster[1].log


def test_s0_03_everything_that_is_said_carries_the_term_and_entries_are_known_by_term_and_offset() -> None:
    cluster = Cluster()
    cluster.lead(1, 6)
    cluster.propose(1, "a")
    cluster.deliver()
    messages = [message for _, _, message in cluster.sent]
    assert messages
    assert all(message.term == 6 for message in messages)
    assert cluster[1].log[-1].end == EntryId(6, 2)


def test_s0_03_the_current_term_is_said_also_where_the_entries_are_of_an_older_one() -> None:
    old = (term_start(1, 0), Entry(1, 1, 2, "a"), Entry(1, 2, 3, "b"))
    cluster = Cluster(logs={1: old, 2: old[:1]}, terms={1: 1, 2: 1}, config=ReplicaConfig(feed_bytes_max=100))
    cluster.lead(1, 6)
    said = [message for source, _, message in cluster.sent if source != COORDINATOR]
    assert any(isinstance(message, Ack) and message.end.term == 1 for message in said)
    assert [message.term for message in said] == [6] * len(said)


def test_s0_03_an_offset_alone_names_no_entry() -> None:
    old = (term_start(1, 0), Entry(1, 1, 2, "a"), Entry(1, 2, 3, "b"))
    cluster = Cluster(logs={2: old}, terms={2: 1})
    cluster.fence(6, 2)
    cluster.receive(1, 2, Append(SHARD, 6, 1, EntryId(2, 3), 0, 9))
    assert cluster.between(2, 1, Reject)[-1].hint == EntryId(1, 3)
    assert cluster.between(2, 1, Ack) == []


def test_s0_08_the_leader_serves_reads_and_writes() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster[1].run(leader.request_read(1))
    cluster.deliver()
    assert cluster[1].took(Commit)[-1] == Commit(2)
    (ready,) = cluster[1].took(ReadReady)
    assert (ready.token, ready.offset) == (1, 1), "what was committed when it was asked for"


def test_s0_09_the_order_of_a_write() -> None:
    """Own log, then followers; their disks, then the answer, then the commit. The leader's disk counts like theirs."""
    cluster = Cluster()
    cluster.lead(1, 1)
    for host in cluster.hosts.values():
        host.auto_sync = False
    cluster[1].seen.clear()
    cluster.propose(1, "a")
    assert [type(action) for action in cluster[1].seen] == [AppendLog, Send, Send]
    cluster.sent.clear()
    cluster.deliver()
    assert cluster.between(2, 1, Ack) == [], "not before the follower's disk has it"
    cluster[2].sync()
    cluster.deliver()
    assert len(cluster.between(2, 1, Ack)) == 1
    assert cluster[1].took(Commit) == []
    cluster[1].sync()
    assert cluster[1].took(Commit) == [Commit(2)]


def test_s0_09_two_followers_disks_commit_while_the_leaders_own_is_slow() -> None:
    """The divergence: the leader's log has it first, but its disk is not waited for where a majority of others has it."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[1].auto_sync = False
    cluster.propose(1, "a")
    assert cluster[1].data == ["a"]
    assert cluster[1].disk == [term_start(1, 0)]
    cluster.deliver_to(2)
    cluster.deliver_to(1)
    assert cluster.replica(1).high_watermark == 1, "one disk of three"
    cluster.deliver_to(3)
    cluster.deliver_to(1)
    assert cluster.replica(1).high_watermark == 2, "two of three"


def test_s0_10_without_a_majority_nothing_is_committed() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(1)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(20)
    assert cluster.replica(1).high_watermark == 1


def test_s0_11_the_majority_counts_the_leader() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 2, "one acknowledgement of two followers is enough"


def test_s0_12_head_and_commit_offset_are_kept_apart() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(1)
    cluster.propose(1, "a", "b")
    assert (cluster.replica(1).log_end, cluster.replica(1).high_watermark) == (3, 1)
    cluster.heal()
    cluster.tick(4)
    assert (cluster.replica(1).log_end, cluster.replica(1).high_watermark) == (3, 3)
    assert (cluster.replica(3).log_end, cluster.replica(3).high_watermark) == (3, 3)


@pytest.mark.parametrize("end", [EntryId(9, 2), EntryId(0, 2), EntryId(1, 3), EntryId(1, 99)])
def test_s0_13_an_acknowledgement_of_another_entry_id_does_not_count(end: EntryId) -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.drop()
    cluster.receive(2, 1, Ack(SHARD, 1, end, 1))
    assert cluster.replica(1).high_watermark == 1
    cluster.receive(2, 1, Ack(SHARD, 1, EntryId(1, 2), 1))
    assert cluster.replica(1).high_watermark == 2


def test_s0_14_s0_15_uncommitted_entries_accumulate_and_are_distributed() -> None:
    """Conflict C8: the head may be any number of entries ahead of the commit offset."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[2].auto_sync = cluster[3].auto_sync = False
    for data in "abcde":
        cluster.propose(1, data)
    cluster.deliver()
    assert (cluster.replica(1).log_end, cluster.replica(1).high_watermark) == (6, 1)
    assert cluster[2].data == cluster[3].data == list("abcde")


def test_s0_16_a_cursor_knows_what_was_pushed_and_what_was_acknowledged() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a", "b")
    (second, third) = cluster.replica(1).followers()
    assert (second.last_pushed, second.ack_offset) == (third.last_pushed, third.ack_offset) == (3, 1)
    cluster.deliver_to(2)
    cluster.deliver_to(1)
    (second, third) = cluster.replica(1).followers()
    assert (second.last_pushed, second.ack_offset) == (3, 3)
    assert (third.last_pushed, third.ack_offset) == (3, 1)
    cluster.sent.clear()
    cluster.propose(1, "c")
    for node in (2, 3):  # what was pushed is not pushed again, acknowledged or not
        (append,) = cluster.between(1, node, Append)
        assert [entry.data for entry in append.entries] == ["c"]


@pytest.mark.parametrize("fenced", [(1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_s0_17_no_leader_is_chosen_that_lacks_an_entry_which_a_majority_holds(
    fenced: tuple[int, ...],
) -> None:
    """The random schedules of tests/replication show it for many more histories."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(3)
    cluster.propose(1, "held by 1 and 2")
    cluster.deliver()
    cluster.heal()
    heads = cluster.fence(2, *fenced)
    best = max(heads, key=lambda node: (heads[node], node))
    others = tuple((node, head) for node, head in heads.items() if node != best)
    cluster.receive(COORDINATOR, best, BecomeLeader(SHARD, 2, (1, 2, 3), others))
    assert cluster.replica(best).role is Role.LEADER
    assert "held by 1 and 2" in cluster[best].data
    worst = min(heads, key=lambda node: heads[node])
    if heads[worst] < heads[best]:
        message = BecomeLeader(SHARD, 2, (1, 2, 3), ((best, heads[best]),))
        cluster.receive(COORDINATOR, worst, message)
        assert cluster.replica(worst).role is Role.FENCED, "a worse log refuses to lead"


def test_s0_20_an_acknowledgement_advances_the_cursor_then_commits() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver_to(2)
    cluster[1].seen.clear()
    cluster.deliver_to(1)
    assert cluster[1].seen == [Commit(2)], (
        "applying, answering and notifying follow from this one action, in that order"
    )
    assert cluster.replica(1).followers()[0].ack_offset == 2


def test_s0_21_followers_refuse_clients_and_say_who_leads() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    for ask in (cluster.replica(2).propose, cluster.replica(2).request_read):
        with pytest.raises(NotLeaderError) as refusal:
            ask([(1, "a")] if ask == cluster.replica(2).propose else 1)
        assert refusal.value.details["leader"] == 1


def test_s0_22_followers_tail_the_leader_to_its_head() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    for data in range(50):
        cluster.propose(1, data)
    cluster.deliver()
    assert cluster[2].log == cluster[3].log == cluster[1].log


def test_s0_22_a_follower_that_is_far_behind_comes_to_the_head_without_being_asked_for() -> None:
    cluster = Cluster(config=ReplicaConfig(feed_bytes_max=300, max_in_flight_bytes=600, resend_ticks=2))
    cluster.lead(1, 1)
    cluster.isolate(3)
    for data in range(50):
        cluster.propose(1, data)
        cluster.deliver()
    assert cluster[3].data == []
    cluster.heal()
    cluster[1].run(cluster.replica(1).peer_connected(3))
    cluster.deliver()
    assert cluster[3].log == cluster[1].log


def test_s0_23_followers_apply_only_what_is_known_to_be_committed() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    assert (cluster.replica(2).log_end, cluster.replica(2).high_watermark) == (2, 1)
    assert cluster[2].took(Commit)[-1] == Commit(1)


def test_s0_23_nor_what_it_has_of_another_leader() -> None:
    """Node 2 has entries of a leader that nobody follows any more; the high watermark that it hears is beyond them."""
    own = (term_start(1, 0), Entry(1, 1, 2, "x"), Entry(1, 2, 3, "y"))
    cluster = Cluster(logs={2: own}, terms={2: 1})
    cluster.fence(2, 2)
    cluster.receive(1, 2, Append(SHARD, 2, 1, EntryId(1, 1), 3, 1))
    assert cluster.replica(2).high_watermark == 1


def test_s0_24_a_promoted_follower_is_warm() -> None:
    """All but the tail whose commit it had not heard of is applied when it is promoted."""
    cluster = Cluster()
    cluster.lead(1, 1)
    for data in range(100):
        cluster.propose(1, data)
        cluster.deliver()
    replica = cluster.replica(2)
    assert replica.log_end - replica.high_watermark == 1
    assert cluster[2].took(Commit)[-1] == Commit(replica.high_watermark)
    cluster.crash(1)
    cluster.lead(2, 2, 3)
    assert cluster.replica(2).ready
    assert cluster[2].took(Commit)[-1] == Commit(replica.log_end)
    marks = [action.high_watermark for action in cluster[2].took(Commit)]
    assert marks == sorted(set(marks)), "nothing is applied again"


def test_s0_25_the_leader_speaks_first_and_followers_answer() -> None:
    cluster = Cluster()
    cluster.fence(1)
    assert cluster.underway == type(cluster.underway)(), "who is fenced says nothing to other replicas"
    cluster.lead(1, 2)
    cluster.propose(1, "a")
    cluster.deliver()
    said = {(a, b, type(m)) for a, b, m in cluster.sent if COORDINATOR not in {a, b}}
    assert said == {(1, 2, Append), (1, 3, Append), (2, 1, Ack), (3, 1, Ack)}


def test_s0_26_s0_28_an_append_carries_entries_and_the_commit_offset_which_trails() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.propose(1, "b")
    carried = [(m.entries[0].data, m.high_watermark) for m in cluster.between(1, 2, Append) if m.entries]
    assert carried == [("start of 1", 0), ("a", 1), ("b", 2)]


def test_s0_27_a_follower_commits_from_its_own_log() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster[2].seen.clear()
    cluster.tick()
    assert cluster[2].took(Commit) == [Commit(2)]
    assert cluster[2].took(AppendLog) == []


def test_s0_28_the_last_commit_reaches_followers_when_writes_stop() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    assert leader.needs_tick
    cluster.tick()
    assert cluster.replica(2).high_watermark == cluster.replica(3).high_watermark == 2
    assert not leader.needs_tick, "and then there is silence"


def test_s0_28_it_does_so_also_if_that_message_is_lost() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster[1].run(leader.tick())
    cluster.drop(2, 3)
    cluster.tick(4)
    assert cluster.replica(2).high_watermark == cluster.replica(3).high_watermark == 2


def test_s0_29_an_acknowledgement_is_sent_after_the_write_is_persisted() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[2].auto_sync = False
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.between(2, 1, Ack)[-1].end == EntryId(1, 1)
    cluster[2].sync()
    assert cluster.between(2, 1, Ack)[-1].end == EntryId(1, 2)


def test_s0_29_who_is_asked_meanwhile_says_what_is_on_the_disk() -> None:
    cluster = Cluster()
    leader = cluster.lead(1, 1)
    cluster[2].auto_sync = False
    cluster.propose(1, "a")
    cluster.deliver()
    for _ in range(3):
        cluster[1].run(leader.tick())
        cluster.deliver()
    assert cluster[2].data == ["a"]
    assert {ack.end for ack in cluster.between(2, 1, Ack)} == {EntryId(1, 1)}
    assert cluster.replica(1).high_watermark == 2, "by node 3"


def test_s0_29_nothing_is_acknowledged_in_a_term_that_is_not_yet_promised_on_the_disk() -> None:
    """The entries are on the disk already, of the term before; the promise is not. It could be forgotten by a crash."""
    log = (term_start(1, 0), Entry(1, 1, 2, "a"))
    cluster = Cluster(logs=dict.fromkeys((1, 2, 3), log), terms=dict.fromkeys((1, 2, 3), 1))
    cluster.isolate(2)
    cluster.lead(1, 2, 3)
    cluster.heal()
    cluster[2].auto_sync = False
    prev = EntryId(1, 2)
    cluster.receive(1, 2, Append(SHARD, 2, 1, prev, 0, 1))  # the term is heard of by this
    assert (cluster.replica(2).term, cluster[2].term) == (2, 1)
    assert cluster.between(2, 1, Ack) == []
    cluster.receive(1, 2, Append(SHARD, 2, 1, prev, 0, 2))  # nor when it is asked again
    assert cluster.between(2, 1, Ack) == []
    cluster[2].sync()
    assert [(ack.term, ack.end) for ack in cluster.between(2, 1, Ack)] == [(2, prev)]
    assert cluster[2].term == 2


def test_s0_30_a_slow_follower_never_delays_the_commit() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster[3].auto_sync = False
    for data in range(20):
        cluster.propose(1, data)
        cluster.deliver()
        assert cluster.replica(1).high_watermark == cluster.replica(1).log_end


def test_s0_31_replication_and_commit_run_concurrently() -> None:
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.propose(1, "a")
    cluster.deliver_to(2)
    cluster.propose(1, "b")  # pushed while the acknowledgement of "a" is underway
    assert cluster.replica(1).high_watermark == 1
    assert [m.entries[0].data for m in cluster.between(1, 2, Append) if m.entries][1:] == ["a", "b"]
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 3


def test_s0_34_an_entry_commits_by_majority_in_its_own_term_with_its_prefix() -> None:
    assert commit_point([5, 5, 0], 2, high_watermark=0, term_start=2) == 5
    assert commit_point([5, 0, 0], 2, high_watermark=0, term_start=2) == 0, "no majority"
    assert commit_point([5, 5, 0], 2, high_watermark=0, term_start=5) == 0, "of an older term"
    assert commit_point([9, 4, 7], 2, high_watermark=0, term_start=2) == 7, "the prefix that a majority has"
    assert commit_point([3, 3, 0], 2, high_watermark=4, term_start=2) == 4, "never backwards"


def test_s0_the_leader_reports_and_serves_only_after_its_first_entry_is_committed() -> None:
    cluster = Cluster()
    cluster.appoint(1, 1)
    assert [type(a) for a in cluster[1].took(ReadEntries)] == [ReadEntries, ReadEntries]
    with pytest.raises(NotReadyError):
        cluster.replica(1).propose([(1, "a")])
    cluster.deliver()
    assert cluster[1].took(LeaderReady) == [LeaderReady(1)]
    assert cluster.told[-1] == (1, BecomeLeaderReply(SHARD, 1))
