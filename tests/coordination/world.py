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

from antiphon.coordination.actions import (
    Action,
    Answer,
    MetadataChanged,
    Propose,
    SendTo,
    ShardRecovered,
    UncleanElection,
)
from antiphon.coordination.cluster_records import FORMAT
from antiphon.coordination.coordinator import CommandRequest, Coordinator, CoordinatorConfig
from antiphon.coordination.profiles import Options, Replication, replication_of
from antiphon.coordination.self_led import is_self_led
from antiphon.coordination.state import ClusterState
from antiphon.model.cluster import Heartbeat, LiveSet, Register
from antiphon.model.metadata import NodeMeta, ShardMeta, ShardStatus
from antiphon.records.entry_id import TermIndex
from antiphon.replication.actions import (
    AppendLog,
    Commit,
    PersistTerm,
    ReadEntries,
    Repaired,
    ResetLog,
    RoleChanged,
    Send,
    SendSnapshot,
    TruncateLog,
)
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.messages import (
    BecomeLeaderReply,
    ChangeMembers,
    Entry,
    GoOnAlone,
    NewTerm,
    NewTermReply,
    TransferLeadership,
)
from antiphon.replication.progress import ProgressState
from antiphon.replication.replica import Replica, ReplicaConfig
from antiphon.replication.replica_state import LogCondition, Role
from antiphon.replication.restored_state import RestoredState
from tests.coordination.models import ModelReplica, Voters

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
    damaged: set[int] = field(default_factory=set)


class Node:
    """A process, or none (`replicas` empty), over a disk."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.disks = 1
        self.starts = 0
        self.disk = Disk(f"disk-{node_id}-1")
        self.running = False
        self.replicas: dict[int, Any] = {}  # Replica, or ModelReplica
        self.needs_register = True
        self.reads = FORMAT

    def meta(self) -> NodeMeta:
        return NodeMeta(
            node_id=self.node_id,
            native=f"127.0.0.1:{7400 + self.node_id}",
            incarnation=f"{self.node_id}-{self.starts}",
            disk_id=self.disk.name,
            reads=self.reads,
        )


class World:
    """See the module's text. `model`: replicas are `ModelReplica`s, which know the live rule."""

    def __init__(
        self, nodes: int, seed: int = 1, initial_nodes: int | None = None, *, model: bool = False
    ) -> None:
        self.model = model
        self.random = Random(seed)
        self.faults = Faults()
        self.now_ms = 1_000
        self.nodes = {n: Node(n) for n in range(nodes)}
        self.state = ClusterState()
        self.options = Options(self.state.topics, self.state.names)
        self.voters: dict[int, Voters] = {}  # shards whose replicas vote
        self.unclean: list[UncleanElection] = []
        self.recovered: list[ShardRecovered] = []
        self.cut: set[frozenset[int]] = set()  # pairs of nodes that do not reach each other
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
        up = {node.node_id for node in self.nodes.values() if node.running}
        for record in self.state.shards.values():
            if self.options.of(record.topic_id).election == "raft":
                shard = self.voters.setdefault(record.meta.shard_id, Voters(self.random))
                shard.step(self.now_ms, record.meta.ensemble, up)

    # -- coordinators ---------------------------------------------------------------------------------------------

    def end_faults(self) -> None:
        """Messages arrive, and everybody comes back."""
        self.faults = Faults()
        for node in self.nodes.values():
            if not node.running:
                self.start_node(node.node_id)
        if self.coordinator is None:
            self.start_coordinator()

    def trouble(self, kind: int) -> bool:
        """Something goes wrong, or right again, by a number from 0 to 7; False where it cannot now."""
        random = self.random
        node = self.nodes[random.choice(list(self.nodes))]
        match kind:
            case 0 | 1 if node.running:
                self.crash_node(node.node_id, noticed=random.random() < 0.5)
            case 2 | 3 if not node.running:
                self.start_node(node.node_id)
            case 4:
                self.crash_coordinator()
            case 5 | 6 if self.coordinator is None:
                self.start_coordinator(tuple(n for n in self.nodes if not self.nodes[n].running))
            case 7:
                self.faults = random.choice([Faults(), Faults(0.05, 0.05, 20), Faults(0.3, 0.2, 100)])
            case _:
                return False
        return True

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
                    self._push_metadata()
                case UncleanElection():
                    self.unclean.append(action)
                case ShardRecovered(shard, _, _, at):
                    self.recovered.append(action)
                    self.committed[shard] = [one for one in self.committed.get(shard, []) if one[1] <= at]

    def _push_metadata(self) -> None:
        """The committed live sets reach the leaders, sooner or later."""
        if not self.model:
            return
        for node in self.nodes.values():
            for replica in node.replicas.values():
                record = self.state.shards.get(replica.shard)
                if replica.leading is not None and record is not None:
                    self.transmit(node.node_id, partial(self._metadata, node, replica, record.meta))

    def _metadata(self, node: Node, replica: ModelReplica, meta: ShardMeta) -> None:
        if node.replicas.get(replica.shard) is replica:
            self._replica_acts(node, replica, replica.metadata(meta))

    def _check_spoken(self, message: Any) -> None:
        """Nothing leaves the coordinator that the committed state does not say."""
        record = self.state.shards[message.shard]
        if isinstance(message, TransferLeadership):
            return
        self_led = is_self_led(self.options.of(record.topic_id))
        if isinstance(message, GoOnAlone):
            known_mark = 0 if record.meta.recovery is None else record.meta.recovery.term
            assert message.term <= known_mark, f"{message} was spoken before its record was committed"
            return
        if isinstance(message, ChangeMembers):
            known = record.meta.members_version
            assert message.version <= known, f"{message} was spoken before its record was committed"
        if self_led and isinstance(message, ChangeMembers):
            return
        assert not self_led, f"{message}: nobody fences such a shard"
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
        self.at(0, lambda: self._heartbeat(node, start))
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

    def cut_link(self, one: int, other: int) -> None:
        """The two nodes do not reach each other any more, and know it."""
        self.cut.add(frozenset({one, other}))
        self._links_changed()

    def heal_links(self) -> None:
        """All nodes reach each other again."""
        self.cut.clear()
        self._links_changed()

    def _links_changed(self) -> None:
        for node in self.nodes.values():
            for replica in list(node.replicas.values()):
                for other in self.nodes.values():
                    up = other.running and frozenset({node.node_id, other.node_id}) not in self.cut
                    told = replica.peer_connected if up else replica.peer_lost
                    self._replica_acts(node, replica, told(other.node_id))

    def damage(self, node_id: int) -> None:
        """The logs of a node that is down end somewhere before their end, and the node will know it."""
        node = self.nodes[node_id]
        assert not node.running
        for shard, log in node.disk.logs.items():
            del log[self.random.randint(0, len(log)) :]
            node.disk.damaged.add(shard)

    def start(self) -> None:
        """A coordinator and all nodes come up, and every shard is online."""
        self.start_coordinator()
        for node_id in self.nodes:
            self.start_node(node_id)
        assert self.run(5_000, self.all_online)

    def transmit(self, to: int, deliver: Callable[[], None]) -> None:
        for _ in range(2 if self.random.random() < self.faults.duplicate else 1):
            if self.random.random() >= self.faults.loss:
                self.at(self.random.randint(1, self.faults.delay_ms), deliver)

    def _heartbeat(self, node: Node, start: int) -> None:
        if not node.running or node.starts != start:
            return
        self.at(HEARTBEAT_MS, lambda: self._heartbeat(node, start))
        coordinator = self.coordinator
        if coordinator is None or self.random.random() < self.faults.loss:
            return
        if node.needs_register:
            self._tokens += 1
            request = Register("cluster-1", node.meta())
            self.act(coordinator.register(self._tokens, request, self.now_ms))
            node.needs_register = False
            return
        live = tuple(
            self._live_set(r) for r in node.replicas.values() if r.ready or (self.model and r.reports)
        )
        live += self._voted(node.node_id)
        if self.model:
            for replica in list(node.replicas.values()):
                record = self.state.shards.get(replica.shard)
                if record is not None:
                    self._metadata(node, replica, record.meta)
        heartbeat = Heartbeat(node.node_id, node.meta().incarnation, self.state.version, live)
        registered, actions = coordinator.heartbeat(heartbeat, self.now_ms)
        self.act(actions)
        if self.faults.duplicate:
            self.transmit(COORDINATOR, partial(self._old_news, node.node_id, live))
        if not registered:
            node.needs_register = True
            self.at(1, lambda: self._beat_once(node, start))

    def _old_news(self, sender: int, live: tuple[LiveSet, ...]) -> None:
        """A heartbeat that was held up somewhere."""
        if self.coordinator is not None and self.state.is_alive(sender):
            self.act(self.coordinator.live_sets(sender, live, self.now_ms))

    def _beat_once(self, node: Node, start: int) -> None:
        if node.running and node.starts == start and self.coordinator is not None and node.needs_register:
            node.needs_register = False
            self._tokens += 1
            self.act(self.coordinator.register(self._tokens, Register("cluster-1", node.meta()), self.now_ms))

    def _voted(self, node_id: int) -> tuple[LiveSet, ...]:
        """What the node leads by votes."""
        found = []
        for shard_id, shard in self.voters.items():
            record = self.state.shards.get(shard_id)
            if shard.leader == node_id and record is not None:
                live = tuple(n for n in record.meta.ensemble if self.nodes[n].running)
                found.append(LiveSet(shard_id, shard.term, live))
        return tuple(found)

    def _live_set(self, replica: Any) -> LiveSet:
        if isinstance(replica, ModelReplica):
            return replica.report()
        live: list[int] = [replica.node_id]
        lagging: list[int] = []
        for follower in replica.followers():
            caught_up = (
                follower.state is ProgressState.REPLICATE and follower.ack_offset >= replica.high_watermark
            )
            is_live = follower.connected and caught_up and not follower.damaged
            (live if is_live else lagging).append(follower.node)
        return LiveSet(replica.shard, replica.term, tuple(sorted(live)), tuple(lagging))

    # -- replicas -------------------------------------------------------------------------------------------------

    def options_of(self, shard: int) -> Replication:
        """The options of the shard's topic; the defaults for one that is deleted."""
        record = self.state.shards.get(shard)
        if record is None or record.topic_id not in self.state.names:
            return replication_of("oxia", {})
        return self.options.of(record.topic_id)

    def _open_replica(self, node: Node, shard: int) -> Any:
        if self.model:
            lost = {other.node_id for other in self.nodes.values() if not other.running}
            options = self.options_of(shard)
            node.replicas[shard] = ModelReplica(
                node.node_id, shard, node.disk, options.min_live, options.unclean, lost
            )
            return node.replicas[shard]
        log = node.disk.logs.setdefault(shard, [])
        terms = TermIndex()
        for entry in log:
            terms.append(entry.term, entry.next_offset)
        record = self.state.shards.get(shard)
        replica = Replica(
            node_id=node.node_id,
            shard=shard,
            ensemble=record.meta.everybody if record is not None and shard in node.disk.terms else (),
            restored=RestoredState(
                terms=terms,
                term=node.disk.terms.get(shard, 0),
                condition=LogCondition.DAMAGED if shard in node.disk.damaged else LogCondition.SOUND,
            ),
            entries=EntryFactory(lambda term, base: Entry(term, base, base + 1, f"start of term {term}")),
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
        if isinstance(message, TransferLeadership):
            self.voters[message.shard].leader = message.to
            self.voters[message.shard].term += 1
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

    def _replica_acts(self, node: Node, replica: Any, actions: list[Any]) -> None:
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
                case ReadEntries(to, start_at, _):
                    entries = tuple(e for e in disk.logs[shard] if e.base_offset >= start_at)
                    self._replica_acts(node, replica, replica.entries_read(to, entries, 10 * len(entries)))
                case RoleChanged(Role.LEADER, term, _):
                    known = self.leaders.setdefault((shard, term), node.node_id)
                    assert known == node.node_id, f"two leaders of shard {shard} in term {term}"
                    self._check_leader(shard, term, disk.logs[shard])
                case Commit(high_watermark):
                    self._check_commit(shard, disk.logs[shard], high_watermark)
                case Repaired():
                    disk.damaged.discard(shard)
            if isinstance(action, PersistTerm | AppendLog | TruncateLog):
                durable = partial(self._persisted, node, replica, start, action.write_id)
                self.at(self.random.randint(0, 3), durable)

    def _persisted(self, node: Node, replica: Any, start: int, write_id: int) -> None:
        if node.running and node.starts == start:
            self._replica_acts(node, replica, replica.persisted(write_id))

    def _send(self, sender: int, to: int, message: Any) -> None:
        if to == COORDINATOR:
            if isinstance(message, NewTermReply | BecomeLeaderReply) or type(message).__name__ == "StaleTerm":
                self.transmit(to, lambda: self._to_coordinator(sender, message))
        elif frozenset({sender, to}) not in self.cut:
            self.transmit(to, lambda: self._to_replica(sender, to, message))

    def _to_coordinator(self, sender: int, message: Any) -> None:
        if self.coordinator is not None:
            self.act(self.coordinator.receive(sender, message, self.now_ms))

    # -- what must hold -------------------------------------------------------------------------------------------

    def _check_leader(self, shard: int, term: int, log: list[Entry]) -> None:
        """Whoever leads has everything that was ever committed."""
        if any(event.shard_id == shard for event in self.unclean):
            self.committed[shard] = self.committed.get(shard, [])[:0]
            return
        known = self.committed.get(shard, [])
        mine = [(e.term, e.next_offset) for e in log[: len(known)]]
        assert mine == known, f"the leader of term {term} of shard {shard} lacks what was committed"

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
