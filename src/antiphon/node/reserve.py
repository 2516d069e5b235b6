"""Room that is kept on the disk for what a node cannot do without when it is full: votes, terms, a leader's first entry.

A file of that size lies in the node's directory. A running node that finds the disk full gives up half of it, and a start
what is left: replicas can be recovered and leaders be elected, so reads are served. A start needs a part of its own, as
whatever filled the disk may have taken what the running node gave up. Writes of clients are refused (`disk_full`) as long as
less than twice the reserve is left. When there is room again the file is made anew, and writes are taken, without a restart.
"""

import contextlib
import os
from typing import TYPE_CHECKING, Final, cast

from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import write_whole
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import read_header

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.log.wal import Wal
    from antiphon.node.config import NodeConfig
    from antiphon.node.context import NodeContext
    from antiphon.records.batch import Buffer
    from antiphon.replication.messages import Append

RESERVE_NAME: Final = "reserve"


def open_directory(disk: "Disk", config: "NodeConfig") -> NodeDirectory:
    """Open the node's directory; on a disk without room the reserve goes first. Raises what `NodeDirectory.open` does."""
    directory, size_bytes = str(config.dir), config.limits.disk_reserve
    path = os.path.join(directory, RESERVE_NAME)
    with contextlib.suppress(OSError):
        if disk.exists(path) and (not size_bytes or disk.free_bytes(directory) < size_bytes // 2):
            disk.remove(path)
    return NodeDirectory.open(
        directory, config.cluster_id, config.node_id, disk=disk, bootstrap=config.bootstrap
    )


def has_room_for(wal: "Wal", message: "Append") -> bool:
    """May a follower take these entries? Where little room is left, only those without which nobody could lead."""
    if message.shard == CLUSTER_SHARD_ID or not wal.is_low:
        return not (wal.disk_full and message.entries)
    batches = [cast("Buffer", entry.data) for entry in message.entries]
    if wal.has_room_for(sum(map(len, batches))):
        return True
    return not wal.disk_full and all(read_header(batch).is_control for batch in batches)


class Reserve:
    """See the module's text; of one node, on its event loop. It tells the WAL how much may still be written."""

    def __init__(self, node: "NodeContext", wal: "Wal") -> None:
        self._node = node
        self._wal = wal
        self._directory = str(node.config.dir)
        self._path = os.path.join(self._directory, RESERVE_NAME)
        self._size = node.config.limits.disk_reserve
        self._is_making = False
        self.look()

    def look(self) -> None:
        """Now and then: compare the room that is left with the reserve."""
        if not self._size or self._is_making:
            return
        disk, wal, size = self._node.disk, self._wal, self._size
        try:
            free, held = disk.free_bytes(self._directory), self._held_bytes()
            # What waits to be written would take all of it at once.
            if free < size // 2 < held and wal.backlog_bytes < size // 4:
                disk.open(self._path).truncate(size // 2)
                free, held = free + held - size // 2, size // 2
        except OSError:
            return  # the next look may be luckier
        if held < size and free >= 2 * size:
            self._is_making = True
            self._node.loop.run_in_executor(None, self._make).add_done_callback(lambda _done: self._made())
        wal.is_low = held < size and free < 2 * size
        wal.room_bytes = free - size // 2

    def _held_bytes(self) -> int:
        disk = self._node.disk
        return disk.open(self._path).size() if disk.exists(self._path) else 0

    def _make(self) -> None:
        try:
            write_whole(self._node.disk, self._path, bytes(self._size))
        except OSError:
            with contextlib.suppress(OSError):
                self._node.disk.remove(self._path)

    def _made(self) -> None:
        self._is_making = False
