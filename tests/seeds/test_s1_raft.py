"""S1, the Replicated Log pattern and Raft: what the pure protocol carries of it, claim by claim.

The five hazards in the pattern's own code are in test_s1_hazards.py.
"""

from collections.abc import Sequence
from random import Random

import pytest

from antiphon.errors import NotLeaderError, NotReadyError
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import AppendLog, Commit, LeaderReady
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.messages import Ack, Append, Entry, Reject, RequestVote, StaleTerm, VoteReply
from antiphon.replication.replica_state import Role
from tests.replication.cluster import SHARD, Cluster, term_start


def elected(nodes: int = 3, winner: int = 1, election: ElectionConfig | None = None) -> Cluster:
    cluster = Cluster(
        nodes,
        raft=True,
        election=election or ElectionConfig(),
        timeout=lambda node: 10 if node == winner else 15 + node,
    )
    cluster.tick(10)
    assert cluster.leading == [winner]
    return cluster


def records(term: int, base: int, *data: object) -> tuple[Entry, ...]:
    return tuple(Entry(term, base + i, base + i + 1, item) for i, item in enumerate(data))


def follower(log: Sequence[Entry], term: int) -> Cluster:
    """Node 2 with this log, alone; what it says is in `sent`."""
    return Cluster(raft=True, logs={2: log}, terms={2: term})


def answers(cluster: Cluster, append: Append) -> list[object]:
    """What node 2 answers to an Append of node 1."""
    cluster.sent.clear()
    cluster.receive(1, 2, append)
    return [message for source, _, message in cluster.sent if source == 2]


# -- the log -----------------------------------------------------------------------------------------------------------


def test_s1_01_every_node_writes_the_entry_with_its_term_to_its_own_log() -> None:
    cluster = elected()
    cluster.propose(1, "a")
    cluster.deliver()
    for host in cluster.hosts.values():
        assert host.disk[-1] == Entry(1, 1, 2, "a")


def test_s1_02_all_nodes_end_with_the_same_log() -> None:
    cluster = elected(5)
    for data in range(20):
        cluster.propose(1, data)
    cluster.deliver()
    cluster.tick(3)
    assert all(host.log == cluster[1].log for host in cluster.hosts.values())
    assert all(host.replica.high_watermark == 21 for host in cluster.hosts.values())


@pytest.mark.parametrize("seed", range(10))
def test_s1_02_also_where_messages_are_lost_and_leaders_fall_out(seed: int) -> None:
    random = Random(seed)
    cluster = elected(5)
    for data in range(40):
        for node in cluster.leading[-1:]:
            if cluster.replica(node).ready:
                cluster.propose(node, data)
        cluster.deliver(random.randrange(6))
        cluster.drop(random.randrange(1, 6))
        if random.random() < 0.1:
            cluster.heal()
            cluster.isolate(random.randrange(1, 6))
        cluster.tick()
    cluster.heal()
    cluster.tick(60)
    (leader,) = cluster.leading
    assert cluster[leader].data, "something was written"
    assert all(host.log == cluster[leader].log for host in cluster.hosts.values())
    assert {host.replica.high_watermark for host in cluster.hosts.values()} == {
        cluster.replica(leader).log_end
    }


def test_s1_03_with_a_stable_leader_a_change_takes_one_phase() -> None:
    cluster = elected()
    cluster.sent.clear()
    cluster.propose(1, "a")
    cluster.deliver()
    assert [type(message) for _, _, message in cluster.sent] == [Append, Append, Ack, Ack]
    assert cluster.replica(1).high_watermark == 2


def test_s1_04_an_election_fixes_a_new_term_and_finds_what_may_be_on_the_old_quorum() -> None:
    """Node 3, which lacks the entry, loses patience first; it is not elected, and gets the entry from who is."""
    patience = {1: 10, 2: 25, 3: 15}
    cluster = Cluster(3, raft=True, election=ElectionConfig(pre_vote=False), timeout=patience.__getitem__)
    cluster.tick(10)
    assert cluster.leading == [1]
    cluster.isolate(3)
    cluster.propose(1, "on 1 and 2")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 2
    cluster.crash(1)
    cluster.heal()
    cluster.tick(60)
    assert cluster.between(2, 3, VoteReply), "node 3 has asked"
    assert not any(reply.granted for reply in cluster.between(2, 3, VoteReply))
    assert cluster.leading == [2]
    assert cluster.replica(2).term > 1
    assert cluster[3].data == ["on 1 and 2"]


def test_s1_05_the_leader_alone_takes_requests_and_the_others_name_it() -> None:
    cluster = elected(3)
    cluster.propose(1, "a")
    cluster.deliver()
    for node in (2, 3):
        with pytest.raises(NotLeaderError) as refused:
            cluster.replica(node).propose([(1, "b")])
        assert refused.value.details["leader"] == 1
    cluster.receive(
        3, 1, RequestVote(SHARD, 9, 3, EntryId(9, 99))
    )  # and it no longer, once another term begins
    with pytest.raises(NotLeaderError):
        cluster.replica(1).propose([(1, "b")])
    with pytest.raises(NotLeaderError):
        cluster.replica(1).request_read(1)
    assert cluster[1].data == ["a"]


def test_s1_05_s1_06_the_leader_appends_and_sends_to_every_follower() -> None:
    cluster = elected(5)
    cluster.sent.clear()
    cluster.propose(1, "a")
    assert cluster[1].data == ["a"]
    assert sorted(
        to for source, to, message in cluster.sent if source == 1 and isinstance(message, Append)
    ) == [2, 3, 4, 5]


def test_s1_07_the_answer_carries_position_and_term() -> None:
    cluster = follower((), 0)
    (ack,) = answers(cluster, Append(SHARD, 3, 1, EMPTY, 0, 9, records(3, 0, "a", "b")))
    assert ack == Ack(SHARD, 3, EntryId(3, 2), 9)


def test_s1_07_the_position_is_that_of_what_was_asked_and_the_term_is_the_newest() -> None:
    """A longer tail that nobody has asked for is not part of the answer (hazard H2), nor is the tail's term."""
    cluster = follower((*records(1, 0, "a", "b"), *records(2, 2, "x", "y")), 2)
    (ack,) = answers(cluster, Append(SHARD, 3, 1, EMPTY, 0, 9, records(1, 0, "a")))
    assert ack == Ack(SHARD, 3, EntryId(1, 1), 9)
    (stale,) = answers(cluster, Append(SHARD, 2, 1, EMPTY, 0, 9, records(1, 0, "a")))
    assert stale == StaleTerm(SHARD, 3)


def test_s1_08_entries_already_present_are_ignored() -> None:
    cluster = follower(records(1, 0, "a", "b", "c"), 1)
    append = Append(SHARD, 2, 1, EMPTY, 0, 1, records(1, 0, "a", "b"))
    for _ in range(3):
        assert answers(cluster, append) == [Ack(SHARD, 2, EntryId(1, 2), 1)]
    assert cluster[2].data == ["a", "b", "c"], "nor is anything cut that is not contradicted"
    assert cluster[2].took(AppendLog) == []


def test_s1_09_entries_of_another_term_are_cut_with_all_after_them() -> None:
    cluster = follower((*records(1, 0, "a"), *records(2, 1, "x", "y", "z")), 2)
    answers(cluster, Append(SHARD, 3, 1, EMPTY, 0, 1, (*records(1, 0, "a"), *records(3, 1, "b"))))
    assert cluster[2].data == ["a", "b"]


def test_s1_10_a_lower_term_is_rejected_and_makes_the_sender_step_down() -> None:
    cluster = elected()
    cluster[2].run(cluster.replica(2).receive(3, RequestVote(SHARD, 8, 3, EntryId(7, 7))))
    cluster.sent.clear()
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.between(2, 1, StaleTerm) == [StaleTerm(SHARD, 8)]
    assert cluster.replica(1).role is Role.FENCED
    assert (cluster.replica(1).term, cluster[1].term) == (8, 8), "the newer term is adopted, durably"


def test_s1_11_the_quorums_position_becomes_the_high_watermark() -> None:
    cluster = elected(5)
    cluster.propose(1, "a", "b")
    cluster.deliver_to(2)
    cluster.deliver_to(1)
    assert cluster.replica(1).high_watermark == 1
    cluster.deliver_to(3)
    cluster.deliver_to(1)
    assert cluster.replica(1).high_watermark == 3


def test_s1_12_the_high_watermark_never_moves_backwards() -> None:
    cluster = elected()
    for data in range(5):
        cluster.propose(1, data)
    cluster.deliver()
    cluster.tick(2)
    late = Append(SHARD, 1, 1, EntryId(1, 1), 1, 1)
    cluster.receive(1, 2, late)
    assert cluster.replica(2).high_watermark == 6
    cluster.receive(2, 1, Ack(SHARD, 1, EntryId(1, 2), 1))
    assert cluster.replica(1).high_watermark == 6
    for host in cluster.hosts.values():
        marks = [action.high_watermark for action in host.took(Commit)]
        assert marks == sorted(set(marks))


def test_s1_12_nor_when_a_follower_that_counted_for_it_loses_its_disk() -> None:
    cluster = elected()
    cluster.isolate(3)
    cluster.propose(1, *"abcde")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 6
    cluster.receive(2, 1, Reject(SHARD, 1, EMPTY, 0, 99))  # it has nothing any more
    assert cluster.replica(1).followers()[0].ack_offset == 0
    cluster.drop()
    cluster.isolate(2)
    cluster.propose(1, "f")
    assert cluster.replica(1).high_watermark == 6
    assert cluster[1].took(Commit)[-1] == Commit(6)


# -- finding where logs part -------------------------------------------------------------------------------------------


def test_s1_13_a_request_carries_what_precedes_it_and_a_mismatch_is_rejected() -> None:
    cluster = follower(records(1, 0, "a", "b"), 1)
    (reject,) = answers(cluster, Append(SHARD, 3, 1, EntryId(2, 2), 0, 5, records(3, 2, "c")))
    assert reject == Reject(SHARD, 3, EntryId(1, 2), 0, 5)
    assert cluster[2].data == ["a", "b"]


def test_s1_14_after_a_rejection_the_leader_goes_back_until_it_is_accepted() -> None:
    logs = {
        1: (*records(1, 0, "a", "b"), *records(3, 2, "c"), *records(5, 3, "d")),
        2: (*records(1, 0, "a", "b"), *records(2, 2, "x", "y"), *records(4, 4, "z")),
    }
    cluster = Cluster(raft=True, logs=logs, terms={1: 5, 2: 5}, timeout=lambda node: 10 if node == 1 else 19)
    cluster.tick(14)
    assert cluster[2].log == cluster[1].log == cluster[3].log
    hints = [message.hint for message in cluster.between(2, 1, Reject)]
    assert hints == [EntryId(2, 4)], (
        "what it may share with (5, 4): nothing of terms above 5, nothing beyond 4"
    )
    assert EntryId(1, 2) in [message.prev for message in cluster.between(1, 2, Append)], "below term 2, then"


def test_s1_15_a_gap_is_detected() -> None:
    cluster = follower(records(1, 0, "a"), 1)
    (reject,) = answers(cluster, Append(SHARD, 1, 1, EntryId(1, 2), 0, 1, records(1, 2, "third")))
    assert isinstance(reject, Reject)
    assert reject.hint == EntryId(1, 1)
    assert cluster[2].data == ["a"]


@pytest.mark.parametrize("theirs", [1, 3])
def test_s1_16_divergence_is_detected_whether_the_other_term_is_lower_or_higher(theirs: int) -> None:
    cluster = follower((*records(1, 0, "a"), *records(theirs, 1, "x")), 3)
    (reject,) = answers(cluster, Append(SHARD, 4, 1, EntryId(2, 2), 0, 1, records(4, 2, "c")))
    assert isinstance(reject, Reject)
    assert reject.hint.offset <= 2


def test_s1_17_every_node_gets_every_entry_after_disconnection_and_crash() -> None:
    cluster = elected(5)
    cluster.isolate(2)
    cluster.crash(3)
    for data in range(10):
        cluster.propose(1, data)
    cluster.deliver()
    cluster.heal()
    cluster.restart(3)
    cluster.tick(6)
    assert cluster[2].log == cluster[3].log == cluster[1].log


def test_s1_18_s1_19_the_high_watermark_rides_on_appends_and_heartbeats() -> None:
    cluster = elected()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.sent.clear()
    cluster.tick(2)
    heartbeats = cluster.between(1, 2, Append)
    assert heartbeats
    assert all(message.entries == () and message.high_watermark == 2 for message in heartbeats)
    assert cluster.replica(2).high_watermark == 2


def test_s1_20_s1_21_commits_are_reported_in_order_and_once() -> None:
    cluster = elected()
    for data in range(10):
        cluster.propose(1, data)
        if data % 3 == 0:
            cluster.deliver()
            cluster.tick(2)
    cluster.deliver()
    cluster.tick(2)
    for host in cluster.hosts.values():
        marks = [action.high_watermark for action in host.took(Commit)]
        assert marks == sorted(set(marks))
        assert marks[-1] == 11


def test_s1_33_the_terms_of_entries_are_never_rewritten() -> None:
    """Node 3 gets the entry from a leader of a later term, as an entry of the term in which it was made."""
    cluster = elected(3, election=ElectionConfig(pre_vote=False))
    cluster.isolate(3)
    cluster.propose(1, "of term 1")
    cluster.deliver()
    cluster.crash(1)
    cluster.heal()
    cluster.tick(80)
    assert cluster.leading == [2]
    assert cluster.replica(2).term > 1
    for node in (2, 3):
        assert cluster[node].log[1] == Entry(1, 1, 2, "of term 1")
        assert cluster[node].disk[1] == Entry(1, 1, 2, "of term 1")


def older_entry_on_a_majority() -> Cluster:
    """Node 1 leads term 3; its entry of term 1 is durable on all, its own term's first entry on none."""
    one_at_a_time = ReplicaConfig(feed_bytes_max=100, max_in_flight_bytes=100)
    cluster = Cluster(
        raft=True,
        logs={1: records(1, 0, "old")},
        terms=dict.fromkeys((1, 2, 3), 2),
        config=one_at_a_time,
        timeout=lambda node: 10 if node == 1 else 19,
    )
    for _ in range(10):
        cluster[1].run(cluster.replica(1).tick())
        cluster.deliver_to(2, 3)
        cluster.deliver_to(1)
    while not all(cluster[node].disk for node in (2, 3)):
        cluster.deliver_to(2, 3)
        cluster.underway = type(cluster.underway)(
            item
            for item in cluster.underway
            if item[1] != 1 or not isinstance(item[2], Ack) or item[2].end.term < 3
        )
        if not all(cluster[node].disk for node in (2, 3)):
            cluster.deliver_to(1)
    cluster.deliver_to(1)
    assert cluster.leading == [1]
    assert all(cluster[node].disk == list(records(1, 0, "old")) for node in (2, 3))
    return cluster


def test_s1_34_older_term_is_not_committed_by_counting() -> None:
    cluster = older_entry_on_a_majority()
    assert all(status.ack_offset == 1 for status in cluster.replica(1).followers())
    assert cluster.replica(1).high_watermark == 0


def test_s1_35_committing_the_current_term_commits_all_before() -> None:
    cluster = older_entry_on_a_majority()
    cluster.deliver()
    assert cluster[1].took(Commit) == [Commit(2)]


def test_s1_36_a_new_leader_appends_a_first_entry_and_is_ready_when_it_is_committed() -> None:
    cluster = older_entry_on_a_majority()
    assert cluster[1].log[-1] == term_start(3, 1)
    with pytest.raises(NotReadyError):
        cluster.replica(1).propose([(1, "a")])
    cluster.deliver()
    assert cluster[1].took(LeaderReady) == [LeaderReady(3)]
    assert cluster.replica(1).propose([(1, "a")])
