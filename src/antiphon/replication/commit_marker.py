"""When a leader writes into the log that something was committed (C6: `commit_marker = record`; S4.7's CONFIRM).

Commits are told by every Append anyway (S1.18). A topic may ask for a record besides: then who reads the log alone,
later and without any node, sees how far it was committed when. The record is an entry like any other, written after the
commit, and nobody waits for it.

A marker is committed too, in its turn, and must not call for another. And many small commits must not fill the log: while
one marker is not committed yet, no other is written; the next one then tells of everything since. So there is at most one
marker per commit, at most one uncommitted, and a log at rest ends with the marker of its last entry.
"""

from antiphon.replication.entry_factory import MakeMarker
from antiphon.replication.messages import Entry


class CommitMarker:
    """What one leadership has written down of its commits."""

    __slots__ = ("_end", "_make", "_recorded", "_size")

    def __init__(self, make: MakeMarker, high_watermark: int) -> None:
        self._make = make
        self._recorded = high_watermark  # by the last marker, or what was committed before this leadership
        self._end = self._size = 0  # of the last marker

    def after(self, high_watermark: int, term: int, log_end: int) -> Entry | None:
        """The high watermark has risen: the marker to append at `log_end`, if there is to be one.

        Between what the last marker tells and the high watermark lies, once that marker is committed, nothing but that
        marker itself and what it does not tell yet.
        """
        if high_watermark < self._end or high_watermark - self._recorded <= self._size:
            return None
        entry = self._make(term, log_end, high_watermark)
        self._recorded, self._end, self._size = high_watermark, entry.next_offset, entry.next_offset - log_end
        return entry
