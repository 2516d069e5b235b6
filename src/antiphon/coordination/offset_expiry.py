"""When a committed offset of a consumer group has expired, and which clock says so: rules without a clock of their own.

The rules are Kafka's (KIP-211). While a group has members that say what they read, offsets of other topics expire by the
time of their commit. When nobody is in the group, all of its offsets expire one retention after that began, or after their
commit if that was later. A group that never had members is one without members.
"""

from typing import Final, NamedTuple

NEVER: Final = -1  # as a retention
TRUST_MS: Final = 3_600_000  # for so long a clock has to go evenly before anything expires by it
JUMP_MS: Final = 60_000  # between two readings of a clock; what is less is the clock being put right


class OffsetBounds(NamedTuple):
    """How long committed offsets are kept (-1: for ever), and how often somebody looks."""

    retention_ms: int = 7 * 86_400_000
    check_ms: int = 600_000


class Readers(NamedTuple):
    """Who is in a group. `topics`: what its members read; None where that cannot be told now. `empty_ms`: since when
    nobody is in it, in ms since 1970; None while somebody is.
    """

    topics: frozenset[str] | None = frozenset()
    empty_ms: int | None = None


UNKNOWN: Final = Readers(None)
"""Members that do not say what they read, or who are about to agree on it: nothing expires."""


class Aged(NamedTuple):
    """What counts of a committed offset. `own_ms`: the retention that its commit asked for; -1: none."""

    topic: str
    commit_ms: int
    own_ms: int = NEVER
    is_of_topic: bool = True  # and not of an earlier topic of that name
    is_pending: bool = False  # does an open transaction have an offset of the same partition?


def is_expired(offset: Aged, readers: Readers, now_ms: int, retention_ms: int) -> bool:
    """May the offset go? A commit's own retention counts from the commit, as in Kafka."""
    if readers.topics is None or offset.is_pending:
        return False
    if offset.is_of_topic and offset.topic in readers.topics:
        return False
    if offset.own_ms >= 0:
        return now_ms - offset.commit_ms >= offset.own_ms
    if retention_ms < 0:
        return False
    return now_ms - max(offset.commit_ms, readers.empty_ms or 0) >= retention_ms


class EvenClock:
    """One node's wall clock in one term in which it leads, as far as it can be believed.

    Nothing expires before the clock has gone evenly for `TRUST_MS`, or for the retention if that is shorter. A clock that
    is set ahead begins anew, so that somebody has that time to put it right. One that is set back is believed: offsets
    are kept for longer then.
    """

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self._ahead_ms = wall_ms - steady_ms
        self._since_ms = steady_ms
        self.began_ms = steady_ms  # by the clock that never goes back

    def read(self, wall_ms: int, steady_ms: int, retention_ms: int) -> int | None:
        """What time it is, in ms since 1970; None while nobody can tell. `steady_ms`: of a clock that never goes back."""
        ahead_ms = wall_ms - steady_ms
        if ahead_ms - self._ahead_ms >= JUMP_MS:
            self._since_ms = steady_ms
        self._ahead_ms = ahead_ms
        trust_ms = TRUST_MS if retention_ms < 0 else min(retention_ms, TRUST_MS)
        return wall_ms if steady_ms - self._since_ms >= trust_ms else None
