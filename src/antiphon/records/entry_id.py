"""Entry ids and the term index: everything that the pure protocol needs to know of a log.

An entry id is (term, offset) (S0.3). Inside the code the *position* of a log is its exclusive end: `EntryId(term, end)`
means: this log ends at `end`, and the entry just before `end` was written in `term`. The empty log is `EntryId(0, 0)`;
terms of real entries start at 1. Two logs with the same entry id are identical up to it (log matching, S4.10). So the
list of offsets at which its term changes describes a whole log: a `TermIndex`.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from antiphon.invariants import invariant, unreachable


class EntryId(NamedTuple):
    """The exclusive end of a log prefix and the term of its last entry; orders as Raft's up-to-date check does (S1.27)."""

    term: int
    offset: int


EMPTY = EntryId(0, 0)


class TermIndex:
    """Start offset of each term in one log, from `log_start` to `log_end` (exclusive)."""

    def __init__(self, log_start: int = 0, start_term: int = 0) -> None:
        self.log_start = log_start
        self.log_end = log_start
        self._start_term = start_term  # term of the entry just before log_start
        self._terms: list[int] = []
        self._starts: list[int] = []

    @property
    def start(self) -> EntryId:
        """Id of the prefix that is no longer in the log (retention, snapshot)."""
        return EntryId(self._start_term, self.log_start)

    @property
    def end(self) -> EntryId:
        """Id of the whole log."""
        return EntryId(self._terms[-1] if self._terms else self._start_term, self.log_end)

    def append(self, term: int, next_offset: int) -> None:
        """The log grew to `next_offset` by entries of `term`."""
        terms = self._terms
        last = terms[-1] if terms else self._start_term
        if next_offset <= self.log_end:
            unreachable(f"append must grow the log: {self.log_end} -> {next_offset}")
        if term < last:
            unreachable(f"terms never fall within a log: {last} then {term}")
        if not terms or term > last:
            terms.append(term)
            self._starts.append(self.log_end)
        self.log_end = next_offset

    def truncate(self, to_offset: int) -> None:
        """Forget everything from `to_offset` on."""
        invariant(
            self.log_start <= to_offset <= self.log_end,
            f"cannot cut {self.start}..{self.log_end} at {to_offset}",
        )
        while self._starts and self._starts[-1] >= to_offset:
            self._terms.pop()
            self._starts.pop()
        self.log_end = to_offset

    def trim(self, log_start: int) -> None:
        """The entries before `log_start` are gone (retention)."""
        invariant(
            self.log_start <= log_start <= self.log_end,
            f"cannot trim {self.start}..{self.log_end} to {log_start}",
        )
        self._start_term = self.term_before(log_start)
        keep = (
            max(0, bisect_right(self._starts, log_start) - 1)
            if log_start < self.log_end
            else len(self._starts)
        )
        del self._terms[:keep], self._starts[:keep]
        if self._starts:
            self._starts[0] = max(self._starts[0], log_start)
        self.log_start = log_start

    def reset(self, at: EntryId) -> None:
        """The log is empty now and goes on after `at` (a snapshot was installed)."""
        self._terms.clear()
        self._starts.clear()
        self._start_term, self.log_start, self.log_end = at.term, at.offset, at.offset

    def term_before(self, offset: int) -> int:
        """Term of the entry just before `offset`; needs log_start <= offset <= log_end."""
        if not self.log_start <= offset <= self.log_end:
            unreachable(f"offset {offset} outside {self.log_start}..{self.log_end}")
        if offset == self.log_start:
            return self._start_term
        return self._terms[bisect_right(self._starts, offset - 1) - 1]

    def holds(self, entry: EntryId) -> bool:
        """Is this log, cut at `entry.offset`, the log that `entry` names?"""
        return self.log_start <= entry.offset <= self.log_end and self.term_before(entry.offset) == entry.term

    def end_of_term(self, term: int) -> EntryId:
        """The longest prefix whose last term is at most `term` (KIP-101's answer, also S1.14's hint).

        Returns the log's start id when every entry has a higher term.
        """
        at = bisect_right(self._terms, term)
        if at == len(self._terms):
            return self.end
        if at == 0:
            return self.start
        return EntryId(self._terms[at - 1], self._starts[at])

    def items(self) -> list[tuple[int, int]]:
        """(term, start offset) pairs in order."""
        return list(zip(self._terms, self._starts, strict=True))

    def load(self, items: Iterable[tuple[int, int]], log_end: int) -> None:
        """Take over pairs that `items()` gave."""
        self._terms, self._starts = [], []
        for term, start in items:
            self._terms.append(term)
            self._starts.append(start)
        self.log_end = log_end
