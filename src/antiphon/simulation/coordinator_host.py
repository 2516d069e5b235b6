"""The coordinator's side of a simulated node: it folds `__cluster`, and coordinates while it leads that shard.

Everything that a replica's action leads to here is put off to the end of the instant (`_later`), in order: the replica is in
the middle of a list of actions, and the coordinator must not call it back from there.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from antiphon.coordination.actions import Action, Answer, MetadataChanged, Propose, SendTo, UncleanElection
from antiphon.coordination.coordinator import CommandRequest, Coordinator, CoordinatorConfig
from antiphon.coordination.state import ClusterState
from antiphon.errors import AntiphonError
from antiphon.simulation.cluster_messages import ClusterBatch, CoordinatorPacket, NotCoordinator
from antiphon.wire.cluster import (
    CommandDone,
    Heartbeat,
    HeartbeatReply,
    MetadataDelta,
    ProducerIdBlock,
    Register,
)

if TYPE_CHECKING:
    from antiphon.replication.messages import AnyMessage, NodeId
    from antiphon.simulation.hosted import Hosted
    from antiphon.simulation.node import SimulatedNode
    from antiphon.simulation.world import World

CLUSTER_ID: Final = "simulated"
NO_BOOTSTRAP: Final = 1 << 30  # the world creates its topics itself
Outcome = CommandDone | ProducerIdBlock | AntiphonError


class CoordinatorHost:
    """One life of a node as a member of `__cluster`."""

    def __init__(self, world: "World", node: "SimulatedNode") -> None:
        self._world = world
        self._node = node
        self._life = node.life
        self.state = ClusterState()
        self.coordinator: Coordinator | None = None
        self._applied = 0
        self._term = 0
        self._tokens: dict[int, int] = {}  # end of a proposed batch -> its token
        self._next_request = 0
        self._requests: dict[int, Callable[[Outcome], None]] = {}
        self._known: dict[NodeId, int] = {}  # version of the metadata that a node is believed to have
        self._put_off: deque[Callable[[], None]] = deque()

    # -- from the replica of `__cluster` -------------------------------------------------------------------------------

    def leader_ready(self, hosted: "Hosted") -> None:
        """This node leads `__cluster`: coordinate, starting from what is committed."""
        term = hosted.term_now()
        self._later(lambda: self._start(term))

    def _start(self, term: int) -> None:
        hosted = self._hosted()
        if hosted is None or not hosted.replica.ready or hosted.term_now() != term or self._term == term:
            return
        self._world.trace.note("coordinate", 0, self._node.node_id, term)
        self._term = term
        self._tokens.clear()
        self._requests.clear()
        self._known.clear()
        self.coordinator = Coordinator(CoordinatorConfig(CLUSTER_ID, NO_BOOTSTRAP), self.state)
        self._do(self.coordinator.start(self._node.clock_ms()))

    def leadership_lost(self) -> None:
        """This node does not lead `__cluster` any more: whatever was underway is forgotten."""
        self.coordinator = None
        self._tokens.clear()
        self._requests.clear()

    def committed(self, hosted: "Hosted", high_watermark: int) -> None:
        """Fold what is committed; then the coordinator may speak of it."""
        for entry in hosted.log.read(self._applied, high_watermark, 1 << 60):
            if isinstance(entry.data, ClusterBatch):
                self.state.apply(entry.data.records, entry.next_offset)
                self._world.metadata_committed(self.state)
                self._speak_later(entry.next_offset)
        self._applied = high_watermark

    def _speak_later(self, version: int) -> None:
        token, coordinator = self._tokens.pop(version, None), self.coordinator
        if token is None or coordinator is None:
            return

        def speak() -> None:
            if self.coordinator is coordinator:
                self._do(coordinator.committed(token, version, self._node.clock_ms()))

        self._later(speak)

    def _later(self, call: Callable[[], None]) -> None:
        self._put_off.append(call)
        if len(self._put_off) == 1:
            self._world.scheduler.after(0, self._drain, self._node.life)

    def _drain(self, life: int) -> None:
        if self._node.life == life:
            self._node.when_awake(self._drain_now, life)

    def _drain_now(self, life: int) -> None:
        while self._put_off and self._node.life == life:
            self._put_off[0]()
            self._put_off.popleft()

    def _hosted(self) -> "Hosted | None":
        return self._node.hosted.get(0)

    # -- events of the coordinator ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Time passed."""
        if self.coordinator is not None:
            self._do(self.coordinator.tick(self._node.clock_ms()))

    def peer_lost(self, peer: "NodeId") -> None:
        """The connection to a node broke."""
        if self.coordinator is not None:
            self._do(self.coordinator.node_lost(peer, self._node.clock_ms()))

    def replica_answered(self, source: "NodeId", message: "AnyMessage") -> None:
        """A promise, a leadership or a refusal."""
        if self.coordinator is not None:
            self._do(self.coordinator.receive(source, message, self._node.clock_ms()))

    def heartbeat(self, source: "NodeId", request: Heartbeat) -> None:
        """A node is alive and says what it knows."""
        if self.coordinator is None:
            self._refuse(source)
            return
        registered, actions = self.coordinator.heartbeat(request, self._node.clock_ms())
        self._do(actions)
        if registered:
            self._known[source] = request.known_version
        self._reply(source, registered)

    def register(self, source: "NodeId", request: Register) -> None:
        """A node's process names itself."""
        if self.coordinator is None:
            self._refuse(source)
            return
        token = self._new_request(lambda result: self._registered(source, request.known_version, result))
        self._do(self.coordinator.register(token, request, self._node.clock_ms()))

    def _registered(self, source: "NodeId", known_version: int, result: Outcome) -> None:
        if isinstance(result, CommandDone):
            self._known[source] = known_version
            self._reply(source, registered=True)

    def command(self, request: CommandRequest, answered: Callable[[Outcome], None]) -> None:
        """Carry out a command; only to be called while this node coordinates."""
        if self.coordinator is not None:
            self._do(self.coordinator.command(self._new_request(answered), request))

    def _new_request(self, answered: Callable[[Outcome], None]) -> int:
        self._next_request += 1
        self._requests[self._next_request] = answered
        return self._next_request

    def _refuse(self, source: "NodeId") -> None:
        hosted = self._hosted()
        leader = None if hosted is None else hosted.replica.leader
        self._node.send(source, NotCoordinator(-1 if leader is None else leader))

    def _reply(self, source: "NodeId", registered: bool) -> None:
        delta = self._delta(source) if registered else None
        self._node.send(source, HeartbeatReply(self._node.node_id, self._term, registered, delta))

    # -- actions -----------------------------------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Propose():
                    self._propose(action)
                case SendTo():
                    self._node.send(action.to, CoordinatorPacket(self._delta(action.to), action.messages))
                case Answer():
                    answered = self._requests.pop(action.token, None)
                    if answered is not None:
                        answered(action.result)
                case UncleanElection():
                    self._world.unclean_election(action.shard_id, action.term, action.leader)
                case MetadataChanged():
                    for node in self.state.nodes.values():
                        if node.alive and node.node_id in self._known:
                            self._push(node.node_id)

    def _propose(self, action: Propose) -> None:
        hosted = self._hosted()
        if hosted is None or not hosted.replica.ready:
            return  # leadership is gone, this coordinator is about to hear of it
        self._tokens[hosted.replica.log_end + 1] = action.token
        batch = ClusterBatch(self._node.node_id, hosted.term_now(), action.token, action.records)
        hosted.run(hosted.replica.propose([(1, batch)]))

    def _push(self, to: "NodeId") -> None:
        delta = self._delta(to)
        if delta is not None:
            self._node.send(to, CoordinatorPacket(delta, ()))

    def _delta(self, to: "NodeId") -> MetadataDelta | None:
        """What the node lacks, believing that it got what it was sent before; its next heartbeat says if not."""
        known = self._known.get(to, -1)
        if known >= self.state.version:
            return None
        self._known[to] = self.state.version
        return self.state.delta(
            known, cluster_id=CLUSTER_ID, controller=self._node.node_id, coordinator_term=self._term
        )
