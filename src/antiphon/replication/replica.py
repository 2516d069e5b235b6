"""A replica whose leader is chosen by a coordinator (S0).

How the caller drives it
-----------------------------
A replica is a pure state machine: each method takes one event and returns the actions that follow from it, in order.
Nothing happens in between: no clock, disk, network or random source is touched here.

    replica = Replica(node_id=1, shard=7, ensemble=(1, 2, 3), restored=RestoredState(terms=..., term=..., ...),
                      entries=EntryFactory(...), config=ReplicaConfig())

    carry_out(replica.receive(sender, message))     # whenever a message for the shard arrives
    carry_out(replica.propose([(count, data)]))     # client batches; stamped with replica.log_end and replica.term before
    carry_out(replica.persisted(write_id))          # the disk has everything up to this write
    carry_out(replica.entries_read(to, entries, size))       # the answer to a ReadEntries, at once or later
    carry_out(replica.request_read(token))          # a linearizable read
    carry_out(replica.tick())                       # every 50 ms or so, if replica.needs_tick

    def carry_out(actions):
        for action in actions:
            match action:
                case PersistTerm() | AppendLog() | TruncateLog() | ResetLog():
                    stage it in the log (readable at once); queue it for the disk, in this order
                case Send(to, message): hand it to the transport (or to this node itself, if it is `to`)
                case ReadEntries(to, start, max_bytes): carry_out(replica.entries_read(to, *read(start, max_bytes)))
                case Commit(high_watermark): apply, answer clients, wake readers
                ...

Rules for the caller: actions in order; one event at a time; `persisted` ids never run ahead of the disk; after a
crash a new object is made from what is on the disk (term, vote, log), never from memory. A leader and its ticks: put a
replica on the list of those that get ticks after any event, and take it off when `needs_tick` is false.
"""

from collections.abc import Sequence

from antiphon.replication.appointment import Appointment
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.following import Following
from antiphon.replication.messages import (
    AddFollower,
    BecomeLeader,
    ChangeMembers,
    NewTerm,
    NodeId,
    ShardId,
    Truncate,
    TruncateReply,
)
from antiphon.replication.replica_base import ReplicaBase
from antiphon.replication.replica_state import LogCondition, Role
from antiphon.replication.restored_state import RestoredState
from antiphon.replication.term_state import TermState

__all__ = ["Replica", "ReplicaConfig"]


class Replica(ReplicaBase):
    """One replica of a shard whose leaders a coordinator appoints. See the module for how to drive it.

    Args:
        node_id: this node.
        shard: the shard, cluster-wide number.
        ensemble: the voters; a replica that is not among them is NOT_MEMBER (S0.5) until a coordinator asks for its promise.
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
        state = TermState(node_id, shard, ensemble, restored, entries, config)
        super().__init__(state, Following(state))
        if restored.condition is LogCondition.FORGOTTEN:  # the coordinator's word comes first
            state.role = Role.NOT_MEMBER
        appointment = Appointment(state)
        state.observers.append(appointment)
        self._handlers.update(
            {
                NewTerm: appointment.on_new_term,
                BecomeLeader: appointment.on_become_leader,
                AddFollower: appointment.on_add_follower,
                ChangeMembers: appointment.on_change_members,
                Truncate: appointment.on_truncate,
                TruncateReply: appointment.on_truncate_reply,
            }
        )
