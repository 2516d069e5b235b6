"""What every simulated node does for its cluster: register, send heartbeats, open the replicas that it is to have."""

from typing import TYPE_CHECKING, Any, Final

from antiphon.replication.messages import AddFollower, BecomeLeaderReply, NewTermReply, StaleTerm
from antiphon.replication.replica_state import Role
from antiphon.simulation.cluster_messages import CoordinatorPacket, NotCoordinator
from antiphon.simulation.coordinator_host import CLUSTER_ID, CoordinatorHost
from antiphon.wire.cluster import Heartbeat, HeartbeatReply, LiveSet, MetadataDelta, MetadataView, Register
from antiphon.wire.metadata import NodeMeta

if TYPE_CHECKING:
    from antiphon.simulation.hosted import Hosted
    from antiphon.simulation.node import SimulatedNode
    from antiphon.simulation.world import World

HEARTBEAT_TICKS: Final = 15
COORDINATOR_TICKS: Final = 5
COORDINATOR_SHARD: Final = 0


class Agent:
    """One life of a node as a member of the cluster."""

    def __init__(self, world: "World", node: "SimulatedNode") -> None:
        self._world = world
        self._node = node
        self._ticks = 0
        self._members = world.checker.shards[COORDINATOR_SHARD].ensemble
        self._target = node.random.choice(self._members)
        self._added: dict[int, None] = {}  # shards that got an AddFollower, to be reported
        self._reported: list[int] = []
        self._incarnation = f"{node.node_id}/{node.life}"
        self.view = MetadataView(CLUSTER_ID)
        self.registered = (
            False  # has the coordinator heard of this process, and so of the disk that it runs on?
        )
        self.coordinator = CoordinatorHost(world, node) if node.node_id in self._members else None

    def tick(self) -> None:
        """Time passed."""
        self._ticks += 1
        if self.coordinator is not None and self._ticks % COORDINATOR_TICKS == 0:
            self.coordinator.tick()
        if self._ticks % HEARTBEAT_TICKS == 1:
            self._send_heartbeat()

    # -- heartbeats ------------------------------------------------------------------------------------------------

    def _send_heartbeat(self) -> None:
        if self._ticks % (4 * HEARTBEAT_TICKS) == 1 and self.view.controller != self._target:
            self._target = self._node.random.choice(self._members)  # whoever was asked does not know
        sets = tuple(self._live_sets())
        self._reported = list(self._added)
        heartbeat = Heartbeat(self._node.node_id, self._incarnation, self.view.version, sets)
        self._node.send(self._target, heartbeat)

    def _live_sets(self) -> list[LiveSet]:
        found = []
        for hosted in self._node.hosted.values():
            known = self.view.shard(hosted.shard)
            if known is None or hosted.role is not Role.LEADER or not hosted.replica.ready:
                continue
            live_set = self._live_set(hosted)
            if known[1].term == live_set.term and (
                live_set.live != known[1].live or hosted.shard in self._added
            ):
                found.append(live_set)
        return found

    def _live_set(self, hosted: "Hosted") -> LiveSet:
        replica = hosted.replica
        fed = {status.node: status for status in replica.followers()}
        live: list[int] = []
        lagging: list[int] = []
        for node in hosted.truth.ensemble:
            status = fed.get(node)
            if node == self._node.node_id:
                live.append(node)
            elif status is not None:
                keeps_up = status.connected and status.ack_offset >= replica.high_watermark
                (live if keeps_up else lagging).append(node)
        return LiveSet(hosted.shard, replica.term, tuple(live), tuple(lagging))

    def _answered(self, source: int, reply: HeartbeatReply) -> None:
        self._target = source
        if reply.registered:
            self.registered = True
            for shard in self._reported:
                self._added.pop(shard, None)
            self._reported = []
            self._learn(reply.delta)
        else:
            meta = NodeMeta(
                node_id=self._node.node_id,
                native=f"node-{self._node.node_id}",
                incarnation=self._incarnation,
                disk_id=self._node.disk_id,
            )
            self._node.send(source, Register(CLUSTER_ID, meta, self.view.version))

    def _learn(self, delta: MetadataDelta | None) -> None:
        """Take over news; replicas that are new here are opened with empty logs.

        Not before this process is registered: a coordinator that does not know yet that the disk is another one would take
        the promises of empty replicas for evidence.
        """
        if delta is None or not self.registered or not self.view.apply(delta):
            return
        for shard_id in self.view.shard_ids():
            truth = self._world.checker.shards.get(shard_id)
            node_id = self._node.node_id
            if truth is not None and node_id in truth.ensemble and shard_id not in self._node.hosted:
                files = self._node.files.setdefault(shard_id, truth.files[node_id])
                self._node.open_replica(shard_id, files)

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self, source: int, message: Any) -> None:
        """A message that is not for a replica."""
        host = self.coordinator
        match message:
            case CoordinatorPacket():
                self._learn(message.delta)
                for one in message.messages:
                    if isinstance(one, AddFollower):
                        self._added[one.shard] = None
                    self._node.to_replica(source, one)
            case HeartbeatReply():
                self._answered(source, message)
            case NotCoordinator():
                if message.hint >= 0 and source == self._target:
                    self._target = message.hint
            case Heartbeat() if host is not None:
                host.heartbeat(source, message)
            case Register() if host is not None:
                host.register(source, message)
            case NewTermReply() | BecomeLeaderReply() | StaleTerm() if host is not None:
                host.replica_answered(source, message)
            case _:
                self._node.send(source, NotCoordinator(self.view.controller))

    def leader_of(self, shard: int) -> int:
        """Who leads the shard as far as this node was told; -1 if unknown."""
        known = self.view.shard(shard)
        return -1 if known is None else known[1].leader
