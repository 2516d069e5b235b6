"""The part of a replica that elects its leader itself, with the others (S1; S4.2-S4.5): votes, patience, and repair.

`RaftReplica` is this and what goes with members that change. It has the same outside interface as `Replica`, so that the
same surroundings drive both; it wants every tick (`needs_tick`) and besides knows `leader_lost_hint`. Raft's three roles
(S1.22) are states of the same machine: a follower that knows its leader is FOLLOWER; a follower that knows none, and a
candidate, are FENCED; both the vote for another and the candidacy take the NewTerm edge, and winning takes BecomeLeader.

Decisions
---------
* **A candidate asks for votes when its own vote is durable**, not before. The log it boasts of is durable then too (writes
  become durable in order); otherwise it could win by entries that it loses in a crash.
* **Pre-vote** comes first (`ElectionConfig.pre_vote`). A real request of a newer term is always obeyed, even by a leader
  (S1.26): whoever sends one has a majority that saw no leader lately.
* **A leader that hears from no majority** for `election_ticks_min` gives up by promising the next term itself. There is no
  edge from LEADER to FENCED but NewTerm, and a term without a leader does no harm.
* **An answer is repeated** when the same candidate asks again in the same term (S1.25), also once the leader is known; a
  vote is not *newly* given then (S1.28).
* **Every peer is fed from the leader's own end** at first; the first rejection's hint says where its log really is.
* **A damaged replica asks for a new term** (`AskTerm`), since only an entry committed in a term begun since proves that its
  log is whole. A leader that could be elected without it obeys, by standing for the next term.
* **A replica that forgot its promises too** (its disk came back empty) may have been part of any term so far. Before it
  obeys or acknowledges anything it asks the others which terms they promised, and takes the highest for its own. As many
  must answer as make a majority, itself not counted: those share a replica with every majority that it may have been part
  of, so that no term beyond theirs had begun by then. Until then it is silent towards leaders and candidates. Where members
  change, those that it knows of may be former ones; so the first leader that it meets counts as one of then, too.
* **A replica that joins** a shard with a history (`joining`) does not vote before it has, durably, an entry that was
  committed in the term that it is in. An empty log would vote for anybody, also for a candidate of long ago that counts this
  node from a time when it was a member before, and that has not heard since that others decide now. No earlier point will
  do: the log that it is fed begins with that time. So nobody is made a voter before it is past that point.
"""

from collections.abc import Callable, Sequence

from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, Send
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.election import Campaign, ElectionTimer, is_up_to_date
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Append,
    AskTerm,
    NodeId,
    RequestVote,
    ShardId,
    SnapshotOffer,
    StaleTerm,
    TermReply,
    VoteReply,
)
from antiphon.replication.quorum import VoteResult, majority
from antiphon.replication.raft_members import MembersLog
from antiphon.replication.replica_core import ReplicaCore
from antiphon.replication.replica_state import Event, LogCondition, Role
from antiphon.replication.restored_state import RestoredState


class RaftVoter(ReplicaCore):
    """One replica of a shard whose replicas vote; see `RaftReplica`.

    Args, besides those of `ReplicaCore`:
        ensemble: the voters, as long as the log does not say otherwise.
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
        members = restored.members
        if members is not None and members.base is None:  # the log does not say how it began
            members.base = Members(tuple(ensemble))
        super().__init__(
            node_id=node_id,
            shard=shard,
            ensemble=ensemble,
            restored=restored,
            entries=entries,
            config=config,
        )
        forgot = restored.condition is LogCondition.FORGOTTEN
        self._index = members
        if members is not None:
            terms = restored.terms
            self._log = MembersLog(terms, restored.high_watermark, members)
            self._log.acknowledged = min(restored.acknowledged, terms.log_end)
            if terms.log_end or restored.term or forgot:  # a member once, for whoever counts it
                self.role = Role.FENCED
        self._offered: SnapshotOffer | None = None
        self._election = election or ElectionConfig()
        self._timer = ElectionTimer(election_timeout_ticks, self._election.election_ticks_min)
        self._campaign: Campaign | None = None
        self._leading_ticks = 0
        self._damaged_ticks = 0
        self._joining = restored.condition is LogCondition.JOINING
        if self._joining:
            self._repair_floor = 0
        self._told_terms: set[NodeId] | None = set() if forgot else None  # who has answered; None: enough
        self._met_leader = not (forgot and members is not None)
        self._handlers.update(
            {
                RequestVote: self._on_request_vote,
                VoteReply: self._on_vote_reply,
                AskTerm: self._on_ask_term,
                TermReply: self._on_term_reply,
            }
        )

    @property
    def is_candidate(self) -> bool:
        """Does this replica ask for votes of its term (a pre-vote does not make a candidate)?"""
        return self._campaign is not None and not self._campaign.is_pre_vote

    @property
    def needs_tick(self) -> bool:
        """Always, but for a leader without peers that has nothing to do."""
        if self.failed or self.role is Role.NOT_MEMBER:
            return False
        return self._leading is None or len(self.members.everybody) > 1 or self._leading.needs_tick

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> list[Action]:
        """One tick of time passed: heartbeats of a leader (S1.29), patience of everybody else (S1.23, S1.30)."""
        out: list[Action] = []
        if self.failed or self.role is Role.NOT_MEMBER:
            return out
        if self._leading is None:
            if self.damaged and not self._joining:
                self._ask_for_term(out)
            if self._timer.tick():
                self._time_out(out)
            return out
        self._leading_ticks += 1
        if (
            self._leading_ticks % self._election.election_ticks_min == 0
            and not self._leading.heard_from_quorum()
        ):
            self._fence(self.term + 1, None, out)
            return out
        if self._leading_ticks % self._election.heartbeat_ticks == 0:
            self._leading.heartbeat(out)
        self._leading.tick(out)
        return out

    def leader_lost_hint(self, peer: NodeId) -> list[Action]:
        """The connection to `peer` broke: if it leads, be less patient. Whether it is gone is for the vote to say."""
        if self.role is Role.FOLLOWER and self.leader == peer:
            self._timer.lost_leader()
        return []

    def peer_lost(self, node: NodeId) -> list[Action]:
        """The connection to `node` broke; also a hint that a leader may be gone."""
        return super().peer_lost(node) + self.leader_lost_hint(node)

    def _time_out(self, out: list[Action]) -> None:
        self._timer.rearm()
        self._campaign = None
        if not self.damaged and self._may_lead():
            if self._election.pre_vote:
                self._ask_for_pre_votes(out)
            else:
                self._ask_for_votes(out)

    def _may_lead(self) -> bool:
        """Is this replica a voter, or was it one before an entry that may still be undone?

        The latter may be the only one whose log is long enough; when it is elected it brings that entry to the others.
        """
        if self.node_id in self.ensemble or self._index is None:
            return self.node_id in self.ensemble
        index = self._index
        before = index.at(index.end - 1)
        return index.end > self._log.high_watermark and before is not None and self.node_id in before.voting

    # -- being a candidate -----------------------------------------------------------------------------------------

    def _peers(self) -> list[NodeId]:
        return [node for node in self.ensemble if node != self.node_id]

    def _ask_for_pre_votes(self, out: list[Action]) -> None:
        self._campaign = Campaign(self.term + 1, self.members, is_pre_vote=True)
        if self._campaign.record(self.node_id, granted=True) is VoteResult.WON:
            self._ask_for_votes(out)
            return
        request = RequestVote(self.shard, self.term + 1, self.node_id, self.head, pre_vote=True)
        out.extend(Send(peer, request) for peer in self._peers())

    def _ask_for_votes(self, out: list[Action], *, transfer: bool = False) -> None:
        """Take the next term, vote for oneself, and ask the others once that is durable (S1.24)."""
        self._fence(self.term + 1, self.node_id, out)
        self._campaign = Campaign(self.term, self.members, is_pre_vote=False)
        self._campaign.record(self.node_id, granted=True)
        request = RequestVote(self.shard, self.term, self.node_id, self.head, transfer=transfer)
        for peer in self._peers():
            self._say_when_durable(peer, request, out)

    def _on_vote_reply(self, sender: NodeId, message: VoteReply, out: list[Action]) -> None:
        campaign = self._campaign
        if (
            campaign is None
            or message.term != campaign.term
            or message.pre_vote != campaign.is_pre_vote
            or sender == self.node_id
        ):
            return
        result = campaign.record(sender, granted=message.granted)
        if result is VoteResult.LOST:
            self._campaign = None  # S1.31: wait, as a follower does
        elif result is VoteResult.WON:
            if campaign.is_pre_vote:
                self._ask_for_votes(out)
            else:
                self._win(out)

    def _win(self, out: list[Action]) -> None:
        """A majority voted for this replica (S1.29)."""
        self._campaign = None
        self._leading_ticks = 0
        head = self.head
        others = [node for node in self.members.everybody if node != self.node_id]
        self._lead(self.members, [(node, head) for node in others], out)

    def persisted(self, write_id: int) -> list[Action]:
        """As for every replica; besides, an only member's own vote wins once it is durable."""
        out = super().persisted(write_id)
        campaign = self._campaign
        if (
            campaign is not None
            and not campaign.is_pre_vote
            and self._log.is_term_durable
            and campaign.result is VoteResult.WON
        ):
            self._win(out)
        return out

    # -- being damaged ---------------------------------------------------------------------------------------------

    def _ask_for_term(self, out: list[Action]) -> None:
        """Now and then, until the log is whole. Not in step with the leader's own checks, which start its counts anew."""
        election = self._election
        if self._damaged_ticks % (election.election_ticks_min - election.heartbeat_ticks) == 0:
            request = self._wanted_term()
            out.extend(Send(peer, request) for peer in self._peers())
        self._damaged_ticks += 1

    def _wanted_term(self) -> AskTerm:
        return AskTerm(self.shard, self.term, self._repair_floor if self._told_terms is None else -1)

    def _on_ask_term(self, sender: NodeId, message: AskTerm, out: list[Action]) -> None:
        """Say what is promised here; a leader who can be elected without the damaged replica begins a new term."""
        is_member = sender in self.members.everybody
        if self._told_terms is not None or self.role is Role.NOT_MEMBER or sender == self.node_id:
            return
        if not is_member and self._index is None:
            return
        self._say_when_durable(sender, TermReply(self.shard, self.term), out)
        leading = self._leading
        cursor = None if leading is None else leading.cursors.get(sender)
        if leading is None or cursor is None or not is_member or message.floor < self.term:
            return
        if not cursor.wants_term:
            cursor.wants_term = True  # who else is there may not be known yet; it asks again
        elif leading.ready and leading.hears_quorum_without(sender):
            self._ask_for_votes(out)

    def _on_term_reply(self, sender: NodeId, message: TermReply, out: list[Action]) -> None:
        if message.term > self.term:
            self._learn_term(message.term, out)
        told = self._told_terms
        if told is not None and sender in self._peers():
            told.add(sender)
            if all(len(told.intersection(one)) >= majority(len(one)) for one in self.members.sets):
                self._told_terms = None
                self._repair_floor = self.term

    def snapshot_installed(self, at: EntryId, members: Members | None = None) -> list[Action]:
        """As for every replica; one that forgot its promises takes nothing yet. `members`: as of `at`."""
        if self._told_terms is not None:
            return []
        log, offered = self._log, self._offered
        if isinstance(log, MembersLog):
            if members is None and offered is not None and offered.at == at:
                members = offered.members
            log.snapshot_members = members
        return super().snapshot_installed(at)

    # -- being asked -----------------------------------------------------------------------------------------------

    def _on_request_vote(self, sender: NodeId, message: RequestVote, out: list[Action]) -> None:
        if self._told_terms is not None:
            return
        if self.role is Role.NOT_MEMBER or sender == self.node_id:
            return
        if self._index is None and message.candidate not in self.ensemble:
            return
        if message.term < self.term or (message.pre_vote and message.term == self.term):
            out.append(Send(sender, StaleTerm(self.shard, self.term)))
        elif message.pre_vote:
            granted = self._would_vote_for(message) and not self._knows_live_leader()
            out.append(Send(sender, VoteReply(self.shard, message.term, granted, pre_vote=True)))
        else:
            self._vote(sender, message, out)

    def _would_vote_for(self, message: RequestVote) -> bool:
        return not self.damaged and is_up_to_date(message.head, self.head)

    def _knows_live_leader(self) -> bool:
        if self.role is Role.LEADER:
            return True
        return self.role is Role.FOLLOWER and self._timer.is_leader_fresh

    def _vote(self, sender: NodeId, message: RequestVote, out: list[Action]) -> None:
        """Evaluate a real request of this term or a newer one (S1.25-S1.28)."""
        candidate = message.candidate
        if message.term > self.term:
            granted = self._would_vote_for(message)
            self._fence(message.term, candidate if granted else None, out)
        elif self.voted_for == candidate:
            granted = True
        else:
            granted = self.voted_for is None and self.leader is None and self._would_vote_for(message)
            if granted:
                self.voted_for = candidate
                out.append(self._log.persist_term(self.term, candidate))
        reply = VoteReply(self.shard, self.term, granted)
        if granted:
            self._timer.rearm()
            self._say_when_durable(sender, reply, out)
        else:
            out.append(Send(sender, reply))

    # -- following -------------------------------------------------------------------------------------------------

    def _on_append(self, sender: NodeId, message: Append, out: list[Action]) -> None:
        if self._told_terms is not None:
            return
        super()._on_append(sender, message, out)
        self._heard(sender, message.term)

    def _on_snapshot_offer(self, sender: NodeId, message: SnapshotOffer, out: list[Action]) -> None:
        if self._told_terms is not None:
            return
        self._offered = message
        super()._on_snapshot_offer(sender, message, out)
        self._heard(sender, message.term)

    def _heard(self, sender: NodeId, term: int) -> None:
        if self.role is Role.FOLLOWER and term == self.term and self.leader == sender:
            self._timer.heard_from_leader()
            self._campaign = None

    def _follow(self, sender: NodeId, term: int, event: Event, out: list[Action]) -> bool:
        """A leader knows its members: whoever it feeds is one, or is to become one."""
        if self.role is Role.NOT_MEMBER and self._index is not None and term > self.term:
            self._fence(term, None, out)
        known = self.leader if term == self.term else None
        follows = super()._follow(sender, term, event, out)
        if follows and not self._met_leader:
            self._met_leader = True
            self._repair_floor = max(self._repair_floor, term)
        if follows and known is None and self.damaged and self._repair_floor >= term:
            out.append(
                Send(sender, self._wanted_term())
            )  # before it acknowledges: no vote of this one must be needed
        return follows

    def _step_down(self, out: list[Action]) -> None:
        was_leader = self._leading is not None
        super()._step_down(out)
        self._campaign = None
        if was_leader:
            self._timer.rearm()
