"""What the pure protocol asks its caller to do.

Storage actions carry a `write_id` that rises by one per action of a replica. The caller carries them out in that
order and call `persisted(write_id)` when everything up to it is durable; whatever may only be said after that (a vote, a
promise, an acknowledgement) is kept back inside the replica until then. All other actions are carried out at once, in
the order of the list.
"""

import msgspec

from antiphon.records.entry_id import EntryId
from antiphon.replication.members import Members
from antiphon.replication.messages import AnyMessage, Entry, NodeId
from antiphon.replication.replica_state import Role


class PersistTerm(msgspec.Struct, frozen=True):
    """Make the promise durable: this term, and who got this replica's vote in it (None: nobody)."""

    write_id: int
    term: int
    voted_for: NodeId | None


class AppendLog(msgspec.Struct, frozen=True):
    """Append the entries, whose offsets and terms are set, to the local log."""

    write_id: int
    entries: tuple[Entry, ...]


class TruncateLog(msgspec.Struct, frozen=True):
    """Cut everything from `to_offset` on. Never below the high watermark."""

    write_id: int
    to_offset: int


class ResetLog(msgspec.Struct, frozen=True):
    """The log becomes empty and continues after `at`: a snapshot up to there is installed, or is about to be.

    `members`: as of `at`, where replicas vote; they are kept with the log.
    """

    write_id: int
    at: EntryId
    members: Members | None = None


class Send(msgspec.Struct, frozen=True):
    """Send to a node; lost messages are made good by later ticks."""

    to: NodeId
    message: AnyMessage


class ReadEntries(msgspec.Struct, frozen=True):
    """Read whole entries from `from_offset` (at least one, at most about `max_bytes`) and give them to `entries_read()`.

    Entries appended but not yet durable count: the leader sends while it syncs.
    """

    to: NodeId
    from_offset: int
    max_bytes: int


class SendSnapshot(msgspec.Struct, frozen=True):
    """Stream a snapshot of committed state to the follower; its log cannot be joined from ours.

    Announce it with a `SnapshotOffer` in the term of this leadership; drop it when the role changes. When the stream is
    done, or failed, call `snapshot_sent(to, at)` or `snapshot_failed(to)`. A repeated request for the same node replaces
    the first.
    """

    to: NodeId


class Commit(msgspec.Struct, frozen=True):
    """The high watermark rose to `high_watermark`: apply, answer clients, wake readers (in this order).

    Under `local` and small `at_least(k)` it may fall once, when an unsettled tail is cut: see `LostTail`.
    """

    high_watermark: int


class RoleChanged(msgspec.Struct, frozen=True):
    """The replica is now in `role`; a leader that lost its role fails its pending requests with NotLeader."""

    role: Role
    term: int
    leader: NodeId | None


class LeaderReady(msgspec.Struct, frozen=True):
    """The term-start entry is committed: from now on clients may be served (S1.36)."""

    term: int


class ReadReady(msgspec.Struct, frozen=True):
    """Leadership was confirmed after the read was asked for: serve it from state applied up to `offset`."""

    token: int
    offset: int
    leased: bool = False  # no round was needed


class ReadFailed(msgspec.Struct, frozen=True):
    """The replica stopped leading before the read was confirmed."""

    token: int


class Repaired(msgspec.Struct, frozen=True):
    """A log that was opened as damaged holds, durably, everything that is committed again: it may vote from now on.

    That can be known only in a term that began after the damage was found; an election brings it about.
    The caller keeps the mark of the damage across restarts until this action removes it.
    """


class ProposeLiveSet(msgspec.Struct, frozen=True):
    """Ask the coordinator to record `live` as the live replica set, in the place of the record `version` (S3.28, S3.29).

    Until `live_recorded` tells of a later record, commits need both sets. A repeated request replaces the one before.
    """

    version: int
    live: tuple[NodeId, ...]


class MembersChanged(msgspec.Struct, frozen=True):
    """Where replicas vote: `members` are in force from now on; `committed` once nothing can undo it."""

    members: Members
    committed: bool


class LostTail(msgspec.Struct, frozen=True):
    """Entries [from_offset, to_offset) that this replica had acknowledged as leader are cut: nobody else had them.

    Possible only where a rule acknowledges what is not settled (`local`, `at_least(k)` below a majority): the loss window
    of S4.28. Comes before the `TruncateLog` or `ResetLog` that does it; count it, and say so.
    """

    from_offset: int
    to_offset: int


Action = (
    PersistTerm
    | AppendLog
    | TruncateLog
    | ResetLog
    | Send
    | ReadEntries
    | SendSnapshot
    | Commit
    | RoleChanged
    | LeaderReady
    | ReadReady
    | ReadFailed
    | Repaired
    | ProposeLiveSet
    | MembersChanged
    | LostTail
)
