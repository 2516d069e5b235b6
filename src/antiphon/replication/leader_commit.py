"""What a leader has committed: who counts, by which rule, and how far they have come (S0.34, S4.18).

`QuorumAckTracker` answers from its book of acknowledgements; here the answer is turned into the marks of the log, and into
the news that a change of members is settled.
"""

from antiphon.replication.actions import Action, Commit
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.live_set import LiveSet
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker


class CommitTracker:
    """What is committed in one leadership.

    Attributes:
        members: the members that count.
        live: the live set, where this term's commits go by it; otherwise None.
        rule: by which they count otherwise.
        unsettled: end of what was committed when the members changed; None where that is settled.
    """

    def __init__(
        self,
        tracker: QuorumAckTracker,
        log: LocalLog,
        members: Members,
        live: LiveSet | None,
        rule: CommitRule,
    ) -> None:
        self.members = members
        self.live = live
        self.rule = rule
        self._tracker = tracker
        self._log = log
        self.unsettled: int | None = None
        self.count()

    def count(self) -> None:
        """Who counts, or how many are enough, has changed."""
        if self.live is None:
            self._tracker.go_by_sets(self.members, self.rule)
        else:
            self._tracker.go_by_live(self.live.counting, enough=self.live.is_enough)

    # -- how far they have come --------------------------------------------------------------------------------------

    def advance(self, out: list[Action]) -> bool:
        """Commit what the acknowledgements allow. True when that was anything."""
        log = self._log
        if self._tracker.settles_apart:
            return self._advance_apart(out)
        high_watermark = self._tracker.commit_offset(log.settled)
        if high_watermark == log.settled:
            return False
        log.settled = high_watermark
        if high_watermark > log.acknowledged:
            out.append(Commit(high_watermark))
        return True

    def _advance_apart(self, out: list[Action]) -> bool:
        """More is committed than is settled (S4.18): two marks, the settled one never ahead of the other."""
        log = self._log
        before = log.commit_mark
        mark = self._tracker.commit_offset(before)
        # Where the followers were faster than the own disk, both marks move at once.
        log.settled = min(mark, self._tracker.settled_offset(log.settled))
        if mark == before:
            return False
        log.acknowledged = mark
        out.append(Commit(mark))
        return True

    @property
    def ever_committed(self) -> int:
        """All that was ever committed lies before this.

        A new leader does not know how far its predecessors had come; but that lies before its own term's first entry.
        """
        return max(self._log.settled, self._tracker.term_start)

    # -- a change of members -----------------------------------------------------------------------------------------

    def watch_settling(self) -> None:
        """`newly_settled` says once when all that was ever committed, before now, is held by the voters."""
        if self.unsettled is None:
            self.unsettled = self.ever_committed

    def newly_settled(self) -> bool:
        """Is what was watched held by the new voters? True once."""
        mark = self.unsettled
        if mark is None:
            return False
        if self.live is not None:
            # All who may lead next hold what is committed, as always. But while a former member counts, because a record
            # may yet name it, it must not come back: what it acknowledged is gone with its replica.
            is_settled = set(self.live.counting) <= set(self.members.voting)
        else:
            is_settled = self._tracker.held_by_majority(self.members.voters, mark)
        if is_settled:
            self.unsettled = None
        return is_settled
