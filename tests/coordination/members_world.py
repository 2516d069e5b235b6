"""A world whose nodes let go of replicas that the metadata no longer gives them, as real nodes do.

A node learns of the metadata a little later than it is committed. A replica that is taken away is closed and its log and
promises are gone; should the node get the shard again, it starts from nothing.
"""

from functools import partial
from typing import Any

from antiphon.coordination.actions import Propose
from antiphon.coordination.coordinator import CoordinatorConfig
from antiphon.coordination.shard_recovery import is_kept, is_of_the_past
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ShardMeta
from antiphon.replication.actions import ProposeLiveSet
from antiphon.replication.messages import MembersSettled, NewTerm
from tests.coordination.world import COORDINATOR, Node, World


class MembersWorld(World):
    """See the module's text."""

    def __init__(self, nodes: int, seed: int = 1, initial_nodes: int | None = None, moves: int = 20) -> None:
        super().__init__(nodes, seed, initial_nodes)
        self.config = CoordinatorConfig(
            "cluster-1", initial_nodes or nodes, assembly_ms=15_000, voters=(0,), moves_per_node=moves
        )
        self.proposals_of: dict[tuple[int, int, int], ProposeLiveSet] = {}  # by node, shard, term
        self.told_live: dict[tuple[int, int, int], int] = {}  # newest record that a replica knows
        self.written = 0
        self.most_learners = 0

    def meta(self, shard: int) -> ShardMeta:
        return self.state.shards[shard].meta

    # -- metadata reaches the nodes ---------------------------------------------------------------------------------

    def _commit(self, proposal: Propose) -> None:
        super()._commit(proposal)
        for node in self.nodes.values():
            self.at(self.random.randint(1, 20), partial(self._reconcile, node))
        feeding: dict[int, int] = {}
        for record in self.state.shards.values():
            for learner in record.meta.learners:
                feeding[learner] = feeding.get(learner, 0) + 1
        self.most_learners = max([self.most_learners, *feeding.values()])

    def _reconcile(self, node: Node) -> None:
        if not node.running:
            return
        for shard, replica in list(node.replicas.items()):
            record = self.state.shards.get(shard)
            if record is not None and record.meta.live_version:
                meta = record.meta
                self.told_live[node.node_id, shard, meta.term] = meta.live_version
                told = replica.live_recorded(meta.term, meta.live_version, meta.live)
                self._replica_acts(node, replica, told)
        for shard in set(node.disk.terms) | set(node.replicas):
            record = self.state.shards.get(shard)
            is_here = record is not None and node.node_id in record.meta.everybody
            if record is not None and not is_here and is_kept(record.meta, node.node_id):
                node.replicas.pop(shard, None)  # closed; its files stay
                continue
            term = node.disk.terms.get(shard, 0)
            is_past = record is not None and is_of_the_past(record.meta, node.node_id, term)
            if not is_here or (is_past and bool(node.disk.logs.get(shard))):
                node.replicas.pop(shard, None)
                node.disk.terms.pop(shard, None)
                node.disk.logs.pop(shard, None)

    def start_node(self, node_id: int, *, new_disk: bool = False) -> None:
        super().start_node(node_id, new_disk=new_disk)
        self._reconcile(self.nodes[node_id])

    def _to_replica(self, sender: int, to: int, message: Any) -> None:
        node = self.nodes[to]
        record = self.state.shards.get(message.shard)
        if node.running and message.shard not in node.replicas:
            if record is None or to not in record.meta.everybody or not isinstance(message, NewTerm):
                return
            if self.state.nodes[to].disk_id != node.disk.name:
                return  # nodes open nothing before they are registered with the disk that they have
            self._open_replica(node, message.shard)
        super()._to_replica(sender, to, message)

    def _replica_acts(self, node: Node, replica: Any, actions: list[Any]) -> None:
        held: Any = node.replicas.get(replica.shard)
        if held is not replica:
            return  # it was taken away meanwhile
        for action in actions:
            if isinstance(action, ProposeLiveSet):
                self.proposals_of[node.node_id, replica.shard, replica.term] = action
        super()._replica_acts(node, replica, actions)

    def _live_set(self, replica: Any) -> LiveSet:
        """As nodes report: where commits go by the live set, what it is or should be, and learners that caught up."""
        found = super()._live_set(replica)
        if not replica.live:
            return found
        key = (replica.node_id, replica.shard, replica.term)
        proposal = self.proposals_of.get(key)
        if proposal is not None and proposal.version < self.told_live.get(key, 0):
            proposal = None  # overtaken
        learners = [node for node in found.live if node not in replica.members.voting]
        live = set(replica.live if proposal is None else proposal.live)
        lagging = tuple(node for node in (*found.live, *found.lagging) if node not in {*live, *learners})
        version = -1 if proposal is None else proposal.version
        return LiveSet(
            replica.shard,
            replica.term,
            tuple(sorted({*live, *learners})),
            lagging,
            version,
            learners=tuple(learners),
        )

    def _send(self, sender: int, to: int, message: Any) -> None:
        if to == COORDINATOR and isinstance(message, MembersSettled):
            self.transmit(to, lambda: self._to_coordinator(sender, message))
        else:
            super()._send(sender, to, message)

    # -- what tests ask ---------------------------------------------------------------------------------------------

    def add_node(self) -> int:
        """A node more, running."""
        node_id = len(self.nodes)
        self.nodes[node_id] = Node(node_id)
        self.start_node(node_id)
        return node_id

    def write_some(self) -> None:
        """An entry to every shard that takes one."""
        for shard in self.state.shards:
            self.written += 1
            self.write(shard, f"entry {self.written}")

    def settled(self) -> bool:
        """Nobody is on the way anywhere, everything is online, and all members that are up keep up."""
        return self.all_online() and all(
            not (record.meta.goal or record.meta.outgoing or record.meta.learners)
            for record in self.state.shards.values()
        )

    def running_hold_what_is_meant(self) -> bool:
        """Replicas are where the metadata says, and nowhere else."""
        return all(
            set(node.replicas) == set(self.state.shards_on.get(node.node_id, ()))
            for node in self.nodes.values()
            if node.running
        )

    def committed_is_everywhere(self) -> bool:
        """Every running member of every shard holds all that was ever committed of it."""
        for shard, known in self.committed.items():
            record = self.state.shards.get(shard)
            if record is None:
                continue
            for node_id in record.meta.ensemble:
                node = self.nodes[node_id]
                held = [(entry.term, entry.next_offset) for entry in node.disk.logs.get(shard, ())]
                if node.running and held[: len(known)] != known:
                    return False
        return True
