"""What every simulated node does for its cluster: register, send heartbeats, open the replicas that it is to have."""

from typing import TYPE_CHECKING, Any, Final

from antiphon.coordination.profiles import replication_of
from antiphon.invariants import unreachable
from antiphon.replication.follower_cursor import CursorState
from antiphon.replication.messages import (
    AddFollower,
    BecomeLeaderReply,
    MembersSettled,
    NewTermReply,
    StaleTerm,
)
from antiphon.replication.replica_state import Role
from antiphon.simulation.cluster_messages import CoordinatorPacket, NotCoordinator
from antiphon.simulation.coordinator_host import CLUSTER_ID, CoordinatorHost
from antiphon.simulation.disk import ReplicaFiles
from antiphon.simulation.topic_options import TopicOptions
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
        self._reporting = False
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

    def report_soon(self) -> None:
        """A leader here has something to say that should not wait for the next heartbeat."""
        if not self._reporting:
            self._reporting = True
            self._world.scheduler.after(0, self._report, self._node.life)

    def _report(self, life: int) -> None:
        self._reporting = False
        if self._node.life == life and not self._node.paused:
            self._send_heartbeat()

    def _live_sets(self) -> list[LiveSet]:
        found = []
        for hosted in self._node.hosted.values():
            known = self.view.shard(hosted.shard)
            if known is None or hosted.role is not Role.LEADER:
                continue
            meta = known[1]
            by_live = bool(hosted.replica.live)
            if meta.term != hosted.term_now() or not (hosted.replica.ready or by_live):
                continue
            live_set = self._proposed(hosted) if by_live else self._keeping_up(hosted)
            is_news = set(live_set.live) != set(meta.live) or meta.learners or meta.outgoing or meta.goal
            if is_news or hosted.shard in self._added:
                found.append(live_set)
        return found

    def _fed(self, hosted: "Hosted") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Who has caught up with a leader here, and who has not."""
        replica = hosted.replica
        caught_up = [self._node.node_id]
        lagging: list[int] = []
        for status in replica.followers():
            is_there = status.connected and status.state is CursorState.REPLICATE
            (caught_up if is_there and status.ack_offset >= replica.settled else lagging).append(status.node)
        return tuple(sorted(caught_up)), tuple(sorted(lagging))

    def _keeping_up(self, hosted: "Hosted") -> LiveSet:
        live, lagging = self._fed(hosted)
        return LiveSet(hosted.shard, hosted.term_now(), live, lagging)

    def _proposed(self, hosted: "Hosted") -> LiveSet:
        """Where commits go by the live set it is the leader's replica that says what is to be recorded."""
        proposal = hosted.proposal
        live = set(hosted.replica.live if proposal is None else proposal.live)
        voting = hosted.replica.members.voting
        caught_up, lagging = self._fed(hosted)
        learners = tuple(node for node in caught_up if node not in voting)
        live.update(learners)
        others = tuple(sorted(node for node in (*caught_up, *lagging) if node not in live))
        version = -1 if proposal is None else proposal.version
        return LiveSet(
            hosted.shard, hosted.term_now(), tuple(sorted(live)), others, version, learners=learners
        )

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
        self._reconcile()

    def _reconcile(self) -> None:
        """Open what the metadata places here, close and remove what is gone, take over changed settings."""
        world, node = self._world, self._node
        for shard_id in [shard for shard in node.hosted if shard != COORDINATOR_SHARD]:
            known = self.view.shard(shard_id)
            if known is None or node.node_id not in known[1].everybody:
                node.close_replica(shard_id)
        for shard_id in self.view.shard_ids():
            topic, meta = self.view.shard(shard_id) or unreachable(f"shard {shard_id} is not in the view")
            truth = world.checker.shards.get(shard_id)
            if truth is None or node.node_id not in meta.everybody:
                continue
            hosted = node.hosted.get(shard_id)
            if hosted is None:
                files = truth.files.get(node.node_id)
                if files is None:
                    files = truth.files[node.node_id] = ReplicaFiles()
                node.files[shard_id] = files
                settings = TopicOptions(topic.profile, topic.config, world.options.tick_ms)
                hosted = node.open_replica(shard_id, files, meta, settings)
            hosted.configure(replication_of(topic.profile, topic.config), meta)

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
            case NewTermReply() | BecomeLeaderReply() | MembersSettled() | StaleTerm() if host is not None:
                host.replica_answered(source, message)
            case _:
                self._node.send(source, NotCoordinator(self.view.controller))

    def leader_of(self, shard: int) -> int:
        """Who leads the shard as far as this node was told; -1 if unknown."""
        known = self.view.shard(shard)
        return -1 if known is None else known[1].leader
