"""Electing a leader among the replicas themselves: candidacies, votes and patience (S1; S4.2-S4.5).

Raft's three roles (S1.22) are states of the common machine: a follower that knows its leader is FOLLOWER; a follower that
knows none, and a candidate, are FENCED; both the vote for another and the candidacy take the NewTerm edge, and winning takes
BecomeLeader. How far a candidacy has come is a table of `replica_state`, too.

Decisions
---------
* **A candidate asks for votes when its own vote is durable**, not before. The log that it names is durable then too (writes
  become durable in order); otherwise it could win by entries that it loses in a crash.
* **Pre-vote** comes first (`ElectionConfig.pre_vote`). A real request of a newer term is always obeyed, even by a leader
  (S1.26): whoever sends one has a majority that saw no leader lately.
* **A leader that hears from no majority** for `election_ticks_min` gives up by promising the next term itself. There is no
  edge from LEADER to FENCED but NewTerm, and a term without a leader does no harm.
* **An answer is repeated** when the same candidate asks again in the same term (S1.25), also once the leader is known; a
  vote is not *newly* given then (S1.28).
* **Every peer is sent entries from the leader's own end** at first; the first rejection's hint says where its log really is.
* **Whoever is asked for a vote gives it by its log alone**, whether it finds the candidate or itself among its members or
  not: the candidate may know of later members, and could otherwise never win.
"""

from collections.abc import Callable

from antiphon.replication.actions import Action, Send
from antiphon.replication.config import ElectionConfig
from antiphon.replication.election import Campaign, ElectionTimer, is_up_to_date
from antiphon.replication.members import MembersIndex
from antiphon.replication.messages import NodeId, RequestVote, StaleTerm, TimeoutNow, VoteReply
from antiphon.replication.quorum import VoteResult
from antiphon.replication.replica_state import CANDIDACIES, Candidacy, CandidacyEvent, Role, next_state
from antiphon.replication.term_state import TermObserver, TermState


class VoteElection(TermObserver):
    """Stands for election, and votes.

    Args:
        state: the replica's term.
        index: the members entries of its log; None where the ensemble is fixed by configuration.
        config: settings.
        draw_timeout: draws a random time-out in ticks.
    """

    def __init__(
        self,
        state: TermState,
        index: MembersIndex | None,
        config: ElectionConfig,
        draw_timeout: Callable[[], int],
    ) -> None:
        self.candidacy = Candidacy.NONE
        self._state = state
        self._index = index
        self._config = config
        self._draw_timeout = draw_timeout
        self.timer = ElectionTimer(self._patience, config.election_ticks_min)
        self._campaign: Campaign | None = None  # the votes; there while the candidacy is
        self._leading_ticks = 0

    def _patience(self) -> int:
        """A time-out in ticks; where there can be no leader, the one that this member has for that."""
        first, state = self._config.first_ticks, self._state
        if first and (state.term == 0 or state.members.sets == ((state.node_id,),)):
            return first
        return self._draw_timeout()

    def stepped_down(self, *, was_leader: bool) -> None:
        """No candidacy outlives its term."""
        self._end_candidacy(CandidacyEvent.STEP_DOWN)
        if was_leader:
            self.timer.rearm()

    def time_told(self, out: list[Action]) -> None:
        """Its own vote counts when it is no longer bound."""
        self.persisted(out)

    # -- time ------------------------------------------------------------------------------------------------------

    def tick_without_lead(self, out: list[Action]) -> None:
        """One tick of patience passed (S1.23, S1.30)."""
        if not self.timer.tick():
            return
        self.timer.rearm()
        self._end_candidacy(CandidacyEvent.LOST)
        if self._state.repair.is_sound and self._may_stand():
            if self._config.pre_vote:
                self._ask_for_pre_votes(out)
            else:
                self.campaign(out)

    def tick_of_leader(self, out: list[Action]) -> None:
        """One tick of leading passed: send heartbeats (S1.29), and give up where no majority answers."""
        state, config = self._state, self._config
        leading = state.leading
        if leading is None:
            return
        self._leading_ticks += 1
        if self._leading_ticks % config.election_ticks_min == 0 and not leading.reads.heard_from_quorum():
            state.fence(state.term + 1, None, out)
            return
        if self._leading_ticks % config.heartbeat_ticks == 0:
            leading.replicator.send_heartbeats(out)
        leading.tick(out)

    def lost_connection(self, peer: NodeId) -> None:
        """The connection to `peer` broke: if it leads, be less patient. Whether it is gone is for the vote to say."""
        state = self._state
        if state.role is Role.FOLLOWER and state.leader == peer:
            self.timer.lost_leader()

    def heard_from(self, sender: NodeId, term: int) -> None:
        """A message of a leader was taken or not; if it is the leader that is followed, it lives."""
        state = self._state
        if state.role is Role.FOLLOWER and term == state.term and state.leader == sender:
            self.timer.heard_from_leader()
            self._end_candidacy(CandidacyEvent.LEADER_HEARD)

    # -- standing for election -------------------------------------------------------------------------------------

    def peers(self) -> list[NodeId]:
        """Everybody else who may vote somewhere."""
        state = self._state
        return [node for node in state.members.voting if node != state.node_id]

    def _may_stand(self) -> bool:
        """Is this replica a voter, or was it one before an entry that may still be undone?

        The latter may be the only one whose log is long enough; when it is elected it brings that entry to the others.
        """
        state, index = self._state, self._index
        if state.node_id in state.members.voting or index is None:
            return state.node_id in state.members.voting
        before = index.at(index.end - 1)
        return index.end > state.log.settled and before is not None and state.node_id in before.voting

    def _ask_for_pre_votes(self, out: list[Action]) -> None:
        state = self._state
        campaign = self._begin_candidacy(CandidacyEvent.PRE_CAMPAIGN, state.term + 1)
        if campaign.record(state.node_id, granted=True) is VoteResult.WON:
            self.campaign(out)
            return
        request = RequestVote(state.shard, state.term + 1, state.node_id, state.log.terms.end, pre_vote=True)
        out.extend(Send(peer, request) for peer in self.peers())

    def campaign(self, out: list[Action], *, transfer: bool = False) -> None:
        """Take the next term, vote for oneself, and ask the others once that is durable (S1.24)."""
        state = self._state
        state.fence(state.term + 1, state.node_id, out)
        campaign = self._begin_candidacy(CandidacyEvent.CAMPAIGN, state.term)
        campaign.is_transfer = transfer
        # The votes have to be durable, which may take longer than the first patience
        if self._config.first_ticks:
            self.timer.rearm(self._draw_timeout())
        campaign.record(state.node_id, granted=True)
        request = RequestVote(state.shard, state.term, state.node_id, state.log.terms.end, transfer=transfer)
        for peer in self.peers():
            state.send_when_durable(peer, request, out)

    def on_timeout_now(self, sender: NodeId, message: TimeoutNow, out: list[Action]) -> None:
        """The leader hands over to this replica: stand at once."""
        state = self._state
        if (
            message.term == state.term
            and state.role is Role.FOLLOWER
            and state.leader == sender
            and state.repair.is_sound
            and state.node_id in state.members.voting
        ):
            self.timer.rearm()
            self.campaign(out, transfer=True)

    def on_vote_reply(self, sender: NodeId, message: VoteReply, out: list[Action]) -> None:
        """An answer to a request of this replica."""
        campaign = self._campaign
        if (
            campaign is None
            or message.term != campaign.term
            or message.pre_vote != campaign.is_pre_vote
            or sender == self._state.node_id
        ):
            return
        result = campaign.record(sender, granted=message.granted)
        if result is VoteResult.LOST:
            self._end_candidacy(CandidacyEvent.LOST)  # S1.31: wait, as a follower does
        elif result is VoteResult.WON:
            if campaign.is_pre_vote:
                self.campaign(out)
            elif self._is_free(campaign):
                self._win(out)

    def _is_free(self, campaign: Campaign) -> bool:
        """Does this replica's own vote count already? A leader that asks to be followed relies on no promise any more."""
        return campaign.is_transfer or not self._state.promise.holds(campaign.term)

    def persisted(self, out: list[Action]) -> None:
        """An only member's own vote wins once it is durable; that of one that is bound to a leader, when it no longer is."""
        campaign = self._campaign
        if (
            campaign is not None
            and not campaign.is_pre_vote
            and self._state.log.is_term_durable
            and campaign.result is VoteResult.WON
            and self._is_free(campaign)
        ):
            self._win(out)

    def _win(self, out: list[Action]) -> None:
        """A majority voted for this replica (S1.29)."""
        self._end_candidacy(CandidacyEvent.WON)
        self._leading_ticks = 0
        state = self._state
        head = state.log.terms.end
        others = [node for node in state.members.everybody if node != state.node_id]
        state.lead(state.members, [(node, head) for node in others], out)

    def _begin_candidacy(self, event: CandidacyEvent, term: int) -> Campaign:
        self.candidacy = next_state(CANDIDACIES, self.candidacy, event)
        is_pre_vote = self.candidacy is Candidacy.PRE_CANDIDATE
        self._campaign = campaign = Campaign(term, self._state.members, is_pre_vote=is_pre_vote)
        return campaign

    def _end_candidacy(self, event: CandidacyEvent) -> None:
        if self.candidacy is not Candidacy.NONE:
            self.candidacy = next_state(CANDIDACIES, self.candidacy, event)
            self._campaign = None

    # -- being asked -----------------------------------------------------------------------------------------------

    def on_request_vote(self, sender: NodeId, message: RequestVote, out: list[Action]) -> None:
        """A candidate, or one that would like to be, asks for the vote of this replica."""
        state = self._state
        if state.repair.is_forgotten or state.role is Role.NOT_MEMBER or sender == state.node_id:
            return
        if self._index is None and message.candidate not in state.members.voting:
            return
        if message.term < state.term or (message.pre_vote and message.term == state.term):
            out.append(Send(sender, StaleTerm(state.shard, state.term)))
        elif message.pre_vote:
            if state.holds_back(sender, message):
                return
            granted = self._would_vote_for(message) and not self.knows_live_leader()
            out.append(Send(sender, VoteReply(state.shard, message.term, granted, pre_vote=True)))
        else:
            self._vote(sender, message, out)

    def _would_vote_for(self, message: RequestVote) -> bool:
        state = self._state
        return state.repair.is_sound and is_up_to_date(message.head, state.log.terms.end)

    def knows_live_leader(self) -> bool:
        """Should nobody be elected in the place of the leader that this replica is, or follows?"""
        role = self._state.role
        return role is Role.LEADER or (role is Role.FOLLOWER and self.timer.is_leader_fresh)

    def _vote(self, sender: NodeId, message: RequestVote, out: list[Action]) -> None:
        """Evaluate a real request of this term or a newer one (S1.25-S1.28)."""
        state, candidate = self._state, message.candidate
        if message.term > state.term:
            granted = self._would_vote_for(message)
            state.fence(message.term, candidate if granted else None, out)
        elif state.voted_for == candidate:
            granted = True
        else:
            granted = state.voted_for is None and state.leader is None and self._would_vote_for(message)
            if granted:
                state.voted_for = candidate
                out.append(state.log.persist_term(state.term, candidate))
        if granted and not message.transfer and state.holds_back(sender, message):
            return
        reply = VoteReply(state.shard, state.term, granted)
        if granted:
            self.timer.rearm()
            state.send_when_durable(sender, reply, out)
        else:
            out.append(Send(sender, reply))
