"""Members as entries of the log: what each replica goes by where replicas vote (S0.2; Raft's joint consensus).

A change of members is an entry like any other, but it counts from the moment at which it is in a replica's log, committed or
not; when it is cut off again, the members before it are back. A change of voters takes two entries: a joint one, under which
both the new and the old voters must agree, and, once that is committed by both, a final one. So at no time are there two
sets of nodes that could decide without each other. Learners get the log and count nowhere.

| step of a change | written when | who must agree |
|---|---|---|
| learners only | asked for | the voters, as before |
| joint: new voters, the old ones outgoing | asked for | a majority of either |
| final: new voters | the joint entry is committed | a majority of the new voters |
"""

from collections.abc import Sequence

from antiphon.errors import InvalidRequestError, NotReadyError
from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.replication.actions import AppendLog, ResetLog, TruncateLog
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members, MembersIndex
from antiphon.replication.messages import Entry, NodeId


class MembersLog(LocalLog):
    """A log that knows its members entries. `snapshot_members`: as of the snapshot that is about to replace it."""

    __slots__ = ("members", "snapshot_members")

    def __init__(self, terms: TermIndex, high_watermark: int, members: MembersIndex) -> None:
        super().__init__(terms, high_watermark)
        self.members = members
        self.snapshot_members: Members | None = None

    def append(self, entries: Sequence[Entry]) -> AppendLog:
        """As for every log."""
        for entry in entries:
            if entry.members is not None:
                self.members.append(entry.next_offset, entry.members)
        return super().append(entries)

    def truncate(self, to_offset: int) -> TruncateLog:
        """As for every log; members entries that go count no longer."""
        self.members.truncate(to_offset)
        return super().truncate(to_offset)

    def reset(self, at: EntryId) -> ResetLog:
        """As for every log; without a word of the snapshot's members, those that were in force last stay."""
        action = super().reset(at)
        members = self.snapshot_members or self.members.current
        self.snapshot_members = None
        self.members.reset(members)
        return ResetLog(action.write_id, at, members)


def next_members(
    current: Members, voters: Sequence[NodeId], learners: Sequence[NodeId], *, settled: bool
) -> Members | None:
    """The entry to write next so that `voters` and `learners` become the members; None where they are.

    Args:
        current: what the last members entry says.
        voters: at least one.
        learners: who is to get the log besides.
        settled: is that entry committed?

    Raises:
        InvalidRequestError: no voters, a node named twice.
        NotReadyError: another change is under way; retry.
    """
    if not voters or len({*voters, *learners}) != len(voters) + len(learners):
        raise InvalidRequestError(
            f"voters {tuple(voters)} and learners {tuple(learners)}: there must be a voter, and nobody may be named twice"
        )
    if current.is_joint or not settled:
        raise NotReadyError(f"the change to {current} is still under way, only one is made at a time; retry")
    if set(voters) == set(current.voters):
        if set(learners) == set(current.learners):
            return None
        return Members(current.voters, (), tuple(learners), current.deleted_before)
    return Members(tuple(voters), current.voters, tuple(learners), current.deleted_before)


def deleting(current: Members, before: int, *, settled: bool) -> Members | None:
    """The entry to write next so that records before an offset are deleted; None where they are.

    Raises NotReadyError as `next_members` does: an entry that stands before it may still be cut off, and this one with it.
    """
    if before <= current.deleted_before:
        return None
    if current.is_joint or not settled:
        raise NotReadyError(f"the change to {current} is still under way, only one is made at a time; retry")
    return Members(current.voters, (), current.learners, before)


def final_members(joint: Members) -> Members:
    """What follows a joint entry."""
    return Members(joint.voters, (), joint.learners, joint.deleted_before)
