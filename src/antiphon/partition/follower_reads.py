"""Reading the log for followers that are behind.

Several followers are often behind by the same entries, so what was read last is kept until the turn ends. A follower whose
connection has more to send than is good waits until that is free again.
"""

from typing import TYPE_CHECKING

from antiphon.log.disk import NO_DESCRIPTORS
from antiphon.records.batch import CONTROL_BIT, Buffer, read_header
from antiphon.records.builder import members_of
from antiphon.records.compacted import is_filler, rest_of
from antiphon.replication.actions import ReadEntries
from antiphon.replication.messages import Entry

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.services import PartitionServices

Found = tuple[list[Entry], int]
"""Entries and their bytes."""


class FollowerReads:
    """See the module's text; of one replica."""

    def __init__(self, services: "PartitionServices", log: "ShardLog") -> None:
        self._services = services
        self._log = log
        self._deferred: dict[int, ReadEntries] = {}
        self._last: tuple[tuple[int, int, int], Found] | None = None

    def read(self, action: ReadEntries) -> Found | None:
        """The entries that are asked for; None when they are to be read later, see `drained`.

        Raises DamagedLogError, OSError.
        """
        if self._services.is_congested(action.to):
            self._deferred[action.to] = action
            return None
        key = (action.from_offset, action.max_bytes, self._log.log_end)
        if self._last is None or self._last[0] != key:
            self._last = (key, read_entries(self._log, *key))
            self._services.turn.for_shard(self._forget)
        return self._last[1]

    def drained(self, node_id: int) -> ReadEntries | None:
        """The connection to a follower has room again: what it was to get."""
        return self._deferred.pop(node_id, None)

    def clear(self) -> None:
        """No follower is sent entries any more."""
        self._deferred.clear()

    def _forget(self) -> None:
        self._last = None


def read_entries(log: "ShardLog", from_offset: int, max_bytes: int, end: int) -> tuple[list[Entry], int]:
    """The entries from `from_offset`, none beyond `end`, and their bytes; none where they cannot be read now."""
    if not log.log_start <= from_offset < end:
        return [], 0
    entries, size = [], 0
    try:
        batches = log.read(from_offset, max_bytes, end)
    except OSError as error:
        if error.errno not in NO_DESCRIPTORS:
            raise
        return [], 0  # a tick asks again
    for found in batches:
        batch: Buffer = found
        header = read_header(batch)
        if header.base_offset < from_offset and is_filler(header):
            # Here neighbours without records are one; the follower has some of them.
            batch = rest_of(header, from_offset)
            header = read_header(batch)
        said = members_of(batch) if header.attributes & CONTROL_BIT else None
        entries.append(Entry(header.leader_epoch, header.base_offset, header.next_offset, batch, said))
        size += len(batch)
    return entries, size
