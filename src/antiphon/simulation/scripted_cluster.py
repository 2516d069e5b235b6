"""A cluster that is moved by hand: nothing happens on it but what the caller asks for.

The seeded world draws everything; here a script says which message arrives, which disk syncs and which node crashes. The
replicas are the real ones, and the checker of the seeded world watches them just the same. Time is ticks given to a
replica, messages wait in one queue in the order in which they were sent.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from antiphon.invariants import invariant
from antiphon.records.entry_id import EMPTY, EntryId, TermIndex
from antiphon.replication.actions import (
    Action,
    AppendLog,
    Commit,
    LeaderReady,
    LostTail,
    MembersChanged,
    PersistTerm,
    ProposeLiveSet,
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
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import Members, MembersIndex
from antiphon.replication.messages import AnyMessage, Append, Entry, NodeId, RequestVote
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import LogCondition, Role
from antiphon.replication.restored_state import RestoredState
from antiphon.simulation.checker import Checker
from antiphon.simulation.replica_files import ReplicaFiles, StorageAction
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from antiphon.simulation.stored_log import StoredLog

SHARD = 1
COORDINATOR: NodeId = 0  # what is sent to it is kept in `Stage.told`
ENTRY_BYTES = 100  # what a replica takes for the size of an entry that is not bytes
MESSAGES_MAX = 100_000  # delivered at a time; more means that the replicas talk to each other for ever
ACTIONS_MAX = 10_000  # of one event
MEMBERS = "members"  # content of an entry that changes the members
TERM_START = "start"  # content of the entry with which a leader opens its term


class Underway(NamedTuple):
    """A message between its sender and its receiver."""

    source: NodeId
    to: NodeId
    message: AnyMessage


class ScriptedReplica:
    """One node: a replica while it lives, and its disk, which outlives it."""

    def __init__(self, stage: "ScriptedCluster", node: NodeId, start: EntryId) -> None:
        self.stage = stage
        self.node = node
        self.shard = SHARD
        self.files = ReplicaFiles()
        self.files.log.reset(start, 0)
        self.alive = False
        self.lost = 0  # offsets that this node had acknowledged as leader and gave up
        self.auto_sync = True  # writes are durable as soon as the event that caused them is over
        self.writes: deque[StorageAction] = deque()
        self.outbox: list[
            Underway
        ] = []  # used where `Cast.holds_back` says that sending is a step of its own
        self.pushes: dict[
            NodeId, dict[int, None]
        ] = {}  # ends of the Appends with entries sent to each, this term

    def boot(self) -> None:
        """Make the replica from what is on the disk."""
        self.alive = True
        self.log: StoredLog = self.files.log.copy()
        self.replica = self.stage.make_replica(self)
        self.term_seen, self.mark_seen = self.replica.term, self.replica.settled
        self.proposal: ProposeLiveSet | None = None
        self.stage.truth.hosted[self.node] = self
        self.stage.checker.replica(self)

    @property
    def role(self) -> Role:
        """Role as the replica itself sees it."""
        return self.replica.role

    def term_now(self) -> int:
        """The replica's term."""
        return self.replica.term

    def run(self, actions: Iterable[Action]) -> list[Action]:
        """Carry out what one event caused, in order, check the replica, and let the disk sync. Returns what was done."""
        pending, done = deque(actions), list[Action]()
        if self.role is Role.LEADER:
            self._note_settled()
        while pending:
            invariant(len(done) < ACTIONS_MAX, f"one event causes {len(done)} actions")
            action = pending.popleft()
            done.append(action)
            pending.extendleft(reversed(self._carry_out(action)))
        self._note_settled()
        self.stage.checker.replica(self)
        if self.auto_sync and self.writes:
            done += self.sync()
        return done

    def _carry_out(self, action: Action) -> Sequence[Action]:
        match action:
            case PersistTerm() | AppendLog() | TruncateLog() | ResetLog():
                self._stage_write(action)
            case Send():
                self._send(action.to, action.message)
            case ReadEntries():
                count = max(1, action.max_bytes // ENTRY_BYTES)
                entries = self.log.read(action.from_offset, self.log.end_offset, count)
                return self.replica.entries_read(action.to, entries, ENTRY_BYTES * len(entries))
            case Commit():
                self._commit(action.high_watermark)
            case RoleChanged():
                self._role_changed(action)
            case SendSnapshot():
                self.send_snapshot(action.to)
            case ProposeLiveSet():
                self.proposal = action
                live = " ".join(map(self.stage.name, action.live))
                self.stage.say(f"{self.stage.name(self.node)} wants {live} recorded as live")
            case LostTail():
                self.lost += action.to_offset - action.from_offset
                self.stage.checker.tail_lost(self, action.from_offset, action.to_offset)
                self.stage.say(
                    f"{self.stage.name(self.node)} loses what it acknowledged from {action.from_offset}"
                )
            case Repaired():
                self.files.condition = LogCondition.SOUND
            case LeaderReady() | ReadReady() | ReadFailed() | MembersChanged():
                pass
        return ()

    def send_snapshot(self, to: NodeId) -> None:
        """A follower's log cannot be joined. Logs are cut only where a kind of actor knows what to do about it."""
        raise ViolationError(
            "no-crash", f"node {self.node} wants a snapshot for node {to}; no log was ever cut here", SHARD
        )

    def _commit(self, high_watermark: int) -> None:
        settled = min(high_watermark, self.replica.settled)
        if settled > self.mark_seen:
            self.stage.checker.committed(self, settled)
        if high_watermark > settled:
            self.files.acknowledged = high_watermark
        self.stage.say(f"{self.stage.name(self.node)} commits up to {high_watermark}")

    def _note_settled(self) -> None:
        """What is settled may rise without a word, where more than that is acknowledged."""
        if self.mark_seen < self.replica.settled <= self.log.end_offset:
            self.stage.checker.committed(self, self.replica.settled)

    def _stage_write(self, action: StorageAction) -> None:
        checker = self.stage.checker
        match action:
            case AppendLog():
                self.log.append(action.entries)
                checker.appended(self, len(action.entries))
            case TruncateLog():
                checker.cut(self)
                self.log.truncate(action.to_offset)
                self.stage.say(f"{self.stage.name(self.node)} cuts its log at {action.to_offset}")
            case ResetLog():
                checker.cut(self)
                self.log.reset(action.at, self.stage.chain_of(action))
            case PersistTerm():
                pass
        self.writes.append(action)

    def _send(self, to: NodeId, message: AnyMessage) -> None:
        self.stage.checker.sent(self, to, message)
        if isinstance(message, Append) and message.entries:
            before = [end for end in self.pushes.get(to, {}) if end <= message.prev.offset]
            self.pushes[to] = dict.fromkeys(
                [*before, message.entries[-1].next_offset]
            )  # later ones were lost
        sent = Underway(self.node, to, message)
        if self.stage.cast.holds_back:
            self.outbox.append(sent)
        else:
            self.stage.send(sent)

    def _role_changed(self, action: RoleChanged) -> None:
        self.pushes.clear()
        if action.role is Role.LEADER:
            self.stage.checker.became_leader(self, action.term)
            self.stage.say(f"{self.stage.name(self.node)} leads term {action.term}")

    def sync(self) -> list[Action]:
        """Make everything that was written durable, and tell the replica."""
        done: list[Action] = []
        while self.writes:
            writes, self.writes = self.writes, deque()
            done += self.make_durable(writes)
        return done

    def make_durable(self, writes: Iterable[StorageAction]) -> list[Action]:
        """The disk carries out writes, the oldest that there are, and the replica hears of it."""
        write_id = 0
        for write in writes:
            self.files.carry_out(write, self.stage.chain_of(write))
            write_id = write.write_id
            if isinstance(write, TruncateLog | ResetLog):
                self.stage.checker.durable_shrank(SHARD)
        return self.run(self.replica.persisted(write_id)) if write_id else []

    def flush(self) -> None:
        """Sync, and hand over what was said to the network: one step of a replica whose sending is held back."""
        self.sync()
        sent, self.outbox = self.outbox, []
        for one in sent:
            self.stage.send(one)

    def crash(self) -> None:
        """The process ends; what was not durable is gone."""
        self.alive = False
        self.writes.clear()
        self.outbox.clear()
        self.stage.truth.hosted.pop(self.node, None)
        self.stage.checker.durable_shrank(SHARD)

    def in_flight(self, to: NodeId) -> int:
        """How many messages with entries a follower has been sent in this leadership and has not acknowledged."""
        status = next((one for one in self.replica.followers() if one.node == to), None)
        if status is None:
            return 0
        return sum(status.ack_offset < end <= status.last_pushed for end in self.pushes.get(to, {}))


class Cast(NamedTuple):
    """What the nodes of a stage are.

    Attributes:
        replica: makes the replicas that vote.
        actor: makes the nodes.
        holds_back: sending and syncing wait for `ScriptedReplica.flush`.
    """

    replica: Callable[..., RaftReplica] = RaftReplica
    actor: Callable[["ScriptedCluster", NodeId, EntryId], ScriptedReplica] = ScriptedReplica
    holds_back: bool = False


class ScriptedCluster:
    """Nodes 1..n of one shard, the messages between them, and the checker that watches.

    Args:
        names: of the nodes, for messages to people; node 1 is the first.
        election: settings of elections; every replica's patience is its least number of ticks, never random.
        votes: replicas elect their leader; otherwise a coordinator, which is the caller, appoints it.
        config: settings of the replicas.
        start: where every log begins.
        founders: the members at first, and the log says who they are later; None: all nodes vote, for ever.
        cast: who plays.
    """

    def __init__(
        self,
        names: Sequence[str],
        election: ElectionConfig,
        *,
        votes: bool = True,
        config: ReplicaConfig | None = None,
        start: EntryId = EMPTY,
        founders: Members | None = None,
        cast: Cast | None = None,
    ) -> None:
        self.names = list(names)
        self.votes = votes
        self.cast = cast or Cast()
        self.patience = election.election_ticks_min
        self._config = config or ReplicaConfig()
        self._election = election
        self.checker = Checker()
        everybody = tuple(range(1, len(names) + 1))
        self._members_in_log = founders is not None
        self.founders = founders or Members(everybody)
        self.truth = self.checker.add_shard(SHARD, self.founders.voters)
        self.truth.members = self.founders
        rule = self._config.commit
        self.truth.may_lose = rule.may_lose(len(self.truth.ensemble))
        self.truth.min_live = self._config.min_live
        self.truth.committed.reset(start, 0)
        self.actors = {node: self.cast.actor(self, node, start) for node in everybody}
        self.truth.files.update({node: actor.files for node, actor in self.actors.items()})
        self.underway: deque[Underway] = deque()
        self.cut: set[tuple[NodeId, NodeId]] = set()  # asked for membership only
        self.told: list[tuple[NodeId, AnyMessage]] = []  # to the coordinator
        self.last_said: dict[tuple[NodeId, NodeId], AnyMessage] = {}
        self.notes: list[str] = []

    # -- beginning -------------------------------------------------------------------------------------------------

    def add_node(self, name: str, start: EntryId, *, joining: bool) -> ScriptedReplica:
        """Start one more node. With `joining` it began empty when the shard was older, so it votes only once it is fed."""
        self.names.append(name)
        node = len(self.names)
        actor = self.actors[node] = self.cast.actor(self, node, start)
        actor.files.condition = LogCondition.JOINING if joining else LogCondition.SOUND
        self.truth.files[node] = actor.files
        actor.boot()
        return actor

    def preload(self, node: NodeId, entries: Sequence[Entry], committed: int) -> None:
        """Put a log on a disk before the beginning; what is before `committed` is known there to be committed."""
        files = self.actors[node].files
        files.log.append(entries)
        files.term = max(files.term, files.log.end.term)
        files.high_watermark = committed
        if committed > self.truth.committed.end_offset:
            self.truth.committed.append(
                files.log.read(self.truth.committed.end_offset, committed, len(entries))
            )
            self.truth.commit_ends = [(self.truth.committed.end.term, committed)]

    def open(self) -> None:
        """Start every node."""
        for actor in self.actors.values():
            actor.boot()
            self.checker.appended(actor, len(actor.log.entries))
        self.checker.durable_shrank(SHARD)

    def make_replica(self, actor: ScriptedReplica) -> Replica | RaftReplica:
        """A replica from what a disk has."""
        files = actor.files
        terms = TermIndex(files.log.start.offset, files.log.start.term)
        for entry in files.log.entries:
            terms.append(entry.term, entry.next_offset)
        restored = RestoredState(
            terms=terms,
            term=files.term,
            voted_for=files.voted_for,
            high_watermark=files.high_watermark,
            acknowledged=files.acknowledged,
            condition=files.condition,
            members=self._members_index(files) if self.votes and self._members_in_log else None,
        )
        entries = EntryFactory(term_start, members=_members_entry)
        if self.votes:
            return self.cast.replica(
                node_id=actor.node,
                shard=SHARD,
                ensemble=self.founders.voters,
                restored=restored,
                entries=entries,
                config=self._config,
                election=self._election,
                election_timeout_ticks=lambda: self.patience,
            )
        return Replica(
            node_id=actor.node,
            shard=SHARD,
            ensemble=self.founders.voters,
            restored=restored,
            entries=entries,
            config=self._config,
        )

    def _members_index(self, files: ReplicaFiles) -> MembersIndex:
        changes = [
            (entry.next_offset, entry.members) for entry in files.log.entries if entry.members is not None
        ]
        return MembersIndex(files.members or self.founders, changes)

    def chain_of(self, action: StorageAction) -> int:
        """What the log that a snapshot brings comes to at its end; for other writes it means nothing."""
        chain = self.truth.committed.chain_at(action.at.offset) if isinstance(action, ResetLog) else 0
        if chain is None:
            raise ViolationError("durable-majority", f"a snapshot of what is not committed: {action}", SHARD)
        return chain

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, node: NodeId) -> list[Action]:
        """One tick passes for a living replica that wants it."""
        actor = self.actors[node]
        return actor.run(actor.replica.tick()) if actor.alive and actor.replica.needs_tick else []

    def campaign(self, node: NodeId) -> bool:
        """Let ticks pass for a replica until it asks for votes. False if it leads, or cannot campaign."""
        if self.actors[node].role is Role.LEADER:
            return False
        return any(any(map(is_candidacy, self.tick(node))) for _ in range(2 * self.patience + 1))

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, sent: Underway) -> None:
        """A message leaves its sender; on a link that is cut it is lost."""
        self.last_said[sent.source, sent.to] = sent.message
        if sent.to == COORDINATOR:
            self.told.append((sent.source, sent.message))
        elif (sent.source, sent.to) not in self.cut:
            self.underway.append(sent)

    def receive(self, source: NodeId, to: NodeId, message: AnyMessage) -> list[Action]:
        """A message arrives; nobody is there at a crashed node."""
        actor = self.actors[to]
        return actor.run(actor.replica.receive(source, message)) if actor.alive else []

    def take(self, wanted: Callable[[Underway], bool]) -> list[Underway]:
        """Remove from the network what is wanted, in the order in which it was sent."""
        taken = [sent for sent in self.underway if wanted(sent)]
        self.underway = deque(sent for sent in self.underway if not wanted(sent))
        return taken

    def deliver_all(self) -> int:
        """Deliver messages in order, answers to them as well, until there are none; returns how many."""
        count = 0
        while self.underway:
            count += 1
            invariant(count < MESSAGES_MAX, f"{count} messages and no end")
            self.receive(*self.underway.popleft())
        return count

    # -- people ----------------------------------------------------------------------------------------------------

    def name(self, node: NodeId | None) -> str:
        """A node's name."""
        return "none" if node is None else self.names[node - 1]

    def say(self, text: str) -> None:
        """Note something that a reader of the run wants to know."""
        self.notes.append(text)


def is_candidacy(action: Action) -> bool:
    """Does a replica ask for votes, or is it about to, once its own is durable?"""
    return isinstance(action, PersistTerm) or (
        isinstance(action, Send) and isinstance(action.message, RequestVote)
    )


def _members_entry(term: int, base_offset: int, members: Members) -> Entry:
    return Entry(term, base_offset, base_offset + 1, MEMBERS, members)


def term_start(term: int, base_offset: int) -> Entry:
    """The entry that opens a leadership."""
    return Entry(term, base_offset, base_offset + 1, TERM_START)
