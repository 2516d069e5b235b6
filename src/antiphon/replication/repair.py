"""A log that is not whole: what its replica must not do, and when it is whole again.

A damaged log is sound again once it has, durably, an entry that was committed in a term begun since the damage. Everything
that was committed in older terms, and so everything that the lost part could have been counted for, is in the prefix of that
entry. Within the term of the loss itself nothing proves it: an Append from before may come late, with a high watermark of
then. So whoever wants the replica to vote again sees to a new election. Until then it neither votes nor counts as a
candidate's head.
"""

from antiphon.replication.local_log import LocalLog
from antiphon.replication.replica_state import LOG_CONDITIONS, LogCondition, LogEvent, next_state


class LogRepair:
    """The condition of one log.

    Attributes:
        condition: see `replica_state`.
        floor: an older self may have been part of any term up to this one, so only a later one proves anything.
        has_bad_tail: the part after the damage is still on the disk.
    """

    __slots__ = ("condition", "floor", "has_bad_tail")

    def __init__(self, condition: LogCondition, term: int) -> None:
        self.condition = condition
        self.floor = 0 if condition is LogCondition.JOINING else term
        self.has_bad_tail = condition is not LogCondition.SOUND

    @property
    def is_sound(self) -> bool:
        """May the replica vote, and stand for election?"""
        return self.condition is LogCondition.SOUND

    @property
    def is_forgotten(self) -> bool:
        """Are the promises lost, so that this replica may obey, acknowledge and vote for nobody yet?"""
        return self.condition is LogCondition.FORGOTTEN

    def terms_known(self, floor: int) -> None:
        """No term beyond `floor` had begun when the promises were lost."""
        self.condition = next_state(LOG_CONDITIONS, self.condition, LogEvent.TERMS_KNOWN)
        self.floor = floor

    def repaired(self, term: int, log: LocalLog) -> bool:
        """Has the log become whole? `term` is the replica's. True once."""
        mark = log.settled
        if (
            term > self.floor
            and mark >= log.terms.log_start
            and log.durable_end >= mark
            and log.terms.term_before(mark) == term
        ):
            self.condition = next_state(LOG_CONDITIONS, self.condition, LogEvent.REPAIRED)
            return True
        return False
