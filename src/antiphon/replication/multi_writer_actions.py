"""What a replica of a shard that every replica writes asks its caller to do.

As in `actions`: storage actions carry a `write_id` that rises by one, are carried out in that order, and `persisted(id)`
tells when they are durable. The log is only ever appended to; nothing is cut.
"""

import msgspec

from antiphon.replication.actions import Commit, ReadReady, Repaired
from antiphon.replication.messages import NodeId
from antiphon.replication.multi_messages import MultiMessage
from antiphon.replication.origin_history import Mark, OriginEntry


class AppendEntries(msgspec.Struct, frozen=True):
    """Append the entries, whose offsets are set, to the local log; the batches of others must be stamped with them."""

    write_id: int
    entries: tuple[OriginEntry, ...]


class AdoptBase(msgspec.Struct, frozen=True):
    """Note, durably, that for its relays this log begins with `mark`: it skipped what was trimmed everywhere else."""

    write_id: int
    mark: Mark


class Send(msgspec.Struct, frozen=True):
    """Send to a node; lost messages are made good by later ticks."""

    to: NodeId
    message: MultiMessage


class ReadForRelay(msgspec.Struct, frozen=True):
    """Read whole entries from `from_offset` to `to_offset` at most, about `max_bytes`; `entries_read()` takes them."""

    to: NodeId
    from_offset: int
    to_offset: int
    max_bytes: int


class SplitBrain(msgspec.Struct, frozen=True):
    """`peer` has another history of `origin` than this replica, at `lsn` or before: the link to it is stopped."""

    peer: NodeId
    origin: int
    lsn: int


class TrimmedAway(msgspec.Struct, frozen=True):
    """`peer` has trimmed entries that this replica never had, and nobody gave them: it goes on behind them. Say so."""

    peer: NodeId


MultiAction = (
    AppendEntries | AdoptBase | Send | ReadForRelay | Commit | ReadReady | Repaired | SplitBrain | TrimmedAway
)
