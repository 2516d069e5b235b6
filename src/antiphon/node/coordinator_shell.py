"""What surrounds the coordinator in a node: the replica of `__cluster` on one side, the node's connections on the other.

Every voter folds the committed records of `__cluster` as they are committed (`node.metadata_fold`). Where the replica
leads and is ready, a `Coordinator` is made from the fold; its proposals are batches of that log, its messages go out over
the node's connections, always after the metadata that they rest on. When the replica stops leading, the coordinator is
dropped and whoever waits is told to ask the next one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from antiphon import system
from antiphon.coordination.actions import (
    Action,
    Answer,
    MetadataChanged,
    Propose,
    Record,
    SendTo,
)
from antiphon.coordination.cluster_records import headers_of
from antiphon.coordination.coordinator import Coordinator
from antiphon.coordination.state import ClusterState
from antiphon.errors import (
    AntiphonError,
    InternalError,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    TimedOutError,
    UnavailableError,
)
from antiphon.invariants import InvariantError
from antiphon.log.disk import NO_DESCRIPTORS
from antiphon.model.cluster import (
    Command,
    CommandDone,
    DeleteBefore,
    Heartbeat,
    HeartbeatReply,
    LiveSet,
    MetadataDelta,
    Register,
    ReserveProducerIds,
    SplitReport,
)
from antiphon.node.announced_losses import announce_loss
from antiphon.node.begun_requests import BegunRequest
from antiphon.node.context import NodeContext
from antiphon.node.coordinator_config import coordinator_config
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.metadata_trim import MetadataTrim
from antiphon.node.peers import PeerLink
from antiphon.partition.partition import Partition
from antiphon.records.builder import build_batch
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    import asyncio

    from antiphon.node.peer_network import PeerNetwork

TICK_S: Final = 0.05
READ_BYTES: Final = 1024 * 1024
REQUESTS_WAITING_MAX: Final = 10_000
SHORT_TIMEOUT_MS: Final = 10_000  # registrations, producer ids
RESTART_PAUSE_S: Final = 1.0

Answered = Callable[[Any], None]
"""Called once with a reply's body or an AntiphonError."""


class CoordinatorNode(NodeContext, Protocol):
    """What the shell needs of its node."""

    network: "PeerNetwork"

    def send_message(self, to: int, message: ReplicaMessage) -> None:
        """Send a replica message to a node, this one included."""

    def metadata_pushed(self, delta: MetadataDelta) -> None:
        """Give this node itself a change of the metadata."""


class CoordinatorShell:
    """See the module's text. Made by the node for its replica of `__cluster`; follows it as its `CommitObserver`.

    Attributes:
        log: of `__cluster` here.
        metadata: the fold of what is committed.
        coordinator: where this node coordinates the cluster now; None elsewhere.
    """

    def __init__(self, node: CoordinatorNode, host: Partition) -> None:
        self._node = node
        self._host = host
        self.log = host.log
        self.config = coordinator_config(node.config)
        self._log = structlog.get_logger().bind(part="coordinator")
        self.metadata = MetadataFold(host.log.log_start, node.metrics)
        self._trim = MetadataTrim(host, node.loop)
        self.coordinator: Coordinator | None = None
        self._proposed: deque[tuple[int, int]] = deque()  # (end in the log, token), of the coordinator
        self._abandoned_end = 0  # proposals of a coordinator that broke down end here
        self._followers: LiveSet | None = None  # as this replica reported last
        self._waiting: dict[int, BegunRequest] = {}
        self._tokens = 0
        self._refused: set[int] = set()  # nodes where nobody listens, as far as is known
        self._pushed: dict[int, int] = {}  # node -> metadata version that was sent there
        self._pushed_at_beat: dict[int, int] = {}
        self._actions: deque[Action] = deque()
        self._acting = self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._behind: asyncio.TimerHandle | None = None  # reads again what could not be read
        host.state.observer = self
        self._fold(host.state.high_watermark)

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The metadata as it is committed; older, while a log that begins above what was folded is not whole yet."""
        return self.metadata.state

    @property
    def is_active(self) -> bool:
        """Does this node coordinate the cluster now?"""
        return self.coordinator is not None

    def stop(self, why: str = "is stopping") -> None:
        """The replica is about to be closed."""
        self._stopped = True
        self._trim.stop()
        self._drop(UnavailableError(f"node {self._node.node_id} {why}"))

    # -- the log (CommitObserver) ---------------------------------------------------------------------------------

    def committed(self, high_watermark: int) -> None:
        """Fold what was committed, then tell the coordinator which of its proposals are among it."""
        if not self._fold(high_watermark):
            return
        proposed = self._proposed
        while proposed and proposed[0][0] <= high_watermark:
            end, token = proposed.popleft()
            coordinator = self.coordinator
            if coordinator is not None:
                self._drive(coordinator.committed, token, end, self._now_ms())
        if self.coordinator is not None and self._pushed.get(self._node.node_id, -1) < self.state.version:
            self._push()

    def role_changed(self, role: Role, _term: int, _leader: int | None) -> None:
        """The replica stopped leading, or leads but is not ready."""
        if self.coordinator is not None or role is not Role.LEADER:
            self._drop(self._not_here())

    def leader_ready(self, _term: int) -> None:
        """The replica leads and everything before its term is committed: coordinate."""
        self._abandoned_end = 0
        self._start()

    def _fold(self, high_watermark: int) -> bool:
        """Fold up to here; False: that is not possible, and the replica was stopped, or it is tried again by itself."""
        log, fold = self._host.log, self.metadata
        end = min(high_watermark, log.log_end)
        fold.starts_at(log.log_start)
        try:
            while fold.offset < end and (batches := log.read(fold.offset, READ_BYTES, end)):
                fold.fold(batches)
        except (AntiphonError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
                self._behind = self._behind or self._node.loop.call_later(RESTART_PAUSE_S, self._fold_again)
            else:
                self._host.driver.fail(error)
                self._drop(self._host.state.failed or self._not_here())
            return False
        if fold.is_whole:
            self._trim.met(fold.state.checkpoint)
        return True

    def _fold_again(self) -> None:
        """What is committed could not be read for want of file descriptors: it is told again."""
        self._behind = None
        if not self._stopped and self._host.state.failed is None:
            self.committed(self._host.state.high_watermark)
            if self._timer is None:
                self._start()

    # -- life of a coordinator ------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._stopped or self.coordinator is not None or not self._host.state.is_serving:
            return
        if not self._fold(self._host.state.high_watermark):
            return
        if not self.metadata.is_whole:  # who leads has all that is committed, so this cannot be
            self._host.driver.fail(self.metadata.lacks())
            return
        # Whoever does not have all of this yet asks for it when it is sent what comes after.
        self._pushed = dict.fromkeys(self.state.nodes, self.state.version)
        self._pushed_at_beat = dict(self._pushed)
        self._proposed.clear()
        self.coordinator = Coordinator(self.config, self.state)
        self._log.info("coordinator_started", term=self._host.state.term, version=self.state.version)
        self._announce()
        self._drive(self.coordinator.start, self._now_ms(), tuple(sorted(self._refused)))
        self._arm()

    def _drop(self, error: AntiphonError) -> None:
        if self.coordinator is not None:
            self._log.info("coordinator_stopped", term=self._host.state.term, reason=error.message)
        self.coordinator = None
        self._proposed.clear()
        self._actions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.dropped(error)

    def _broke_down(self, error: Exception) -> None:
        """A bug: start over from what is committed, once everything that was proposed is."""
        self._log.error("coordinator_broke_down", error=str(error), exc_info=error)
        self._abandoned_end = self._proposed[-1][0] if self._proposed else 0
        self._drop(InternalError(f"the coordinator on node {self._node.node_id} had to start over: {error}"))
        self._timer = self._node.loop.call_later(RESTART_PAUSE_S, self._restart)

    def _restart(self) -> None:
        self._timer = None
        if self.metadata.offset >= self._abandoned_end:
            self._start()
        elif not self._stopped and self._host.state.is_serving:
            self._timer = self._node.loop.call_later(RESTART_PAUSE_S, self._restart)

    def _arm(self) -> None:
        if self._timer is None and self.coordinator is not None and not self._stopped:
            self._timer = self._node.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        coordinator = self.coordinator
        if coordinator is None:
            return
        if not self._host.state.is_serving:
            self._drop(self._not_here())
            return
        now_ms = self._now_ms()
        for token in [token for token, one in self._waiting.items() if one.deadline_ms <= now_ms]:
            self._waiting.pop(token).answered(
                TimedOutError("the coordinator did not finish the command in time; it may still be done")
            )
        self._followers = told = self._host.reports.due(self._followers)
        has_room = not self._host.state.services.wal.refuses_clients
        self._drive(coordinator.tick, now_ms, has_room, None if told is None else (self._node.node_id, told))
        self._arm()

    def _now_ms(self) -> int:
        return int(self._node.loop.time() * 1000)

    # -- events into the coordinator ------------------------------------------------------------------------------

    def receive(self, sender: int, message: ReplicaMessage) -> None:
        """A replica answers the coordinator."""
        if self.coordinator is not None:
            self._drive(self.coordinator.receive, sender, message, self._now_ms())

    def node_lost(self, node_id: int) -> None:
        """Nobody listens at the node's address: its process is gone."""
        self._refused.add(node_id)
        if self.coordinator is not None:
            self._drive(self.coordinator.node_lost, node_id, self._now_ms())

    def peer_up(self, node_id: int) -> None:
        """Messages reach the node from now on."""
        self._refused.discard(node_id)
        if self.coordinator is not None:
            self._push_to(node_id)

    def request(self, sender: int, body: Any, answered: Answered) -> None:
        """A node's request; answered with a body or an AntiphonError."""
        coordinator = self.coordinator
        if coordinator is None or not self._host.state.is_serving:
            answered(self._not_here())
            return
        now_ms = self._now_ms()
        match body:
            case Heartbeat() if body.node_id != sender:
                answered(InvalidRequestError(f"node {sender} sends the heartbeat of node {body.node_id}"))
            case Heartbeat():
                self._heartbeat(coordinator, body, answered, now_ms)
            case Register():
                self._register(coordinator, sender, body, answered, now_ms)
            case Command():
                self._wait_for(coordinator.command, answered, now_ms + body.timeout_ms, body.request)
            case SplitReport():
                self._drive(coordinator.split_report, sender, body)
                answered(CommandDone(self.state.version))
            case ReserveProducerIds() | DeleteBefore():
                self._wait_for(coordinator.command, answered, now_ms + SHORT_TIMEOUT_MS, body)
            case _:
                answered(InvalidRequestError(f"{type(body).__name__} is no request for the coordinator"))

    def _register(
        self, coordinator: Coordinator, sender: int, body: Register, answered: Answered, now_ms: int
    ) -> None:
        node_id = body.node.node_id
        if node_id != sender:
            answered(InvalidRequestError(f"node {sender} registers as node {node_id}"))
            return
        self._refused.discard(node_id)
        self._pushed[node_id] = body.known_version

        def reply(_result: CommandDone) -> HeartbeatReply:
            self._log.info("node_registered", node=node_id, incarnation=body.node.incarnation)
            return self._reply(node_id, body.known_version)

        deadline_ms = now_ms + SHORT_TIMEOUT_MS
        self._wait_for(coordinator.register, answered, deadline_ms, body, now_ms, reply=reply)

    def _heartbeat(self, coordinator: Coordinator, body: Heartbeat, answered: Answered, now_ms: int) -> None:
        registered: list[bool] = []

        def heartbeat() -> list[Action]:
            known, actions = coordinator.heartbeat(body, now_ms)
            registered.append(known)
            return actions

        self._drive(heartbeat)
        if self.coordinator is None or not registered:
            answered(self._not_here())
        elif not registered[0]:
            term = self._host.state.term
            answered(HeartbeatReply(self._node.node_id, term, registered=False))
        else:
            answered(self._reply_to_beat(body))

    def _reply_to_beat(self, body: Heartbeat) -> HeartbeatReply:
        """With metadata only when what was pushed before the last heartbeat has still not arrived, or nothing was."""
        node_id = body.node_id
        missed = body.known_version < self._pushed_at_beat.get(node_id, 0)
        unpushed = self._pushed.get(node_id, -1) < self.state.version
        self._pushed_at_beat[node_id] = self._pushed.get(node_id, -1)
        if missed or (unpushed and body.known_version < self.state.version):
            return self._reply(node_id, body.known_version)
        return HeartbeatReply(self._node.node_id, self._host.state.term, registered=True)

    def _reply(self, node_id: int, known_version: int) -> HeartbeatReply:
        self._pushed[node_id] = max(self.state.version, self._pushed.get(node_id, -1))
        delta = self._delta(known_version)
        return HeartbeatReply(self._node.node_id, self._host.state.term, registered=True, delta=delta)

    def _wait_for(
        self,
        event: Callable[..., list[Action]],
        answered: Answered,
        deadline_ms: int,
        *arguments: Any,
        reply: Callable[[Any], Any] | None = None,
    ) -> None:
        if len(self._waiting) >= REQUESTS_WAITING_MAX:
            answered(OverloadedError(f"{len(self._waiting)} requests wait for the coordinator; retry"))
            return
        self._tokens += 1
        begun = BegunRequest(deadline_ms, answered, reply or (lambda result: result), reply is not None)
        self._waiting[self._tokens] = begun
        self._drive(event, self._tokens, *arguments)

    def _not_here(self) -> AntiphonError:
        """Who to ask instead."""
        host, own, network = self._host, self._node.node_id, self._node.network
        if host.state.failed is None and host.state.is_leader:
            return NotReadyError(f"node {own} is about to coordinate; retry")
        leader = host.replica.leader if host.state.failed is None else None
        leader = None if leader == own else leader
        return NotLeaderError(f"node {own} does not coordinate", leader=leader, **network.address_of(leader))

    # -- actions out of the coordinator ---------------------------------------------------------------------------

    def _drive(self, event: Callable[..., Sequence[Action]], *arguments: Any) -> None:
        """Give the coordinator an event and do what it says; what that causes meanwhile is done after it."""
        try:
            self._actions.extend(event(*arguments))
        except InvariantError as error:
            self._broke_down(error)
            return
        if self._acting:
            return
        self._acting = True
        try:
            while self._actions:
                self._act(self._actions.popleft())
        finally:
            self._acting = False

    def _act(self, action: Action) -> None:
        match action:
            case SendTo(to, messages):
                for message in messages:
                    self._node.send_message(to, message)
            case MetadataChanged():
                self._push()
            case Propose(token, records):
                self._propose(token, records)
            case Answer(token, result):
                waiting = self._waiting.pop(token, None)
                if waiting is not None:
                    waiting.finished(result)
            case _:
                announce_loss(self._node.metrics, action)

    def _propose(self, token: int, records: Sequence[Record]) -> None:
        host = self._host
        if not host.state.is_serving:
            return  # it has just been deposed, and is about to be told
        now_ms = system.wall_ms()
        batch = build_batch(
            [(key, value, headers_of(key, value), now_ms) for key, value in records],
            base_offset=host.log.log_end,
            leader_epoch=host.state.term,
        )
        try:
            host.driver.stage(batch, len(records))
        except (NotLeaderError, NotReadyError):
            return  # the same
        self._proposed.append((host.log.log_end, token))

    # -- metadata -------------------------------------------------------------------------------------------------

    def _delta(self, base_version: int) -> MetadataDelta:
        return self.state.delta(
            base_version,
            cluster_id=self._node.cluster_id,
            controller=self._node.node_id,
            coordinator_term=self._host.state.term,
        )

    def _announce(self) -> None:
        """Tell every node who coordinates now."""
        delta = self._delta(self.state.version)
        for node_id in self.state.nodes:
            if node_id == self._node.node_id:
                self._node.metadata_pushed(delta)
            elif (link := self._link(node_id)) is not None:
                link.send(delta)

    def _push(self) -> None:
        """Send the committed metadata to every node that is connected, this one last: it has the most to do with it."""
        deltas: dict[int, MetadataDelta] = {}
        own = self._node.node_id
        for node_id in [*(n for n in self.state.nodes if n != own), own]:
            self._push_to(node_id, deltas)

    def _push_to(self, node_id: int, deltas: dict[int, MetadataDelta] | None = None) -> None:
        known = self.state.nodes.get(node_id)
        own = node_id == self._node.node_id
        base = self._pushed.get(node_id, -1)
        if base >= self.state.version or (not own and (known is None or not known.alive)):
            return
        link = None if own else self._link(node_id)
        if not own and link is None:
            return
        delta = deltas.get(base) if deltas is not None else None
        if delta is None:
            delta = self._delta(base)
            if deltas is not None:
                deltas[base] = delta
        self._pushed[node_id] = self.state.version
        if link is None:
            self._node.metadata_pushed(delta)
        else:
            link.send(delta)

    def _link(self, node_id: int) -> PeerLink | None:
        try:
            link = self._node.link(node_id)
        except UnavailableError:
            return None
        return link if link.up else None
