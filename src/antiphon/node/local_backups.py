"""Backups on one node: shards that it leads are held for the moment of a cut, and copies of state are made and read.

A hold ends by itself (`partition.hold`): its lease is counted here, by the event loop's clock. A copy is a checkpoint as a
follower would get it (`node.snapshots`). It is read piece by piece, and goes when it was read, or not read for `KEEP_S`.
"""

import asyncio
import os
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError, NotHeldError, OverloadedError
from antiphon.model.backup import PIECE_BYTES, StateCopied, StateFile
from antiphon.node.snapshots import Copy, Snapshots

if TYPE_CHECKING:
    from antiphon.gateway.answers import Done
    from antiphon.log.disk import Disk
    from antiphon.model.backup import (
        ConfirmHold,
        CopyState,
        DropState,
        HoldShard,
        ReadState,
        ReleaseHold,
    )
    from antiphon.node.context import NodeContext
    from antiphon.node.local_replicas import LocalReplicas

KEEP_S: Final = 120.0
COPIES_MAX: Final = 4  # on this node at a time: each may be as large as a store


class LocalBackups:
    """See ShardBackups."""

    def __init__(self, node: "NodeContext", replicas: "LocalReplicas", snapshots: Snapshots) -> None:
        self._node = node
        self._disk: Disk = node.disk
        self._replicas = replicas
        self._snapshots = snapshots
        self._copies: dict[bytes, Copy] = {}
        self._making = 0

    # -- holds --------------------------------------------------------------------------------------------------

    def hold(self, request: "HoldShard", done: "Done") -> None:
        """See ShardBackups."""
        hold = self._replicas.host(request.shard_id).hold
        lease_s = request.lease_ms / 1000
        hold.begin(request.hold_id, lease_s, done)
        if lease_s > 0:
            self._node.loop.call_later(lease_s, hold.release, request.hold_id)

    def confirm(self, request: "ConfirmHold", done: "Done") -> None:
        """See ShardBackups."""
        hold = self._replicas.host(request.shard_id).hold
        hold.confirm(request.hold_id, request.end, request.term, done)

    def release(self, request: "ReleaseHold") -> None:
        """See ShardBackups."""
        self._replicas.host(request.shard_id).hold.release(request.hold_id)

    # -- copies -------------------------------------------------------------------------------------------------

    async def copy(self, request: "CopyState") -> StateCopied:
        """See ShardBackups."""
        host = self._replicas.host(request.shard_id)
        host.state.check_serving()
        source = host.snapshots.source()
        self._forget_old()
        if len(self._copies) + self._making >= COPIES_MAX:
            raise OverloadedError(
                f"node {self._node.node_id} keeps {COPIES_MAX} copies for backups already; retry when one was read"
            )
        self._making += 1
        try:
            copy = await self._snapshots.copy_of(source, "backup")
        finally:
            self._making -= 1
        copy_id = bytes.fromhex(copy.snapshot_id)
        if not self._copies:
            self._node.loop.call_later(KEEP_S, self._look)
        self._copies[copy_id] = copy
        files = tuple(StateFile(file.name, file.size_bytes, file.crc) for file in copy.files)
        return StateCopied(copy_id, copy.at.term, copy.at.offset, files)

    async def read(self, request: "ReadState") -> bytes:
        """See ShardBackups."""
        copy = self._copies.get(request.copy_id)
        if copy is None:
            raise NotHeldError(
                f"node {self._node.node_id} has no copy {request.copy_id.hex()[:8]} of shard {request.shard_id} any more: "
                "have another one made"
            )
        if request.file >= len(copy.files):
            raise InvalidRequestError(f"the copy has {len(copy.files)} files, and no number {request.file}")
        copy.used_s = self._node.now_s()
        file = self._disk.open(os.path.join(copy.path, copy.files[request.file].name))
        return bytes(await asyncio.to_thread(file.pread, PIECE_BYTES, request.position))

    def drop(self, request: "DropState") -> None:
        """See ShardBackups."""
        copy = self._copies.pop(request.copy_id, None)
        if copy is not None:
            self._snapshots.discard(copy)

    def _look(self) -> None:
        self._forget_old()
        if self._copies:
            self._node.loop.call_later(KEEP_S, self._look)

    def _forget_old(self) -> None:
        now_s = self._node.now_s()
        for copy_id, copy in list(self._copies.items()):
            if now_s - copy.used_s > KEEP_S:
                del self._copies[copy_id]
                self._snapshots.discard(copy)
