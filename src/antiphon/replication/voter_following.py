"""What a replica that votes makes of a leader's messages, besides what every replica does (`Following`).

It tells the election that the leader lives, and the inquiry that a leader was met. A replica that forgot its promises is
silent towards leaders.
"""

from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action
from antiphon.replication.following import Following
from antiphon.replication.members import Members
from antiphon.replication.messages import Append, NodeId, SnapshotOffer
from antiphon.replication.raft_members import MembersLog
from antiphon.replication.replica_state import Event, Role
from antiphon.replication.term_inquiry import TermInquiry
from antiphon.replication.term_state import TermState
from antiphon.replication.voting import VoteElection


class VoterFollowing:
    """Follows an elected leader."""

    def __init__(
        self, state: TermState, following: Following, election: VoteElection, inquiry: TermInquiry
    ) -> None:
        self._state = state
        self._following = following
        self._election = election
        self._inquiry = inquiry
        self._offered: SnapshotOffer | None = None

    def on_append(self, sender: NodeId, message: Append, out: list[Action]) -> None:
        """A leader's Append."""
        if self._state.repair.is_forgotten:
            self._inquiry.leader_heard(sender)
            return
        if self._follow(sender, message.term, Event.REPLICATE, out):
            self._following.take(message, out)
        self._election.heard_from(sender, message.term)

    def on_snapshot_offer(self, sender: NodeId, message: SnapshotOffer, out: list[Action]) -> None:
        """A leader's word that a snapshot follows."""
        if self._state.repair.is_forgotten:
            self._inquiry.leader_heard(sender)
            return
        self._offered = message
        self._follow(sender, message.term, Event.SNAPSHOT, out)
        self._election.heard_from(sender, message.term)

    def snapshot_installed(self, at: EntryId, members: Members | None, out: list[Action]) -> None:
        """A snapshot arrived; `members` are those as of `at`, if the caller knows them better than the offer."""
        log, offered = self._state.log, self._offered
        if self._state.repair.is_forgotten:
            return
        if isinstance(log, MembersLog):
            if members is None and offered is not None and offered.at == at:
                members = offered.members
            log.snapshot_members = members
        self._following.snapshot_installed(at, out)

    def _follow(self, sender: NodeId, term: int, event: Event, out: list[Action]) -> bool:
        """A leader knows its members: whoever it sends to is one, or is to become one."""
        state = self._state
        if state.role is Role.NOT_MEMBER and isinstance(state.log, MembersLog) and term > state.term:
            state.fence(term, None, out)
        known = state.leader if term == state.term else None
        follows = state.follow(sender, term, event, out)
        if follows:
            self._inquiry.leader_met(sender, term, is_new=known is None, out=out)
        return follows
