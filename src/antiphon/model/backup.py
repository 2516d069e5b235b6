"""A backup in the native protocol: shards are held for the moment of a cut, and their state is copied.

Whoever takes a cut sends `HoldShard` to the leader of every shard. When all have answered it sends `ConfirmHold`, which also
lets go. If each of them confirms, nothing was committed in any shard between its two answers, so there was a moment at
which all shards ended where they said (docs/decisions/0031-backups.md).
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body, OfShard

LEASE_MS_MAX: Final = 2_000  # nobody holds a shard for longer, whatever becomes of who asked
ID_BYTES: Final = 16
NOBODY: Final = bytes(ID_BYTES)  # the id under which `__cluster` is asked, which nobody holds
STATE_FILES_MAX: Final = 100_000
PIECE_BYTES: Final = 1024 * 1024  # of a file of a state, in one answer

Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]


class OfHold(OfShard, frozen=True, array_like=True, tag=True):
    """Base of what is asked of a shard that is held."""

    hold_id: Id


class HoldShard(OfHold, frozen=True, array_like=True, tag=True):
    """Let nothing be appended for at most `lease_ms`, and answer (`ShardHeld`) where the log ends.

    What clients write meanwhile waits in line. `lease_ms` 0 holds nothing, and answers with what is committed: for
    `__cluster`, whose id of a hold is all zeros. The same `hold_id` again is answered again, and makes the lease no longer.
    """

    lease_ms: Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)]


class ShardHeld(Body, frozen=True, array_like=True, tag=True):
    """The shard's log goes from `log_start` to `end`, and nothing more is appended while the lease lasts.

    `deleted_before`: records before this offset, which may be inside of the first batch, were deleted on request.
    """

    end: int
    term: int
    log_start: int
    deleted_before: int = 0


class ConfirmHold(OfHold, frozen=True, array_like=True, tag=True):
    """Let go, and say (`HoldConfirmed`) that the log did not grow beyond `end`, in this `term`, until this came.

    It is answered when leadership was confirmed after it came, and all up to `end` is committed. `not_held`: the lease
    is over, the log has grown, or another node leads.
    """

    end: int
    term: int


class HoldConfirmed(Body, frozen=True, array_like=True, tag=True):
    """See `ConfirmHold`. `held_us`: for how long nothing was appended, in microseconds."""

    held_us: int


class ReleaseHold(OfHold, frozen=True, array_like=True, tag=True):
    """Let go; nothing happens where the shard is not held under this id."""


class CopyState(OfShard, frozen=True, array_like=True, tag=True):
    """Have the leader copy the committed state that its log continues from: of a table its store; and the producers."""


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a copied state."""

    name: str
    size_bytes: int
    crc: int


class StateCopied(Body, frozen=True, array_like=True, tag=True):
    """A copy of the state of the log before `offset`, whose last entry is of `term`. It is kept while it is read."""

    copy_id: Id
    term: int
    offset: int
    files: Annotated[tuple[StateFile, ...], Meta(max_length=STATE_FILES_MAX)]


class ReadState(OfShard, frozen=True, array_like=True, tag=True):
    """Read a piece of a file of a copied state; the bytes are the payload of the answer, `Done`."""

    copy_id: Id
    file: Annotated[int, Meta(ge=0)]
    position: Annotated[int, Meta(ge=0)]


class DropState(OfShard, frozen=True, array_like=True, tag=True):
    """The copy was read; nothing happens where there is none."""

    copy_id: Id


BackupRequest = HoldShard | ConfirmHold | ReleaseHold | CopyState | ReadState | DropState
BackupReply = ShardHeld | HoldConfirmed | StateCopied
