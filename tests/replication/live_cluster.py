"""A cluster whose commits go by the live replica set, and the part of a coordinator that records it.

The record is compare-and-set, as the coordinator's is: a proposal counts only if it goes on from the newest record.
Proposals lie in `proposals` until `record` takes them, and records in `news` until `tell` hands them to the leader, so
that a test can lose, delay, reorder and repeat both.
"""

from collections.abc import Sequence

from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, ProposeLiveSet
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.messages import BecomeLeader, NodeId
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, Host

LIVE_CONFIG = ReplicaConfig(
    resend_ticks=2, live_lag_entries_max=3, live_lag_ticks=5, term_start_on_empty=False
)


class LiveCluster(Cluster):
    """Nodes 1..n; the coordinator's record of the live set is `version`, `live` in `term`."""

    def __init__(self, nodes: int = 3, *, config: ReplicaConfig = LIVE_CONFIG) -> None:
        super().__init__(nodes, config=config)
        self.term = 0
        self.version = 0
        self.live: tuple[NodeId, ...] = self.ensemble
        self.proposals: list[tuple[int, NodeId, ProposeLiveSet]] = []  # term, leader, what
        self.news: list[tuple[int, int, tuple[NodeId, ...]]] = []  # term, version, live

    def did(self, host: Host, action: Action) -> None:
        """Called with every action of a host."""
        if isinstance(action, ProposeLiveSet):
            self.proposals.append((host.replica.term, host.node, action))

    def record(self, index: int = -1) -> bool:
        """The coordinator takes, or refuses, one of the proposals; False if it is outdated."""
        term, _, proposal = self.proposals.pop(index)
        if term != self.term or proposal.version != self.version:
            return False
        self.set_live(proposal.live)
        return True

    def set_live(self, live: Sequence[NodeId]) -> None:
        """Write the next record."""
        self.version, self.live = self.version + 1, tuple(live)
        self.news.append((self.term, self.version, self.live))

    def tell(self, node: NodeId) -> None:
        """The newest record reaches a node as metadata."""
        host = self[node]
        host.run(host.replica.live_recorded(*self.news[-1]))

    def settle_live(self, node: NodeId) -> None:
        """Record what the leader proposes, and tell it, until it proposes nothing more."""
        for _ in range(10):
            if not self.proposals:
                return
            if self.record():
                self.tell(node)
            self.proposals.clear()
            self.tick()

    def elect(self, node: NodeId, *others: NodeId) -> None:
        """A term of `node`, live from the start with those of the recorded set that promised."""
        self.term += 1
        heads = self.fence(self.term, node, *(others or (n for n in self.ensemble if n != node)))
        assert node in self.live, "only who is live is electable"
        self.version, self.live = self.version + 1, tuple(n for n in self.live if n in heads)
        self.begin(node, heads)

    def begin(self, node: NodeId, heads: dict[NodeId, EntryId]) -> None:
        """Send BecomeLeader as recorded; those whose log is longer are left to AddFollower."""
        others = tuple((n, head) for n, head in heads.items() if n != node and head <= heads[node])
        message = BecomeLeader(
            SHARD, self.term, self.ensemble, others, live=self.live, live_version=self.version
        )
        self.receive(COORDINATOR, node, message)

    def lead_live(self, node: NodeId, *others: NodeId) -> None:
        """As `elect`, and deliver."""
        self.elect(node, *others)
        self.deliver()
        self.tick()
