"""Tarantool's synchronous replication, the part that one shard's replicas show (S4.6-S4.14, S4.18, S4.28, S4.29)."""

from collections.abc import Sequence
from random import Random

import pytest

from antiphon.coordination.profiles import check
from antiphon.errors import InvalidRequestError, NotLeaderError
from antiphon.model.metadata import Kind
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Commit, LostTail, ResetLog, TruncateLog
from antiphon.replication.commit_rule import LOCAL, CommitRule
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.messages import Ack, AddFollower, Append, BecomeLeader, Entry, Reject
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import Role
from tests.replication.cluster import (
    COORDINATOR,
    SHARD,
    Cluster,
    Host,
    commit_by,
    cursor_of,
    entries,
    term_start,
)


class MayLose(Cluster):
    """A cluster whose rule acknowledges what an election may lose."""

    def committed(self, host: Host, high_watermark: int) -> None:
        """Two leaders may commit different entries in the same place: that is the documented window."""


def led(nodes: int = 3, **settings: object) -> Cluster:
    """Node 1 leads term 1; its first entry is at offset 0."""
    kind = MayLose if settings.get("commit") == LOCAL else Cluster
    cluster = kind(nodes, config=ReplicaConfig(resend_ticks=2, **settings))  # type: ignore[arg-type]
    cluster.lead(1, 1)
    return cluster


def commits(host: Host) -> list[int]:
    return [action.high_watermark for action in host.took(Commit)]


# -- writing ----------------------------------------------------------------------------------------------------------


def test_s4_6_one_call_carries_a_bundle_and_is_made_again_until_there_is_a_quorum() -> None:
    cluster = led()
    cluster.propose(1, *"abc")
    assert [len(m.entries) for m in cluster.between(1, 2, Append) if m.entries][-1] == 3
    cluster.drop()
    for _ in range(4):
        cluster.tick()
    assert cluster[2].data == cluster[3].data == ["a", "b", "c"]
    assert cluster.replica(1).high_watermark == 4


def test_s4_7_at_quorum_it_is_committed_without_the_others_and_they_hear_later() -> None:
    cluster = led()
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 2
    cluster.heal()
    cluster.tick(4)
    assert cluster[3].data == ["a"]
    assert cluster.replica(3).high_watermark == 2


class MarkingReplica(Replica):
    """Writes markers whose data is `committed n`."""

    def __init__(self, **arguments: object) -> None:
        arguments["entries"] = EntryFactory(
            term_start, lambda term, base, mark: Entry(term, base, base + 1, f"committed {mark}")
        )
        super().__init__(**arguments)  # type: ignore[arg-type]


def marking(**settings: object) -> Cluster:
    config = ReplicaConfig(resend_ticks=2, commit_marker=True, **settings)  # type: ignore[arg-type]
    cluster = Cluster(config=config, kinds=(MarkingReplica, RaftReplica))
    cluster.lead(1, 1)
    cluster.tick(3)
    return cluster


def markers(cluster: Cluster, node: int = 1) -> list[str]:
    return [str(data) for data in cluster[node].data if str(data).startswith("committed")]


def test_s4_7_a_record_of_the_log_marks_the_commit_where_that_is_asked_for() -> None:
    cluster = marking()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(3)
    assert cluster[1].data == cluster[2].data == ["committed 1", "a", "committed 3"]


def test_s4_7_no_marker_is_written_for_a_marker_and_an_idle_log_rests() -> None:
    cluster = marking()
    cluster.propose(1, "a")
    cluster.tick(20)
    assert markers(cluster) == ["committed 1", "committed 3"]
    assert not cluster.replica(1).needs_tick


def test_s4_7_many_commits_share_a_marker_while_one_is_underway() -> None:
    cluster = marking()
    already = len(markers(cluster))
    for i in range(50):
        cluster.propose(1, i)
    cluster.tick(5)
    assert len(markers(cluster)) - already <= 3
    assert markers(cluster)[-1] == f"committed {cluster.replica(1).log_end - 1}"


def test_s4_7_every_entry_is_told_by_some_marker_after_it_and_never_too_early() -> None:
    random = Random(7)
    cluster = marking()
    for i in range(200):
        match random.randrange(4):
            case 0:
                cluster.propose(1, i)
            case 1:
                cluster.deliver(random.randrange(4))
            case 2:
                cluster.tick()
            case _:
                cluster[random.choice((1, 2, 3))].auto_sync = random.random() < 0.7
    for host in cluster.hosts.values():
        host.auto_sync = True
        host.sync()
    cluster.tick(10)
    log = cluster[1].log
    told = 0
    for entry in log:
        if str(entry.data).startswith("committed"):
            mark = int(str(entry.data).split()[1])
            assert told < mark <= entry.base_offset
            told = mark
    assert told == log[-1].base_offset


def test_s4_7_without_a_marker_the_commit_rides_on_the_next_message() -> None:
    cluster = led()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(2)
    assert cluster[1].data == ["a"]
    assert cluster.replica(2).high_watermark == 2


def test_s4_8_a_transaction_is_logged_and_sent_while_earlier_ones_are_uncommitted() -> None:
    cluster = led()
    for data in "abc":
        cluster.propose(1, data)
    assert cluster.replica(1).high_watermark == 1
    assert [m.entries[0].data for m in cluster.between(1, 2, Append) if m.entries][-3:] == ["a", "b", "c"]
    assert cursor_of(cluster, 1, 2).last_pushed == 4
    cluster.deliver()
    assert commits(cluster[1])[-1] == 4


def test_s4_9_an_entry_has_term_and_index_and_a_replica_two_cursors() -> None:
    cluster = led()
    cluster.isolate(2, 3)
    cluster.propose(1, "a", "b")
    assert [(e.term, e.base_offset, e.data) for e in cluster[1].log[1:]] == [(1, 1, "a"), (1, 2, "b")]
    assert (cluster.replica(1).log_end, cluster.replica(1).high_watermark) == (3, 1)


def agree(one: Sequence[Entry], other: Sequence[Entry]) -> None:
    """S4.10: where two logs have an entry of the same index and term, they are the same up to it."""
    theirs = {entry.end: index for index, entry in enumerate(other)}
    for index, entry in enumerate(one):
        if entry.end in theirs:
            assert list(one[: index + 1]) == list(other[: theirs[entry.end] + 1])


def test_s4_10_the_same_index_and_term_is_the_same_command_after_the_same_prefix() -> None:
    random = Random(10)
    cluster = Cluster(3)
    for term in range(1, 12):
        leader = random.choice((1, 2, 3))
        heads = cluster.fence(term, 1, 2, 3)
        leader = max(heads, key=lambda node: (heads[node], random.random()))
        cluster.appoint(leader, term)
        for i in range(random.randrange(4)):
            if cluster.replica(leader).ready:
                cluster.propose(leader, f"{term}.{i}")
            cluster.deliver(random.randrange(6))
        cluster.drop()
        for one in (1, 2, 3):
            for other in (1, 2, 3):
                agree(cluster[one].log, cluster[other].log)


def test_s4_10_who_may_have_forgotten_entries_of_a_term_does_not_write_others_in_their_place() -> None:
    """The leader loses what its disk had not synced; node 2 has it, and node 3, by which it could lead again, does not."""
    cluster = led()
    cluster[1].auto_sync = False
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster[2].data == ["a"]
    cluster.crash(1)
    cluster.heal()
    cluster[1].auto_sync = True
    cluster.restart(1)
    heads = cluster.fence(1, 1, 3)
    again = BecomeLeader(SHARD, 1, (1, 2, 3), ((3, heads[3]),))
    cluster.receive(COORDINATOR, 1, again)
    cluster.deliver()
    if cluster.replica(1).role is Role.LEADER:
        cluster.propose(1, "b")
        cluster.deliver()
    agree(cluster[1].log, cluster[2].log)
    assert cluster.replica(1).role is Role.FENCED


def test_s4_11_what_precedes_is_checked_and_a_replica_cuts_back_to_the_leaders_log() -> None:
    start = (term_start(1, 0), *entries(1, 1, "a"))
    cluster = Cluster(
        logs={1: (*start, *entries(2, 2, "b")), 2: (*start, *entries(1, 2, "x", "y")), 3: start},
        terms={1: 2, 2: 1, 3: 1},
    )
    cluster.receive(1, 2, Append(SHARD, 2, 1, EntryId(2, 3), 0, 1))
    assert isinstance(cluster.sent[-1][2], Reject)
    cluster.drop()
    cluster.lead(1, 3)
    cluster.tick(3)
    assert cluster[2].took(TruncateLog)
    assert cluster[2].data == ["a", "b"]


def test_s4_12_nothing_is_applied_before_it_is_committed_so_nothing_has_to_be_undone() -> None:
    """What is applied goes by `Commit`; no cut reaches below it, at the old leader and at who followed it."""
    cluster = led(5)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(2)
    cluster.isolate(1, 2)
    cluster.propose(1, "never")
    cluster.deliver()
    for node in (1, 2):
        assert cluster[node].data == ["a", "never"]
        assert commits(cluster[node])[-1] == 2
    cluster.lead(3, 2, 4, 5)
    cluster.propose(3, "b")
    cluster.deliver()
    cluster.heal()
    for node in (1, 2):
        cluster.receive(COORDINATOR, 3, AddFollower(SHARD, 2, node, cluster.fence(2, node)[node]))
    cluster.tick(4)
    for node in (1, 2):
        (cut,) = cluster[node].took(TruncateLog)
        assert cut.to_offset >= 2
        assert cluster[node].data == ["a", "b"]
        assert commits(cluster[node]) == sorted(commits(cluster[node]))


@pytest.mark.parametrize("rule", ["local", "at_least(1)"])
def test_s4_12_no_table_goes_by_a_rule_under_which_it_would_have_to_undo(rule: str) -> None:
    with pytest.raises(InvalidRequestError, match="taken back out of its store"):
        check("oxia", {"commit": rule, "accept.split.brain": "true"}, 3, Kind.TABLE)
    check("oxia", {"commit": rule, "accept.split.brain": "true"}, 3, Kind.TOPIC)


def history(*terms: int) -> tuple[Entry, ...]:
    """A log with one entry of each of these terms."""
    return tuple(Entry(term, i, i + 1, f"{i} of {term}") for i, term in enumerate(terms))


@pytest.mark.parametrize(
    "short", [history(1, 1), history(1), ()], ids=["a piece is missing", "a term", "all of it"]
)
def test_s4_13_a_replica_that_misses_a_piece_or_a_term_is_filled_up(short: tuple[Entry, ...]) -> None:
    full = history(1, 1, 2, 2)
    cluster = Cluster(
        logs={1: full, 2: full, 3: short}, terms={1: 2, 2: 2, 3: short[-1].term if short else 0}
    )
    cluster.lead(1, 3)
    cluster.tick(4)
    assert cluster[3].log[:4] == list(full)
    assert not cluster[3].took(ResetLog)


def test_s4_13_a_replica_with_a_longer_log_of_newer_terms_is_cut_and_nothing_is_lost() -> None:
    """Leaders of terms 3 and 4 wrote two entries each that nobody else got; term 5 is elected among the others."""
    common = history(1, 2)
    long = (*common, *(Entry(term, i, i + 1, f"lonely {i}") for i, term in ((2, 3), (3, 3), (4, 4), (5, 4))))
    cluster = Cluster(logs={1: common, 2: common, 3: long}, terms={1: 2, 2: 2, 3: 4})
    cluster.crash(3)
    cluster.lead(1, 5, 2)
    cluster.propose(1, "new")
    cluster.deliver()
    cluster.restart(3)
    cluster.receive(COORDINATOR, 1, AddFollower(SHARD, 5, 3, cluster.fence(5, 3)[3]))
    cluster.tick(5)
    assert cluster[3].log == cluster[1].log
    assert cluster[3].log[:2] == list(common)
    assert cluster.replica(3).high_watermark == cluster.replica(1).log_end


def test_s4_14_only_what_nobody_was_told_of_is_ever_removed() -> None:
    """Whatever two of three hold survives any election that a majority takes part in."""
    for seed in range(30):
        random = Random(seed)
        cluster = led()
        told: list[str] = []
        best = 1
        for term in range(2, 8):
            cluster.isolate(*random.sample((1, 2, 3), random.randrange(2)))
            for i in range(3):
                cluster.propose(best, f"{term}.{i}")
                cluster.deliver(random.randrange(8))
            mark = cluster.replica(best).high_watermark
            told += [str(entry.data) for entry in cluster[best].log if entry.next_offset <= mark]
            cluster.heal()
            cluster.drop()
            heads = cluster.fence(term, *random.sample((1, 2, 3), 2))
            best = max(heads, key=lambda node: heads[node])
            cluster.lead(best, term, *(node for node in heads if node != best))
            assert set(told) <= {str(entry.data) for entry in cluster[best].log}, f"seed {seed}"
            for node in {1, 2, 3} - heads.keys():
                cluster.receive(
                    COORDINATOR, best, AddFollower(SHARD, term, node, cluster.fence(term, node)[node])
                )
            cluster.tick(3)


# -- acknowledging sooner -----------------------------------------------------------------------------------------------


def test_s4_18_an_asynchronous_commit_needs_the_local_log_only() -> None:
    cluster = led(commit=LOCAL)
    cluster.isolate(1)
    cluster[1].auto_sync = False
    cluster.propose(1, "a")
    assert commits(cluster[1])[-1] == 1, "not before it is logged"
    cluster[1].sync()
    assert commits(cluster[1])[-1] == 2
    assert cluster.replica(1).log.commit_mark == cluster.replica(1).high_watermark == 2
    assert cluster.replica(1).settled == 1, "but an election may still lose it"


def test_s4_18_both_marks_may_move_at_once() -> None:
    """The followers' disks were faster than the leader's own."""
    cluster = led(commit=LOCAL)
    cluster[1].auto_sync = False
    cluster.propose(1, "a")
    cluster.deliver()
    assert (cluster.replica(1).settled, cluster.replica(1).log.commit_mark) == (1, 1)
    cluster[1].sync()
    assert (cluster.replica(1).settled, cluster.replica(1).log.commit_mark) == (2, 2)
    assert commits(cluster[1])[-1] == 2


def test_s4_18_followers_are_told_what_is_settled() -> None:
    cluster = led(commit=LOCAL)
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.tick(2)
    assert cluster.replica(2).high_watermark == 2
    cluster.isolate(2, 3)
    cluster.propose(1, "b")
    cluster.tick(2)
    assert cluster.replica(1).high_watermark == 3
    assert cluster.replica(2).high_watermark == 2
    assert max(m.high_watermark for m in cluster.between(1, 2, Append)) == 2


def lost_window(cluster: Cluster) -> None:
    """Power goes off at the leader after it acknowledged and before it sent: node 2 leads on."""
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.isolate(1)
    cluster.propose(1, "b", "c")
    assert cluster.replica(1).high_watermark == 4
    cluster.lead(2, 2, 3)


def test_s4_28_what_was_acknowledged_and_not_sent_is_lost_if_the_node_stays_away() -> None:
    cluster = led(commit=LOCAL)
    lost_window(cluster)
    assert cluster[2].data == cluster[3].data == ["a"]
    assert cluster.replica(2).ready


def test_s4_28_the_old_leader_says_what_is_lost_when_its_tail_is_cut() -> None:
    cluster = led(commit=LOCAL)
    lost_window(cluster)
    cluster.propose(2, "other")
    cluster.deliver()
    cluster.heal()
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, 2, 1, cluster.fence(2, 1)[1]))
    assert cluster.replica(1).log.commit_mark == 4, "as long as it might yet stay"
    cluster.tick(4)
    seen = cluster[1].seen
    (lost,) = cluster[1].took(LostTail)
    assert (lost.from_offset, lost.to_offset) == (2, 4)
    (cut,) = cluster[1].took(TruncateLog)
    assert seen.index(lost) < seen.index(cut)
    assert cluster[1].data == ["a", "other"]
    assert commits(cluster[1])[-1] == cluster.replica(1).log.commit_mark == 4


def test_s4_28_if_it_returns_before_others_have_gone_on_it_keeps_sending() -> None:
    cluster = led(commit=LOCAL)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.isolate(1)
    cluster.propose(1, "b")
    cluster.crash(1)
    cluster.heal()
    cluster.restart(1)
    cluster.lead(1, 2)
    cluster.tick(3)
    assert cluster[2].data == cluster[3].data == ["a", "b"]


def test_s4_28_after_a_restart_the_loss_is_told_if_the_mark_was_kept() -> None:
    cluster = led(commit=LOCAL)
    lost_window(cluster)
    mark = cluster.replica(1).log.commit_mark
    cluster.crash(1)
    cluster[1].high_watermark = 2  # the checkpoint holds what was settled
    cluster[1].acknowledged = mark
    cluster.restart(1)
    cluster.heal()
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, 2, 1, cluster.fence(2, 1)[1]))
    cluster.tick(4)
    (lost,) = cluster[1].took(LostTail)
    assert (lost.from_offset, lost.to_offset) == (2, 4)


def test_s4_28_what_is_settled_is_never_in_the_window() -> None:
    cluster = led(commit=LOCAL)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.isolate(1)
    cluster.lead(2, 2, 3)
    cluster.propose(2, "b")
    cluster.deliver()
    cluster.heal()
    cluster.receive(COORDINATOR, 2, AddFollower(SHARD, 2, 1, cluster.fence(2, 1)[1]))
    cluster.tick(4)
    assert not cluster[1].took(LostTail)
    assert cluster[1].data == ["a", "b"]


@pytest.mark.parametrize(
    ("rule", "answers_needed"), [("at_least(1)", 0), ("at_least(2)", 1), ("quorum", 2), ("at_least(4)", 3)]
)
def test_s4_29_a_synchronous_commit_waits_for_the_number_that_is_required(
    rule: str, answers_needed: int
) -> None:
    cluster = led(5, commit=CommitRule.parse(rule))
    cluster.propose(1, "a")
    for node in (2, 3, 4, 5):
        done = cluster.replica(1).high_watermark == 2
        assert done == (node - 2 >= answers_needed), f"before node {node} has answered"
        cluster.deliver_to(node)
        cluster.deliver_to(1)
    assert cluster.replica(1).high_watermark == 2


def test_s4_29_the_number_changes_on_a_living_shard() -> None:
    cluster = led(commit=CommitRule.parse("at_least(3)"))
    cluster.isolate(3)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 1
    cluster[1].run(commit_by(cluster.replica(1), "at_least(2)"))
    assert cluster.replica(1).high_watermark == 2
    cluster[1].run(cluster.replica(1).set_config(ReplicaConfig(resend_ticks=2, commit=LOCAL)))
    cluster.isolate(2, 3)
    cluster.propose(1, "b")
    assert cluster.replica(1).high_watermark == 3
    cluster[1].run(commit_by(cluster.replica(1), "quorum"))
    assert cluster.replica(1).high_watermark == 3, "what was acknowledged stays so"
    cluster.propose(1, "c")
    cluster.deliver()
    assert commits(cluster[1])[-1] == 3


# -- acknowledging in lots (C2) ---------------------------------------------------------------------------------------


def test_c2_a_follower_acknowledges_every_so_many_entries() -> None:
    cluster = led(ack_every=4)
    before = len(cluster.between(2, 1, Ack))
    for i in range(3):
        cluster.propose(1, i)
        cluster.deliver()
    assert len(cluster.between(2, 1, Ack)) == before
    assert cluster.replica(1).high_watermark == 1
    cluster.propose(1, 3)
    cluster.deliver()
    assert len(cluster.between(2, 1, Ack)) == before + 1
    assert cluster.replica(1).high_watermark == 5


def test_c2_and_on_the_next_beat_at_the_latest() -> None:
    cluster = led(ack_every=100)
    cluster.propose(1, "a")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 1
    cluster.tick(3)
    assert cluster.replica(1).high_watermark == 2
    cluster[2].auto_sync = cluster[3].auto_sync = False
    cluster.propose(1, "b")
    cluster.tick(3)
    for node in (2, 3):
        cluster[node].sync()  # it was asked before the disk had it: it says so without being asked again
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 3


def test_s4_2_a_replica_that_does_not_lead_says_who_does() -> None:
    cluster = led()
    with pytest.raises(NotLeaderError) as refused:
        cluster.propose(2, "a")
    assert refused.value.details["leader"] == 1
    assert cluster.replica(2).role is Role.FOLLOWER
