"""One replica's log in the simulated world: whole entries, and a running hash of every prefix.

The hash of the prefix that ends at an offset is its *chain*. Two logs whose chains at an offset are equal hold the same
entries up to there; comparing two logs is comparing two integers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from antiphon.invariants import invariant
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.messages import Entry


def chain_after(chain: int, entry: Entry) -> int:
    """Chain of the prefix that ends with `entry`, given the chain of what is before it."""
    return hash((chain, entry.term, entry.base_offset, entry.next_offset, entry.data))


class StoredLog:
    """Entries from `start` to `end` with the chain at every entry's end."""

    def __init__(self) -> None:
        self.start: EntryId = EMPTY
        self.start_chain = 0
        self.entries: list[Entry] = []
        self.ends: list[int] = []
        self.chains: list[int] = []

    @property
    def end_offset(self) -> int:
        """Exclusive end of the log."""
        return self.ends[-1] if self.ends else self.start.offset

    @property
    def end(self) -> EntryId:
        """Entry id of the whole log."""
        return self.entries[-1].end if self.entries else self.start

    @property
    def end_chain(self) -> int:
        """Chain of the whole log."""
        return self.chains[-1] if self.chains else self.start_chain

    def append(self, entries: Iterable[Entry]) -> None:
        """Append entries that follow the end without a gap."""
        for entry in entries:
            invariant(
                entry.base_offset == self.end_offset,
                f"entry at {entry.base_offset} appended to a log that ends at {self.end_offset}",
            )
            invariant(entry.next_offset > entry.base_offset, f"entry without offsets at {entry.base_offset}")
            invariant(entry.term >= self.end.term, f"term {entry.term} after {self.end.term}")
            self.chains.append(chain_after(self.end_chain, entry))
            self.entries.append(entry)
            self.ends.append(entry.next_offset)

    def truncate(self, to_offset: int) -> list[Entry]:
        """Cut everything from `to_offset` on, which must be the start of an entry or the end; returns what was cut."""
        keep = bisect_right(self.ends, to_offset)
        boundary = self.ends[keep - 1] if keep else self.start.offset
        invariant(boundary == to_offset, f"cut at {to_offset}, which is inside an entry or outside the log")
        cut = self.entries[keep:]
        del self.entries[keep:], self.ends[keep:], self.chains[keep:]
        return cut

    def reset(self, at: EntryId, chain: int) -> None:
        """Become empty and go on after `at`, whose prefix has the given chain."""
        self.entries.clear()
        self.ends.clear()
        self.chains.clear()
        self.start, self.start_chain = at, chain

    def trim(self, log_start: int) -> None:
        """Forget the entries before `log_start`, which must be the end of an entry (retention)."""
        drop = bisect_left(self.ends, log_start) + 1
        invariant(
            drop <= len(self.ends) and self.ends[drop - 1] == log_start, f"trim inside an entry: {log_start}"
        )
        self.start, self.start_chain = self.entries[drop - 1].end, self.chains[drop - 1]
        del self.entries[:drop], self.ends[:drop], self.chains[:drop]

    def chain_at(self, offset: int) -> int | None:
        """Chain of the prefix that ends at `offset`; None where no entry ends there or it is not in the log."""
        if offset == self.start.offset:
            return self.start_chain
        at = bisect_left(self.ends, offset)
        return self.chains[at] if at < len(self.ends) and self.ends[at] == offset else None

    def read(self, from_offset: int, to_offset: int, entries_max: int) -> list[Entry]:
        """Whole entries from the one that holds `from_offset` up to `to_offset` (exclusive)."""
        if from_offset < self.start.offset:
            return []
        first = bisect_right(self.ends, from_offset)
        last = min(bisect_right(self.ends, to_offset), first + entries_max)
        return self.entries[first:last]

    def copy(self) -> "StoredLog":
        """An independent log with the same entries."""
        other = StoredLog()
        other.start, other.start_chain = self.start, self.start_chain
        other.entries, other.ends, other.chains = self.entries[:], self.ends[:], self.chains[:]
        return other
