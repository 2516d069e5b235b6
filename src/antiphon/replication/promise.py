"""The word that a follower gives its leader: it helps nobody else to lead for a while (see `lease`).

It is not on the disk. Who was just opened may have given it before, so it is bound as long as anybody can be
(`RestoredState.bound_until_us`).
"""

from typing import Final

from antiphon.replication.messages import AnyMessage, NodeId

LEASE_MS_MAX: Final = 200
US_PER_MS: Final = 1000
NO_TERM: Final = -1


class Promise:
    """What a replica has promised to the leader that it follows, or may have promised before it was opened.

    Attributes:
        term: of the leader; NO_TERM: not known, of a replica that was just opened.
        until_us: it is bound until then.
        now_us: the latest time that was told.
        at_us: the time of the event that is carried out; None: its host tells none.
        kept: requests that are answered when it is no longer bound, by sender and type; of each the latest.
    """

    __slots__ = ("at_us", "kept", "now_us", "term", "until_us")

    def __init__(self, until_us: int) -> None:
        self.term = NO_TERM
        self.until_us = until_us
        self.now_us = 0
        self.at_us: int | None = None
        self.kept: dict[tuple[NodeId, type], tuple[NodeId, AnyMessage]] = {}

    def note_time(self, now_us: int | None) -> None:
        """An event has come."""
        self.at_us = now_us
        if now_us is not None and now_us > self.now_us:
            self.now_us = now_us

    def give(self, term: int, asked_ms: int) -> int:
        """Support nobody but the leader of `term` for so long from now on. For how long, in ms; 0: not at all."""
        if self.at_us is None or asked_ms <= 0:
            return 0
        promised_ms = min(asked_ms, LEASE_MS_MAX)
        self.term = term
        self.until_us = max(self.until_us, self.at_us + promised_ms * US_PER_MS)
        return promised_ms

    def holds(self, term: int) -> bool:
        """May it not help anybody to lead `term` yet?"""
        return self.now_us < self.until_us and term != self.term

    def keep(self, sender: NodeId, message: AnyMessage) -> None:
        """Answer it later."""
        self.kept[sender, type(message)] = (sender, message)

    def drop(self) -> None:
        """What was asked was asked in an older term."""
        self.kept.clear()

    def due(self) -> list[tuple[NodeId, AnyMessage]]:
        """What may be answered now."""
        if not self.kept or self.now_us < self.until_us:
            return []
        kept, self.kept = list(self.kept.values()), {}
        return kept
