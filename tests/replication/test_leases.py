"""Leases: what followers promise, how long a leader relies on it, and what ends it."""

from typing import Any

import pytest

from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, ReadReady
from antiphon.replication.commit_rule import LIVE
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.lease import served_us
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AnyMessage,
    Append,
    BecomeLeader,
    ChangeMembers,
    NewTerm,
    NewTermReply,
    NodeId,
    RequestVote,
    TimeoutNow,
    TransferLeadership,
    VoteReply,
)
from antiphon.replication.promise import LEASE_MS_MAX
from antiphon.replication.replica_state import Role
from antiphon.replication.restored_state import RestoredState
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, Host

MS = 1000
LEASE_MS = 100
CONFIG = ReplicaConfig(resend_ticks=2, lease_ms=LEASE_MS)


class Leased(Cluster):
    """Its nodes know the time, all the same one. `tell` False: they are not told any more."""

    def __init__(self, config: ReplicaConfig = CONFIG, **how: Any) -> None:
        self.now_us = 5_000 * MS
        self.tell = True
        self.bound: dict[NodeId, int] = {}
        super().__init__(config=config, **how)

    def receive(self, source: NodeId, to: NodeId, message: AnyMessage) -> None:
        host = self.hosts.get(to)
        if host is not None and host.alive:
            host.run(host.replica.receive(source, message, self.now_us if self.tell else None))

    def wait_ms(self, ms: float, *nodes: NodeId) -> None:
        """Time passes, and these nodes hear of it; nothing is delivered."""
        self.now_us += int(ms * MS)
        for node in nodes:
            self[node].run(self.replica(node).tick(self.now_us if self.tell else None))

    def read(self, node: NodeId = 1) -> list[bool]:
        """Ask for a read. What is served at once, and whether it is under a lease."""
        actions = self.replica(node).request_read(1, self.now_us if self.tell else None)
        self[node].run(actions)
        return [action.leased for action in actions if isinstance(action, ReadReady)]

    def led(self) -> "Leased":
        """Node 1 leads, and an entry is committed; whatever was promised is over."""
        if self.raft:
            self.stand(1)
            self.deliver()
        else:
            self.lead(1, 1)
        self.propose(1, "a")
        self.deliver()
        self.wait_ms(1_000, *self.ensemble)
        self.deliver()
        self.now_us += 1_000 * MS
        self.sent.clear()
        self.told.clear()
        return self

    def leased(self) -> "Leased":
        """The same, and it has a lease that was begun now."""
        self.led()
        assert self.read() == []
        self.deliver()
        assert self.read() == [True]
        return self

    def stand(self, node: NodeId) -> None:
        """Stand for election now."""
        out: list[Action] = []
        self.replica(node).election.campaign(out)
        self[node].run(out)

    def make(self, host: Host) -> Any:
        self.bound.setdefault(host.node, 0)
        restored = host.restored

        def bound() -> RestoredState:
            found = restored()
            kept = {name: getattr(found, name) for name in RestoredState.__dataclass_fields__}
            return RestoredState(**{**kept, "bound_until_us": self.bound[host.node]})

        host.restored = bound  # type: ignore[assignment,method-assign]
        try:
            return super().make(host)
        finally:
            host.restored = restored  # type: ignore[method-assign]

    def replies(self, kind: type[Any]) -> list[NodeId]:
        """Who answered the coordinator, or a candidate, so."""
        return [source for source, _, message in self.sent if isinstance(message, kind)]


def test_reads_are_served_without_a_round_until_the_lease_is_over() -> None:
    cluster = Leased().leased()
    before = len(cluster.sent)
    assert served_us(LEASE_MS) == 88 * MS, "a tenth, and two milliseconds, for clocks that run apart"
    cluster.wait_ms(30)
    assert cluster.read() == [True]
    assert len(cluster.sent) == before, "nobody was asked"
    cluster.wait_ms(57.9)
    assert cluster.read() == [True]
    cluster.drop()
    cluster.wait_ms(0.1)
    assert cluster.read() == []


def test_a_lease_that_is_used_is_renewed_before_it_ends() -> None:
    cluster = Leased().leased()
    for _ in range(20):
        cluster.wait_ms(20)
        assert cluster.read() == [True]
        cluster.deliver()
    rounds = len(cluster.between(1, 2, Append))
    assert 5 <= rounds <= 15, "not one a read"


def test_writes_renew_it() -> None:
    cluster = Leased().leased()
    for _ in range(6):
        cluster.wait_ms(30)
        host = cluster[1]
        host.run([cluster.replica(1).append_batch(1, "b")])
        host.run(cluster.replica(1).send_appended(cluster.now_us))
        cluster.deliver()
    assert all(message.entries for message in cluster.between(1, 2, Append)[-2:])
    cluster.wait_ms(80)
    assert cluster.read() == [True]


def test_it_counts_from_when_it_was_asked_for() -> None:
    cluster = Leased().led()
    assert cluster.read() == []
    cluster.wait_ms(60)
    cluster.deliver()
    cluster.wait_ms(27.9)
    assert cluster.read() == [True]
    cluster.drop()
    cluster.wait_ms(0.1)
    assert cluster.read() == []


def test_a_round_is_told_apart_from_the_ones_before() -> None:
    cluster = Leased().led()
    cluster.read()
    asked = next(message for _, _, message in cluster.underway if isinstance(message, Append))
    cluster.drop()
    cluster.wait_ms(500, 1)
    cluster.drop()
    late = Ack(SHARD, 1, cluster.replica(1).log.terms.end, asked.round, promised_ms=LEASE_MS)
    cluster.receive(2, 1, late)
    assert cluster.read() == [], "it answers what was asked half a second ago"


def test_new_term_is_answered_when_the_promise_is_over() -> None:
    cluster = Leased().leased()
    cluster.receive(COORDINATOR, 2, NewTerm(SHARD, 2))
    cluster.receive(COORDINATOR, 2, NewTerm(SHARD, 2))
    assert cluster.told == []
    assert (cluster.replica(2).term, cluster[2].term) == (2, 2), "the term is promised already, on the disk"
    assert cluster.replica(2).needs_tick
    cluster.wait_ms(LEASE_MS - 0.1, 2)
    assert cluster.told == []
    cluster.wait_ms(0.1, 2)
    assert [type(message) for _, message in cluster.told] == [NewTermReply], (
        "once, however often it was asked"
    )
    assert not cluster.replica(2).needs_tick


def test_who_did_not_promise_answers_at_once() -> None:
    cluster = Leased().led()
    cluster.isolate(3)
    cluster.read()
    cluster.deliver()
    for node in (2, 3):
        cluster.receive(COORDINATOR, node, NewTerm(SHARD, 2))
    assert cluster.replies(NewTermReply) == [3]


def test_votes_wait_for_the_end_of_the_promise() -> None:
    cluster = Leased(raft=True).leased()
    cluster.isolate(1)
    cluster.stand(3)
    cluster.deliver()
    assert cluster.between(2, 3, VoteReply) == []
    assert cluster[2].voted_for == 3, "it has voted, and does not say so yet"
    cluster.wait_ms(LEASE_MS, 2)
    cluster.deliver()
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 2, granted=True)]


def test_so_does_the_vote_of_a_candidate_for_itself() -> None:
    cluster = Leased(raft=True).leased()
    cluster.isolate(1)
    cluster.stand(3)
    cluster.receive(2, 3, VoteReply(SHARD, 2, granted=True))
    assert cluster.replica(3).role is Role.FENCED
    cluster.wait_ms(LEASE_MS, 3)
    assert cluster.replica(3).role is Role.LEADER


def test_and_what_one_would_vote() -> None:
    cluster = Leased(raft=True).leased()
    end = cluster.replica(3).log.terms.end
    cluster[2].run(cluster.replica(2).peer_lost(1))
    cluster.receive(3, 2, RequestVote(SHARD, 2, 3, end, pre_vote=True))
    assert cluster.between(2, 3, VoteReply) == []
    cluster.wait_ms(LEASE_MS, 2)
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 2, granted=True, pre_vote=True)]


def test_a_leader_that_hands_over_gives_its_lease_up_first_and_nobody_holds_back() -> None:
    cluster = Leased(raft=True).leased()
    cluster.receive(COORDINATOR, 1, TransferLeadership(SHARD, 1, 3))
    assert cluster.between(1, 3, TimeoutNow)
    assert cluster.read() == [], "it may be asked, and asks in turn"
    cluster.isolate(1)
    cluster.underway.append((1, 3, TimeoutNow(SHARD, 1, 1)))
    cluster.deliver()
    assert cluster.replica(3).role is Role.LEADER


def test_it_does_not_come_back_in_that_term() -> None:
    """The word to the one that was to take over may arrive long after that was given up."""
    cluster = Leased(raft=True).leased()
    cluster.receive(COORDINATOR, 1, TransferLeadership(SHARD, 1, 3))
    cluster.drop()
    cluster.isolate(3)
    for _ in range(12):
        cluster.wait_ms(1, 1, 2)
        cluster.deliver()
    assert cluster.replica(1).ready
    assert cluster.read() == []
    cluster.deliver()
    assert cluster.read() == []


def test_a_replica_that_was_just_opened_may_have_promised() -> None:
    cluster = Leased().leased()
    cluster.crash(2)
    cluster.bound[2] = cluster.now_us + LEASE_MS_MAX * MS
    cluster.restart(2)
    cluster.receive(COORDINATOR, 2, NewTerm(SHARD, 2))
    cluster.wait_ms(LEASE_MS_MAX - 0.1, 2)
    assert cluster.told == []
    cluster.wait_ms(0.1, 2)
    assert cluster.replies(NewTermReply) == [2]


def test_an_answer_without_a_promise_counts_for_rounds_only() -> None:
    cluster = Leased().led()
    for node in (2, 3):
        cluster[node].run(cluster.replica(node).set_config(ReplicaConfig(resend_ticks=2)))
    cluster.read()
    cluster.deliver()
    assert any(isinstance(action, ReadReady) for action in cluster[1].seen), "the round is answered"
    assert cluster.read() == []


def test_what_the_host_does_not_say_costs_a_round_and_no_safety() -> None:
    cluster = Leased().led()
    cluster.tell = False
    cluster.read()
    cluster.deliver()
    assert all(not ack.promised_ms for ack in cluster.between(2, 1, Ack))
    cluster.tell = True
    cluster.read()
    cluster.deliver()
    assert cluster.read() == [True]
    cluster.tell = False
    assert cluster.read() == []


def test_the_option_is_turned_off_and_followers_keep_their_word() -> None:
    cluster = Leased().leased()
    for node in (1, 2, 3):
        cluster[node].run(cluster.replica(node).set_config(ReplicaConfig(resend_ticks=2)))
    assert cluster.read() == []
    cluster.receive(COORDINATOR, 2, NewTerm(SHARD, 2))
    assert cluster.told == []
    cluster.wait_ms(LEASE_MS, 2)
    assert cluster.replies(NewTermReply) == [2]


def test_by_the_live_rule_all_of_the_live_set_have_to_promise() -> None:
    cluster = Leased(ReplicaConfig(resend_ticks=2, lease_ms=LEASE_MS, commit=LIVE))
    heads = cluster.fence(1)
    live = (1, 2, 3)
    del heads[1]
    cluster.receive(COORDINATOR, 1, BecomeLeader(SHARD, 1, live, tuple(heads.items()), live, 1))
    cluster.deliver()
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.wait_ms(1_000, 1)
    cluster.deliver()
    cluster.wait_ms(1_000)
    cluster.read()
    cluster.deliver_to(2)
    cluster.deliver_to(1)
    assert cluster.read() == [], "the third one alone could lead next"
    cluster.deliver()
    assert cluster.read() == [True]


def test_a_majority_has_to_promise() -> None:
    cluster = Leased(nodes=5).led()
    cluster.read()
    cluster.deliver_to(2)
    cluster.deliver_to(1)
    assert cluster.read() == []
    cluster.deliver_to(3)
    cluster.deliver_to(1)
    assert cluster.read() == [True]


def test_other_members_have_to_promise_anew() -> None:
    cluster = Leased().leased()
    cluster.receive(COORDINATOR, 1, ChangeMembers(SHARD, 1, 1, Members((1, 2), (1, 2, 3))))
    assert cluster.read() == []
    cluster.deliver()
    assert cluster.read() == [True]


def test_a_leader_that_is_deposed_serves_nothing() -> None:
    cluster = Leased().leased()
    cluster.receive(COORDINATOR, 1, NewTerm(SHARD, 2))
    assert cluster.replies(NewTermReply) == [1], "its own lease ends with its leadership"
    with pytest.raises(Exception, match="not its leader"):
        cluster.read()


def test_nobody_promises_longer_than_anybody_may() -> None:
    cluster = Leased().led()
    leader = cluster.replica(1)
    end = leader.log.terms.end
    cluster.receive(1, 2, Append(SHARD, 1, 1, end, end.offset, 1_000, lease_ms=60_000))
    assert cluster.between(2, 1, Ack)[-1].promised_ms == LEASE_MS_MAX
    cluster.receive(1, 3, Append(SHARD, 1, 1, EntryId(1, 1), 1, 1_000, lease_ms="00-a-trace"))
    assert cluster.between(3, 1, Ack)[-1].promised_ms == 0, "a trace of an earlier version is no number"
