"""S1, the Replicated Log pattern and Raft: what the pure protocol carries of it, claim by claim.

The five hazards in the pattern's own code are in test_s1_hazards.py.
"""

from collections.abc import Sequence

import pytest

from antiphon.errors import NotReadyError
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import AppendLog, Commit, LeaderReady, PersistTerm
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


def test_s1_03_with_a_stable_leader_a_change_takes_one_phase() -> None:
    cluster = elected()
    cluster.sent.clear()
    cluster.propose(1, "a")
    cluster.deliver()
    assert [type(message) for _, _, message in cluster.sent] == [Append, Append, Ack, Ack]
    assert cluster.replica(1).high_watermark == 2


def test_s1_04_an_election_fixes_a_new_term_and_finds_what_may_be_on_the_old_quorum() -> None:
    cluster = elected()
    cluster.isolate(3)
    cluster.propose(1, "on 1 and 2")
    cluster.deliver()
    cluster.crash(1)
    cluster.heal()
    cluster.tick(60)
    assert cluster.leading == [2]
    assert cluster.replica(2).term > 1
    assert cluster[3].data == ["on 1 and 2"]


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


# -- elections ---------------------------------------------------------------------------------------------------------


def test_s1_22_all_nodes_start_as_followers() -> None:
    cluster = Cluster(raft=True)
    assert cluster.leading == []
    assert not any(cluster.replica(node).is_candidate for node in (1, 2, 3))


def test_s1_23_s1_24_without_a_leader_a_node_becomes_candidate() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False))
    cluster[1].run(cluster.replica(1).receive(2, StaleTerm(SHARD, 4)))
    for _ in range(11):
        cluster[1].run(cluster.replica(1).tick())
    replica = cluster.replica(1)
    assert (replica.is_candidate, replica.term, replica.voted_for) == (True, 5, 1)
    assert sorted(to for _, to, message in cluster.sent if isinstance(message, RequestVote)) == [2, 3]


def test_s1_25_one_vote_per_term_and_the_same_answer_again() -> None:
    cluster = Cluster(raft=True)
    for candidate in (1, 3, 1, 3):
        cluster.receive(candidate, 2, RequestVote(SHARD, 2, candidate, EMPTY))
    assert [message.granted for message in cluster.between(2, 1, VoteReply)] == [True, True]
    assert [message.granted for message in cluster.between(2, 3, VoteReply)] == [False, False]


def test_s1_26_a_vote_request_of_a_higher_term_makes_its_receiver_a_follower_of_nobody() -> None:
    cluster = elected()
    for node in (1, 2):
        cluster.receive(3, node, RequestVote(SHARD, 6, 3, EMPTY))
        replica = cluster.replica(node)
        assert (replica.role, replica.term, replica.leader) == (Role.FENCED, 6, None)
        assert cluster.between(node, 3, VoteReply)[-1] == VoteReply(SHARD, 6, granted=False), (
            "and then it is evaluated"
        )


@pytest.mark.parametrize(
    ("head", "granted"),
    [
        (EntryId(2, 4), True),
        (EntryId(2, 3), False),
        (EntryId(3, 1), True),
        (EntryId(1, 99), False),
        (EntryId(2, 5), True),
    ],
)
def test_s1_27_a_vote_only_for_a_log_that_is_as_up_to_date(head: EntryId, granted: bool) -> None:
    cluster = follower((*records(1, 0, "a", "b"), *records(2, 2, "c", "d")), 2)
    cluster.receive(1, 2, RequestVote(SHARD, 5, 1, head))
    assert cluster.between(2, 1, VoteReply) == [VoteReply(SHARD, 5, granted)]


def test_s1_28_no_vote_where_a_leader_is_known() -> None:
    cluster = Cluster(raft=True)
    cluster.receive(1, 2, Append(SHARD, 3, 1, EMPTY, 0, 1))
    assert cluster.replica(2).voted_for is None
    cluster.receive(3, 2, RequestVote(SHARD, 3, 3, EntryId(9, 9)))
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 3, granted=False)]


def test_s1_29_a_majority_makes_a_leader_that_heartbeats() -> None:
    cluster = elected()
    cluster.sent.clear()
    cluster.tick(10)
    assert len(cluster.between(1, 2, Append)) >= 5
    assert len(cluster.between(1, 3, Append)) >= 5


def test_s1_30_lost_heartbeats_bring_a_new_election() -> None:
    cluster = elected()
    cluster.crash(1)
    cluster.tick(60)
    assert cluster.leading in ([2], [3])


def test_s1_31_a_losing_candidate_returns_to_follower() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False))
    cluster.isolate(1)
    cluster.tick(11)
    assert cluster.replica(1).is_candidate
    for node in (2, 3):
        cluster.receive(node, 1, VoteReply(SHARD, 1, granted=False))
    assert not cluster.replica(1).is_candidate
    assert cluster.replica(1).role is Role.FENCED


def test_s1_32_a_heartbeat_of_a_higher_term_is_followed() -> None:
    cluster = elected()
    cluster.receive(3, 1, Append(SHARD, 7, 3, EMPTY, 0, 1))
    replica = cluster.replica(1)
    assert (replica.role, replica.term, replica.leader, cluster[1].term) == (Role.FOLLOWER, 7, 3, 7)


def test_s1_33_the_terms_of_entries_are_never_rewritten() -> None:
    cluster = elected()
    cluster.propose(1, "of term 1")
    cluster.deliver()
    cluster.crash(1)
    cluster.tick(60)
    assert cluster.replica(cluster.leading[0]).term > 1
    for node in (2, 3):
        assert Entry(1, 1, 2, "of term 1") in cluster[node].log


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


ATHENS, BYZANTIUM, CYRENE, DELPHI, EPHESUS = 1, 2, 3, 4, 5


def test_s1_37_five_cities() -> None:
    entry1, entry2 = records(1, 0, "Entry1", "Entry2")
    logs = {
        ATHENS: (entry1, entry2),
        BYZANTIUM: (entry1,),
        CYRENE: (entry1,),
        DELPHI: (entry1, entry2),
        EPHESUS: (entry1, entry2),
    }
    patience = {BYZANTIUM: 10, ATHENS: 15, EPHESUS: 10}
    cluster = Cluster(
        5,
        raft=True,
        logs=logs,
        terms=dict.fromkeys(logs, 0),
        config=ReplicaConfig(feed_bytes_max=100, max_in_flight_bytes=100),
        election=ElectionConfig(pre_vote=False),
        timeout=lambda node: patience.get(node, 1000),
    )
    # Ephesus leads generation 1 for its neighbour Delphi; the others are cut off from both.
    cluster.isolate(EPHESUS, DELPHI)
    for city in (ATHENS, BYZANTIUM, CYRENE):
        cluster[city].run(
            cluster.replica(city).receive(EPHESUS, Append(SHARD, 1, EPHESUS, EntryId(1, 1), 0, 1))
        )
    cluster.sent.clear()

    # Byzantium loses patience first: Cyrene grants, Athens, whose log is longer, refuses.
    for _ in range(10):
        cluster[BYZANTIUM].run(cluster.replica(BYZANTIUM).tick())
    cluster.deliver()
    assert cluster.between(CYRENE, BYZANTIUM, VoteReply) == [VoteReply(SHARD, 2, granted=True)]
    assert cluster.between(ATHENS, BYZANTIUM, VoteReply) == [VoteReply(SHARD, 2, granted=False)]
    assert cluster.leading == []
    patience[BYZANTIUM] = 1000

    # Athens wins generation 3 with both votes.
    for _ in range(15):
        cluster[ATHENS].run(cluster.replica(ATHENS).tick())
    cluster.deliver_to(BYZANTIUM, CYRENE)
    cluster.deliver_to(ATHENS)
    assert cluster.leading == [ATHENS]
    assert cluster.replica(ATHENS).term == 3

    # It replicates Entry2 to both, and does not commit it by that.
    for _ in range(8):
        if entry2 in cluster[BYZANTIUM].disk and entry2 in cluster[CYRENE].disk:
            break
        cluster.deliver_to(BYZANTIUM, CYRENE)
        cluster.deliver_to(ATHENS)
    assert cluster.durable_copies(entry2) == 5
    cluster.deliver_to(ATHENS)
    assert cluster.replica(ATHENS).high_watermark == 0
    assert not cluster.replica(ATHENS).ready

    # Its own entry of generation 3 reaches the quorum: both are committed.
    cluster.deliver()
    assert cluster[ATHENS].took(Commit) == [Commit(3)]
    assert cluster.replica(ATHENS).ready

    # Ephesus returns, is rejected by Cyrene, and steps down.
    cluster.heal()
    cluster.receive(EPHESUS, CYRENE, Append(SHARD, 1, EPHESUS, EntryId(1, 2), 0, 4))
    assert cluster.between(CYRENE, EPHESUS, StaleTerm) == [StaleTerm(SHARD, 3)]
    cluster.deliver()
    assert (cluster.replica(EPHESUS).role, cluster.replica(EPHESUS).term) == (Role.FENCED, 3)
    for _ in range(4):
        cluster[ATHENS].run(cluster.replica(ATHENS).tick())
        cluster.deliver()
    assert all(cluster[city].log == cluster[ATHENS].log for city in logs)


def test_s1_37_the_old_leader_itself_steps_down() -> None:
    cluster = elected(5, EPHESUS, ElectionConfig(election_ticks_min=1000))
    cluster.isolate(EPHESUS, DELPHI)
    cluster[EPHESUS].run(cluster.replica(EPHESUS).propose([(1, "Entry2")]))
    cluster[ATHENS].run(cluster.replica(ATHENS).leader_lost_hint(EPHESUS))
    cluster[CYRENE].run(cluster.replica(CYRENE).receive(ATHENS, RequestVote(SHARD, 3, ATHENS, EntryId(1, 1))))
    assert cluster.replica(EPHESUS).role is Role.LEADER
    cluster.heal()
    cluster.propose(EPHESUS, "Entry3")
    cluster.deliver()
    assert (cluster.replica(EPHESUS).role, cluster.replica(EPHESUS).term) == (Role.FENCED, 3)


def test_s1_38_term_and_vote_survive_a_restart() -> None:
    cluster = Cluster(raft=True)
    cluster.receive(1, 2, RequestVote(SHARD, 4, 1, EMPTY))
    assert cluster[2].took(PersistTerm)[-1].voted_for == 1
    cluster.crash(2)
    cluster.restart(2)
    cluster.receive(3, 2, RequestVote(SHARD, 4, 3, EMPTY))
    cluster.receive(1, 2, RequestVote(SHARD, 4, 1, EMPTY))
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 4, granted=False)]
    assert cluster.between(2, 1, VoteReply) == [VoteReply(SHARD, 4, granted=True)] * 2


def test_s1_38_a_vote_that_is_not_durable_is_not_given() -> None:
    cluster = Cluster(raft=True)
    cluster[2].auto_sync = False
    cluster.receive(1, 2, RequestVote(SHARD, 4, 1, EMPTY))
    assert cluster.between(2, 1, VoteReply) == []
    cluster.crash(2)
    cluster.restart(2)
    assert cluster.replica(2).term == 0
