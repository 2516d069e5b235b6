"""Linearizable reads without a log entry: confirm leadership once for many reads (Raft's read-index).

A read that arrives now may be served from the state at the high watermark of now, if this replica still led at some
moment after now. A majority that answers, in this term, a message sent after the read arrived proves that: a newer
leader would have needed a promise from one of them before. (Who it takes besides, while members change or under the
live rule, see `QuorumAckTracker`.) So reads are gathered by *rounds*: those that arrive while a round is underway wait
for the next one, because the current round's messages may have been sent before they arrived.
"""

from antiphon.errors import OverloadedError
from antiphon.replication.actions import Action, ReadFailed, ReadReady

NO_ROUND = 0


class ReadIndex:
    """Reads that wait for one leader's confirmation. Bounded by `waiting_max`."""

    __slots__ = ("_next", "_underway", "round", "waiting_max")

    def __init__(self, waiting_max: int) -> None:
        self.waiting_max = waiting_max
        self.round = NO_ROUND  # that the reads underway wait for
        self._underway: list[tuple[int, int]] = []  # (token, high watermark when it was asked for)
        self._next: list[tuple[int, int]] = []

    def add(self, token: int, high_watermark: int) -> bool:
        """Take up a read. True when no round is underway, so that one must be started."""
        if len(self._next) + len(self._underway) >= self.waiting_max:
            raise OverloadedError(
                f"{self.waiting_max} reads wait already for the leader's confirmation; retry",
                waiting=self.waiting_max,
            )
        self._next.append((token, high_watermark))
        return self.round == NO_ROUND

    def start(self, round_: int) -> None:
        """All reads that wait are confirmed by answers to messages of `round_` or later."""
        self._underway, self._next = self._next, []
        self.round = round_

    def confirm(self, round_: int, out: list[Action]) -> bool:
        """Enough members answered `round_`: serve the reads that waited for it. True when another round must be started."""
        if round_ < self.round:
            return False
        out.extend(ReadReady(token, offset) for token, offset in self._underway)
        self._underway = []
        self.round = NO_ROUND
        return bool(self._next)

    def fail(self, out: list[Action]) -> None:
        """Leadership is gone, and with it all reads."""
        out.extend(ReadFailed(token) for token, _ in self._underway)
        out.extend(ReadFailed(token) for token, _ in self._next)
        self._underway, self._next = [], []
        self.round = NO_ROUND
