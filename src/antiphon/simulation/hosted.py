"""One replica on one simulated node: the pure object and everything that carries out its actions.

This is the simulated counterpart of the node's shard host. It keeps the log as readers see it (with what is appended but
not yet durable), hands storage actions to the node's disk, and remembers which client waits for which offset.
"""

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any

from antiphon.coordination.profiles import Replication
from antiphon.invariants import invariant
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import (
    Action,
    AppendLog,
    Commit,
    Feed,
    LeaderReady,
    LostTail,
    MembersChanged,
    PersistTerm,
    ProposeLive,
    ReadFailed,
    ReadReady,
    Repaired,
    ResetLog,
    RoleChanged,
    Send,
    SendSnapshot,
    TruncateLog,
)
from antiphon.replication.members import Members
from antiphon.replication.messages import Entry, NodeId, SnapshotOffer
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import Role
from antiphon.simulation.client_messages import Answer, AppendRequest, ClientData, ReadRequest
from antiphon.simulation.disk import ReplicaFiles, StorageAction, Write
from antiphon.simulation.scheduler import MILLISECOND

if TYPE_CHECKING:
    from antiphon.simulation.node import SimulatedNode
    from antiphon.wire.metadata import ShardMeta

ACTIONS_MAX = 10_000  # of one event; more means that the protocol talks to itself for ever


PureReplica = Replica | RaftReplica


class Hosted:
    """A living replica. It ends with the node's crash; `files` is what stays."""

    def __init__(self, node: "SimulatedNode", shard: int, files: ReplicaFiles, replica: PureReplica) -> None:
        self.host = node
        self.node = node.node_id
        self.shard = shard
        self.files = files
        self.replica = replica
        self.log = files.log.copy()
        self.truth = node.world.checker.shards[shard]
        self.term_seen = replica.term
        self.mark_seen = replica.settled
        self.proposal: ProposeLive | None = None  # the live set that this leader wants recorded
        self.positions: dict[tuple[int, int], tuple[int, int]] = {}
        self._waiting: dict[
            int, list[tuple[Any, ...]]
        ] = {}  # end -> answers that may be given when it is committed
        self._reads: dict[int, tuple[int, int, int]] = {}  # client, sequence, end that a refusal names or -1
        self._next_token = 0
        self._remember(self.log.entries)
        self._learn_snapshot(self.log.start.offset)

    @property
    def role(self) -> Role:
        """Role as the replica itself sees it."""
        return self.replica.role

    def term_now(self) -> int:
        """The replica's term."""
        return self.replica.term

    def configure(self, options: Replication, meta: "ShardMeta") -> None:
        """Take over the topic's settings, and what is recorded of the shard."""
        if options.commit != self.replica.commit_rule:
            self.host.world.trace.tell_only("rule", self.shard, self.node, str(options.commit))
            self.run(self.replica.set_commit(options.commit))
        if meta.live_version and meta.term == self.replica.term:
            self.run(self.replica.live_recorded(meta.term, meta.live_version, meta.live))

    def closed(self) -> None:
        """The replica is removed from this node: clients try elsewhere."""
        for answers in self._waiting.values():
            for client, sequence, *_ in answers:
                self._answer(client, sequence, "not_leader")
        for client, sequence, _ in self._reads.values():
            self._answer(client, sequence, "not_leader")
        self._waiting.clear()
        self._reads.clear()

    # -- carrying out actions -------------------------------------------------------------------------------------

    def run(self, actions: Iterable[Action]) -> None:
        """Carry out what one event caused, in order, and then check the replica."""
        pending = deque(actions)
        count = 0
        if self.role is Role.LEADER:
            self._note_settled()
        while pending:
            count += 1
            invariant(count < ACTIONS_MAX, f"one event causes {count} actions")
            action = pending.popleft()
            pending.extendleft(reversed(self._carry_out(action)))
        self._note_settled()
        self.host.world.checker.replica(self)

    def _carry_out(self, action: Action) -> list[Action]:
        match action:
            case PersistTerm() | AppendLog() | TruncateLog() | ResetLog():
                self._store(action)
            case Send():
                self.host.world.checker.sent(self, action.to, action.message)
                self.host.send(action.to, action.message)
            case Feed():
                return self._feed(action)
            case SendSnapshot():
                self._send_snapshot(action.to)
            case Commit():
                self._commit(action.high_watermark)
            case RoleChanged():
                self._role_changed(action)
            case LeaderReady():
                self.host.world.trace.say("ready", self.shard, f"node {self.node} term {action.term}")
                self.host.world.trace.tell_only("serves", self.shard, self.node, action.term)
                self.host.leader_ready(self)
            case ReadReady():
                self._read_ready(action)
            case ReadFailed():
                client, sequence, _ = self._reads.pop(action.token)
                self._answer(client, sequence, "not_leader")
            case _:
                self._note(action)
        return []

    def _note(self, action: Action) -> None:
        """What others want to know."""
        world = self.host.world
        match action:
            case Repaired():
                world.trace.tell_only("repaired", self.shard, self.node)
                self.files.damaged = self.files.forgot = self.files.joining = False
            case MembersChanged():
                state = "committed" if action.committed else "in force"
                world.trace.say("members", self.shard, f"node {self.node} {state}", action.members)
                if self.role is Role.LEADER:
                    voters, outgoing, learners = (
                        action.members.voters,
                        action.members.outgoing,
                        action.members.learners,
                    )
                    world.trace.tell_only("voters", self.shard, self.node, state, voters, outgoing, learners)
            case ProposeLive():
                self.proposal = action
                world.trace.tell_only("wants-live", self.shard, self.node, action.live, action.version)
                self.host.live_proposed()
            case LostTail():
                world.trace.tell_only(
                    "lost-tail", self.shard, self.node, action.from_offset, action.to_offset
                )
                world.checker.tail_lost(self, action.from_offset, action.to_offset)
                if self.truth.unclean:
                    self.mark_seen = min(self.mark_seen, action.from_offset)

    def _note_settled(self) -> None:
        """What no election can lose may rise without a word, where more than that is acknowledged."""
        settled = self.replica.settled
        if settled > self.mark_seen and settled >= self.log.start.offset:
            self.host.world.checker.committed(self, settled)

    def _store(self, action: StorageAction) -> None:
        world, chain = self.host.world, 0
        match action:
            case AppendLog():
                self.log.append(action.entries)
                self._remember(action.entries)
                world.checker.appended(self, len(action.entries))
                world.trace.say("append", self.shard, f"node {self.node}", *action.entries)
            case TruncateLog():
                world.checker.cut(self)
                world.trace.say("truncate", self.shard, f"node {self.node} to {action.to_offset}")
                if action.to_offset < self.log.end_offset:
                    world.trace.tell_only(
                        "cuts", self.shard, self.node, action.to_offset, self.log.end_offset
                    )
                for entry in self.log.truncate(action.to_offset):
                    if isinstance(entry.data, ClientData):
                        self.positions.pop((entry.data.client, entry.data.sequence), None)
            case ResetLog():
                world.checker.cut(self)
                world.trace.say("reset", self.shard, f"node {self.node} at", action.at)
                world.trace.tell_only("resets", self.shard, self.node, action.at.offset)
                chain = self.truth.committed.chain_at(action.at.offset) or 0
                self.log.reset(action.at, chain)
                self.positions.clear()
                self._learn_snapshot(action.at.offset)
            case PersistTerm():
                world.trace.say(
                    "persist", self.shard, f"node {self.node} term {action.term} vote {action.voted_for}"
                )
        self.host.disk.submit(Write(self.shard, self.files, action, chain))

    def persisted(self, write_id: int) -> None:
        """Everything up to `write_id` is durable."""
        self.run(self.replica.persisted(write_id))

    def _remember(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if isinstance(entry.data, ClientData):
                self.positions[entry.data.client, entry.data.sequence] = (
                    entry.base_offset,
                    entry.next_offset,
                )

    def _learn_snapshot(self, end: int) -> None:
        """What is cut off the head of the log is known from the snapshot that replaced it."""
        if end:
            for identity, position in self.truth.position_of.items():
                if position[1] <= end:
                    self.positions[identity] = position

    # -- feeding followers -----------------------------------------------------------------------------------------

    def _feed(self, action: Feed) -> list[Action]:
        """Entries in memory are read at once; now and then they come from the disk and take their time."""
        random, world = self.host.random, self.host.world
        if random.random() < 0.8:
            return self._read_and_feed(action)
        world.scheduler.after(random.randrange(3 * MILLISECOND), self._late_feed, action)
        return []

    def _late_feed(self, action: Feed) -> None:
        if self.host.lives(self):
            self.host.when_awake(self._feed_now, action)

    def _feed_now(self, action: Feed) -> None:
        if not self.host.lives(self):
            return
        out = self._read_and_feed(action)
        if out and not self.host.read_is_sound(self, action.from_offset, self.log.end_offset):
            return
        self.run(out)

    def _read_and_feed(self, action: Feed) -> list[Action]:
        entries = self.log.read(action.from_offset, self.log.end_offset, self.host.random.randint(1, 8))
        return self.replica.fed(action.to, entries, 100 * len(entries))

    def _send_snapshot(self, to: NodeId) -> None:
        world = self.host.world
        at_offset = self.replica.settled
        at = EntryId(self._term_before(at_offset), at_offset)
        world.trace.say("snapshot", self.shard, f"node {self.node} to node {to}", at)
        members = self.replica.members_at(at_offset) if isinstance(self.replica, RaftReplica) else None
        self.host.send(to, SnapshotOffer(self.shard, self.replica.term, self.node, at, members))
        world.scheduler.after(
            self.host.random.randrange(1, 50) * MILLISECOND, self._snapshot_done, to, at, members
        )

    def trim(self, random: Random) -> None:
        """Retention: cut some of what is committed and durable off the head of the log."""
        limit = min(self.replica.settled, self.replica.durable_end, self.files.log.end_offset)
        ends = [end for end in self.log.ends if end <= limit and self.files.log.chain_at(end) is not None]
        if not ends:
            return
        log_start = random.choice(ends)
        self.host.world.trace.tell("trim", self.shard, self.node, log_start)
        self.log.trim(log_start)
        self.files.trim(log_start)
        self.files.high_watermark = max(self.files.high_watermark, log_start)
        self.run(self.replica.trimmed(log_start))

    def _term_before(self, offset: int) -> int:
        for entry in reversed(self.log.entries):
            if entry.next_offset <= offset:
                return entry.term
        return self.log.start.term

    def _snapshot_done(self, to: NodeId, at: EntryId, members: Members | None) -> None:
        if not self.host.lives(self):
            return
        world = self.host.world
        target = world.nodes[to].hosted.get(self.shard)
        arrived = (
            target is not None
            and not world.network.is_cut(self.node, to)
            and target.term_now() == self.term_now()
        )
        world.trace.note("snapshot", self.shard, self.node, to, at, arrived)
        if arrived and target is not None:
            replica = target.replica
            installed = (
                replica.snapshot_installed(at, members)
                if isinstance(replica, RaftReplica)
                else replica.snapshot_installed(at)
            )
            target.run(installed)
            self.run(self.replica.snapshot_sent(to, at))
        else:
            self.run(self.replica.snapshot_failed(to))

    # -- commits, roles, clients -----------------------------------------------------------------------------------

    def _commit(self, high_watermark: int) -> None:
        world = self.host.world
        settled = min(high_watermark, self.replica.settled)
        if settled > self.mark_seen:
            world.checker.committed(self, settled)
        world.trace.say("commit", self.shard, f"node {self.node} up to {high_watermark}")
        if settled <= self.files.log.end_offset and self.host.random.random() < 0.5:
            self.files.high_watermark = max(self.files.high_watermark, settled)
        if high_watermark > settled:
            self.files.acknowledged = max(self.files.acknowledged, high_watermark)
        for end in [end for end in self._waiting if end <= high_watermark]:
            for answer in self._waiting.pop(end):
                self._answer(*answer)
        self.host.committed(self, high_watermark)

    def _role_changed(self, action: RoleChanged) -> None:
        world = self.host.world
        world.trace.say("role", self.shard, f"node {self.node} is {action.role} in term {action.term}")
        self.proposal = None
        if action.role is Role.LEADER:
            end = self.log.end
            world.trace.tell_only("leads", self.shard, self.node, action.term, end.offset, end.term)
            world.checker.became_leader(self, action.term)
            return
        for answers in self._waiting.values():
            for client, sequence, *_ in answers:
                self._answer(client, sequence, "not_leader")
        self._waiting.clear()
        self.host.leadership_lost(self)

    def client_append(self, request: AppendRequest) -> None:
        """A client's append; answered now, or when what the answer rests on is committed."""
        who = (request.client, request.sequence)
        replica = self.replica
        if replica.role is not Role.LEADER or not replica.ready or self.host.disk.full:
            self._answer(*who, "not_leader")
        elif who in self.positions:
            base_offset, end = self.positions[who]
            self.answer_at(end, *who, "ok", base_offset)
        elif request.expected >= 0 and request.expected != replica.log_end:
            self.refuse(*who, replica.log_end)
        else:
            base_offset = replica.log_end
            self.answer_at(base_offset + request.count, *who, "ok", base_offset)
            self.run(replica.propose([(request.count, ClientData(*who, request.expected))]))

    def client_read(self, request: ReadRequest) -> None:
        """A client's read; answered when leadership is confirmed."""
        if self.replica.role is not Role.LEADER or not self.replica.ready:
            self._answer(request.client, request.sequence, "not_leader")
            return
        self._confirm(request.client, request.sequence, -1)

    def refuse(self, client: int, sequence: int, actual: int) -> None:
        """Say no to a condition, once what it was judged against is committed and leadership is confirmed after now.

        A deposed leader's "no" could contradict what a newer leader has acknowledged.
        """
        self._confirm(client, sequence, actual)

    def _confirm(self, client: int, sequence: int, actual: int) -> None:
        self._next_token += 1
        self._reads[self._next_token] = (client, sequence, actual)
        self.run(self.replica.request_read(self._next_token))

    def _read_ready(self, action: ReadReady) -> None:
        client, sequence, actual = self._reads.pop(action.token)
        if actual >= 0:
            self.answer_at(actual, client, sequence, "refused", actual)
            return
        applied = self.replica.high_watermark
        invariant(applied >= action.offset, f"read at {action.offset} is ready, applied is {applied}")
        chain = self.log.chain_at(applied)
        self._answer(client, sequence, "ok", applied, chain or 0, self.replica.term)

    def answer_at(self, end: int, *answer: Any) -> None:
        """Answer a client when everything before `end` is committed."""
        if end <= self.replica.high_watermark:
            self._answer(*answer)
        else:
            self._waiting.setdefault(end, []).append(answer)

    def _answer(
        self, client: int, sequence: int, outcome: str, offset: int = -1, chain: int = 0, term: int = -1
    ) -> None:
        leader = self.replica.leader
        if outcome == "ok" and term < 0:
            self.host.world.checker.acknowledged(self, (client, sequence), offset)
        self.host.answer(Answer(client, sequence, outcome, offset, chain, -1 if leader is None else leader))
