"""The coordinator alone, at a size that no test machine has processes for: a thousand nodes, a hundred thousand shards.

The pure `Coordinator` is the product's own, and so is the fold of its records. Nodes are models: they promise, lead, report
and send heartbeats as real ones do, after a network delay and a sync of their disk. Time is simulated, but for one thing
that must not be: the processor time that each event takes is measured, and the events queue up behind it. So the times that
shards are without a leader hold for a coordinator as fast as this machine; only the network and the disks are supposed.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from antiphon.coordination.actions import Action, Answer, MetadataChanged, Propose, SendTo
from antiphon.coordination.coordinator import Coordinator, CoordinatorConfig
from antiphon.coordination.state import ClusterState
from antiphon.errors import AntiphonError
from antiphon.invariants import invariant
from antiphon.model.cluster import Heartbeat, LiveSet, Register
from antiphon.model.metadata import NodeMeta, ShardStatus
from antiphon.model.requests import CreateTopic
from antiphon.node.memory import LongLived
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.messages import (
    AddFollower,
    AnyMessage,
    BecomeLeader,
    BecomeLeaderReply,
    NewTerm,
    NewTermReply,
)
from antiphon.simulation.fleet_nodes import FleetNode

CLUSTER_ID: Final = "fleet"
TICK_MS: Final = 50
HEARTBEAT_MS: Final = 150
COMMIT_MS: Final = 3  # a record of `__cluster` on two of three disks
LATENCY_MS: Final = 1
SYNC_MS: Final = 2  # of a node's disk, for all promises of one packet
SHARDS_PER_TOPIC: Final = 10_000
RACKS: Final = 40

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Phase:
    """What one part of the exercise took. Times in ms of simulated time, CPU in seconds of this machine."""

    name: str
    began_ms: float
    ended_ms: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    longest_event_ms: float = 0.0
    commits: int = 0
    metadata_bytes: int = 0  # one encoding of each delta; every node gets a copy
    elected: int = 0
    offline: int = 0
    gaps_ms: list[float] = field(default_factory=list)  # without a leader, per election

    def gap(self, share: float) -> float:
        """That share of the shards had their leader again within so many ms."""
        ordered = sorted(self.gaps_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

    def row(self) -> dict[str, Any]:
        """For a table or JSON."""
        return {
            "phase": self.name,
            "seconds": round((self.ended_ms - self.began_ms) / 1000, 2),
            "cpu_s": round(self.cpu_s, 2),
            "events": self.events,
            "longest_event_ms": round(self.longest_event_ms, 1),
            "elections": self.elected,
            "offline": self.offline,
            "gap_p50_ms": round(self.gap(0.50)),
            "gap_p99_ms": round(self.gap(0.99)),
            "gap_max_ms": round(self.gap(1.0)),
            "commits": self.commits,
            "metadata_mb": round(self.metadata_bytes / 1e6, 1),
        }


class Fleet:
    """One cluster of modelled nodes and its coordinator. `measured=False` makes the coordinator infinitely fast."""

    def __init__(
        self, nodes: int, shards: int, *, racks: int = RACKS, seed: int = 1, measured: bool = True
    ) -> None:
        invariant(nodes >= 3 and shards >= 1, "a fleet has at least 3 nodes and a shard")
        self.racks = racks
        self.now_ms = 0.0
        self.measured = measured
        self.shards = shards
        self.random = Random(seed)
        self.state = ClusterState()
        self.nodes = [FleetNode(number) for number in range(nodes)]
        self.phase = Phase("start", 0.0)
        self.phases: list[Phase] = []
        self._config = CoordinatorConfig(CLUSTER_ID, initial_nodes=nodes)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._tokens = 0
        self._free_ms = 0.0  # when the coordinator is done with what it has begun
        self._version = 0
        self._proposals: deque[tuple[int, tuple[Any, ...]]] = deque()
        self.leaderless: dict[int, float] = {}  # shard -> since when, in ms
        self._long_lived = LongLived()
        self.coordinator = Coordinator(self._config, self.state)

    # -- time ---------------------------------------------------------------------------------------------------

    def after(self, delay_ms: float, event: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._count, event))

    def run_until(self, done: Callable[[], bool], limit_ms: float) -> None:
        """Let time pass until `done`; an invariant breaks when that takes longer than `limit_ms`."""
        end_ms = self.now_ms + limit_ms
        looked_ms = -1.0
        while True:
            if self.now_ms - looked_ms >= TICK_MS:
                looked_ms = self.now_ms
                if done():
                    return
            at_ms, _, event = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, at_ms)
            invariant(self.now_ms < end_ms, f"{self.phase.name}: not done after {limit_ms:.0f} ms")
            event()

    def _drive(self, event: Callable[[int], Iterable[Action]]) -> None:
        """One event into the coordinator, when it is free; what it says takes effect when it is done."""
        began_s = time.thread_time()
        actions = list(event(int(max(self.now_ms, self._free_ms))))
        for action in actions:
            if isinstance(action, MetadataChanged):
                self._count_metadata()
        spent_ms = (time.thread_time() - began_s) * 1000
        phase = self.phase
        phase.events += 1
        phase.cpu_s += spent_ms / 1000
        phase.longest_event_ms = max(phase.longest_event_ms, spent_ms)
        if self.measured:
            self._free_ms = max(self.now_ms, self._free_ms) + spent_ms
        delay_ms = max(0.0, self._free_ms - self.now_ms)
        for action in actions:
            self._carry_out(action, delay_ms)

    def _count_metadata(self) -> None:
        delta = self.state.delta(self._version, cluster_id=CLUSTER_ID, controller=0, coordinator_term=1)
        self._version = self.state.version
        self.phase.metadata_bytes += len(_encode(delta))

    def _carry_out(self, action: Action, delay_ms: float) -> None:
        match action:
            case Propose():
                self._proposals.append((action.token, action.records))
                self.after(delay_ms + COMMIT_MS, self._commit)
            case SendTo():
                node, messages = self.nodes[action.to], action.messages
                self.after(delay_ms + LATENCY_MS, lambda: self._deliver(node, messages))
            case Answer():
                invariant(
                    not isinstance(action.result, AntiphonError), f"the coordinator refused: {action.result}"
                )

    def _commit(self) -> None:
        token, records = self._proposals.popleft()
        version = self.state.version + max(1, len(records))
        began_s = time.thread_time()
        self.state.apply(records, version)
        self.phase.cpu_s += time.thread_time() - began_s
        self.phase.commits += 1
        self._long_lived.note_count(len(self.state.shards))
        self._note_leaders(records)
        self._drive(lambda now_ms: self.coordinator.committed(token, version, now_ms))

    def _note_leaders(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, _ in records:
            if not key.startswith(b"shard/"):
                continue
            meta = self.state.shards[int(key[6:])].meta
            if meta.status == ShardStatus.ONLINE:
                since_ms = self.leaderless.pop(meta.shard_id, None)
                if since_ms is not None:
                    self.phase.elected += 1
                    self.phase.gaps_ms.append(self.now_ms - since_ms)
            else:
                self.leaderless.setdefault(meta.shard_id, self.now_ms)

    # -- nodes --------------------------------------------------------------------------------------------------

    def _deliver(self, node: FleetNode, messages: tuple[AnyMessage, ...]) -> None:
        """A packet reaches a node; one sync covers all its promises, and the answers leave together."""
        if not node.alive:
            return
        replies: list[AnyMessage] = []
        for message in messages:
            match message:
                case NewTerm():
                    node.promise(message.shard, message.term)
                    head = node.heads.get(message.shard, EMPTY)
                    replies.append(NewTermReply(message.shard, message.term, head, 0))
                case BecomeLeader():
                    head = EntryId(message.term, node.heads.get(message.shard, EMPTY).offset + 1)
                    node.lead(message.shard, message.term, head)
                    for other, _ in message.heads:
                        self.nodes[other].heads[message.shard] = head
                        node.feed(message.shard, other)
                    replies.append(BecomeLeaderReply(message.shard, message.term))
                case AddFollower():
                    if node.leads(message.shard, message.term):
                        self.nodes[message.node].heads[message.shard] = node.heads[message.shard]
                        node.feed(message.shard, message.node)
        life = node.life

        def answer() -> None:
            if node.alive and node.life == life:
                for reply in replies:
                    self._drive(partial(self._answered, node.number, reply))

        if replies:
            self.after(SYNC_MS + LATENCY_MS, answer)

    def _answered(self, node: int, reply: AnyMessage, now_ms: int) -> list[Action]:
        return self.coordinator.receive(node, reply, now_ms)

    def _heartbeat(self, node: FleetNode, life: int) -> None:
        if not node.alive or node.life != life:
            return
        live = tuple(LiveSet(shard, term, members) for shard, term, members in node.news())
        heartbeat = Heartbeat(node.number, node.incarnation, self.state.version, live)
        known = True

        def event(now_ms: int) -> list[Action]:
            nonlocal known
            known, actions = self.coordinator.heartbeat(heartbeat, now_ms)
            return actions

        self._drive(event)
        if not known:
            self._register(node)
        self.after(HEARTBEAT_MS, lambda: self._heartbeat(node, life))

    def _register(self, node: FleetNode) -> None:
        self._tokens += 1
        token = self._tokens
        meta = NodeMeta(
            node.number,
            f"h{node.number}:7400",
            incarnation=node.incarnation,
            disk_id=f"disk-{node.number}",
        )
        self._drive(lambda now_ms: self.coordinator.register(token, Register(CLUSTER_ID, meta), now_ms))

    def start_node(self, node: FleetNode) -> None:
        """The node's process starts: it registers and sends heartbeats."""
        node.start()
        life = node.life
        self._register(node)
        self.after(self.random.random() * HEARTBEAT_MS, lambda: self._heartbeat(node, life))

    def stop_node(self, node: FleetNode, *, noticed: bool) -> None:
        """The node's process ends; `noticed`: its connections are reset, otherwise only its silence tells."""
        node.stop()
        for shard in self.state.shards_on.get(node.number, ()):
            if self.state.shards[shard].meta.leader == node.number:
                self.leaderless.setdefault(shard, self.now_ms)
        if noticed:
            self.after(
                LATENCY_MS,
                lambda: self._drive(lambda now_ms: self.coordinator.node_lost(node.number, now_ms)),
            )

    # -- the exercise -------------------------------------------------------------------------------------------

    def begin(self, name: str) -> Phase:
        """A new part of the exercise."""
        self.phase = Phase(name, self.now_ms)
        self.phases.append(self.phase)
        return self.phase

    def end(self) -> Phase:
        """The part is done."""
        self.phase.ended_ms = self.now_ms
        self.phase.offline = sum(
            1 for record in self.state.shards.values() if record.meta.status == ShardStatus.OFFLINE
        )
        return self.phase

    def tick(self) -> None:
        """The coordinator's timer."""
        self._drive(self._tick)
        self.after(TICK_MS, self.tick)

    def _tick(self, now_ms: int) -> list[Action]:
        return self.coordinator.tick(now_ms)

    def quiet(self) -> bool:
        """Is no election going on, and nobody who could lead without a leader?"""
        return not self.coordinator.elections and not self._proposals and not self._open_shards()

    def _open_shards(self) -> int:
        offline = ShardStatus.OFFLINE
        return sum(1 for shard in self.leaderless if self.state.shards[shard].meta.status != offline)

    def create_topics(self) -> None:
        """All shards, by topics of at most 10,000."""
        for first in range(0, self.shards, SHARDS_PER_TOPIC):
            count = min(SHARDS_PER_TOPIC, self.shards - first)
            self._create(CreateTopic(f"t{first}", shards=count, replicas=3))

    def _create(self, request: CreateTopic) -> None:
        self._tokens += 1
        token = self._tokens
        self._drive(lambda _now_ms: self.coordinator.command(token, request))

    def replace_coordinator(self) -> None:
        """The coordinator's node died; its successor starts from what is committed."""
        self._proposals.clear()
        self._events = [event for event in self._events if event[2] != self._commit]
        heapq.heapify(self._events)

        def start(now_ms: int) -> list[Action]:
            self.coordinator = Coordinator(self._config, self.state)
            return self.coordinator.start(now_ms)

        self._drive(start)
