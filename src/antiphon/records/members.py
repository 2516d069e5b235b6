"""The voters and learners of a shard, and the index of the log entries that name them.

A change of voters is joint: while `outgoing` is not empty, commits and elections need a majority of `voters` *and* a
majority of `outgoing`. So no two decisions are made by sets that do not intersect (S0.2). A node that becomes a voter
is a learner first: it receives the log, and does not count, until it has caught up.

Where replicas vote, members are entries of the log (control batches, `antiphon.records.builder`), and every replica
uses the last one in its log, committed or not. A `MembersIndex` is the list of these entries. It follows every append,
truncation, trim and reset of the log, as the `TermIndex` does.
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from antiphon.invariants import invariant

NodeId = int


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of one shard at one moment. `outgoing`: the previous voters, during a change.

    `deleted_before`: records before this offset were deleted on request. Where replicas vote, members entries say so, too:
    they are committed, cut off, trimmed and sent with snapshots in the same way.
    """

    voters: tuple[NodeId, ...]
    outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    deleted_before: int = 0

    @property
    def is_joint(self) -> bool:
        """Is a change of voters under way?"""
        return bool(self.outgoing)

    @property
    def voting(self) -> tuple[NodeId, ...]:
        """Everybody whose acknowledgement or vote counts somewhere, each once, voters first."""
        return (*self.voters, *(node for node in self.outgoing if node not in self.voters))

    @property
    def everybody(self) -> tuple[NodeId, ...]:
        """Everybody who holds a replica, each once."""
        voting = self.voting
        return (*voting, *(node for node in self.learners if node not in voting))

    @property
    def sets(self) -> tuple[tuple[NodeId, ...], ...]:
        """The sets that must each agree: the voters, and the outgoing ones while there are any."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)


class MembersIndex:
    """The members entries of one log, by their exclusive ends.

    `base`: the members before all of these entries; None where the log itself does not say (nothing has ever changed).
    """

    __slots__ = ("_ends", "_members", "base")

    def __init__(self, base: Members | None = None, items: Iterable[tuple[int, Members]] = ()) -> None:
        self.base = base
        self._ends: list[int] = []
        self._members: list[Members] = []
        for end, members in items:
            self.append(end, members)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def current(self) -> Members | None:
        """What the last entry says, committed or not."""
        return self._members[-1] if self._members else self.base

    @property
    def end(self) -> int:
        """Exclusive end of the last entry; 0 when there is none."""
        return self._ends[-1] if self._ends else 0

    def at(self, offset: int) -> Members | None:
        """The members as of the log prefix that ends at `offset`."""
        number = bisect_right(self._ends, offset)
        return self._members[number - 1] if number else self.base

    def append(self, end: int, members: Members) -> None:
        """The log got a members entry that ends at `end`."""
        invariant(end > self.end, f"a members entry that ends at {end} after one that ends at {self.end}")
        self._ends.append(end)
        self._members.append(members)

    def truncate(self, to_offset: int) -> bool:
        """The log was cut at `to_offset`. True when entries went, so that older members are in force again."""
        keep = bisect_right(self._ends, to_offset)
        if keep == len(self._ends):
            return False
        del self._ends[keep:], self._members[keep:]
        return True

    def trim(self, log_start: int) -> None:
        """The entries before `log_start` are gone from the log; what they said last is remembered."""
        self.base = self.at(log_start)
        gone = bisect_right(self._ends, log_start)
        del self._ends[:gone], self._members[:gone]

    def reset(self, base: Members | None) -> None:
        """The log is empty now and goes on after a snapshot, as of which the members are `base` (None: not said)."""
        self.base = base
        self._ends.clear()
        self._members.clear()

    def items(self) -> list[tuple[int, Members]]:
        """(exclusive end, members) of the entries, in order."""
        return list(zip(self._ends, self._members, strict=True))

    def copy(self) -> "MembersIndex":
        """An index of its own with the same content."""
        return MembersIndex(self.base, self.items())
