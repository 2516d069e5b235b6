"""Leases: reads that a leader may serve without asking anybody (docs/decisions/0049-leases-for-reads.md).

A follower that takes a leader's message, which asks for it, gives its word: it helps nobody else to lead for so long, by its
own clock, from now on (`Promise`). The leader counts from when the message was *sent*, by its own clock, and leaves out what
two clocks may run apart (`served_us`). While as many members are bound as an election cannot do without, nobody else leads.

Time comes in with the events, in microseconds of the host's clock. An event without a time gives no promise, serves no read,
and releases nobody: what the host does not say costs a round, or patience, and never safety.
"""

from collections import deque
from typing import Final

from antiphon.replication.progress import Progress
from antiphon.replication.promise import LEASE_MS_MAX, US_PER_MS
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.replicator import Replicator

GRAIN_US: Final = 2_000  # of clocks, besides their rates
DRIFT_PART: Final = 10  # a tenth of a lease: so much faster may one clock run than another
STEPS: Final = 10  # of a lease, in which rounds are told apart
FOR_EVER: Final = 1 << 62


def served_us(promised_ms: int) -> int:
    """For how long a leader may rely on a promise, from when it sent the message that asked for it."""
    return promised_ms * US_PER_MS - promised_ms * US_PER_MS // DRIFT_PART - GRAIN_US


class LeaderLease:
    """What the followers of one leadership have promised.

    Attributes:
        lease_ms: is asked for with each message; 0: nothing is.
        is_over: this leader has asked another one to take over, so that it relies on no promise in this term any more.
    """

    __slots__ = ("_floor", "_marks", "_renewed_us", "_replicator", "_tracker", "is_over", "lease_ms")

    def __init__(self, tracker: QuorumAckTracker, replicator: Replicator) -> None:
        self.lease_ms = 0
        self.is_over = False
        self._tracker = tracker
        self._replicator = replicator
        self._marks: deque[tuple[int, int]] = deque(maxlen=2 * STEPS)  # rounds, and when they were begun
        self._floor = 0  # answers to earlier rounds are of other members
        self._renewed_us = 0

    def set_ms(self, lease_ms: int) -> None:
        """The table's option."""
        self.lease_ms = min(lease_ms, LEASE_MS_MAX)
        self._replicator.lease_ms = 0 if self.is_over else self.lease_ms

    def end(self) -> None:
        """Another one is about to be asked to lead: from then on no voter holds back for this leader."""
        self.is_over = True
        self._replicator.lease_ms = 0

    def members_changed(self) -> None:
        """Others count from now on: what was promised before does not."""
        self._replicator.round += 1
        self._floor = self._replicator.round
        for progress in self._replicator.progress.values():
            progress.bound_until_us = 0

    # -- when a round was begun --------------------------------------------------------------------------------------

    def note_time(self, now_us: int) -> None:
        """What is sent from now on is of a round that is begun now, or shortly before."""
        if self.lease_ms and not self.is_over:
            marks = self._marks
            if not marks or now_us - marks[-1][1] >= self.lease_ms * US_PER_MS // STEPS:
                self._begin(now_us)

    def _begin(self, now_us: int) -> None:
        self._replicator.round += 1
        self._marks.append((self._replicator.round, now_us))

    def _sent_us(self, round_: int) -> int | None:
        """No message of this round was sent before then."""
        for first, began_us in reversed(self._marks):
            if first <= round_:
                return began_us
        return None

    # -- what was promised -------------------------------------------------------------------------------------------

    def promised(self, progress: Progress, round_: int, promised_ms: int) -> None:
        """A follower that has a message of this round is bound for so long since it came."""
        sent_us = self._sent_us(round_)
        if sent_us is None or round_ < self._floor:
            return
        until_us = sent_us + served_us(min(promised_ms, LEASE_MS_MAX))
        progress.bound_until_us = max(progress.bound_until_us, until_us)

    def until_us(self) -> int:
        """Nobody else leads before then. The same members have to be bound as have to answer a round."""
        if not self.lease_ms or self.is_over:
            return 0
        bound = [0] * len(self._tracker.acks)
        for progress in self._replicator.progress.values():
            bound[progress.slot] = progress.bound_until_us
        bound[self._tracker.own_slot] = FOR_EVER
        return self._tracker.confirmed(bound)

    def is_to_renew(self, now_us: int, until_us: int) -> bool:
        """Is it time to ask again, while the lease is served from? A new round is begun then."""
        lease_us = self.lease_ms * US_PER_MS
        if until_us - now_us > lease_us // 2 or now_us - self._renewed_us < lease_us // STEPS:
            return False
        self._renewed_us = now_us
        self._begin(now_us)
        return True
