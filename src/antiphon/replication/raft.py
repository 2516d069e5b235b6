"""A replica that elects its leader itself, with the others, and whose members may change (S1; S0.2; S4.2-S4.5).

It is driven as `Replica` is, so that the same caller drives both. Besides, it wants every tick (`needs_tick`), and takes
`peer_lost` for a hint that a leader may be gone. What it consists of:

| part | is about |
|---|---|
| `VoteElection` | candidacies, votes, patience |
| `TermInquiry` | a log that is not whole: which term may prove it whole |
| `Membership` | members entries, and a leader's change of members; only where the log may change the members |
| `LeadershipTransfer` | handing leadership over |
| `VoterFollowing` | what a leader sends |
| `LoneVoter` | going on alone, when most others are lost for good |
"""

from collections.abc import Callable, Sequence

from antiphon.errors import InvalidRequestError, NotLeaderError, NotReadyError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.following import Following
from antiphon.replication.lone_voter import LoneVoter, is_of_later_history
from antiphon.replication.members import Members
from antiphon.replication.membership import Membership
from antiphon.replication.messages import (
    AnyMessage,
    Append,
    AskTerm,
    ChangeMembers,
    GoOnAlone,
    NodeId,
    RequestVote,
    ShardId,
    SnapshotOffer,
    TermReply,
    TimeoutNow,
    TransferLeadership,
    VoteReply,
)
from antiphon.replication.raft_transfer import LeadershipTransfer
from antiphon.replication.replica_base import ReplicaBase
from antiphon.replication.replica_state import Candidacy, Role
from antiphon.replication.restored_state import RestoredState
from antiphon.replication.term_inquiry import TermInquiry
from antiphon.replication.term_state import TermState
from antiphon.replication.voter_following import VoterFollowing
from antiphon.replication.voting import VoteElection

__all__ = ["ElectionConfig", "RaftReplica", "ReplicaConfig"]


class RaftReplica(ReplicaBase):
    """One replica of a shard whose replicas vote.

    Args:
        node_id, shard, config: as for `Replica`.
        ensemble: the voters, as long as the log does not say otherwise.
        restored: what the disk gave back. Without its `members` the ensemble is fixed by configuration, and nothing in the
            log changes it.
        entries: makes the protocol's own entries; `entries.members` is needed where members change.
        election_timeout_ticks: draws a random time-out in ticks.
        election: settings.
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
        election_timeout_ticks: Callable[[], int],
        election: ElectionConfig | None = None,
    ) -> None:
        index = restored.members
        if index is not None and index.base is None:  # the log does not say how it began
            index.base = Members(tuple(ensemble))
        state = TermState(node_id, shard, ensemble, restored, entries, config)
        super().__init__(state, Following(state))
        election = election or ElectionConfig()
        self.election = VoteElection(state, index, election, election_timeout_ticks)
        self.inquiry = TermInquiry(state, self.election, index, election)
        self.transfer = LeadershipTransfer(state, election)
        self.membership = None if index is None else Membership(state, index, self.transfer, entries.members)
        if index is not None and (restored.terms.log_end or restored.term or state.repair.is_forgotten):
            state.role = Role.FENCED  # a member once, for whoever counts it
        state.observers += [self.election, self.transfer]
        state.observers += [] if self.membership is None else [self.membership]
        self._voter_following = VoterFollowing(state, self.following, self.election, self.inquiry)
        self._handlers.update(
            {
                Append: self._voter_following.on_append,
                SnapshotOffer: self._voter_following.on_snapshot_offer,
                RequestVote: self.election.on_request_vote,
                VoteReply: self.election.on_vote_reply,
                TimeoutNow: self.election.on_timeout_now,
                AskTerm: self.inquiry.on_ask_term,
                TermReply: self.inquiry.on_term_reply,
                TransferLeadership: self.transfer.on_transfer_leadership,
            }
        )
        if self.membership is not None:
            self._handlers[ChangeMembers] = self.membership.on_change_members
            if entries.members is not None:
                alone = LoneVoter(state, self.election, self.membership, entries.members)
                self._handlers[GoOnAlone] = alone.on_go_on_alone

    @property
    def is_candidate(self) -> bool:
        """Does this replica ask for votes of its term (a pre-vote does not make a candidate)?"""
        return self.election.candidacy is Candidacy.CANDIDATE

    @property
    def needs_tick(self) -> bool:
        """Always, but for a leader without peers that has nothing to do."""
        state = self._state
        if state.failed or state.role is Role.NOT_MEMBER:
            return False
        leading = state.leading
        if leading is None or len(state.members.everybody) > 1 or leading.needs_tick:
            return True
        return self.transfer.target is not None

    @property
    def settled_members(self) -> Members | None:
        """The members that are committed in the log; None where the ensemble is fixed."""
        return self.members_at(self.settled)

    def members_at(self, offset: int) -> Members | None:
        """The members as of the log prefix that ends at `offset`; None where the ensemble is fixed."""
        return None if self.membership is None else self.membership.at(offset)

    # -- events ----------------------------------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: AnyMessage, now_us: int | None = None) -> list[Action]:
        """As for every replica; besides, members entries that came, went or were committed take effect.

        What comes from a history that this replica is no part of is ignored, but for the word to begin one.
        """
        is_later = is_of_later_history(message, self._state.term, self.log.terms.log_end)
        if is_later and not isinstance(message, GoOnAlone):
            return []
        out = super().receive(sender, message, now_us)
        self._follow_members(out)
        return out

    def persisted(self, write_id: int) -> list[Action]:
        """As for every replica, and as `receive`; an only member's own vote wins once it is durable."""
        out = super().persisted(write_id)
        self.election.persisted(out)
        self._follow_members(out)
        return out

    def snapshot_installed(self, at: EntryId, members: Members | None = None) -> list[Action]:
        """As for every replica; one that forgot its promises takes nothing yet. `members`: as of `at`."""
        out: list[Action] = []
        self._voter_following.snapshot_installed(at, members, out)
        self._follow_members(out)
        return out

    def trimmed(self, log_start: int) -> list[Action]:
        """As for every replica; what the members entries in the removed part said is remembered."""
        out = super().trimmed(log_start)
        if self.membership is not None:
            self.membership.trimmed()
        return out

    def peer_lost(self, node: NodeId) -> list[Action]:
        """The connection to `node` broke; also a hint that a leader may be gone."""
        out = super().peer_lost(node)
        self.election.lost_connection(node)
        return out

    def tick(self, now_us: int | None = None) -> list[Action]:
        """One tick of time passed: heartbeats of a leader (S1.29), patience of everybody else (S1.23, S1.30)."""
        out: list[Action] = []
        state = self._state
        state.note_time(now_us, self._handlers, out)
        self._follow_members(out)
        if state.failed or state.role is Role.NOT_MEMBER or not self.transfer.tick(out):
            return out
        if state.leading is None:
            self.inquiry.tick(out)
            self.election.tick_without_lead(out)
        else:
            self.election.tick_of_leader(out)
        return out

    def _follow_members(self, out: list[Action]) -> None:
        if self.membership is not None:
            self.membership.follow_log(out)

    def _cannot_serve(self) -> NotLeaderError | NotReadyError:
        to = self.transfer.target
        if to is None:
            return super()._cannot_serve()
        return NotReadyError(
            f"node {self.node_id} hands shard {self.shard} over to node {to}; retry",
            leader=to,
        )

    # -- requests --------------------------------------------------------------------------------------------------

    def propose_members(self, voters: Sequence[NodeId], learners: Sequence[NodeId] = ()) -> list[Action]:
        """Make these the members (S0.2): one change at a time, in joint steps where voters change.

        Nothing to do is no error. `MembersChanged` tells of each step, first when it is in force, then when it is committed.

        Raises:
            NotLeaderError, NotReadyError: as for `propose`; also while another change is under way, and as long as a new
                voter is no learner that has caught up.
            InvalidRequestError: the ensemble is fixed, or these can never be members.
        """
        if not self.ready:
            raise self._cannot_serve()
        if self.membership is None:
            raise InvalidRequestError(f"the members of shard {self.shard} are fixed by configuration")
        out: list[Action] = []
        self.membership.propose(voters, learners, out)
        return out

    def transfer_leadership(self, to: NodeId) -> list[Action]:
        """Hand over to `to`, a voter; until that is done, or given up, proposals are refused.

        Raises NotLeaderError, NotReadyError; InvalidRequestError when `to` cannot be elected.
        """
        if not self.ready:
            raise self._cannot_serve()
        voting = self.members.voting
        if to not in voting:
            raise InvalidRequestError(f"node {to} is no voter of shard {self.shard}: {voting} are")
        out: list[Action] = []
        if to != self.node_id:
            self.transfer.begin(to)
            self.transfer.go_on(out)
        return out
