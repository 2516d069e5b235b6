"""A replica that elects its leader itself, with the others (S1; S4.2-S4.5).

It has the same outside interface as `Replica`, so that the same surroundings drive both; it wants every tick (`needs_tick`)
and besides knows `leader_lost_hint`. Raft's three roles (S1.22) are states of the same machine: a follower that knows its
leader is FOLLOWER; a follower that knows none, and a candidate, are FENCED; both the vote for another and the
candidacy take the NewTerm edge, and winning takes BecomeLeader.

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
"""

from collections.abc import Callable, Sequence

from antiphon.records.entry_id import TermIndex
from antiphon.replication.actions import Action, Send
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.election import Campaign, ElectionTimer, is_up_to_date
from antiphon.replication.messages import (
    Append,
    Entry,
    NodeId,
    RequestVote,
    ShardId,
    SnapshotOffer,
    StaleTerm,
    VoteReply,
)
from antiphon.replication.quorum import VoteResult
from antiphon.replication.replica_core import ReplicaCore
from antiphon.replication.replica_state import Role

__all__ = ["ElectionConfig", "RaftReplica", "ReplicaConfig"]


class RaftReplica(ReplicaCore):
    """One replica of a shard whose replicas vote. `election_timeout_ticks` draws a random time-out in ticks."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        shard: ShardId,
        ensemble: Sequence[NodeId],
        terms: TermIndex,
        term: int,
        voted_for: NodeId | None,
        high_watermark: int,
        make_term_start: Callable[[int, int], Entry],
        config: ReplicaConfig,
        election_timeout_ticks: Callable[[], int],
        election: ElectionConfig | None = None,
        damaged: bool = False,
    ) -> None:
        super().__init__(
            node_id=node_id,
            shard=shard,
            ensemble=ensemble,
            terms=terms,
            term=term,
            voted_for=voted_for,
            high_watermark=high_watermark,
            make_term_start=make_term_start,
            config=config,
            damaged=damaged,
        )
        self._election = election or ElectionConfig()
        self._timer = ElectionTimer(election_timeout_ticks, self._election.election_ticks_min)
        self._campaign: Campaign | None = None
        self._leading_ticks = 0
        self._handlers.update({RequestVote: self._on_request_vote, VoteReply: self._on_vote_reply})

    @property
    def is_candidate(self) -> bool:
        """Does this replica ask for votes of its term (a pre-vote does not make a candidate)?"""
        return self._campaign is not None and not self._campaign.is_pre_vote

    @property
    def needs_tick(self) -> bool:
        """Always, but for a leader without peers that has nothing to do."""
        if self.failed or self.role is Role.NOT_MEMBER:
            return False
        return self._leading is None or len(self.ensemble) > 1 or self._leading.needs_tick

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> list[Action]:
        """One tick of time passed: heartbeats of a leader (S1.29), patience of everybody else (S1.23, S1.30)."""
        out: list[Action] = []
        if self.failed or self.role is Role.NOT_MEMBER:
            return out
        if self._leading is None:
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
        if not self.damaged:
            if self._election.pre_vote:
                self._ask_for_pre_votes(out)
            else:
                self._ask_for_votes(out)

    # -- being a candidate -----------------------------------------------------------------------------------------

    def _peers(self) -> list[NodeId]:
        return [node for node in self.ensemble if node != self.node_id]

    def _ask_for_pre_votes(self, out: list[Action]) -> None:
        self._campaign = Campaign(self.term + 1, self.ensemble, is_pre_vote=True)
        if self._campaign.record(self.node_id, granted=True) is VoteResult.WON:
            self._ask_for_votes(out)
            return
        request = RequestVote(self.shard, self.term + 1, self.node_id, self.head, pre_vote=True)
        out.extend(Send(peer, request) for peer in self._peers())

    def _ask_for_votes(self, out: list[Action]) -> None:
        """Take the next term, vote for oneself, and ask the others once that is durable (S1.24)."""
        self._fence(self.term + 1, self.node_id, out)
        self._campaign = Campaign(self.term, self.ensemble, is_pre_vote=False)
        self._campaign.record(self.node_id, granted=True)
        request = RequestVote(self.shard, self.term, self.node_id, self.head)
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
        self._lead(self.ensemble, [(peer, head) for peer in self._peers()], out)

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

    # -- being asked -----------------------------------------------------------------------------------------------

    def _on_request_vote(self, sender: NodeId, message: RequestVote, out: list[Action]) -> None:
        if self.role is Role.NOT_MEMBER or message.candidate not in self.ensemble or sender == self.node_id:
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
        super()._on_append(sender, message, out)
        self._heard(sender, message.term)

    def _on_snapshot_offer(self, sender: NodeId, message: SnapshotOffer, out: list[Action]) -> None:
        super()._on_snapshot_offer(sender, message, out)
        self._heard(sender, message.term)

    def _heard(self, sender: NodeId, term: int) -> None:
        if self.role is Role.FOLLOWER and term == self.term and self.leader == sender:
            self._timer.heard_from_leader()
            self._campaign = None

    def _step_down(self, out: list[Action]) -> None:
        was_leader = self._leading is not None
        super()._step_down(out)
        self._campaign = None
        if was_leader:
            self._timer.rearm()
