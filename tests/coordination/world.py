"""A small world for the coordinator: nodes with real replicas, messages that get lost, coordinators that crash.

Time is in ms and only moves when `run` says so; all chance comes from one `random.Random`. The log of `__cluster` is a
list: a proposal commits a little later, or dies with the coordinator that made it. After every event the world checks that
a term of a shard has one leader, that terms never fall, and that all replicas of a shard agree on what is committed.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from antiphon.coordination.actions import Action, Answer, MetadataChanged, Propose, SendTo
from antiphon.coordination.coordinator import CommandRequest, Coordinator, CoordinatorConfig
from antiphon.coordination.state import ClusterState
from antiphon.records.entry_id import TermIndex
from antiphon.replication.actions import (
    AppendLog,
    Commit,
    Feed,
    PersistTerm,
    ResetLog,
    RoleChanged,
    Send,
    SendSnapshot,
    TruncateLog,
)
from antiphon.replication.follower_cursor import CursorState
from antiphon.replication.messages import BecomeLeaderReply, Entry, NewTerm, NewTermReply
from antiphon.replication.replica import Replica, ReplicaConfig
from antiphon.replication.replica_state import Role
from antiphon.wire.cluster import Heartbeat, LiveSet, Register
from antiphon.wire.metadata import NodeMeta, ShardStatus

COORDINATOR = 1000  # the node id that coordinators speak from
HEARTBEAT_MS, TICK_MS = 150, 50


@dataclass
class Faults:
    """How bad the network is."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_ms: int = 5


@dataclass
class Disk:
    """What a node's replicas keep over a crash."""

    name: str
    terms: dict[int, int] = field(default_factory=dict)
    logs: dict[int, list[Entry]] = field(default_factory=dict)


class Node:
    """A process, or none (`replicas` empty), over a disk."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.disks = 1
        self.starts = 0
        self.disk = Disk(f"disk-{node_id}-1")
        self.running = False
        self.replicas: dict[int, Replica] = {}
        self.needs_register = True

    def meta(self) -> NodeMeta:
        return NodeMeta(
            node_id=self.node_id,
            native=f"127.0.0.1:{7400 + self.node_id}",
            incarnation=f"{self.node_id}-{self.starts}",
            disk_id=self.disk.name,
        )


class World:
    """See the module's text."""

    def __init__(self, nodes: int, seed: int = 1, initial_nodes: int | None = None) -> None:
        self.random = Random(seed)
        self.faults = Faults()
        self.now_ms = 1_000
        self.nodes = {n: Node(n) for n in range(nodes)}
        self.state = ClusterState()
        self.config = CoordinatorConfig("cluster-1", initial_nodes or nodes, assembly_ms=15_000)
        self.coordinator: Coordinator | None = None
        self.coordinators = 0
        self.answers: dict[int, Any] = {}
        self.committed: dict[
            int, list[tuple[int, int]]
        ] = {}  # shard -> (term, next offset) of committed entries
        self.leaders: dict[tuple[int, int], int] = {}
        self.proposals: list[tuple[int, Propose]] = []
        self.proposed_records = 0
        self.spoken: list[tuple[int, Any]] = []
        self._tokens = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._terms_seen: dict[int, int] = {}
        self.at(0, self._tick)

    # -- time -----------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, work: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._count, work))

    def run(self, duration_ms: int, until: Callable[[], bool] | None = None) -> bool:
        end_ms = self.now_ms + duration_ms
        while self._queue and self._queue[0][0] <= end_ms:
            if until is not None and until():
                return True
            self.now_ms, _, work = heapq.heappop(self._queue)
            work()
        self.now_ms = end_ms
        return until is not None and until()

    def _tick(self) -> None:
        self.at(TICK_MS, self._tick)
        if self.coordinator is not None:
            self.act(self.coordinator.tick(self.now_ms))
        for node in self.nodes.values():
            for replica in list(node.replicas.values()):
                if replica.needs_tick:
                    self._replica_acts(node, replica, replica.tick())

    # -- coordinators ---------------------------------------------------------------------------------------------

    def start_coordinator(self, lost: tuple[int, ...] = ()) -> None:
        self.coordinators += 1
        self.coordinator = Coordinator(self.config, self.state)
        self.act(self.coordinator.start(self.now_ms, lost))

    def crash_coordinator(self) -> None:
        """What it had proposed is committed up to some point, and lost from there."""
        self.coordinator = None
        survive = self.random.randint(0, len(self.proposals))
        for _, proposal in self.proposals[:survive]:
            self._commit(proposal)
        self.proposals.clear()

    def _commit(self, proposal: Propose) -> None:
        version = self.state.version + 1
        self.state.apply(proposal.records, version)
        self.proposed_records += len(proposal.records)
        for record in self.state.shards.values():
            meta = record.meta
            assert meta.term >= self._terms_seen.get(meta.shard_id, 0), "terms never fall"
            self._terms_seen[meta.shard_id] = meta.term

    def act(self, actions: list[Action]) -> None:
        who = self.coordinators
        for action in actions:
            match action:
                case Propose():
                    self.proposals.append((who, action))
                    self.at(self.random.randint(1, 4), lambda: self._commit_next(who))
                case SendTo(to, messages):
                    for message in messages:
                        self._check_spoken(message)
                        self.spoken.append((to, message))
                        self.transmit(to, partial(self._to_replica, COORDINATOR, to, message))
                case Answer(token, result):
                    self.answers[token] = result
                case MetadataChanged(version):
                    assert version <= self.state.version, "only committed metadata is announced"

    def _check_spoken(self, message: Any) -> None:
        """Nothing leaves the coordinator that the committed state does not say."""
        record = self.state.shards[message.shard]
        assert message.term <= record.meta.term, f"{message} was spoken before its term was committed"

    def _commit_next(self, who: int) -> None:
        if not self.proposals or self.proposals[0][0] != who or self.coordinator is None:
            return
        _, proposal = self.proposals.pop(0)
        self._commit(proposal)
        self.act(self.coordinator.committed(proposal.token, self.state.version, self.now_ms))

    def command(self, request: CommandRequest) -> int:
        assert self.coordinator is not None
        self._tokens += 1
        self.act(self.coordinator.command(self._tokens, request))
        return self._tokens

    def ask(self, request: CommandRequest, within_ms: int = 5_000) -> Any:
        """The answer to a command."""
        token = self.command(request)
        assert self.run(within_ms, lambda: token in self.answers), f"no answer to {request}"
        return self.answers[token]

    # -- nodes ----------------------------------------------------------------------------------------------------

    def start_node(self, node_id: int, *, new_disk: bool = False) -> None:
        node = self.nodes[node_id]
        if new_disk:
            node.disks += 1
            node.disk = Disk(f"disk-{node_id}-{node.disks}")
        node.starts += 1
        node.running, node.needs_register = True, True
        for shard in node.disk.terms:
            self._open_replica(node, shard)
        start = node.starts
        self.at(0, lambda: self._beat(node, start))
        for other in self.nodes.values():
            for replica in list(other.replicas.values()):
                self._replica_acts(other, replica, replica.peer_connected(node_id))

    def crash_node(self, node_id: int, *, noticed: bool = True) -> None:
        node = self.nodes[node_id]
        node.running = False
        node.replicas = {}
        for other in self.nodes.values():
            for replica in list(other.replicas.values()):
                self._replica_acts(other, replica, replica.peer_lost(node_id))
        if noticed and self.coordinator is not None:
            self.act(self.coordinator.node_lost(node_id, self.now_ms))

    def start_all(self) -> None:
        for node_id in self.nodes:
            self.start_node(node_id)

    def transmit(self, to: int, deliver: Callable[[], None]) -> None:
        for _ in range(2 if self.random.random() < self.faults.duplicate else 1):
            if self.random.random() >= self.faults.loss:
                self.at(self.random.randint(1, self.faults.delay_ms), deliver)

    def _beat(self, node: Node, start: int) -> None:
        if not node.running or node.starts != start:
            return
        self.at(HEARTBEAT_MS, lambda: self._beat(node, start))
        coordinator = self.coordinator
        if coordinator is None or self.random.random() < self.faults.loss:
            return
        if node.needs_register:
            self._tokens += 1
            request = Register("cluster-1", node.meta())
            self.act(coordinator.register(self._tokens, request, self.now_ms))
            node.needs_register = False
            return
        live = tuple(self._live_set(replica) for replica in node.replicas.values() if replica.ready)
        beat = Heartbeat(node.node_id, node.meta().incarnation, self.state.version, live)
        registered, actions = coordinator.heartbeat(beat, self.now_ms)
        self.act(actions)
        if not registered:
            node.needs_register = True
            self.at(1, lambda: self._beat_once(node, start))

    def _beat_once(self, node: Node, start: int) -> None:
        if node.running and node.starts == start and self.coordinator is not None and node.needs_register:
            node.needs_register = False
            self._tokens += 1
            self.act(self.coordinator.register(self._tokens, Register("cluster-1", node.meta()), self.now_ms))

    def _live_set(self, replica: Replica) -> LiveSet:
        live: list[int] = [replica.node_id]
        lagging: list[int] = []
        for follower in replica.followers():
            caught_up = (
                follower.state is CursorState.REPLICATE and follower.ack_offset >= replica.high_watermark
            )
            (live if follower.connected and caught_up else lagging).append(follower.node)
        return LiveSet(replica.shard, replica.term, tuple(sorted(live)), tuple(lagging))

    # -- replicas -------------------------------------------------------------------------------------------------

    def _open_replica(self, node: Node, shard: int) -> Replica:
        log = node.disk.logs.setdefault(shard, [])
        terms = TermIndex()
        for entry in log:
            terms.append(entry.term, entry.next_offset)
        record = self.state.shards.get(shard)
        replica = Replica(
            node_id=node.node_id,
            shard=shard,
            ensemble=record.meta.ensemble if record is not None else (),
            terms=terms,
            term=node.disk.terms.get(shard, 0),
            voted_for=None,
            high_watermark=0,
            make_term_start=lambda term, base: Entry(term, base, base + 1, f"start of term {term}"),
            config=ReplicaConfig(),
        )
        for other in self.nodes.values():
            if not other.running:
                replica.peer_lost(other.node_id)
        node.replicas[shard] = replica
        return replica

    def _to_replica(self, sender: int, to: int, message: Any) -> None:
        node = self.nodes[to]
        if not node.running:
            return
        replica = node.replicas.get(message.shard)
        if replica is None:
            record = self.state.shards.get(message.shard)
            if record is None or to not in record.meta.ensemble or not isinstance(message, NewTerm):
                return
            replica = self._open_replica(node, message.shard)
        self._replica_acts(node, replica, replica.receive(sender, message))

    def write(self, shard: int, text: str) -> bool:
        """Append an entry where the shard is led and ready."""
        for node in self.nodes.values():
            replica = node.replicas.get(shard)
            if replica is not None and replica.ready:
                self._replica_acts(node, replica, replica.propose([(1, text)]))
                return True
        return False

    def _replica_acts(self, node: Node, replica: Replica, actions: list[Any]) -> None:
        shard, disk, start = replica.shard, node.disk, node.starts
        for action in actions:
            match action:
                case PersistTerm(_, term, _):
                    disk.terms[shard] = term
                case AppendLog(_, entries):
                    disk.logs.setdefault(shard, []).extend(entries)
                case TruncateLog(_, to_offset):
                    disk.logs[shard] = [e for e in disk.logs[shard] if e.next_offset <= to_offset]
                case ResetLog() | SendSnapshot():
                    raise AssertionError("logs are never trimmed here")
                case Send(to, message):
                    self._send(node.node_id, to, message)
                case Feed(to, start_at, _):
                    entries = tuple(e for e in disk.logs[shard] if e.base_offset >= start_at)
                    self._replica_acts(node, replica, replica.fed(to, entries, 10 * len(entries)))
                case RoleChanged(Role.LEADER, term, _):
                    known = self.leaders.setdefault((shard, term), node.node_id)
                    assert known == node.node_id, f"two leaders of shard {shard} in term {term}"
                case Commit(high_watermark):
                    self._check_commit(shard, disk.logs[shard], high_watermark)
            if isinstance(action, PersistTerm | AppendLog | TruncateLog):
                durable = partial(self._persisted, node, replica, start, action.write_id)
                self.at(self.random.randint(0, 3), durable)

    def _persisted(self, node: Node, replica: Replica, start: int, write_id: int) -> None:
        if node.running and node.starts == start:
            self._replica_acts(node, replica, replica.persisted(write_id))

    def _send(self, sender: int, to: int, message: Any) -> None:
        if to == COORDINATOR:
            if isinstance(message, NewTermReply | BecomeLeaderReply) or type(message).__name__ == "StaleTerm":
                self.transmit(to, lambda: self._to_coordinator(sender, message))
        else:
            self.transmit(to, lambda: self._to_replica(sender, to, message))

    def _to_coordinator(self, sender: int, message: Any) -> None:
        if self.coordinator is not None:
            self.act(self.coordinator.receive(sender, message, self.now_ms))

    # -- what must hold -------------------------------------------------------------------------------------------

    def _check_commit(self, shard: int, log: list[Entry], high_watermark: int) -> None:
        mine = [(e.term, e.next_offset) for e in log if e.next_offset <= high_watermark]
        known = self.committed.setdefault(shard, [])
        common = min(len(mine), len(known))
        assert mine[:common] == known[:common], f"shard {shard} has two histories"
        if len(mine) > len(known):
            self.committed[shard] = mine

    def all_online(self) -> bool:
        """Every shard has a leader that says so, and everybody that is up keeps up with it."""
        shards = self.state.shards.values()
        return bool(shards) and all(
            record.meta.status is ShardStatus.ONLINE
            and set(record.meta.live) == {n for n in record.meta.ensemble if self.nodes[n].running}
            for record in shards
        )

    def leadership(self) -> dict[int, int]:
        count: dict[int, int] = {}
        for record in self.state.shards.values():
            if record.meta.status is ShardStatus.ONLINE:
                count[record.meta.leader] = count.get(record.meta.leader, 0) + 1
        return count
