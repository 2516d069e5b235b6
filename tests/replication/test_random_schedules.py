"""Random schedules of one shard: loss, duplication, reordering, slow disks, crashes, trims, elections.

After every event nobody may have committed anything else than the others (`Cluster.committed`), what a leader commits
must be on the disks of a majority, no term may have two leaders, and no read may be served from before what was
committed when it was asked for. At the end all faults stop, and the replicas must agree and fall silent. The simulator
(`antiphon.simulation`) does the same for whole clusters; this is its small, fast sibling that knows one shard only.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

import pytest

from antiphon.replication import quorum, quorum_ack_tracker
from antiphon.replication.actions import Action, ReadReady
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.follower import FollowerSide
from antiphon.replication.messages import AddFollower, BecomeLeader, NewTerm, NewTermReply, NodeId
from antiphon.replication.quorum import majority
from antiphon.replication.replica_state import Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, Host
from tests.replication.schedules import ShardSchedule, must_fail, passed

if TYPE_CHECKING:
    from antiphon.records.entry_id import EntryId

EVENTS = 700
SETTLE_TICKS = 100


class Schedule(ShardSchedule):
    """One seeded run."""

    def __init__(self, seed: int, *, raft: bool) -> None:
        self.random = Random(seed)
        self.raft = raft
        self.nodes = self.random.choice([1, 2, 3, 3, 3, 4, 4, 5])
        self.cluster = self.make_cluster()
        for host in self.hosts:
            host.auto_sync = self.random.random() < 0.5
            host.late_feeds = self.random.random() < 0.5
        self.term = 0  # the coordinator's
        self.promised: dict[NodeId, EntryId] = {}
        self.chosen: NodeId | None = None
        self.proposals = 0
        self.asked_at: dict[int, int] = {}  # read token -> what was committed anywhere when it was asked for
        self.seen: dict[NodeId, int] = {}

    def make_cluster(self) -> Cluster:
        small = ReplicaConfig(feed_bytes_max=100, max_in_flight_bytes=300, resend_ticks=2)
        return Cluster(
            self.nodes,
            raft=self.raft,
            timeout=lambda _: self.random.randint(10, 20),
            config=self.random.choice([None, small, ReplicaConfig(term_start_on_empty=False)]),
        )

    # -- events ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One event, by weight."""
        events = self.events()
        weights = [weight for weight, _ in events]
        self.random.choices([event for _, event in events], weights)[0]()
        self.coordinate()
        self.check_reads()
        self.check_commits()

    def events(self) -> list[tuple[int, Callable[[], None]]]:
        """What may happen, and how often."""
        return [
            (45, self.deliver_some),
            (15, self.sync_some),
            (15, self.propose),
            (15, self.tick),
            (2, self.crash_or_restart),
            (1, self.restart_all),
            (2, self.part),
            (2, self.cluster.heal),
            (2, self.trim),
            (3, self.read),
            (0 if self.raft else 2, self.new_term),
        ]

    def part(self) -> None:
        """Cut some off, or one way between two."""
        if self.random.random() < 0.5:
            self.cluster.isolate(
                *self.random.sample(self.cluster.ensemble, self.random.randint(1, self.nodes))
            )
        else:
            source, to = self.random.choices(self.cluster.ensemble, k=2)
            self.cluster.cut.add((source, to))

    def propose(self) -> None:
        for node in self.cluster.leading:
            if self.cluster.replica(node).ready:
                self.proposals += 1
                batch = [f"{self.proposals}.{i}" for i in range(self.random.randint(1, 4))]
                self.cluster.propose(node, *batch)

    def boot(self, host: Host) -> None:
        super().boot(host)
        self.seen[host.node] = 0

    def trim(self) -> None:
        host = self.random.choice(self.living())
        limit = min(host.replica.settled, host.replica.log.durable_end)
        ends = [entry.next_offset for entry in host.log if entry.next_offset <= limit]
        if ends and not host.writes:
            self.cluster.trim(host.node, self.random.choice(ends))

    def read(self) -> None:
        for node in self.cluster.leading:
            if self.cluster.replica(node).ready:
                token = len(self.asked_at)
                self.asked_at[token] = max(host.replica.high_watermark for host in self.hosts)
                host = self.cluster[node]
                host.run(host.replica.request_read(token))

    def new_term(self) -> None:
        self.term += 1
        self.promised, self.chosen = {}, None
        for host in self.living():
            self.cluster.underway.append((COORDINATOR, host.node, NewTerm(SHARD, self.term)))

    # -- what goes with every event ------------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Choose a leader once a majority has promised; give it those who promise later."""
        for _ in self.promises():
            if self.chosen is None and len(self.promised) >= majority(self.nodes):
                self.appoint()

    def promises(self) -> Iterator[NodeId]:
        """Who has promised the term since, one after the other; a leader hears of each."""
        told, self.cluster.told = self.cluster.told, []
        for node, message in told:
            if not isinstance(message, NewTermReply) or message.term != self.term or node in self.promised:
                continue
            self.promised[node] = message.head
            if self.chosen is not None:
                late = AddFollower(SHARD, self.term, node, message.head)
                self.cluster.underway.append((COORDINATOR, self.chosen, late))
            yield node

    def appoint(self) -> None:
        heads = self.promised
        self.chosen = max(heads, key=lambda node: (heads[node], node))
        others = tuple((node, head) for node, head in heads.items() if node != self.chosen)
        message = BecomeLeader(SHARD, self.term, self.cluster.ensemble, others)
        self.cluster.underway.append((COORDINATOR, self.chosen, message))

    def check_reads(self) -> None:
        for host in self.living():
            seen = host.seen
            for action in seen[self.seen.get(host.node, 0) :]:
                if isinstance(action, ReadReady):
                    assert action.offset >= self.asked_at[action.token], "a read from the past"
            self.seen[host.node] = len(seen)

    def check_commits(self) -> None:
        for node in self.cluster.leading:
            mark = self.cluster.replica(node).high_watermark
            if self.cluster.replica(node).ready:
                held = sum(host.start.offset >= mark or self.has(host, node, mark) for host in self.hosts)
                assert held >= majority(self.nodes), f"{node} commits {mark} on {held} of {self.nodes} disks"

    def has(self, host: Host, leader: NodeId, mark: int) -> bool:
        """Is the leader's entry that ends at `mark` on this host's disk?"""
        for entry in reversed(self.cluster[leader].log):
            if entry.next_offset <= mark:
                return entry in host.disk
        return True  # the leader has trimmed it

    # -- the end -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """All faults stop: there must be one leader, one log, and then silence."""
        self.end_faults()
        if not self.raft:
            self.cluster.deliver()
            self.new_term()
        self.run_ticks()
        leaders = [node for node in self.cluster.leading if self.cluster.replica(node).ready]
        leader = max(leaders, key=lambda node: int(self.cluster.replica(node).term))
        self.cluster.propose(leader, "the last")
        self.run_ticks()
        best = self.cluster[leader]
        for host in self.hosts:
            replica = host.replica
            ends = {replica.log_end, replica.high_watermark, replica.log.durable_end}
            assert ends == {best.replica.log_end}, (host.node, ends)
            theirs = [entry for entry in host.log if entry.base_offset >= best.log_start.offset]
            ours = [entry for entry in best.log if entry.base_offset >= host.log_start.offset]
            assert theirs == ours
        if not self.raft:
            assert not best.replica.needs_tick

    def run_ticks(self) -> None:
        for _ in range(SETTLE_TICKS):
            self.cluster.deliver()
            self.coordinate()
            self.cluster.tick()
            for host in self.hosts:
                while host.feeds:
                    host.feed(host.feeds.pop(0))
                if host.replica.role is Role.LEADER:
                    while host.snapshots:
                        self.cluster.snapshot(host.node, host.snapshots[0])


def run(seed: int, *, raft: bool) -> Schedule:
    schedule = Schedule(seed, raft=raft)
    for _ in range(EVENTS):
        schedule.step()
    schedule.settle()
    return schedule


@pytest.mark.parametrize("raft", [False, True], ids=["coordinator", "raft"])
@pytest.mark.parametrize("block", range(4))
def test_any_schedule_is_safe_and_ends_in_agreement(block: int, raft: bool) -> None:
    runs = passed(lambda seed: run(seed, raft=raft), range(block * 40, block * 40 + 40))
    assert sum(made.proposals for made in runs) > 100, "the schedules do real work"


def commit_at_half(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quorum, "committed_offset", lambda acks, k: sorted(acks)[len(acks) // 2])


def commit_older_terms(patch: pytest.MonkeyPatch) -> None:
    def commit_point(acks: Sequence[int], k: int, high_watermark: int, term_start: int) -> int:
        return max(high_watermark, quorum.committed_offset(acks, k))

    patch.setattr(quorum_ack_tracker, "commit_point", commit_point)


def acknowledge_before_sync(patch: pytest.MonkeyPatch) -> None:
    right = FollowerSide.acknowledge

    def acknowledge(self: FollowerSide, out: list[Action]) -> None:
        self._log.durable_end = self._log.terms.log_end
        right(self, out)

    patch.setattr(FollowerSide, "acknowledge", acknowledge)
    patch.setattr(FollowerSide, "persisted", acknowledge)


@pytest.mark.parametrize(
    ("wrong", "first_seed"),  # where the search begins: some need many schedules
    [(commit_at_half, 0), (commit_older_terms, 340), (acknowledge_before_sync, 0)],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_a_known_error_that_is_put_back_is_seen(
    wrong: Callable[[pytest.MonkeyPatch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    must_fail(lambda seed: run(seed, raft=seed % 2 == 1), range(first_seed, first_seed + 600))
