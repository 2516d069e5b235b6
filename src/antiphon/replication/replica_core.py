"""What both kinds of replica share: roles, terms, following, leading, and what waits for the disk.

`Replica` (a coordinator chooses the leader) and `RaftReplica` (the replicas vote) differ only in how a term begins. Both
come down to two primitives that live here: `_fence`, the durable promise of a term, and `_lead`.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from antiphon.errors import NotLeaderError, NotReadyError
from antiphon.invariants import invariant, unreachable
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, AppendLog, Commit, Repaired, RoleChanged, Send
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.follower import FollowerSide
from antiphon.replication.leader import LeaderSide
from antiphon.replication.live_set import LiveSet
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AnyMessage,
    Append,
    Entry,
    NodeId,
    Reject,
    ShardId,
    SnapshotOffer,
    StaleTerm,
)
from antiphon.replication.replica_state import Event, LogCondition, Role, next_role
from antiphon.replication.replica_view import ReplicaView
from antiphon.replication.restored_state import RestoredState

Handler = Callable[[NodeId, Any, list[Action]], None]


class ReplicaCore(ReplicaView):
    """One replica of one shard, as a pure state machine: every method takes an event and returns actions.

    Args:
        node_id: this node.
        shard: the shard, cluster-wide number.
        ensemble: the voters, where nothing else is known; a replica that is not among the members is NOT_MEMBER (S0.5).
        restored: what the disk gave back.
        entries: makes the entries that the protocol writes itself.
        config: settings.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        shard: ShardId,
        ensemble: Sequence[NodeId],
        restored: RestoredState,
        entries: EntryFactory,
        config: ReplicaConfig,
    ) -> None:
        invariant(len(set(ensemble)) == len(ensemble), f"ensemble {ensemble} names a node twice")
        terms, members = restored.terms, restored.members
        self.node_id = node_id
        self.shard = shard
        self.members = (members.current if members is not None else None) or Members(tuple(ensemble))
        self.term = term = restored.term
        self.voted_for = restored.voted_for
        self.damaged = damaged = restored.condition is not LogCondition.SOUND
        self.failed = False
        self.role = Role.FENCED if node_id in self.members.everybody else Role.NOT_MEMBER
        self._loaded_term = term  # may have been led before a restart, so must not be led again
        self._repair_floor = term  # of the terms up to this one, an older self may have been part
        self._log = LocalLog(terms, restored.high_watermark)
        self._log.acknowledged = min(restored.acknowledged, terms.log_end)
        self._entries = entries
        self._config = config
        self._rule = config.commit
        self._following: FollowerSide | None = None
        self._leading: LeaderSide | None = None
        self._held: deque[tuple[int, Send]] = deque()  # said when the write with this id is durable
        self._cut_damage = damaged  # the part after the damage is still on the disk
        self._lost_peers: set[NodeId] = set()  # asked for membership only
        self._handlers: dict[type, Handler] = {
            Append: self._on_append,
            Ack: self._on_ack,
            Reject: self._on_reject,
            StaleTerm: self._on_stale_term,
            SnapshotOffer: self._on_snapshot_offer,
        }

    # -- events: messages ----------------------------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: AnyMessage) -> list[Action]:
        """A message of another node, or of the coordinator there. What is not allowed now is refused or ignored.

        Raises `ProtocolViolationError` for an Append whose entries do not follow each other.
        """
        out: list[Action] = []
        if self.failed:
            return out
        handler = self._handlers.get(type(message))
        if handler is not None and message.shard == self.shard:
            handler(sender, message, out)
        return out

    def _on_append(self, sender: NodeId, message: Append, out: list[Action]) -> None:
        if not self._follow(sender, message.term, Event.REPLICATE, out):
            return
        following = self._following
        if following is None:
            unreachable("a follower follows")
        if self._cut_damage:
            self._cut_damage = False
            self._log.cut(self._log.terms.log_end, out)
        following.damaged = self.damaged
        following.on_append(message, out)
        if self.damaged:
            self._check_repair(out)

    def _on_snapshot_offer(self, sender: NodeId, message: SnapshotOffer, out: list[Action]) -> None:
        self._follow(sender, message.term, Event.SNAPSHOT, out)

    def _follow(self, sender: NodeId, term: int, event: Event, out: list[Action]) -> bool:
        """Take `sender` as the leader of `term`. False if the message must be refused (S0.7, S1.10)."""
        if term < self.term:
            out.append(Send(sender, StaleTerm(self.shard, self.term)))
            return False
        if self.role is Role.NOT_MEMBER:
            return False  # there is no such edge: a NewTerm must come first
        if term > self.term:
            self._fence(term, None, out)
        if self.role is Role.LEADER:
            unreachable(f"nodes {self.node_id} and {sender} both lead term {term}")
        role = next_role(self.role, event)
        if role is None:
            return False
        following = self._following
        if following is None:
            self._following = following = FollowerSide(self.shard, self.term, self._log, self._config)
        if following.leader is None:
            self.role, following.leader = role, sender
            self._following_began(out)
        elif following.leader != sender:
            unreachable(f"nodes {following.leader} and {sender} both lead term {term}")
        return True

    def _following_began(self, out: list[Action]) -> None:
        out.append(RoleChanged(self.role, self.term, self.leader))

    def _on_ack(self, sender: NodeId, message: Ack, out: list[Action]) -> None:
        if self._leading is not None and message.term == self.term:
            self._leading.on_ack(sender, message, out)

    def _on_reject(self, sender: NodeId, message: Reject, out: list[Action]) -> None:
        if message.term > self.term:
            self._learn_term(message.term, out)
        elif self._leading is not None and message.term == self.term:
            self._leading.on_reject(sender, message, out)

    def _on_stale_term(self, _sender: NodeId, message: StaleTerm, out: list[Action]) -> None:
        if message.term > self.term:
            self._learn_term(message.term, out)

    def _learn_term(self, term: int, out: list[Action]) -> None:
        """Somebody is in a newer term: whatever this replica was in the older one, it is no longer (S1.10)."""
        if self.role is not Role.NOT_MEMBER:
            self._fence(term, None, out)

    @property
    def leader_shows_less(self) -> bool:
        """Has the leader not (yet) shown to have all that is settled here?

        For a moment that is so whenever a term begins. Where it lasts, others have lost entries that were acknowledged.
        """
        following = self._following
        shown = None if following is None else following.shown
        return shown is not None and shown < self._log.high_watermark and not self._config.unclean

    # -- the two primitives ----------------------------------------------------------------------------------------

    def _fence(self, term: int, voted_for: NodeId | None, out: list[Action]) -> None:
        """Promise a newer term: nothing of an older one is obeyed or said any more. Durable with the next write id."""
        invariant(term > self.term, f"terms only rise: {self.term} -> {term}")
        role = next_role(self.role, Event.NEW_TERM)
        invariant(role is Role.FENCED, f"NewTerm must fence a {self.role}")
        self.term, self.voted_for = term, voted_for
        self._held.clear()
        out.append(self._log.persist_term(term, voted_for))
        self._step_down(out)

    def _step_down(self, out: list[Action]) -> None:
        leading, self._leading, self._following = self._leading, None, None
        self.role = Role.FENCED
        out.append(RoleChanged(Role.FENCED, self.term, None))
        if leading is not None:
            leading.fail_reads(out)

    def _lead(
        self,
        members: Members,
        heads: Sequence[tuple[NodeId, EntryId]],
        out: list[Action],
        live: LiveSet | None = None,
    ) -> None:
        """Begin to lead: append the term-start entry and feed those who promised (S0.9, S1.36)."""
        role = next_role(self.role, Event.BECOME_LEADER)
        invariant(role is Role.LEADER and self._log.is_term_durable, f"a {self.role} cannot lead")
        self.role, self.members, self._following = Role.LEADER, members, None
        entry = self._entries.term_start(self.term, self._log.terms.log_end)
        self._leading = LeaderSide(
            shard=self.shard,
            node_id=self.node_id,
            term=self.term,
            members=members,
            rule=self._rule,
            live=live,
            log=self._log,
            config=self._config,
            make_marker=self._entries.commit_marker,
            on_ready=self._became_ready,
            on_settled=self._members_settled,
        )
        out.append(RoleChanged(Role.LEADER, self.term, self.node_id))
        self._leading.start(entry, heads, out)
        for node in sorted(self._lost_peers):
            self._leading.peer_lost(node)

    def _became_ready(self, out: list[Action]) -> None:
        """The term-start entry is committed."""

    def _members_settled(self, out: list[Action]) -> None:
        """What was committed before a change of members that was to be watched is held by the new voters."""

    # -- events: the disk --------------------------------------------------------------------------------------------

    def persisted(self, write_id: int) -> list[Action]:
        """Every write up to `write_id` is durable: say what was held back, count the own disk."""
        out: list[Action] = []
        if self.failed:
            return out
        log = self._log
        waits_for_term = not log.is_term_durable
        moved = log.persisted(write_id)
        if log.high_watermark < log.terms.log_start <= log.durable_end:
            log.high_watermark = log.terms.log_start  # a snapshot has taken the place of the log
            out.append(Commit(log.high_watermark))
        held = self._held
        while held and held[0][0] <= write_id:
            out.append(held.popleft()[1])
        if moved or waits_for_term:
            if self._leading is not None:
                self._leading.persisted(out)
            elif self._following is not None:
                self._following.persisted(out)
                if self.damaged:
                    self._check_repair(out)
        return out

    def _say_when_durable(self, to: NodeId, message: AnyMessage, out: list[Action]) -> None:
        """Send what rests on everything staged so far."""
        log = self._log
        if log.persisted_id >= log.write_id:
            out.append(Send(to, message))
        else:
            self._held.append((log.write_id, Send(to, message)))

    def _check_repair(self, out: list[Action]) -> None:
        """A damaged log is sound again once it has, durably, an entry that was committed in a term begun since the damage.

        Everything that was committed in older terms, and so everything that the lost part could have been counted for, is
        in the prefix of that entry. Within the term of the loss itself nothing proves it: an Append from before may come
        late, with a high watermark of then. So whoever wants the replica to vote again sees to a new election.
        """
        log = self._log
        mark = log.high_watermark
        if (
            self.term > self._repair_floor
            and mark >= log.terms.log_start
            and log.durable_end >= mark
            and log.terms.term_before(mark) == self.term
        ):
            self.damaged = False
            out.append(Repaired())
            if self._following is not None:
                # Who waits for this replica to be whole hears it where nobody writes, too.
                self._following.damaged = False
                self._following.acknowledge(out)

    def storage_failed(self) -> list[Action]:
        """A write or sync failed. The replica stops for good: it serves nobody and says nothing any more."""
        out: list[Action] = []
        if not self.failed:
            self.failed = True
            self._held.clear()
            self._step_down(out)
        return out

    def trimmed(self, log_start: int) -> list[Action]:
        """Retention removed the log before `log_start`, which is at most the high watermark."""
        invariant(
            log_start <= self._log.high_watermark,
            f"trim to {log_start} beyond what is settled, {self._log.high_watermark}",
        )
        if log_start > self._log.terms.log_start:
            self._log.terms.trim(log_start)
        return []

    # -- events: clients -----------------------------------------------------------------------------------------------

    def propose(self, batches: Sequence[tuple[int, object]]) -> list[Action]:
        """Append client batches, (number of offsets, data) each, from `log_end` on; in order, as one write.

        The caller has stamped the data with these offsets and this term. They are committed when a `Commit` reaches them.
        Raises `NotLeaderError`, `NotReadyError`: nothing was appended.
        """
        leading = self._leading
        if leading is None or not leading.ready:
            raise self._cannot_serve()
        out: list[Action] = []
        if batches:
            leading.propose(batches, out)
        return out

    def append_batch(self, count: int, data: object) -> AppendLog:
        """Append one client batch, as `propose` does, without sending it: `send_appended`, which the caller owes, sends all
        batches since as one message. This is for a host that must know at once where each batch stands.

        Raises `NotLeaderError`, `NotReadyError`: nothing was appended.
        """
        leading = self._leading
        if leading is None or not leading.ready:
            raise self._cannot_serve()
        return leading.append_batch(count, data)

    def send_appended(self) -> list[Action]:
        """Send the followers what `append_batch` has appended."""
        out: list[Action] = []
        if self._leading is not None:
            self._leading.send_appended(out)
        return out

    def request_read(self, token: int) -> list[Action]:
        """Ask to serve a linearizable read: `ReadReady(token, offset)` or `ReadFailed(token)` follows.

        Raises `NotLeaderError`, `NotReadyError`, and `OverloadedError` when too many reads wait.
        """
        leading = self._leading
        if leading is None or not leading.ready:
            raise self._cannot_serve()
        out: list[Action] = []
        leading.request_read(token, out)
        return out

    def _cannot_serve(self) -> NotLeaderError | NotReadyError:
        if self._leading is None:
            return NotLeaderError(
                f"node {self.node_id} is {self.role} of shard {self.shard}, not its leader",
                leader=self.leader,
            )
        return NotReadyError(
            f"node {self.node_id} leads shard {self.shard} but its term {self.term} has no committed entry yet; retry",
            leader=self.node_id,
        )

    def set_commit(self, rule: CommitRule) -> list[Action]:
        """Commit by another rule from now on, in this term and in later ones that do not go by a live set (C1).

        It is safe at any time: elections go by majorities whatever the rule. `live` takes effect with a term that is begun
        with a live set; without one it counts as `quorum`.
        """
        out: list[Action] = []
        if rule != self._rule:
            self._rule = rule
            if self._leading is not None:
                self._leading.set_commit(rule, out)
        return out

    def set_config(self, config: ReplicaConfig) -> list[Action]:
        """Other settings from now on, the commit rule included if it differs from the last settings'."""
        rule_changed = config.commit != self._config.commit
        self._config = config
        out: list[Action] = []
        if self._following is not None:
            self._following.config = config
        if self._leading is not None:
            self._leading.set_config(config)
            self._leading.recount(out)  # `min_live` says whether anything may be committed
        return out + self.set_commit(config.commit) if rule_changed else out

    def live_recorded(self, term: int, version: int, live: Collection[NodeId]) -> list[Action]:
        """The metadata says that `live` is the live replica set of `term` by now, as record `version` (S3.28, S3.29).

        It answers `ProposeLive`, and may be told again and of any term; only a newer record of this leadership counts.
        """
        out: list[Action] = []
        if self._leading is not None and term == self.term:
            self._leading.live_recorded(version, live, out)
        return out

    # -- events: feeding, snapshots, connections, time -----------------------------------------------------------------

    def fed(self, to: NodeId, entries: Sequence[Entry], size_bytes: int) -> list[Action]:
        """The entries that a `Feed` asked for, or none when they can no longer be read; any time later."""
        out: list[Action] = []
        if self._leading is not None:
            self._leading.fed(to, entries, size_bytes, out)
        return out

    def snapshot_sent(self, to: NodeId, at: EntryId) -> list[Action]:
        """The snapshot that `SendSnapshot` asked for reached the follower; it is the state at `at`."""
        out: list[Action] = []
        if self._leading is not None:
            self._leading.snapshot_sent(to, at, out)
        return out

    def snapshot_failed(self, to: NodeId) -> list[Action]:
        """The snapshot did not reach the follower; a later tick asks again."""
        if self._leading is not None:
            self._leading.snapshot_failed(to)
        return []

    def snapshot_installed(self, at: EntryId) -> list[Action]:
        """A snapshot of committed state up to `at` arrived here, whole.

        It is taken over, and only then, if the answer holds a `ResetLog`; otherwise the log has come that far by itself, or
        the replica no longer follows, and the snapshot is to be dropped.
        """
        out: list[Action] = []
        role = next_role(self.role, Event.SNAPSHOT)
        log = self._log
        if self.failed or role is None or log.terms.holds(at):
            return out
        following = self._following or FollowerSide(self.shard, self.term, log, self._config)
        if at.offset <= log.high_watermark:
            joined = log.terms.end.term == self.term or following.verified > at.offset
            if joined or not self._config.unclean or not self._contradicts(at, following):
                return out
            # The leader's log cannot be joined: after an unclean election it need not have what is settled here.
            log.give_up(at.offset, out)
        if self._following is None:
            self._following = following
            self.role = role
            out.append(RoleChanged(role, self.term, None))
        log.lose_tail(max(log.high_watermark, min(following.verified, log.acknowledged)), out)
        out.append(log.reset(at))
        self._cut_damage = False
        following.snapshot_installed()
        return out

    def _contradicts(self, at: EntryId, following: FollowerSide) -> bool:
        """Can the leader's log not have what is settled here? One that is merely told of less may have it all the same.

        Of what lies before the log's start only the last term is known: terms rise, so a later one cannot come before it.
        Otherwise the first such snapshot is refused; the leader then asks where this log is, and sends another one only
        if its own log does not have that.
        """
        terms = self._log.terms
        if at.offset >= terms.log_start or at.term > terms.start.term or following.was_sent_too_little:
            return True
        following.was_sent_too_little = True
        return False

    def peer_connected(self, node: NodeId) -> list[Action]:
        """A connection to `node` is there. Nodes count as connected until `peer_lost` says otherwise."""
        out: list[Action] = []
        self._lost_peers.discard(node)
        if self._leading is not None:
            self._leading.peer_connected(node, out)
        return out

    def peer_lost(self, node: NodeId) -> list[Action]:
        """The connection to `node` broke: nothing is sent there until `peer_connected`."""
        self._lost_peers.add(node)
        if self._leading is not None:
            self._leading.peer_lost(node)
        return []

    def tick(self) -> list[Action]:
        """One tick of time passed."""
        out: list[Action] = []
        if self._leading is not None:
            self._leading.tick(out)
        return out
