"""The entries that the protocol writes itself. The caller makes them, since only it knows what an entry's bytes are."""

from collections.abc import Callable
from dataclasses import dataclass

from antiphon.replication.members import Members
from antiphon.replication.messages import Entry

MakeTermStart = Callable[[int, int], Entry]  # (term, base offset)
MakeMarker = Callable[[int, int, int], Entry]  # (term, base offset, high watermark)
MakeMembers = Callable[[int, int, Members], Entry]  # (term, base offset, members)


@dataclass(frozen=True, slots=True)
class EntryFactory:
    """Makes entries for the log's end; each function is given the term and the base offset first.

    Attributes:
        term_start: the entry that opens a leadership.
        commit_marker: the entry that tells of a commit, where the settings ask for one; None: it is never written.
        members: the entry that changes the members of a shard whose replicas vote; its `members` are set. None: they are
            fixed.
    """

    term_start: MakeTermStart
    commit_marker: MakeMarker | None = None
    members: MakeMembers | None = None
