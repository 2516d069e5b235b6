"""A replica whose leader is chosen by a coordinator (S0): promise, be truncated or fed, or lead.

How the surroundings drive it
-----------------------------
A replica is a pure state machine: each method takes one event and returns the actions that follow from it, in order.
Nothing happens in between: no clock, disk, network or random source is touched here.

    replica = Replica(node_id=1, shard=7, ensemble=(1, 2, 3), restored=RestoredState(terms=..., term=..., ...),
                      entries=EntryFactory(...), config=ReplicaConfig())

    carry_out(replica.receive(sender, message))     # whenever a message for the shard arrives
    carry_out(replica.propose([(count, data)]))     # client batches; stamped with replica.log_end and replica.term before
    carry_out(replica.persisted(write_id))          # the disk has everything up to this write
    carry_out(replica.fed(to, entries, size))       # the answer to a Feed, at once or later
    carry_out(replica.request_read(token))          # a linearizable read
    carry_out(replica.tick())                       # every 50 ms or so, if replica.needs_tick

    def carry_out(actions):
        for action in actions:
            match action:
                case PersistTerm() | AppendLog() | TruncateLog() | ResetLog():
                    stage it in the log (readable at once); queue it for the disk, in this order
                case Send(to, message): hand it to the transport (or to this node itself, if it is `to`)
                case Feed(to, start, max_bytes): carry_out(replica.fed(to, *read(start, max_bytes)))
                case Commit(high_watermark): apply, answer clients, wake readers
                ...

Rules for the surroundings: actions in order; one event at a time; `persisted` ids never run ahead of the disk; after a
crash a new object is made from what is on the disk (term, vote, log), never from memory. A leader and its ticks: put a
replica on the list of those that get ticks after any event, and take it off when `needs_tick` is false.

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
* **A head is a hint.** It says where to begin to feed, or where to cut; only an Ack counts as an acknowledgement.
* **A refusal of a coordinator's message** is a StaleTerm with this replica's term, which is not always above the asked one.
"""

from collections.abc import Sequence

from antiphon.replication.actions import Action, RoleChanged, Send
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.follower import FollowerSide
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
    ShardId,
    StaleTerm,
    Truncate,
    TruncateReply,
)
from antiphon.replication.quorum import majority
from antiphon.replication.replica_core import ReplicaCore
from antiphon.replication.replica_state import Event, LogCondition, Role, next_role
from antiphon.replication.restored_state import RestoredState

__all__ = ["Replica", "ReplicaConfig"]


class Replica(ReplicaCore):
    """One replica of a shard whose leaders a coordinator appoints. See the module for how to drive it."""

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
        super().__init__(
            node_id=node_id,
            shard=shard,
            ensemble=ensemble,
            restored=restored,
            entries=entries,
            config=config,
        )
        self._coordinator: NodeId | None = None  # who is told that this replica leads
        self._forgot = restored.condition is LogCondition.FORGOTTEN
        if self._forgot:  # the coordinator's word comes first
            self.role = Role.NOT_MEMBER
        self._members_version = 0  # of the record by which `members` are known
        self._handlers.update(
            {
                NewTerm: self._on_new_term,
                BecomeLeader: self._on_become_leader,
                AddFollower: self._on_add_follower,
                ChangeMembers: self._on_change_members,
                Truncate: self._on_truncate,
                TruncateReply: self._on_truncate_reply,
            }
        )

    def _on_new_term(self, sender: NodeId, message: NewTerm, out: list[Action]) -> None:
        """Promise the term and say what is here (S0.35)."""
        if message.term < self.term:
            self._refuse(sender, out)
            return
        if self._forgot:  # an older self may have been part of this term as well
            self._forgot = False
            self._repair_floor = message.term
        if message.term > self.term:
            self._fence(message.term, None, out)
            head = self._log.terms.end  # all of it is durable when the promise is
        elif self.role is Role.NOT_MEMBER:
            self.role = Role.FENCED
            out.append(RoleChanged(Role.FENCED, self.term, None))
            head = self._log.terms.end
        else:
            head = self._log.terms.end if self.role is Role.FENCED else self._log.durable_head
        reply = NewTermReply(self.shard, self.term, head, self._log.terms.log_start, self.damaged)
        self._say_when_durable(sender, reply, out)

    def _on_become_leader(self, sender: NodeId, message: BecomeLeader, out: list[Action]) -> None:
        """Lead the term that was promised, or say again that it is led."""
        if message.term == self.term and self.role is Role.LEADER:
            self._coordinator = sender
            if self.ready:
                self._became_ready(out)
            return
        if not self._may_lead(message):
            self._refuse(sender, out)
            return
        self._coordinator = sender
        self._members_version = message.members_version
        live = None
        if message.live:
            live = LiveSet(self.node_id, message.live_version, message.live, self._config)
        self._lead(_members_of(message), message.heads, out, live)

    def _may_lead(self, message: BecomeLeader) -> bool:
        head = self._log.terms.end
        return (
            message.term == self.term
            and next_role(self.role, Event.BECOME_LEADER) is not None
            and self.term != self._loaded_term
            and self._log.is_term_durable
            and not self.damaged
            and self._is_fenced_off(message)
            and all(other <= head for _, other in message.heads)
        )

    def _is_fenced_off(self, message: BecomeLeader) -> bool:
        """Do those that promised meet every set by which an older leader could still commit?

        By the live rule, any one member that was recorded as live does: the older leader cannot do without it.
        """
        members = _members_of(message)
        if self.node_id not in members.voting:
            return False
        if message.live:
            return self.node_id in message.live
        promised = {node for node, _ in message.heads} | {self.node_id}
        return all(len(promised.intersection(one)) >= majority(len(one)) for one in members.sets)

    def _became_ready(self, out: list[Action]) -> None:
        if self.members.is_joint and self._leading is not None:
            self._leading.watch_settling(out)  # the answer says that, too
        elif self._coordinator is not None:
            out.append(Send(self._coordinator, BecomeLeaderReply(self.shard, self.term)))

    def _members_settled(self, out: list[Action]) -> None:
        if self._coordinator is None:
            return
        if self.ready:
            out.append(Send(self._coordinator, BecomeLeaderReply(self.shard, self.term)))
        out.append(Send(self._coordinator, MembersSettled(self.shard, self.term, self._members_version)))

    def _on_change_members(self, sender: NodeId, message: ChangeMembers, out: list[Action]) -> None:
        """Count other members from now on (S0.2), and say when what was committed is safe with them."""
        if message.term != self.term or self._leading is None:
            self._refuse(sender, out)
            return
        if message.version < self._members_version:
            return  # it was overtaken by a newer record
        self._coordinator = sender
        if message.version > self._members_version:
            self._members_version, self.members = message.version, message.members
            self._leading.set_members(message.members, out)
        self._leading.watch_settling(out)

    def _on_add_follower(self, sender: NodeId, message: AddFollower, out: list[Action]) -> None:
        """Feed one more (S0.38): a member that promised late, or a node that is to become one and does not count yet."""
        if message.term != self.term or self._leading is None:
            self._refuse(sender, out)
            return
        self._leading.add_follower(message.node, message.head, out)
        if message.node in self._lost_peers:
            self._leading.peer_lost(message.node)

    def _on_truncate(self, sender: NodeId, message: Truncate, out: list[Action]) -> None:
        """Cut a diverged log back to the leader's, and follow (S0.36)."""
        if message.term < self.term:
            self._refuse(sender, out)
            return
        role = next_role(self.role, Event.TRUNCATE)
        if message.term > self.term or role is None:
            return
        following = self._following = FollowerSide(self.shard, self.term, self._log, self._config)
        following.leader = sender
        if not following.can_truncate(message.to):
            following.refuse_truncate(message, out)
            self._following = None
            return
        self.role = role
        self._cut_damage = False
        self._following_began(out)
        reply = following.truncate(message, out)
        self._say_when_durable(sender, reply, out)

    def _on_truncate_reply(self, sender: NodeId, message: TruncateReply, out: list[Action]) -> None:
        if self._leading is not None and message.term == self.term:
            self._leading.on_truncate_reply(sender, message, out)

    def _refuse(self, sender: NodeId, out: list[Action]) -> None:
        out.append(Send(sender, StaleTerm(self.shard, self.term)))


def _members_of(message: BecomeLeader) -> Members:
    return Members(message.ensemble, message.outgoing, message.learners)
