"""A small world for tests of the pure protocol: nodes in one process, messages in a list, disks that sync when told to.

Nothing happens by itself. A test delivers, drops, duplicates and reorders messages, syncs and crashes disks, and looks.
Node 0 is the coordinator: what is sent to it is kept in `Cluster.told`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.records.entry_id import EMPTY, EntryId, TermIndex
from antiphon.replication.actions import (
    Action,
    AppendLog,
    Commit,
    LeaderReady,
    PersistTerm,
    ReadEntries,
    ReadFailed,
    ReadReady,
    Repaired,
    ResetLog,
    RoleChanged,
    Send,
    SendSnapshot,
    TruncateLog,
)
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import MembersIndex
from antiphon.replication.messages import (
    AnyMessage,
    BecomeLeader,
    Entry,
    NewTerm,
    NewTermReply,
    NodeId,
    SnapshotOffer,
)
from antiphon.replication.progress import FollowerStatus
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import LogCondition, Role
from antiphon.replication.restored_state import RestoredState

COORDINATOR = 0
SHARD = 7
STEPS_MAX = 100_000


def term_start(term: int, base_offset: int) -> Entry:
    """The entry that opens a leadership."""
    return Entry(term, base_offset, base_offset + 1, f"start of {term}")


def index_of(entries: Sequence[Entry], start: EntryId = EMPTY) -> TermIndex:
    """Term index of a log."""
    terms = TermIndex(start.offset, start.term)
    for entry in entries:
        terms.append(entry.term, entry.next_offset)
    return terms


def commit_by(replica: Replica | RaftReplica, rule: str) -> list[Action]:
    """The topic's commit rule changes while it lives."""
    return replica.set_config(replace(replica.config, commit=CommitRule.parse(rule)))


class Host:
    """One node: a replica, its log as staged, and its disk."""

    def __init__(self, cluster: "Cluster", node: NodeId, log: Iterable[Entry] = (), term: int = 0) -> None:
        self.cluster = cluster
        self.node = node
        self.start = EntryId(0, 0)  # of the durable log
        self.disk: list[Entry] = list(log)
        self.term = term
        self.voted_for: NodeId | None = None
        self.damaged = False
        self.forgot = False
        self.auto_sync = True
        self.late_feeds = False
        self.high_watermark = 0
        self.acknowledged = 0
        self.alive = False
        self.boot()

    def boot(self) -> None:
        """Make the replica from what is on the disk."""
        self.alive = True
        self.log = list(self.disk)
        self.log_start = self.start
        self.writes: deque[tuple[int, Action]] = deque()
        self.feeds: list[ReadEntries] = []
        self.snapshots: list[NodeId] = []
        self.seen: list[Action] = []
        self.replica = self.cluster.make(self)

    # -- events ------------------------------------------------------------------------------------------------------

    def run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self.seen.append(action)
            self.cluster.did(self, action)
            match action:
                case PersistTerm() | AppendLog() | TruncateLog() | ResetLog():
                    self._stage(action)
                case Send():
                    self.cluster.send(self.node, action.to, action.message)
                case ReadEntries() if self.late_feeds:
                    self.feeds.append(action)
                case ReadEntries():
                    self.feed(action)
                case SendSnapshot():
                    self.snapshots.append(action.to)
                case Commit():
                    self.cluster.committed(self, action.high_watermark)
                case RoleChanged():
                    self.cluster.role_changed(self, action)
                case Repaired():
                    self.damaged = self.forgot = False
                case LeaderReady() | ReadReady() | ReadFailed():
                    pass
        if self.auto_sync:
            self.sync()

    def _stage(self, action: PersistTerm | AppendLog | TruncateLog | ResetLog) -> None:
        match action:
            case AppendLog():
                assert action.entries[0].base_offset == self.log_end
                self.log.extend(action.entries)
            case TruncateLog():
                self.log = [entry for entry in self.log if entry.next_offset <= action.to_offset]
                assert self.log_end == action.to_offset
            case ResetLog():
                self.log, self.log_start = [], action.at
        self.writes.append((action.write_id, action))

    def sync(self, count: int | None = None) -> None:
        """Make the oldest writes durable, all of them by default, and report."""
        last = 0
        for _ in range(len(self.writes) if count is None else min(count, len(self.writes))):
            last, action = self.writes.popleft()
            match action:
                case AppendLog():
                    self.disk.extend(action.entries)
                case TruncateLog():
                    self.disk = [entry for entry in self.disk if entry.next_offset <= action.to_offset]
                case ResetLog():
                    self.disk, self.start = [], action.at
                case PersistTerm():
                    self.term, self.voted_for = action.term, action.voted_for
        if last:
            self.run(self.replica.persisted(last))

    def feed(self, action: ReadEntries) -> None:
        """Answer a ReadEntries from the log as it is now."""
        entries: list[Entry] = []
        for entry in self.log:
            full = len(entries) * 100 >= action.max_bytes
            if entry.base_offset >= action.from_offset and not full:
                entries.append(entry)
        self.run(self.replica.entries_read(action.to, entries, 100 * len(entries)))

    def crash(self) -> None:
        """Lose everything that is not on the disk, and everything underway to this node."""
        self.alive = False
        self.writes.clear()

    def restored(self, members: MembersIndex | None = None) -> RestoredState:
        """What the disk gives a replica."""
        return RestoredState(
            terms=index_of(self.disk, self.start),
            term=max(self.term, self.disk[-1].term if self.disk else 0),
            voted_for=self.voted_for,
            high_watermark=self.high_watermark,
            acknowledged=self.acknowledged,
            condition=self.condition,
            members=members,
        )

    @property
    def condition(self) -> LogCondition:
        """Where a coordinator elects, a test that forgets promises does so by the term on the disk."""
        if self.forgot and self.cluster.raft:
            return LogCondition.FORGOTTEN
        return LogCondition.DAMAGED if self.damaged else LogCondition.SOUND

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        return self.log[-1].next_offset if self.log else self.log_start.offset

    @property
    def data(self) -> list[object]:
        """What is in the log, without term starts."""
        return [entry.data for entry in self.log if not str(entry.data).startswith("start of")]

    def took(self, kind: type[Any]) -> list[Any]:
        """Actions of one kind since the last boot."""
        return [action for action in self.seen if isinstance(action, kind)]


class Cluster:
    """Nodes 1..n of one shard, and the messages between them."""

    def __init__(
        self,
        nodes: int | Sequence[NodeId] = 3,
        *,
        raft: bool = False,
        logs: Mapping[NodeId, Sequence[Entry]] | None = None,
        terms: Mapping[NodeId, int] | None = None,
        config: ReplicaConfig | None = None,
        election: ElectionConfig | None = None,
        timeout: Callable[[NodeId], int] = lambda node: 10 + node,
        kinds: tuple[type[Replica], type[RaftReplica]] = (Replica, RaftReplica),
    ) -> None:
        self.ensemble = tuple(range(1, nodes + 1)) if isinstance(nodes, int) else tuple(nodes)
        self.raft = raft
        self.config = config or ReplicaConfig(resend_ticks=2)
        self.election = election or ElectionConfig()
        self.timeout = timeout
        self.kinds = kinds
        self.underway: deque[tuple[NodeId, NodeId, AnyMessage]] = deque()
        self.sent: list[tuple[NodeId, NodeId, AnyMessage]] = []
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.told: list[tuple[NodeId, AnyMessage]] = []
        self.leaders: dict[int, NodeId] = {}  # by term
        self.chosen: list[Entry] = []  # the longest committed log that anybody has reported
        self.hosts = {
            node: Host(self, node, (logs or {}).get(node, ()), (terms or {}).get(node, 0))
            for node in self.ensemble
        }

    def make(self, host: Host) -> Replica | RaftReplica:
        common: dict[str, Any] = {
            "node_id": host.node,
            "shard": SHARD,
            "ensemble": self.ensemble,
            "restored": host.restored(),
            "entries": EntryFactory(term_start),
            "config": self.config,
        }
        if self.raft:
            return self.kinds[1](
                **common,
                election=self.election,
                election_timeout_ticks=lambda: self.timeout(host.node),
            )
        return self.kinds[0](**common)

    def __getitem__(self, node: NodeId) -> Host:
        return self.hosts[node]

    def replica(self, node: NodeId) -> Any:
        """The replica of a node (typed loosely: a test knows which kind it has)."""
        return self.hosts[node].replica

    def did(self, host: Host, action: Action) -> None:
        """A host is about to carry out `action`."""

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, source: NodeId, to: NodeId, message: AnyMessage) -> None:
        self.sent.append((source, to, message))
        if to == COORDINATOR:
            self.told.append((source, message))
        elif (source, to) not in self.cut:
            self.underway.append((source, to, message))

    def receive(self, source: NodeId, to: NodeId, message: AnyMessage) -> None:
        """Deliver one message now."""
        host = self.hosts.get(to)
        if host is not None and host.alive:
            host.run(host.replica.receive(source, message))

    def deliver(self, count: int = STEPS_MAX) -> None:
        """Deliver messages in order until there are none."""
        for _ in range(count):
            if not self.underway:
                return
            self.receive(*self.underway.popleft())
        assert count < STEPS_MAX, "the nodes talk for ever"

    def deliver_to(self, *nodes: NodeId) -> None:
        """Deliver what is underway to these nodes, once; the rest stays underway."""
        underway, self.underway = self.underway, deque()
        for source, to, message in underway:
            if to in nodes:
                self.receive(source, to, message)
            else:
                self.underway.append((source, to, message))

    def drop(self, *nodes: NodeId) -> None:
        """Lose what is underway to these nodes (to all, if none is named)."""
        self.underway = deque(item for item in self.underway if nodes and item[1] not in nodes)

    def isolate(self, *nodes: NodeId) -> None:
        """Cut these nodes off from the others; they still reach each other."""
        others = [node for node in self.ensemble if node not in nodes]
        for node in nodes:
            self.cut |= {pair for other in others for pair in ((node, other), (other, node))}
        self.underway = deque(item for item in self.underway if (item[0], item[1]) not in self.cut)

    def heal(self) -> None:
        self.cut.clear()

    def between(self, source: NodeId, to: NodeId, kind: type[Any]) -> list[Any]:
        """Messages of one kind that were ever sent from one node to another."""
        return [
            message for a, b, message in self.sent if (a, b) == (source, to) and isinstance(message, kind)
        ]

    # -- the coordinator's part ----------------------------------------------------------------------------------------

    def fence(self, term: int, *nodes: NodeId) -> dict[NodeId, EntryId]:
        """Send NewTerm and return the heads of those that promised."""
        before = len(self.told)
        for node in nodes or self.ensemble:
            self.receive(COORDINATOR, node, NewTerm(SHARD, term))
        return {
            node: message.head
            for node, message in self.told[before:]
            if isinstance(message, NewTermReply) and message.term == term
        }

    def appoint(self, node: NodeId, term: int, *others: NodeId) -> None:
        """Fence `node` and `others` (all, by default) and make `node` the leader; nothing is delivered yet."""
        heads = self.fence(term, node, *(others or (n for n in self.ensemble if n != node)))
        del heads[node]
        self.receive(COORDINATOR, node, BecomeLeader(SHARD, term, self.ensemble, tuple(heads.items())))

    def lead(self, node: NodeId, term: int, *others: NodeId) -> Any:
        """As `appoint`, and deliver until nothing is underway; returns the leader's replica."""
        self.appoint(node, term, *others)
        self.deliver()
        self.tick()
        assert self.replica(node).role is Role.LEADER
        return self.replica(node)

    def propose(self, node: NodeId, *data: object) -> None:
        """Append these, one offset each, as one write."""
        host = self.hosts[node]
        host.run(host.replica.propose([(1, item) for item in data]))

    def tick(self, count: int = 1) -> None:
        """Let time pass everywhere, and deliver what comes of it."""
        for _ in range(count):
            for host in self.hosts.values():
                if host.alive and host.replica.needs_tick:
                    host.run(host.replica.tick())
            self.deliver()

    def snapshot(self, source: NodeId, to: NodeId, at: EntryId | None = None) -> None:
        """Carry out a SendSnapshot of `source`: a snapshot at `at`, by default at its log's start."""
        host, target = self.hosts[source], self.hosts[to]
        host.snapshots.remove(to)
        where = at or host.replica.log.terms.start
        self.receive(source, to, SnapshotOffer(SHARD, host.replica.term, source, where))
        target.run(target.replica.snapshot_installed(where))
        host.run(host.replica.snapshot_sent(to, where))

    def trim(self, node: NodeId, log_start: int) -> None:
        """Retention on one node."""
        host = self.hosts[node]
        host.replica.trimmed(log_start)
        host.log = [entry for entry in host.log if entry.base_offset >= log_start]
        host.disk = [entry for entry in host.disk if entry.base_offset >= log_start]
        host.log_start = host.start = host.replica.log.terms.start

    def crash(self, node: NodeId) -> None:
        self.hosts[node].crash()
        self.drop(node)

    def restart(self, node: NodeId) -> None:
        self.hosts[node].boot()

    def wipe(self, node: NodeId) -> None:
        """Lose the node's disk; when it starts again it knows that it has forgotten everything."""
        self.crash(node)
        host = self.hosts[node]
        host.disk, host.start, host.term, host.voted_for, host.high_watermark = [], EntryId(0, 0), 0, None, 0
        host.damaged = host.forgot = True

    # -- what must always be true --------------------------------------------------------------------------------------

    def role_changed(self, host: Host, action: RoleChanged) -> None:
        host.snapshots.clear()  # of an earlier leadership, if any
        if action.role is Role.LEADER:
            assert self.leaders.setdefault(action.term, host.node) == host.node, (
                f"two leaders in term {action.term}"
            )

    def committed(self, host: Host, high_watermark: int) -> None:
        """Nobody may ever report another committed log than the others."""
        log = [entry for entry in host.log if entry.next_offset <= high_watermark]
        known = {entry.base_offset: entry for entry in self.chosen}
        for entry in log:
            assert known.get(entry.base_offset, entry) == entry, (
                f"{host.node} commits {entry}, not {known[entry.base_offset]}"
            )
        if log and (not self.chosen or log[-1].next_offset > self.chosen[-1].next_offset):
            self.chosen = [e for e in self.chosen if e.base_offset < log[0].base_offset] + log

    def durable_copies(self, entry: Entry) -> int:
        """How many disks hold an entry."""
        return sum(entry in host.disk for host in self.hosts.values())

    @property
    def leading(self) -> list[NodeId]:
        """Who thinks it leads."""
        return [node for node, host in self.hosts.items() if host.alive and host.replica.role is Role.LEADER]


def entries(term: int, base: int, *data: object) -> tuple[Entry, ...]:
    """Entries of one offset each, from `base` on."""
    return tuple(Entry(term, base + i, base + i + 1, item) for i, item in enumerate(data))


def cursor_of(cluster: "Cluster", leader: NodeId, node: NodeId) -> FollowerStatus:
    """What a leader knows of a follower."""
    return next(one for one in cluster.hosts[leader].replica.followers() if one.node == node)


def diverged() -> "Cluster":
    """Node 3 has entries of term 2 that nobody else has; node 1 is to lead term 3."""
    start = (term_start(1, 0), *entries(1, 1, "a", "b"))
    logs = {1: start, 2: start, 3: (*start[:2], term_start(2, 2), *entries(2, 3, "x", "y"))}
    return Cluster(logs=logs, terms={1: 1, 2: 1, 3: 2})


def trimmed() -> "Cluster":
    """Node 1 leads and has trimmed its log beyond what node 3, which was away, has."""
    cluster = Cluster()
    cluster.lead(1, 1)
    cluster.isolate(3)
    cluster.propose(1, *"abcd")
    cluster.deliver()
    cluster.tick()
    cluster.trim(1, 3)
    cluster.heal()
    cluster.tick(4)
    return cluster
