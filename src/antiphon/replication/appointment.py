"""Being elected by a coordinator (S0): promise a term, be truncated, or lead.

Decisions
---------
* **A NewTerm of the same term** reaches a LEADER or FOLLOWER only as a late or repeated message, because a coordinator never
  uses a term for two elections. To fence for it would end a leadership that the coordinator believes in, without a new
  term that anybody would notice. So a *newer* term always fences, in every state (S0.35); a repeated one is answered with
  the durable head again and changes nothing.
* **A term is never led twice by the same node.** A leader sends entries while it syncs them, so its followers may have
  committed what its own disk lost in a crash. Leading the same term again it would write other entries with the same
  ids. So a BecomeLeader for the term that was loaded at the start is refused, and the coordinator takes a new term.
* **A repeated BecomeLeader** is answered again if the leader is ready; otherwise the answer follows when it is.
* **Members carry the version of their record.** Only a newer one changes anything; the same one again is answered again; an
  older one was overtaken. The leader counts by a record from the moment when it hears of it. Between the record of a joint
  step and that moment elections need more than commits do; between the record of its end and that moment, less: but then the
  new voters hold everything, and both commits and elections need a majority of them.
* **A head is a hint.** It says where to begin to send, or where to cut; only an Ack counts as an acknowledgement.
* **A refusal of a coordinator's message** is a StaleTerm with this replica's term, which is not always above the asked one.
"""

from antiphon.replication.actions import Action, RoleChanged, Send
from antiphon.replication.live_set import LiveSet
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    AddFollower,
    BecomeLeader,
    BecomeLeaderReply,
    ChangeMembers,
    MembersSettled,
    NewTerm,
    NewTermReply,
    NodeId,
    Truncate,
    TruncateReply,
)
from antiphon.replication.quorum import majority
from antiphon.replication.replica_state import Event, LeaderPhase, Role, next_role
from antiphon.replication.term_state import TermObserver, TermState


class Appointment(TermObserver):
    """Does what the coordinator says, and tells it what has become of it."""

    def __init__(self, state: TermState) -> None:
        self._state = state
        self._coordinator: NodeId | None = None  # who is told that this replica leads
        self._members_version = 0  # of the record by which the members are known

    # -- promising -------------------------------------------------------------------------------------------------

    def on_new_term(self, sender: NodeId, message: NewTerm, out: list[Action]) -> None:
        """Promise the term and say what is here (S0.35)."""
        state = self._state
        log = state.log
        if message.term < state.term:
            state.refuse(sender, out)
            return
        if state.repair.is_forgotten:  # an older self may have been part of this term as well
            state.repair.terms_known(message.term)
        if message.term > state.term:
            state.fence(message.term, None, out)
            head = log.terms.end  # all of it is durable when the promise is
        elif state.role is Role.NOT_MEMBER:
            state.role = Role.FENCED
            out.append(RoleChanged(Role.FENCED, state.term, None))
            head = log.terms.end
        else:
            head = log.terms.end if state.role is Role.FENCED else log.durable_head
        if state.holds_back(sender, message):
            return
        reply = NewTermReply(state.shard, state.term, head, log.terms.log_start, not state.repair.is_sound)
        state.send_when_durable(sender, reply, out)

    def on_truncate(self, sender: NodeId, message: Truncate, out: list[Action]) -> None:
        """Cut a diverged log back to the leader's, and follow (S0.36)."""
        state = self._state
        if message.term < state.term:
            state.refuse(sender, out)
            return
        role = next_role(state.role, Event.TRUNCATE)
        if message.term > state.term or role is None:
            return
        following = state.following = state.new_follower()
        following.leader = sender
        if not following.can_truncate(message.to):
            following.refuse_truncate(message, out)
            state.following = None
            return
        state.repair.has_bad_tail = False
        state.become_follower(role, out)
        reply = following.truncate(message, out)
        state.send_when_durable(sender, reply, out)

    # -- leading ---------------------------------------------------------------------------------------------------

    def on_become_leader(self, sender: NodeId, message: BecomeLeader, out: list[Action]) -> None:
        """Lead the term that was promised, or say again that it is led."""
        state = self._state
        if message.term == state.term and state.role is Role.LEADER:
            self._coordinator = sender
            if self._is_ready:
                self.leadership_ready(out)
            return
        if not self._may_lead(message):
            state.refuse(sender, out)
            return
        self._coordinator = sender
        self._members_version = message.members_version
        live = None
        if message.live:
            live = LiveSet(state.node_id, message.live_version, message.live, state.config)
        state.lead(_members_of(message), message.heads, out, live)

    def _may_lead(self, message: BecomeLeader) -> bool:
        state = self._state
        head = state.log.terms.end
        return (
            message.term == state.term
            and next_role(state.role, Event.BECOME_LEADER) is not None
            and state.term != state.restored_term
            and state.log.is_term_durable
            and state.repair.is_sound
            and self._is_fenced_off(message)
            and all(other <= head for _, other in message.heads)
        )

    def _is_fenced_off(self, message: BecomeLeader) -> bool:
        """Do those that promised meet every set by which an older leader could still commit?

        By the live rule, any one member that was recorded as live does: the older leader cannot do without it.
        """
        members, own = _members_of(message), self._state.node_id
        if own not in members.voting:
            return False
        if message.live:
            return own in message.live
        promised = {node for node, _ in message.heads} | {own}
        return all(len(promised.intersection(one)) >= majority(len(one)) for one in members.sets)

    @property
    def _is_ready(self) -> bool:
        leading = self._state.leading
        return leading is not None and leading.phase is LeaderPhase.READY

    def leadership_ready(self, out: list[Action]) -> None:
        """Tell the coordinator, while members change only together with the news that the change is settled."""
        state = self._state
        if state.members.is_joint and state.leading is not None:
            state.leading.watch_settling(out)  # the answer says that, too
        elif self._coordinator is not None:
            out.append(Send(self._coordinator, BecomeLeaderReply(state.shard, state.term)))

    def members_settled(self, out: list[Action]) -> None:
        """Tell the coordinator."""
        state = self._state
        if self._coordinator is None:
            return
        if self._is_ready:
            out.append(Send(self._coordinator, BecomeLeaderReply(state.shard, state.term)))
        out.append(Send(self._coordinator, MembersSettled(state.shard, state.term, self._members_version)))

    def on_change_members(self, sender: NodeId, message: ChangeMembers, out: list[Action]) -> None:
        """Count other members from now on (S0.2), and say when what was committed is safe with them."""
        state = self._state
        leading = state.leading
        if message.term != state.term or leading is None:
            state.refuse(sender, out)
            return
        if message.version < self._members_version:
            return  # it was overtaken by a newer record
        self._coordinator = sender
        if message.version > self._members_version:
            self._members_version, state.members = message.version, message.members
            leading.set_members(message.members, out)
        leading.watch_settling(out)

    def on_add_follower(self, sender: NodeId, message: AddFollower, out: list[Action]) -> None:
        """Send to one more (S0.38): a member that promised late, or a node that is to become one and does not count yet."""
        state = self._state
        if message.term != state.term or state.leading is None:
            state.refuse(sender, out)
            return
        state.add_follower(message.node, message.head, out)

    def on_truncate_reply(self, sender: NodeId, message: TruncateReply, out: list[Action]) -> None:
        """A follower has cut its log."""
        state = self._state
        if state.leading is not None and message.term == state.term:
            state.leading.on_truncate_reply(sender, message, out)


def _members_of(message: BecomeLeader) -> Members:
    return Members(message.ensemble, message.outgoing, message.learners)
