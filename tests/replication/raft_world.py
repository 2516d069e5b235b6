"""The small world of `tests.replication.cluster` for replicas that vote and whose members change.

`nodes` hosts exist; `voters` of them founded the shard, the others begin empty, as nodes do that a shard moves to.
"""

from collections.abc import Callable
from typing import Any

from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import LeaderReady, MembersChanged, ResetLog
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import Members, MembersIndex
from antiphon.replication.messages import Entry, NodeId, SnapshotOffer
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import LogCondition, Role
from tests.replication.cluster import SHARD, Cluster, Host, term_start


def make_members(term: int, base_offset: int, members: Members) -> Entry:
    """A members entry."""
    return Entry(term, base_offset, base_offset + 1, f"members {members}", members)


def index_of_members(entries: list[Entry], base: Members | None) -> MembersIndex:
    """The members entries of a log."""
    return MembersIndex(base, [(entry.next_offset, entry.members) for entry in entries if entry.members])


class MemberHost(Host):
    """A node whose disk remembers the members as of the start of its log, too."""

    def __init__(self, cluster: "MemberCluster", node: NodeId, *, joining: bool = False) -> None:
        self.base: Members | None = None
        self.joining = joining
        super().__init__(cluster, node)

    def sync(self, count: int | None = None) -> None:
        many = len(self.writes) if count is None else min(count, len(self.writes))
        for _, action in list(self.writes)[:many]:
            if isinstance(action, ResetLog):
                self.base = action.members
        super().sync(count)

    @property
    def condition(self) -> LogCondition:
        return (
            LogCondition.JOINING if self.joining and self.damaged and not self.forgot else super().condition
        )

    @property
    def data(self) -> list[object]:
        own = ("start of", "members")
        return [entry.data for entry in self.log if not str(entry.data).startswith(own)]


class MemberCluster(Cluster):
    """See the module's text."""

    def __init__(
        self,
        nodes: int = 5,
        voters: tuple[NodeId, ...] = (1, 2, 3),
        *,
        config: ReplicaConfig | None = None,
        election: ElectionConfig | None = None,
        timeout: Callable[[NodeId], int] = lambda node: 10 + node,
        host: type[MemberHost] = MemberHost,
    ) -> None:
        self.founders = voters
        self.host = host
        super().__init__(0, raft=True, config=config, election=election, timeout=timeout)
        self.ensemble = tuple(range(1, nodes + 1))
        for node in self.ensemble:
            if node in voters:
                self.hosts[node] = self.host(self, node)

    def add(self, node: NodeId) -> None:
        """Open an empty replica on a node, as the metadata has it do that places a learner there."""
        self.hosts[node] = self.host(self, node, joining=True)

    def remove(self, node: NodeId) -> None:
        """The node's replica is gone, with its disk."""
        self.crash(node)
        del self.hosts[node]

    def known_voters(self, _host: Host) -> tuple[NodeId, ...]:
        """What the metadata says to a replica whose log says nothing."""
        return self.founders

    def wipe(self, node: NodeId) -> None:
        super().wipe(node)
        host = self.hosts[node]
        assert isinstance(host, MemberHost)
        host.base, host.joining = None, False

    def make(self, host: Host) -> RaftReplica:
        assert isinstance(host, MemberHost)
        if host.joining and host.term == 0:
            host.damaged = True  # until it is repaired: this mark is on the disk
        index = index_of_members(host.disk, host.base)
        return RaftReplica(
            node_id=host.node,
            shard=SHARD,
            ensemble=self.known_voters(host),
            restored=host.restored(members=index),
            entries=EntryFactory(term_start, members=make_members),
            config=self.config,
            election=self.election,
            election_timeout_ticks=lambda: self.timeout(host.node),
        )

    def voter(self, node: NodeId) -> RaftReplica:
        """The replica of a node."""
        replica = self.hosts[node].replica
        assert isinstance(replica, RaftReplica)
        return replica

    @property
    def leader(self) -> NodeId:
        """The node that leads, ready."""
        (node,) = [node for node in self.leading if self.voter(node).ready]
        return node

    def change(self, voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> None:
        """Ask the leader for other members; what it sends is underway."""
        host = self.hosts[self.leader]
        host.run(self.voter(host.node).propose_members(voters, learners))

    def moved(self, voters: tuple[NodeId, ...], learners: tuple[NodeId, ...] = ()) -> None:
        """The same, until nothing is underway any more."""
        self.change(voters, learners)
        self.tick(6)

    def trim(self, node: NodeId, log_start: int) -> None:
        host = self.hosts[node]
        assert isinstance(host, MemberHost)
        host.base = index_of_members(host.disk, host.base).at(log_start)
        super().trim(node, log_start)

    def snapshot(self, source: NodeId, to: NodeId, at: EntryId | None = None) -> None:
        host, target = self.hosts[source], self.hosts[to]
        host.snapshots.remove(to)
        replica = self.voter(source)
        where = at or replica.log.terms.start
        members = replica.members_at(where.offset)
        self.receive(source, to, SnapshotOffer(SHARD, replica.term, source, where, members))
        receiver = target.replica
        assert isinstance(receiver, RaftReplica)
        target.run(receiver.snapshot_installed(where))
        host.run(replica.snapshot_sent(to, where))

    def heard(self, node: NodeId) -> list[tuple[Members, bool]]:
        """What a node's surroundings heard of members since it started."""
        return [(one.members, one.committed) for one in self.hosts[node].took(MembersChanged)]


def founded(nodes: int = 5, voters: tuple[NodeId, ...] = (1, 2, 3), **options: Any) -> MemberCluster:
    """A shard whose node 1 was elected in term 1 and has committed "a"."""
    cluster = MemberCluster(nodes, voters, timeout=lambda node: 10 if node == 1 else 15 + node, **options)
    cluster.tick(10)
    assert cluster.leading == [1]
    assert cluster[1].took(LeaderReady)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.tick(2)
    return cluster


def with_learner() -> MemberCluster:
    """Nodes 1-3 vote, node 4 has just been made a learner and has caught up."""
    cluster = founded()
    cluster.add(4)
    cluster.moved((1, 2, 3), (4,))
    return cluster


__all__ = ["MemberCluster", "MemberHost", "Role", "founded", "make_members", "with_learner"]
