"""Every promise can be broken: for each of them an event that must be refused, beside one that must not."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.records.entry_id import EntryId
from antiphon.replication.commit_rule import QUORUM
from antiphon.replication.members import Members
from antiphon.replication.messages import Ack, Append, Entry, NewTermReply, RequestVote, VoteReply
from antiphon.replication.replica_state import Role
from antiphon.simulation.checker import Checker
from antiphon.simulation.replica_files import ReplicaFiles
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from antiphon.simulation.truth import Watched

SHARD = 1


def entry(term: int, base: int) -> Entry:
    return Entry(term, base, base + 1, (term, base))


class Bench:
    """Three replicas as the checker sees them, moved by hand."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.truth = self.checker.add_shard(SHARD, (0, 1, 2))
        self.nodes = [self._node(number) for number in range(3)]

    def _node(self, number: int) -> Any:
        files = self.truth.files[number] = ReplicaFiles()
        replica = SimpleNamespace(
            term=0,
            log_end=0,
            log=SimpleNamespace(durable_end=0),
            role=Role.FOLLOWER,
            members=Members((0, 1, 2)),
            config=SimpleNamespace(commit=QUORUM),
            live=(),
            settled=0,
        )
        node = SimpleNamespace(
            node=number,
            shard=SHARD,
            files=files,
            replica=replica,
            log=files.log.copy(),
            term_seen=0,
            mark_seen=0,
        )
        node.role = Role.FOLLOWER
        node.term_now = lambda: replica.term
        self.truth.hosted[number] = cast("Watched", node)
        return node

    def append(self, number: int, *entries: Entry, durable: bool = True) -> None:
        node = self.nodes[number]
        node.log.append(entries)
        node.replica.log_end = node.log.end_offset
        if durable:
            node.files.log.append(entries)
            node.replica.log.durable_end = node.log.end_offset
        self.checker.appended(node, len(entries))

    def lead(self, number: int, term: int) -> None:
        node = self.nodes[number]
        node.replica.term = node.files.term = term
        node.role = node.replica.role = Role.LEADER
        self.checker.became_leader(node, term)

    def commit(self, number: int, end: int) -> None:
        self.nodes[number].replica.settled = end
        self.checker.committed(self.nodes[number], end)

    def send(self, number: int, message: Any, to: int = 0) -> None:
        self.checker.sent(self.nodes[number], to, message)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def broken(name: str) -> Any:
    return pytest.raises(ViolationError, match=f"^{name}:")


def committed_by_leader(bench: Bench) -> None:
    """Node 0 leads term 1 and has committed one request, which nodes 0 and 1 have."""
    bench.lead(0, 1)
    for number in (0, 1):
        bench.append(number, entry(1, 0))
    bench.commit(0, 1)


def test_one_leader_a_term(bench: Bench) -> None:
    bench.lead(0, 1)
    bench.lead(0, 1)
    bench.lead(1, 2)
    with broken("election-safety"):
        bench.lead(2, 1)


def test_append_is_sent_by_the_terms_leader(bench: Bench) -> None:
    bench.lead(0, 1)
    bench.send(0, Append(SHARD, 1, 0, EntryId(0, 0), 0, 1))
    with broken("election-safety"):
        bench.send(1, Append(SHARD, 1, 1, EntryId(0, 0), 0, 1))


def test_log_matching(bench: Bench) -> None:
    bench.append(0, entry(1, 0), entry(1, 1))
    bench.append(1, entry(1, 0), entry(2, 1))
    with broken("log-matching"):
        bench.append(2, Entry(1, 0, 1, "another"))


def test_log_matching_covers_what_is_before(bench: Bench) -> None:
    bench.append(0, entry(1, 0), entry(2, 1))
    with broken("log-matching"):
        bench.append(1, entry(2, 0), entry(2, 1))


def test_leader_has_what_was_committed(bench: Bench) -> None:
    committed_by_leader(bench)
    bench.lead(1, 2)
    with broken("leader-completeness"):
        bench.lead(2, 3)


def test_late_leader_of_an_old_term_needs_no_later_entries(bench: Bench) -> None:
    bench.lead(0, 5)
    for number in (0, 1):
        bench.append(number, entry(5, 0))
    bench.commit(0, 1)
    bench.lead(2, 4)


def test_leader_keeps_its_log(bench: Bench) -> None:
    bench.checker.cut(bench.nodes[0])
    bench.lead(0, 1)
    with broken("leader-append-only"):
        bench.checker.cut(bench.nodes[0])


def test_committed_is_on_a_majority_of_disks(bench: Bench) -> None:
    bench.lead(0, 1)
    bench.append(0, entry(1, 0))
    bench.append(1, entry(1, 0), durable=False)
    with broken("durable-majority"):
        bench.commit(0, 1)


def test_committed_stays_on_a_majority_of_disks(bench: Bench) -> None:
    committed_by_leader(bench)
    bench.checker.durable_shrank(SHARD)
    bench.nodes[1].files.log.truncate(0)
    with broken("durable-majority"):
        bench.checker.durable_shrank(SHARD)


def test_follower_does_not_commit_first(bench: Bench) -> None:
    bench.lead(0, 1)
    for number in range(3):
        bench.append(number, entry(1, 0))
    with broken("durable-majority"):
        bench.commit(1, 1)


def test_older_term_is_not_committed_by_counting(bench: Bench) -> None:
    for number in range(3):
        bench.append(number, entry(1, 0))
    bench.lead(0, 2)
    with broken("older-term"):
        bench.commit(0, 1)


def test_deposed_leader_commits_nothing_any_more(bench: Bench) -> None:
    bench.lead(0, 2)
    for number in range(2):
        bench.append(number, entry(2, 0))
    bench.commit(0, 1)
    bench.lead(1, 3)
    for number in range(1, 3):
        bench.append(number, *([entry(3, 1)] if number == 1 else [entry(2, 0), entry(3, 1)]))
    bench.commit(1, 2)
    bench.nodes[0].log.append([entry(2, 1), entry(2, 2)])
    with pytest.raises(ViolationError):
        bench.commit(0, 3)


def test_committed_is_immutable(bench: Bench) -> None:
    committed_by_leader(bench)
    bench.commit(1, 1)
    bench.append(2, entry(2, 0))
    with broken("committed-immutable"):
        bench.commit(2, 1)


def test_acknowledgement_is_durable(bench: Bench) -> None:
    bench.append(1, entry(1, 0))
    bench.nodes[1].files.term = 1
    bench.send(1, Ack(SHARD, 1, EntryId(1, 1), 1))
    bench.append(1, entry(1, 1), durable=False)
    with broken("spoken-is-durable"):
        bench.send(1, Ack(SHARD, 1, EntryId(1, 2), 1))
    with broken("spoken-is-durable"):
        bench.send(1, Ack(SHARD, 2, EntryId(1, 1), 1))


def test_acknowledged_prefix_is_the_leaders(bench: Bench) -> None:
    bench.lead(0, 2)
    bench.append(0, entry(1, 0), entry(2, 1))
    bench.append(1, entry(1, 0), entry(1, 1))
    bench.nodes[1].files.term = 2
    bench.send(1, Ack(SHARD, 2, EntryId(1, 1), 1))
    with broken("ack-agrees"):
        bench.send(1, Ack(SHARD, 2, EntryId(1, 2), 1))


def test_promise_is_durable_and_kept(bench: Bench) -> None:
    with broken("spoken-is-durable"):
        bench.send(1, NewTermReply(SHARD, 3, EntryId(0, 0), 0))
    bench.nodes[1].files.term = 3
    bench.send(1, NewTermReply(SHARD, 3, EntryId(0, 0), 0))
    with broken("spoken-is-durable"):
        bench.send(1, NewTermReply(SHARD, 3, EntryId(1, 1), 0))
    with broken("promise-kept"):
        bench.send(1, Ack(SHARD, 2, EntryId(0, 0), 1))


def test_vote_is_durable_and_given_once(bench: Bench) -> None:
    with broken("spoken-is-durable"):
        bench.send(1, VoteReply(SHARD, 3, granted=True), to=2)
    bench.send(1, VoteReply(SHARD, 3, granted=True, pre_vote=True), to=2)
    bench.nodes[1].files.term, bench.nodes[1].files.voted_for = 3, 2
    bench.send(1, VoteReply(SHARD, 3, granted=True), to=2)
    bench.nodes[1].files.voted_for = 0
    with broken("one-vote"):
        bench.send(1, VoteReply(SHARD, 3, granted=True), to=0)
    with broken("spoken-is-durable"):
        bench.send(2, RequestVote(SHARD, 3, 2, EntryId(0, 0)))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"term": 1}, "monotonic"),
        ({"settled": 0}, "monotonic"),
        ({"log_end": 3}, "within-log"),
        ({"durable_end": 2}, "within-log"),
        ({"settled": 2}, "durable-majority"),
    ],
)
def test_figures_of_a_replica(bench: Bench, change: dict[str, int], name: str) -> None:
    committed_by_leader(bench)
    bench.append(0, entry(1, 1), durable=False)
    node = bench.nodes[0]
    node.replica.term = 2
    bench.checker.replica(node)
    for field, value in change.items():
        setattr(node.replica.log if field == "durable_end" else node.replica, field, value)
    with broken(name):
        bench.checker.replica(node)
