"""A sparse index from places in a replica's log to vector clocks (S4.19).

A peer asks for "everything that I lack" by its clock. Since the log only grows, clocks at rising offsets only rise: the
last mark that the peer's clock covers is found by binary search, and the relay reads the log from there. The index has a
bounded number of marks: when it is full, every second one goes and from then on marks are set twice as far apart.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from antiphon.invariants import invariant
from antiphon.replication.origin_history import History, Mark
from antiphon.replication.vclock import Vclock, covers

MARKS_MAX: Final = 4096
STRIDE: Final = 64  # entries between marks, at first


class OriginIndex:
    """Marks of one log, the log's start being the first."""

    __slots__ = ("_marks", "_marks_max", "_since", "_stride")

    def __init__(self, marks: Sequence[Mark], *, marks_max: int = MARKS_MAX, stride: int = STRIDE) -> None:
        invariant(marks, "an index has at least the log's start")
        self._marks = list(marks)
        self._marks_max = max(4, marks_max)
        self._stride = stride
        self._since = 0

    @property
    def base(self) -> Mark:
        """The log's start."""
        return self._marks[0]

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All marks, by offset."""
        return tuple(self._marks)

    def passed(self, history: History, entries: int) -> None:
        """The log has grown by `entries`, up to where `history` is; set a mark when that is due."""
        self._since += entries
        if self._since < self._stride:
            return
        self._since = 0
        self._marks.append(history.mark())
        if len(self._marks) > self._marks_max:
            self._marks[1:] = self._marks[2::2]
            self._stride *= 2

    def covered_by(self, clock: Vclock) -> Mark | None:
        """The last mark all of whose entries the holder of `clock` has; None if it lacks what lies before the log."""
        low, high = 0, len(self._marks)
        while low < high:
            middle = (low + high) // 2
            if covers(clock, self._marks[middle].clock):
                low = middle + 1
            else:
                high = middle
        return self._marks[low - 1] if low else None

    def at_or_before(self, offset: int) -> Mark:
        """The last mark that is not beyond `offset`, which lies in the log."""
        at = bisect_right(self._marks, offset, key=itemgetter(0))
        invariant(at > 0, f"offset {offset} lies before the log's start {self.base.offset}")
        return self._marks[at - 1]

    def trim(self, base: Mark) -> None:
        """The log starts at `base` now."""
        self._marks = [base, *(mark for mark in self._marks if mark.offset > base.offset)]
