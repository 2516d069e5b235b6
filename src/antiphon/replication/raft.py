"""A replica that elects its leader itself, with the others, and whose members may change (S1; S0.2; S4.2-S4.5).

Votes are `RaftVoter`'s; here is what a leader and its followers make of members entries, and how leadership is handed over.

Decisions
---------
* **Members are entries of the log** (`raft_members`), unless the ensemble is fixed by configuration. A replica goes by the
  last one it has, committed or not. Who is no voter by that does not campaign, once it is committed; and whoever is asked
  for a vote gives it, by its log alone, whether it finds the candidate or itself among its members or not: the candidate may
  know of later members, and could otherwise never win. Whom a candidate may count is said by the candidate's members.
* **A leader that is no voter any more** leads until that is committed; then it hands over to a voter, or gives up.
* **A change that an older leader began** is finished by the next one, as soon as that one is ready: a joint step is never
  left standing.
* **A coordinator's wish** (`ChangeMembers`) is kept while something else is under way, and answered with `MembersSettled`
  once it is committed. It counts only in the term that it names, and only if none of a later record was seen: a message that
  comes late cannot bring former members back.
"""

from collections.abc import Callable, Sequence

from antiphon.errors import InvalidRequestError, NotReadyError
from antiphon.invariants import unreachable
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, AppendLog, MembersChanged, Send
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.leader import LeaderSide
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    AnyMessage,
    ChangeMembers,
    MembersSettled,
    NodeId,
    ShardId,
    TimeoutNow,
    TransferLeadership,
)
from antiphon.replication.quorum import majority
from antiphon.replication.raft_members import final_members, next_members
from antiphon.replication.raft_transfer import Transfer, best_successor
from antiphon.replication.raft_voter import RaftVoter
from antiphon.replication.replica_state import Role
from antiphon.replication.restored_state import RestoredState

__all__ = ["ElectionConfig", "RaftReplica", "ReplicaConfig"]


class RaftReplica(RaftVoter):
    """One replica of a shard whose replicas vote. `entries.members` is needed where its members change."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        shard: ShardId,
        ensemble: Sequence[NodeId],
        restored: RestoredState,
        entries: EntryFactory,
        config: ReplicaConfig,
        election_timeout_ticks: Callable[[], int],
        election: ElectionConfig | None = None,
    ) -> None:
        super().__init__(
            node_id=node_id,
            shard=shard,
            ensemble=ensemble,
            restored=restored,
            entries=entries,
            config=config,
            election_timeout_ticks=election_timeout_ticks,
            election=election,
        )
        self._told_committed = self._is_settled
        self._change: tuple[NodeId, ChangeMembers] | None = None  # what a coordinator wants
        self._change_version = -1
        self._transfer: Transfer | None = None
        self._handlers.update(
            {
                ChangeMembers: self._on_change_members,
                TransferLeadership: self._on_transfer,
                TimeoutNow: self._on_timeout_now,
            }
        )

    @property
    def ready(self) -> bool:
        """May clients be served? Not while leadership is being handed over."""
        return super().ready and self._transfer is None

    @property
    def needs_tick(self) -> bool:
        """As for every replica that votes; handing over takes time as well."""
        return super().needs_tick or self._transfer is not None

    @property
    def settled_members(self) -> Members | None:
        """The members that are committed in the log; None where the ensemble is fixed."""
        return None if self._index is None else self._index.at(self._log.high_watermark)

    def members_at(self, offset: int) -> Members | None:
        """The members as of the log prefix that ends at `offset`; None where the ensemble is fixed."""
        return None if self._index is None else self._index.at(offset)

    # -- events ----------------------------------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: AnyMessage) -> list[Action]:
        """As for every replica; besides, members entries that came, went or were committed take effect."""
        out = super().receive(sender, message)
        self._follow_members(out)
        return out

    def persisted(self, write_id: int) -> list[Action]:
        """As for every replica, and as `receive`."""
        out = super().persisted(write_id)
        self._follow_members(out)
        return out

    def snapshot_installed(self, at: EntryId, members: Members | None = None) -> list[Action]:
        """As for every replica; `members`: as of `at`."""
        out = super().snapshot_installed(at, members)
        self._follow_members(out)
        return out

    def trimmed(self, log_start: int) -> list[Action]:
        """As for every replica; what the members entries in the removed part said is remembered."""
        out = super().trimmed(log_start)
        if self._index is not None:
            self._index.trim(self.log_start)
        return out

    def tick(self) -> list[Action]:
        """As for every replica; a leader that hands over gives up after a while."""
        out: list[Action] = []
        if self._transfer is not None and not self._goes_on_handing_over(self._transfer, out):
            return out
        return out + super().tick()

    def _became_ready(self, out: list[Action]) -> None:
        super()._became_ready(out)
        self._told_committed = False  # a change that an older leader began is this one's to finish

    def _step_down(self, out: list[Action]) -> None:
        super()._step_down(out)
        self._transfer = self._change = None
        self._change_version = -1

    # -- members ---------------------------------------------------------------------------------------------------

    def propose_members(self, voters: Sequence[NodeId], learners: Sequence[NodeId] = ()) -> list[Action]:
        """Make these the members (S0.2): one change at a time, in joint steps where voters change.

        Nothing to do is no error. `MembersChanged` tells of each step, first when it is in force, then when it is committed.

        Raises:
            NotLeaderError, NotReadyError: as for `propose`; also while another change is under way, and as long as a new
                voter is no learner that has caught up.
            InvalidRequestError: the ensemble is fixed, or these can never be members.
        """
        if self._leading is None or not self.ready:
            raise self._cannot_serve()
        if self._index is None:
            raise InvalidRequestError(f"the members of shard {self.shard} are fixed by configuration")
        out: list[Action] = []
        entry = self._next_members(voters, learners)
        if entry is not None:
            self._write_members(entry, out)
        return out

    def _next_members(self, voters: Sequence[NodeId], learners: Sequence[NodeId]) -> Members | None:
        """As `next_members`; whoever is to become a voter must be a learner that votes when it is asked.

        So must enough of all who are to vote. Otherwise an election could come to need a vote that is not given before there
        is a leader: that of a damaged voter, or of one that is gone.
        """
        entry = next_members(self.members, voters, learners, settled=self._is_settled)
        for node in () if entry is None else entry.voters:
            if node not in self.ensemble and not self._has_caught_up(node):
                raise NotReadyError(
                    f"node {node} is no learner of shard {self.shard} that has caught up; retry"
                )
        if entry is not None and entry.voters != self.ensemble:
            voting = [node for node in entry.voters if self._votes(node)]
            if len(voting) < majority(len(entry.voters)):
                raise NotReadyError(
                    f"of {entry.voters}, which shard {self.shard} is to have, only {voting} would vote now; retry"
                )
        return entry

    def _votes(self, node: NodeId) -> bool:
        """Would it vote for a candidate? Who has answered in this term has said before if it is damaged."""
        leading = self._leading
        if leading is None or node == self.node_id:
            return leading is not None
        cursor = leading.cursors.get(node)
        return cursor is not None and cursor.answers and cursor.round_echoed > 0 and not cursor.wants_term

    def _has_caught_up(self, learner: NodeId) -> bool:
        """Does it hold, durably, the entry that made it a learner, and know of an entry that this term has committed?"""
        leading, index = self._leading, self._index
        if leading is None or index is None or learner not in self.members.learners:
            return False
        cursor = leading.cursors.get(learner)
        return cursor is not None and min(cursor.ack_offset, cursor.known_watermark) >= max(
            index.end, leading.tracker.term_start + 1
        )

    @property
    def _is_settled(self) -> bool:
        """Is what this replica goes by committed?"""
        return self._index is None or self._index.end <= self._log.high_watermark

    def _write_members(self, members: Members, out: list[Action]) -> None:
        make, leading = self._entries.members, self._leading
        if make is None or leading is None:
            unreachable(f"a {self.role} cannot write members entries")
        leading.append(make(self.term, self.log_end, members), out)
        self._follow_members(out)

    def _follow_members(self, out: list[Action]) -> None:
        """Go by the last members entry of the log; when it is committed, a leader takes the next step."""
        index, leading = self._index, self._leading
        if index is None or self.failed:
            return
        members = index.current
        if members is not None and members is not self.members:
            before, self.members = self.members, members
            self._told_committed = False
            out.append(MembersChanged(members, committed=False))
            if leading is not None:
                self._lead_members(leading, before, out)
        if not self._told_committed and self._is_settled:
            self._told_committed = True
            out.append(MembersChanged(self.members, committed=True))
            if leading is not None and leading.ready:
                self._settled(out)
        if self._transfer is not None:
            if self._transfer.to in self.ensemble:
                self._hand_over(self._transfer, out)
            else:
                self._transfer = None

    def _lead_members(self, leading: LeaderSide, before: Members, out: list[Action]) -> None:
        """Count by the new members, and feed them; those that leave hear of it, as learners do, until it is committed."""
        members = self.members
        leaving = tuple(node for node in before.everybody if node not in members.everybody)
        leading.set_members(Members(members.voters, members.outgoing, (*members.learners, *leaving)), out)
        for node in members.everybody:
            if node != self.node_id and node not in leading.cursors:
                leading.add_follower(node, self.head, out)
                if node in self._lost_peers:
                    leading.peer_lost(node)

    def _settled(self, out: list[Action]) -> None:
        """The members that this leader goes by are committed."""
        if self.members.is_joint:
            self._write_members(final_members(self.members), out)
            return
        if self._leading is not None:
            self._leading.heartbeat(out)  # tells those that leave
            self._leading.set_members(self.members, out)
        self._work_on_change(out)
        if self._leading is not None and self.node_id not in self.ensemble:
            successor = self.successor
            if successor is None:
                self._fence(self.term + 1, None, out)
            else:
                self._transfer = Transfer(successor, self._election.election_ticks_min)

    def _on_change_members(self, sender: NodeId, message: ChangeMembers, out: list[Action]) -> None:
        """What the members are to be, by a coordinator's record; an older record than was seen in this term is late."""
        if self._leading is None or message.term != self.term or message.version < self._change_version:
            return
        self._change, self._change_version = (sender, message), message.version
        self._work_on_change(out)

    def _work_on_change(self, out: list[Action]) -> None:
        """Begin what a coordinator wants, as soon as that may be begun; say so when it is done."""
        if self._change is None or self._index is None or not self.ready:
            return
        sender, asked = self._change
        try:
            entry = self._next_members(asked.members.voters, asked.members.learners)
        except NotReadyError:
            return  # what is under way comes first
        except InvalidRequestError:
            self._change = None
            return
        if entry is None:
            self._change = None
            out.append(Send(sender, MembersSettled(self.shard, self.term, asked.version)))
        else:
            self._write_members(entry, out)

    # -- handing over ----------------------------------------------------------------------------------------------

    @property
    def successor(self) -> NodeId | None:
        """The voter that a leader could hand over to with the least delay; None where none is connected."""
        if self._leading is None:
            return None
        others = tuple(node for node in self.members.voters if node != self.node_id)
        return best_successor(self._leading.cursors, others)

    def transfer_leadership(self, to: NodeId) -> list[Action]:
        """Hand over to `to`, a voter; until that is done, or given up, proposals are refused.

        Raises NotLeaderError, NotReadyError; InvalidRequestError when `to` cannot be elected.
        """
        leading = self._leading
        if leading is None or not self.ready:
            raise self._cannot_serve()
        if to not in self.ensemble:
            raise InvalidRequestError(f"node {to} is no voter of shard {self.shard}: {self.ensemble} are")
        out: list[Action] = []
        if to != self.node_id:
            self._transfer = Transfer(to, self._election.election_ticks_min)
            self._hand_over(self._transfer, out)
        return out

    def _on_transfer(self, _sender: NodeId, message: TransferLeadership, out: list[Action]) -> None:
        if self.ready and message.term == self.term and message.to in self.ensemble:
            out.extend(self.transfer_leadership(message.to))

    def _hand_over(self, transfer: Transfer, out: list[Action]) -> None:
        """Tell the target when it has everything."""
        if self._leading is not None and transfer.is_due(self._leading.cursors, self.log_end):
            transfer.told = True
            out.append(Send(transfer.to, TimeoutNow(self.shard, self.term, self.node_id)))

    def _goes_on_handing_over(self, transfer: Transfer, out: list[Action]) -> bool:
        """One tick of it: tell the target again, or give up. False when this replica leads no longer."""
        transfer.ticks_left -= 1
        if transfer.ticks_left % self._election.heartbeat_ticks == 0:
            transfer.told = False
        if transfer.ticks_left > 0:
            self._hand_over(transfer, out)
            return True
        self._transfer = None
        if self.node_id in self.ensemble:
            return True
        self._fence(self.term + 1, None, out)
        return False

    def _on_timeout_now(self, sender: NodeId, message: TimeoutNow, out: list[Action]) -> None:
        if (
            message.term == self.term
            and self.role is Role.FOLLOWER
            and self.leader == sender
            and not self.damaged
            and self.node_id in self.ensemble
        ):
            self._timer.rearm()
            self._ask_for_votes(out, transfer=True)

    def propose(self, batches: Sequence[tuple[int, object]]) -> list[Action]:
        """As for every replica; NotReadyError while leadership is being handed over."""
        if self._transfer is not None:
            raise self._hands_over(self._transfer)
        return super().propose(batches)

    def append_batch(self, count: int, data: object) -> AppendLog:
        """As for every replica, and as `propose`."""
        if self._transfer is not None:
            raise self._hands_over(self._transfer)
        return super().append_batch(count, data)

    def _hands_over(self, transfer: Transfer) -> NotReadyError:
        return NotReadyError(
            f"node {self.node_id} hands shard {self.shard} over to node {transfer.to}; retry",
            leader=transfer.to,
        )
