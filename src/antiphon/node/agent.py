"""This node's word with the coordinator: registration, heartbeats, metadata, forwarded commands, producer ids.

One heartbeat is underway at a time. Who coordinates is known from the replica of `__cluster` where this node has one,
from the metadata, or from the answer of somebody who was asked in vain; while nobody knows, the voters are asked in
turn.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from antiphon.errors import (
    AntiphonError,
    LimitReachedError,
    NotLeaderError,
    NotReadyError,
    TimedOutError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.gateway.answers import awaited
from antiphon.model.cluster import (
    LIVE_SETS_MAX,
    Command,
    CommandDone,
    Heartbeat,
    HeartbeatReply,
    LiveSet,
    MetadataDelta,
    ProducerIdBlock,
    Register,
    ReserveProducerIds,
)
from antiphon.model.metadata import ABSENT_NODE, CLUSTER_SHARD_ID
from antiphon.model.requests import AdminRequest, CreateTopic, DeleteTopic
from antiphon.node.context import NodeContext
from antiphon.node.local_view import LocalView

if TYPE_CHECKING:
    from antiphon.model.metadata import NodeMeta
    from antiphon.node.peer_network import PeerNetwork
    from antiphon.partition.partition import Partition

RETRY_FIRST_S = 0.02
RETRY_MAX_S = 0.3
PRODUCER_IDS_AT_ONCE = 1000
NEVER = -1.0
# What the coordinator answers to a repeat whose first try was carried out.
OF_A_REPEAT: Final[dict[type, type[AntiphonError]]] = {
    CreateTopic: TopicExistsError,
    DeleteTopic: UnknownTopicError,
}


class AgentNode(NodeContext, Protocol):
    """What the agent needs of the node."""

    incarnation: str
    network: "PeerNetwork"
    history: Callable[[], int]  # see `Register`

    def meta(self) -> "NodeMeta":
        """The node as others should know it."""

    def metadata_changed(self) -> None:
        """The metadata moved on: follow it."""

    def registered(self) -> None:
        """The coordinator counts on this node: open what waited for that."""


class ClusterAgent:
    """See the module's text."""

    def __init__(self, node: AgentNode, cluster_id: str) -> None:
        self.view = LocalView(cluster_id, node.config.voters)
        self.registered = asyncio.Event()
        self._node = node
        self._log = structlog.get_logger()
        self._hint: int | None = None
        self._in_vain = (
            -1,
            -1,
        )  # term and leader, as the replica here knew them when that node did not coordinate
        self._refusal = ""  # why the coordinator does not want this node; logged once
        self._failed_attempts = 0
        self._heartbeat_sent_s = NEVER
        self._heartbeat_number = 0
        self._heartbeat_again = False
        self._needs_register = True
        self._registered_term = -1  # of the coordinator that this process registered with last
        self._coordinator_term = -1
        self._live_told: dict[int, LiveSet] = {}
        # Term of the coordinator and version of the metadata: what the live sets told were held against.
        self._compared_with = (-1, -1)
        self._changed = asyncio.Event()
        self._ids: tuple[int, int] = (0, 0)  # next, end
        self._ids_lock = asyncio.Lock()

    # -- who coordinates ----------------------------------------------------------------------------------------

    def coordinator(self) -> int:
        """The node that most probably coordinates."""
        node = self._node
        host = node.hosts.get(CLUSTER_SHARD_ID)
        leader = None if host is None or host.state.failed is not None else host.replica.leader
        # Who votes no more is told nothing of later terms: then others know better.
        if host is not None and leader is not None and (host.state.term, leader) != self._in_vain:
            return leader
        if self._hint is not None:
            return self._hint
        voters = node.voters.asked
        if host is None and self._failed_attempts == 0 and self.view.controller != ABSENT_NODE:
            return self.view.controller
        return voters[self._failed_attempts % len(voters)]

    def _not_there(self, error: AntiphonError) -> None:
        """Whoever was asked does not coordinate, or is not there."""
        leader = error.details.get("leader") if isinstance(error, NotLeaderError) else None
        host = self._node.hosts.get(CLUSTER_SHARD_ID)
        if isinstance(error, NotLeaderError) and host is not None and host.replica.leader is not None:
            self._in_vain = (host.state.term, host.replica.leader)
        self._hint = leader if isinstance(leader, int) and leader >= 0 else None
        if self._hint is not None and isinstance(address := error.details.get("address"), str):
            # The voters may be others than this node has heard of
            self._node.network.meet(self._hint, address)
        if self._hint is None:
            self._failed_attempts += 1

    def peer_gone(self, node_id: int) -> None:
        """A node does not answer any more."""
        if self._hint == node_id:
            self._hint = None
            self._failed_attempts += 1

    # -- heartbeats ---------------------------------------------------------------------------------------------

    def heartbeat_now(self) -> None:
        """Send a heartbeat, or another one as soon as the one that is underway is answered."""
        self._heartbeat_again = self._heartbeat_sent_s >= 0
        self.heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat, unless one is underway and not overdue."""
        node = self._node
        now = node.now_s()
        overdue_s = 2 * node.config.timings.heartbeat / 1000
        if self._heartbeat_sent_s >= 0 and now - self._heartbeat_sent_s < overdue_s:
            return
        if self._heartbeat_sent_s >= 0:
            self._not_there(UnavailableError("no answer to a heartbeat"))
        self._heartbeat_sent_s = now
        self._heartbeat_number += 1
        number = self._heartbeat_number
        told: tuple[LiveSet, ...] = ()
        if self._needs_register:
            body: Register | Heartbeat = Register(
                self.view.cluster_id, node.meta(), self.view.known_version, node.history()
            )
        else:
            told = self._live_changes()
            body = Heartbeat(node.node_id, node.incarnation, self.view.known_version, told)

        def answered(reply: Any) -> None:
            if number == self._heartbeat_number:
                self._heartbeat_sent_s = NEVER
                self._answered(reply, told)
                if self._heartbeat_again and self._heartbeat_sent_s < 0 and not self._node.stopping:
                    self._heartbeat_again = False
                    self._node.turn.for_shard(self.heartbeat)

        node.ask_coordinator(self.coordinator(), body, answered)

    def _answered(self, reply: Any, told: tuple[LiveSet, ...]) -> None:
        if isinstance(reply, HeartbeatReply) and reply.coordinator_term < self._node.voters.mark:
            reply = UnavailableError(f"node {reply.coordinator} goes by what was before the last recovery")
        if not isinstance(reply, HeartbeatReply):
            if isinstance(reply, AntiphonError):
                self._not_there(reply)
                if not reply.retriable and reply.message != self._refusal:
                    self._refusal = reply.message
                    self._log.error("coordinator_refused_us", error=reply.message, code=reply.code)
            return
        self._hint, self._failed_attempts = reply.coordinator, 0
        was_registered, self._needs_register = not self._needs_register, not reply.registered
        if reply.coordinator_term != self._coordinator_term:
            self._coordinator_term = reply.coordinator_term
            self._live_told.clear()
        else:
            self._live_told.update((live.shard_id, live) for live in told)
        if reply.delta is not None:
            self.apply(reply.delta)
        if reply.registered and not was_registered:
            self._registered_term = reply.coordinator_term
        elif reply.registered and self._is_known_otherwise(reply.coordinator_term):
            self._needs_register = True
        if not reply.registered:
            if was_registered:
                self.heartbeat()
        elif not self.registered.is_set() and self.view.known_version >= 0:
            self._log.info("registered", coordinator=reply.coordinator, version=self.view.version)
            self.registered.set()
            self._node.registered()

    def _is_known_otherwise(self, term: int) -> bool:
        """Does the metadata say something else of this process than it told, to a coordinator of an earlier version?

        That keeps what it knows of. Each later coordinator is told once.
        """
        known = self.view.nodes.get(self._node.node_id)
        if known is None or term == self._registered_term or known.incarnation != self._node.incarnation:
            return False
        return msgspec.structs.replace(known, alive=True, draining=False) != self._node.meta()

    def _live_changes(self) -> tuple[LiveSet, ...]:
        """Sets of the shards led here that differ from what the coordinator was told, or from what it says."""
        changes = []
        hosts, stirred = self._node.hosts, self._node.stirred
        if self._compared_with != (self._coordinator_term, self.view.version):
            self._compared_with = (self._coordinator_term, self.view.version)
            stirred.update(hosts)
        # Most shards are idle, and a node that has thousands looks several times a second: only where something happened.
        for shard_id in sorted(stirred):
            host = hosts.get(shard_id)
            told = self._live_told.get(shard_id)
            live = None if host is None or shard_id == CLUSTER_SHARD_ID else host.reports.due(told)
            if host is not None and live is not None and (told != live or self._is_news(host, live)):
                changes.append(live)
                host.reports.was_told()
            else:
                stirred.discard(shard_id)
        return tuple(changes[:LIVE_SETS_MAX])

    def _is_news(self, host: "Partition", live: LiveSet) -> bool:
        """Does the metadata say otherwise? A restarted member counts again when its leader says so.

        And where replicas vote, a leader is not recorded whose report came before the record that made it a member.
        """
        found = self.view.recorded(live.shard_id)
        if found is None:
            return False
        if found.term < live.term:
            return host.mode.elects_itself
        return found.term == live.term and set(found.live) != set(live.live)

    # -- metadata -----------------------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta) -> None:
        """Take over a change of the metadata; what does not fit is asked for by the next heartbeat."""
        before = self.view.version
        if self._node.voters.heard(delta.recovery):
            self._log.warning("recovery_heard_of", recovery=delta.recovery)
            self._needs_register = True
            self.registered.clear()
            self._node.metadata_changed()  # which closes what is of the past
        if not self.view.apply(delta):
            if delta.version > self.view.known_version:
                self.heartbeat()
            return
        if self.view.version != before:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            self._node.metadata_changed()

    async def wait_version(self, known_version: int, timeout_s: float) -> None:
        """Return when the metadata is newer than `known_version`, or after `timeout_s`."""
        deadline = self._node.now_s() + timeout_s
        while self.view.version <= known_version:
            left = deadline - self._node.now_s()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    # -- commands -----------------------------------------------------------------------------------------------

    def check_request(self, partitions: int) -> None:
        """See Gateway."""
        try:
            self._node.config.limits.capacity.check_request(partitions)
        except LimitReachedError:
            self._node.metrics.limit_refusals += 1
            raise

    async def command(self, request: AdminRequest, timeout_s: float) -> None:
        """Have the coordinator carry out a command; returns when this node's metadata shows it.

        Asks again while there is no coordinator. A repeat whose first try may have succeeded is not blamed for its success.
        """
        deadline = self._node.now_s() + timeout_s
        unknown = False

        def body(left_s: float) -> Command:
            return Command(request, max(1, int(left_s * 1000)))

        pause_s = RETRY_FIRST_S
        while True:
            left = deadline - self._node.now_s()
            try:
                reply = await self._ask(body(left), left)
            except (NotLeaderError, NotReadyError, UnavailableError) as error:
                unknown = unknown or isinstance(error, UnavailableError)
                pause_s = await self._pause(error, left, pause_s)
                continue
            except (TopicExistsError, UnknownTopicError) as error:
                if unknown and isinstance(error, OF_A_REPEAT.get(type(request), ())):
                    return
                raise
            except LimitReachedError:
                self._node.metrics.limit_refusals += 1
                raise
            if isinstance(reply, CommandDone):
                await self.wait_version(reply.version - 1, max(0.0, deadline - self._node.now_s()))
            return

    async def _pause(self, error: AntiphonError, left_s: float, pause_s: float) -> float:
        """Wait before asking again, or raise the error where there is no time for that; returns the next pause."""
        if left_s <= pause_s or self._node.stopping:
            raise error
        self._not_there(error)
        await asyncio.sleep(pause_s)
        return min(pause_s * 2, RETRY_MAX_S)

    async def _ask(self, body: Any, timeout_s: float) -> Any:
        future, done = awaited()
        self._node.ask_coordinator(self.coordinator(), body, done)
        try:
            return await asyncio.wait_for(future, max(0.001, timeout_s))
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(f"the coordinator did not answer within {timeout_s:.1f} s") from None

    async def new_producer_id(self, timeout_s: float = 30.0) -> int:
        """The next id of the block that this node owns; a new block is asked for when it is used up."""
        async with self._ids_lock:
            if self._ids[0] >= self._ids[1]:
                block = await self._reserve(timeout_s)
                self._ids = (block.first, block.first + block.count)
            self._ids = (self._ids[0] + 1, self._ids[1])
            return self._ids[0] - 1

    async def _reserve(self, timeout_s: float) -> ProducerIdBlock:
        block = await self.ask(ReserveProducerIds(PRODUCER_IDS_AT_ONCE), timeout_s)
        if not isinstance(block, ProducerIdBlock):
            raise UnavailableError(
                "the coordinator answered with something else than a block of producer ids"
            )
        return block

    async def ask(self, body: Any, timeout_s: float) -> Any:
        """Ask the coordinator, and again while there is none. What is asked for may be done twice."""
        deadline = self._node.now_s() + timeout_s
        pause_s = RETRY_FIRST_S
        while True:
            left = deadline - self._node.now_s()
            try:
                return await self._ask(body, left)
            except (NotLeaderError, NotReadyError, UnavailableError) as error:
                pause_s = await self._pause(error, left, pause_s)


Answered = Callable[[Any], None]
