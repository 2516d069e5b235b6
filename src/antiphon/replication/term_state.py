"""Which term a replica is in, what it is in it, and what waits for the disk.

Both ways to elect a leader, by a coordinator and by votes, come down to two primitives that live here: `fence`, the durable
promise of a term, and `lead`. The parts of a replica share one `TermState`; they are told by `TermObserver` of what a term
brings.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from antiphon.invariants import invariant, unreachable
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import Action, RoleChanged, Send
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.follower import FollowerSide
from antiphon.replication.leader import Leader
from antiphon.replication.leadership import Leadership
from antiphon.replication.live_set import LiveSet
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.messages import Ack, AnyMessage, NodeId, Reject, ShardId, StaleTerm
from antiphon.replication.promise import Promise
from antiphon.replication.raft_members import MembersLog
from antiphon.replication.repair import LogRepair
from antiphon.replication.replica_state import Event, Role, next_role
from antiphon.replication.restored_state import RestoredState


class TermObserver:
    """A part that wants to know what becomes of a leadership. By default it does nothing."""

    def leadership_ready(self, out: list[Action]) -> None:
        """The first entry of the term that this replica leads is committed (S1.36)."""

    def members_settled(self, out: list[Action]) -> None:
        """What was committed before a change of members that was to be watched is held by the new voters."""

    def stepped_down(self, *, was_leader: bool) -> None:
        """Whatever this replica was in its term, or in an older one, it is no longer."""

    def time_told(self, out: list[Action]) -> None:
        """It may no longer be bound to a leader."""


class TermState:
    """The term of one replica, its role in it, and the half that plays that role.

    Attributes:
        term, voted_for: what this replica promised. Durable when `log.is_term_durable`.
        role: see `replica_state`.
        members: everybody who has a say, as far as this replica knows.
        leading, following: the half for the role; at most one of them is there.
        lost_peers: nodes to which the connection is broken.
        failed: the disk failed; nothing is done any more.
        observers: parts that are told, in this order.
        promise: for how long it is bound to a leader.
    """

    def __init__(
        self,
        node_id: NodeId,
        shard: ShardId,
        ensemble: Sequence[NodeId],
        restored: RestoredState,
        entries: EntryFactory,
        config: ReplicaConfig,
    ) -> None:
        invariant(len(set(ensemble)) == len(ensemble), f"ensemble {ensemble} names a node twice")
        index = restored.members
        self.node_id = node_id
        self.shard = shard
        self.term = self.restored_term = restored.term  # a term that may have been led is not led again
        self.voted_for = restored.voted_for
        self.members = (index.current if index is not None else None) or Members(tuple(ensemble))
        self.role = Role.FENCED if node_id in self.members.everybody else Role.NOT_MEMBER
        self.log = (
            LocalLog(restored.terms, restored.high_watermark)
            if index is None
            else MembersLog(restored.terms, restored.high_watermark, index)
        )
        self.log.acknowledged = min(restored.acknowledged, restored.terms.log_end)
        self.repair = LogRepair(restored.condition, restored.term)
        self.config = config
        self.failed = False
        self.following: FollowerSide | None = None
        self.leading: Leader | None = None
        self.lost_peers: set[NodeId] = set()  # asked for membership only
        self.observers: list[TermObserver] = []
        self._entries = entries
        self.held: deque[tuple[int, Send]] = deque()  # said when the write with this id is durable
        self.promise = Promise(restored.bound_until_us)

    @property
    def leader(self) -> NodeId | None:
        """The leader of this term, if known."""
        if self.leading is not None:
            return self.node_id
        return self.following.leader if self.following is not None else None

    # -- the two primitives ----------------------------------------------------------------------------------------

    def fence(self, term: int, voted_for: NodeId | None, out: list[Action]) -> None:
        """Promise a newer term: nothing of an older one is obeyed or said any more. Durable with the next write id."""
        invariant(term > self.term, f"terms only rise: {self.term} -> {term}")
        role = next_role(self.role, Event.NEW_TERM)
        invariant(role is Role.FENCED, f"NewTerm must fence a {self.role}")
        self.term, self.voted_for = term, voted_for
        self.held.clear()
        self.promise.drop()
        out.append(self.log.persist_term(term, voted_for))
        self._step_down(out)

    def _step_down(self, out: list[Action]) -> None:
        leading, self.leading, self.following = self.leading, None, None
        self.role = Role.FENCED
        out.append(RoleChanged(Role.FENCED, self.term, None))
        if leading is not None:
            leading.reads.fail(out)
        for observer in self.observers:
            observer.stepped_down(was_leader=leading is not None)

    def lead(
        self,
        members: Members,
        heads: Sequence[tuple[NodeId, EntryId]],
        out: list[Action],
        live: LiveSet | None = None,
    ) -> None:
        """Begin to lead: append the term-start entry and send to those who promised (S0.9, S1.36)."""
        role = next_role(self.role, Event.BECOME_LEADER)
        invariant(role is Role.LEADER and self.log.is_term_durable, f"a {self.role} cannot lead")
        self.role, self.members, self.following = Role.LEADER, members, None
        entry = self._entries.term_start(self.term, self.log.terms.log_end)
        self.leading = Leader(
            Leadership(self.shard, self.node_id, self.term, self.log),
            members,
            live,
            self.config,
            self._entries.commit_marker,
            self._leadership_ready,
            self._members_settled,
        )
        out.append(RoleChanged(Role.LEADER, self.term, self.node_id))
        self.leading.start(entry, heads, out)
        for node in sorted(self.lost_peers):
            self.leading.replicator.peer_lost(node)

    def show_term(self, out: list[Action]) -> None:
        """Append the term-start entry that the leader of an empty log began without (`term_start_on_empty`).

        A damaged log is whole again with an entry that was committed in a term begun since. Where nobody has written yet
        there is none: the shard would have a voter less, and one that fails besides could leave it without a leader.
        """
        if self.leading is not None and self.log.terms.end == EMPTY:
            entry = self._entries.term_start(self.term, self.log.terms.log_end)
            self.leading.replicator.append(entry, out)

    def _leadership_ready(self, out: list[Action]) -> None:
        for observer in self.observers:
            observer.leadership_ready(out)

    def _members_settled(self, out: list[Action]) -> None:
        for observer in self.observers:
            observer.members_settled(out)

    # -- what others say of a term ---------------------------------------------------------------------------------

    def learn_term(self, term: int, out: list[Action]) -> None:
        """Somebody is in `term`. If it is newer, whatever this replica was in the older one, it is no longer (S1.10)."""
        if term > self.term and self.role is not Role.NOT_MEMBER:
            self.fence(term, None, out)

    def on_ack(self, sender: NodeId, message: Ack, out: list[Action]) -> None:
        """A follower acknowledges."""
        if self.leading is not None and message.term == self.term:
            self.leading.on_ack(sender, message, out)
            if message.damaged:
                self.show_term(out)

    def on_reject(self, sender: NodeId, message: Reject, out: list[Action]) -> None:
        """A follower's log does not agree with an Append, or it is in a newer term."""
        self.learn_term(message.term, out)
        if self.leading is not None and message.term == self.term:
            self.leading.on_reject(sender, message, out)

    def on_stale_term(self, _sender: NodeId, message: StaleTerm, out: list[Action]) -> None:
        """Somebody refuses what this replica said in an older term."""
        self.learn_term(message.term, out)

    def refuse(self, sender: NodeId, out: list[Action]) -> None:
        """Answer a message that is not obeyed with the term of this replica, which is not always above the asked one."""
        out.append(Send(sender, StaleTerm(self.shard, self.term)))

    def follow(self, sender: NodeId, term: int, event: Event, out: list[Action]) -> bool:
        """Take `sender` as the leader of `term`. False if the message must be refused (S0.7, S1.10)."""
        if term < self.term:
            self.refuse(sender, out)
            return False
        if self.role is Role.NOT_MEMBER:
            return False  # there is no such edge: a NewTerm must come first
        if term > self.term:
            self.fence(term, None, out)
        if self.role is Role.LEADER:
            unreachable(f"nodes {self.node_id} and {sender} both lead term {term}")
        following = self.following
        if following is not None and following.leader == sender and self.role is Role.FOLLOWER:
            return event is not Event.TRUNCATE  # it is followed already: a FOLLOWER stays one
        role = next_role(self.role, event)
        if role is None:
            return False
        if following is None:
            self.following = following = self.new_follower()
        if following.leader is None:
            following.leader = sender
            self.become_follower(role, out)
        elif following.leader != sender:
            unreachable(f"nodes {following.leader} and {sender} both lead term {term}")
        return True

    def new_follower(self) -> FollowerSide:
        """The following half for this term."""
        return FollowerSide(self.shard, self.term, self.log, self.config, self.repair, self.promise)

    def become_follower(self, role: Role, out: list[Action]) -> None:
        """`following` is there and obeys its leader from now on."""
        self.role = role
        out.append(RoleChanged(role, self.term, self.leader))

    def add_follower(self, node: NodeId, head: EntryId, out: list[Action]) -> None:
        """A leader sends to `node` from now on; `head` is what it has."""
        if self.leading is not None:
            self.leading.replicator.add_follower(node, head, out)
            if node in self.lost_peers:
                self.leading.replicator.peer_lost(node)

    # -- the disk --------------------------------------------------------------------------------------------------

    def send_when_durable(self, to: NodeId, message: AnyMessage, out: list[Action]) -> None:
        """Send what rests on everything staged so far."""
        log = self.log
        if log.persisted_id >= log.write_id:
            out.append(Send(to, message))
        else:
            self.held.append((log.write_id, Send(to, message)))

    def note_time(
        self, now_us: int | None, handlers: Mapping[type, Callable[..., None]], out: list[Action]
    ) -> None:
        """An event has come at this time, by the host's clock; what waited for it is handled again. None: see `lease`."""
        self.promise.note_time(now_us)
        if now_us is None or self.failed:
            return
        if self.leading is not None:
            self.leading.lease.note_time(now_us)
        for sender, message in self.promise.due():
            handlers[type(message)](sender, message, out)
        for observer in self.observers:
            observer.time_told(out)

    def holds_back(self, sender: NodeId, message: AnyMessage) -> bool:
        """Is the answer, which may help somebody to lead that term, to wait for the end of what was promised?

        The request is handled once more then. A term that it asks for is promised already, so the old leader loses it soon.
        """
        if not self.promise.holds(message.term):
            return False
        self.promise.keep(sender, message)
        return True

    def release_held(self, write_id: int, out: list[Action]) -> None:
        """Everything up to `write_id` is durable: say what was held back for it."""
        held = self.held
        while held and held[0][0] <= write_id:
            out.append(held.popleft()[1])

    def fail(self, out: list[Action]) -> None:
        """The disk failed: nothing is said any more, what was held back included."""
        self.failed = True
        self.held.clear()
        self.promise.drop()
        self._step_down(out)
