"""Changes of members where replicas vote: what a leader and its followers make of members entries (S0.2).

Decisions
---------
* **Members are entries of the log** (`raft_members`), unless the ensemble is fixed by configuration. A replica goes by the
  last one it has, committed or not. Who is no voter by that does not campaign, once it is committed. Whom a candidate may
  count is said by the candidate's members.
* **A leader that is no voter any more** leads until that is committed; then it hands over to a voter, or gives up.
* **A change that an older leader began** is finished by the next one, as soon as that one is ready: a joint step is never
  left standing.
* **A coordinator's wish** (`ChangeMembers`) is kept while something else is under way, and answered with `MembersSettled`
  once it is committed. It counts only in the term that it names, and only if none of a later record was seen: a message that
  comes late cannot bring former members back.
* **Deletions of records are members entries, too**, with the members as they are. So they are committed, cut off, trimmed
  and sent with snapshots as these are (docs/decisions/0038-records-are-deleted-to-the-offset.md).
"""

from collections.abc import Sequence

from antiphon.errors import InvalidRequestError, NotReadyError
from antiphon.invariants import unreachable
from antiphon.replication.actions import Action, MembersChanged, Send
from antiphon.replication.entry_factory import MakeMembers
from antiphon.replication.leader import Leader
from antiphon.replication.members import Members, MembersIndex
from antiphon.replication.messages import ChangeMembers, MembersSettled, NodeId
from antiphon.replication.quorum import majority
from antiphon.replication.raft_members import deleting, final_members, next_members
from antiphon.replication.raft_transfer import LeadershipTransfer
from antiphon.replication.replica_state import LeaderPhase
from antiphon.replication.term_state import TermObserver, TermState


class Membership(TermObserver):
    """The members by one replica's log, and the change that it makes as a leader.

    Args:
        state: the replica's term.
        index: the members entries of its log.
        transfer: for a leader that leaves.
        make_members: makes a members entry; None where only others write them.
    """

    def __init__(
        self,
        state: TermState,
        index: MembersIndex,
        transfer: LeadershipTransfer,
        make_members: MakeMembers | None,
    ) -> None:
        self._state = state
        self._index = index
        self._transfer = transfer
        self._make = make_members
        self._settled_told = self.is_settled  # has `MembersChanged` said that the members are committed?
        self._wish: tuple[NodeId, ChangeMembers] | None = None  # what a coordinator wants
        self._wish_version = -1

    @property
    def is_settled(self) -> bool:
        """Are the members that this replica goes by committed?"""
        return self._index.end <= self._state.log.settled

    def at(self, offset: int) -> Members | None:
        """The members as of the log prefix that ends at `offset`."""
        return self._index.at(offset)

    def trimmed(self) -> None:
        """The log begins later; what the members entries in the removed part said is remembered."""
        self._index.trim(self._state.log.terms.log_start)

    def leadership_ready(self, out: list[Action]) -> None:
        """A change that an older leader began is this one's to finish."""
        del out
        self._settled_told = False

    def stepped_down(self, *, was_leader: bool) -> None:
        """What a coordinator wants is for the next leader to hear."""
        del was_leader
        self._wish, self._wish_version = None, -1

    # -- a change is asked for ---------------------------------------------------------------------------------------

    def propose(self, voters: Sequence[NodeId], learners: Sequence[NodeId], out: list[Action]) -> None:
        """Begin to make these the members; see `RaftReplica.propose_members`. This replica leads and is ready."""
        entry = self._next(voters, learners)
        if entry is not None:
            self.write(entry, out)

    def delete_before(self, before: int) -> list[Action]:
        """Event: write into the log that records before an offset, which is settled, are deleted.

        Every later leader has that entry. It counts when it is committed, of which `MembersChanged` tells. Raises
        NotReadyError where this replica does not lead, or is not ready, and while another such entry is not committed.
        """
        state = self._state
        if state.leading is None or state.leading.phase is not LeaderPhase.READY:
            raise NotReadyError(
                f"node {state.node_id} is {state.role} of shard {state.shard} and appends nothing now"
            )
        out: list[Action] = []
        entry = deleting(state.members, before, settled=self.is_settled)
        if entry is not None:
            self.write(entry, out)
        return out

    def on_change_members(self, sender: NodeId, message: ChangeMembers, out: list[Action]) -> None:
        """What the members are to be, by a coordinator's record; an older record than was seen in this term is late."""
        state = self._state
        if state.leading is None or message.term != state.term or message.version < self._wish_version:
            return
        self._wish, self._wish_version = (sender, message), message.version
        self._work_on_wish(out)

    def _work_on_wish(self, out: list[Action]) -> None:
        """Begin what a coordinator wants, as soon as that may be begun; say so when it is done."""
        state = self._state
        if self._wish is None or state.leading is None or state.leading.phase is not LeaderPhase.READY:
            return
        sender, asked = self._wish
        try:
            entry = self._next(asked.members.voters, asked.members.learners)
        except NotReadyError:
            return  # what is under way comes first
        except InvalidRequestError:
            self._wish = None
            return
        if entry is None:
            self._wish = None
            out.append(Send(sender, MembersSettled(state.shard, state.term, asked.version)))
        else:
            self.write(entry, out)

    def _next(self, voters: Sequence[NodeId], learners: Sequence[NodeId]) -> Members | None:
        """As `next_members`; whoever is to become a voter must be a learner that votes when it is asked.

        So must enough of all who are to vote. Otherwise an election could come to need a vote that is not given before there
        is a leader: that of a damaged voter, or of one that is gone.
        """
        members, shard = self._state.members, self._state.shard
        entry = next_members(members, voters, learners, settled=self.is_settled)
        for node in () if entry is None else entry.voters:
            if node not in members.voting and not (self.has_caught_up(node) and self._votes(node)):
                raise NotReadyError(
                    f"node {node} is no learner of shard {shard} that has caught up and votes; retry"
                )
        if entry is not None and entry.voters != members.voting:
            voting = [node for node in entry.voters if self._votes(node)]
            if len(voting) < majority(len(entry.voters)):
                raise NotReadyError(
                    f"of {entry.voters}, which shard {shard} is to have, only {voting} would vote now; retry"
                )
        return entry

    def _votes(self, node: NodeId) -> bool:
        """Would it vote for a candidate? Who has acknowledged this term's first entry has said if it is damaged.

        A replica that rejects entries has not said it yet. (Nobody writes an entry into an empty log.)
        """
        leading = self._state.leading
        if leading is None or node == self._state.node_id:
            return leading is not None
        progress = leading.replicator.progress.get(node)
        return (
            progress is not None
            and progress.answers
            and progress.round_echoed > 0
            and progress.ack_offset >= min(leading.tracker.term_start + 1, self._state.log.terms.log_end)
            and not (progress.wants_term or progress.damaged)
        )

    def has_caught_up(self, learner: NodeId) -> bool:
        """Does it hold, durably, the entry that made it a learner, and know of an entry that this term has committed?"""
        leading = self._state.leading
        if leading is None or learner not in self._state.members.learners:
            return False
        progress = leading.replicator.progress.get(learner)
        return progress is not None and min(progress.ack_offset, progress.known_watermark) >= max(
            self._index.end, leading.tracker.term_start + 1
        )

    # -- a members entry comes, goes, or is committed ----------------------------------------------------------------

    def write(self, members: Members, out: list[Action]) -> None:
        """Append a members entry. It counts at once."""
        state = self._state
        if self._make is None or state.leading is None:
            unreachable(f"a {state.role} cannot write members entries")
        state.leading.replicator.append(self._make(state.term, state.log.terms.log_end, members), out)
        self.follow_log(out)

    def follow_log(self, out: list[Action]) -> None:
        """Go by the last members entry of the log; when it is committed, a leader takes the next step."""
        state = self._state
        if state.failed:
            return
        members, leading = self._index.current, state.leading
        if members is not None and members is not state.members:
            before, state.members = state.members, members
            self._settled_told = False
            out.append(MembersChanged(members, committed=False))
            if leading is not None:
                self._lead_members(leading, before, out)
        if not self._settled_told and self.is_settled:
            self._settled_told = True
            out.append(MembersChanged(state.members, committed=True))
            if leading is not None and leading.phase is not LeaderPhase.STARTING:
                self.step_settled(leading, out)
        self._transfer.go_on(out)

    def _lead_members(self, leading: Leader, before: Members, out: list[Action]) -> None:
        """Count by the new members, and send to them; those that leave hear of it, as learners do, until it is committed."""
        state = self._state
        members = state.members
        leaving = tuple(node for node in before.everybody if node not in members.everybody)
        leading.set_members(Members(members.voters, members.outgoing, (*members.learners, *leaving)), out)
        for node in members.everybody:
            if node != state.node_id and node not in leading.replicator.progress:
                state.add_follower(node, state.log.terms.end, out)

    def step_settled(self, leading: Leader, out: list[Action]) -> None:
        """The members that this leader goes by are committed."""
        state = self._state
        if state.members.is_joint:
            self.write(final_members(state.members), out)
            return
        leading.replicator.send_heartbeats(out)  # tells those that leave
        leading.set_members(state.members, out)
        self._work_on_wish(out)
        if state.leading is not None and state.node_id not in state.members.voting:
            successor = self._transfer.successor
            if successor is None:
                state.fence(state.term + 1, None, out)
            else:
                self._transfer.begin(successor)
