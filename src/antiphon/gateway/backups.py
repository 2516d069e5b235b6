"""The shards' part of backups, as the listeners ask for it."""

from typing import Protocol

from antiphon.gateway.answers import Done
from antiphon.model.backup import (
    ConfirmHold,
    CopyState,
    DropState,
    HoldShard,
    ReadState,
    ReleaseHold,
    StateCopied,
)


class ShardBackups(Protocol):
    """Shards that this node leads are held for a cut, and their state is copied."""

    def hold(self, request: HoldShard, done: Done) -> None:
        """See `HoldShard`. Raises NotLeaderError, NotReadyError, OverloadedError, WrongKindError, UnknownShardError."""

    def confirm(self, request: ConfirmHold, done: Done) -> None:
        """See `ConfirmHold`. Raises NotHeldError, and the same."""

    def release(self, request: ReleaseHold) -> None:
        """See `ReleaseHold`. Raises NotLeaderError, UnknownShardError."""

    async def copy(self, request: CopyState) -> StateCopied:
        """See `CopyState`. Raises NotLeaderError, NotReadyError, OverloadedError, WrongKindError, UnavailableError."""

    async def read(self, request: ReadState) -> bytes:
        """See `ReadState`. Raises NotHeldError where the copy is gone, InvalidRequestError for what it does not have."""

    def drop(self, request: DropState) -> None:
        """See `DropState`."""
