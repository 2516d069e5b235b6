"""Electing a leader by votes: who may get one, how they are counted, and when to ask (S1.22-S1.31).

The rules that make it safe are three: one vote per term and replica, durable before it is given (S1.25, S1.38); a vote only
for a log that is at least as up to date as one's own (S1.27); a majority to win (S1.29). Any two majorities share a
replica, so there is at most one leader per term, and it has every committed entry. While the voters change, it takes a
majority of the new ones and of the old ones (`Members.sets`).

A pre-vote asks the same question without raising anybody's term; it is granted only by replicas that have not heard
from a leader lately. Time is counted in ticks, and the randomness that keeps candidates apart is drawn by the caller.
"""

from collections.abc import Callable

from antiphon.records.entry_id import EntryId
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId
from antiphon.replication.quorum import VoteResult, vote_result


def is_up_to_date(candidate: EntryId, own: EntryId) -> bool:
    """May a log that ends in `candidate` replace one that ends in `own`: last term first, then length (S1.27)."""
    return candidate >= own


class Campaign:
    """One attempt of one candidate among the members that it knows of: the votes so far."""

    __slots__ = ("_answers", "_members", "is_pre_vote", "is_transfer", "term")

    def __init__(self, term: int, members: Members, *, is_pre_vote: bool) -> None:
        self.term = term
        self.is_pre_vote = is_pre_vote
        self.is_transfer = False  # did the leader itself ask for it?
        self._members = members
        self._answers: dict[NodeId, bool] = {}

    def record(self, voter: NodeId, *, granted: bool) -> VoteResult:
        """Count an answer; a voter's first one stands, and who is no voter does not count."""
        if voter in self._members.voting:
            self._answers.setdefault(voter, granted)
        return self.result

    @property
    def result(self) -> VoteResult:
        """Where the campaign stands: won in all sets, or lost in one, or open."""
        results = {self._result_in(voters) for voters in self._members.sets}
        if VoteResult.LOST in results:
            return VoteResult.LOST
        return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON

    def _result_in(self, voters: tuple[NodeId, ...]) -> VoteResult:
        answers = [self._answers[node] for node in voters if node in self._answers]
        return vote_result(sum(answers), len(answers) - sum(answers), len(voters))


class ElectionTimer:
    """When a replica that hears from no leader campaigns. All figures are ticks."""

    __slots__ = ("_draw", "_ticks_min", "elapsed", "leader_lost", "since_leader", "timeout")

    def __init__(self, draw: Callable[[], int], ticks_min: int) -> None:
        self._draw = draw
        self._ticks_min = ticks_min
        self.elapsed = 0
        self.timeout = draw()
        self.since_leader = ticks_min  # nobody was heard yet
        self.leader_lost = False

    def rearm(self, timeout: int | None = None) -> None:
        """Start waiting anew, for a fresh random time, or for this one."""
        self.elapsed = 0
        self.timeout = self._draw() if timeout is None else timeout

    def heard_from_leader(self) -> None:
        """The leader of the current term spoke."""
        self.rearm()
        self.since_leader = 0
        self.leader_lost = False

    def lost_leader(self) -> None:
        """The connection to the leader broke: wait only for the random part of a time-out, to keep candidates apart."""
        if not self.leader_lost:
            self.leader_lost = True
            self.elapsed = 0
            self.timeout = max(1, self._draw() - self._ticks_min)

    def tick(self) -> bool:
        """One tick passed. True when it is time to campaign."""
        self.elapsed += 1
        self.since_leader += 1
        return self.elapsed >= self.timeout

    @property
    def is_leader_fresh(self) -> bool:
        """Was the leader heard so recently that nobody should be elected in its place?"""
        return self.since_leader < self._ticks_min and not self.leader_lost
