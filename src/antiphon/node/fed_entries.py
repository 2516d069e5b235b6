"""Entries read from a log for a follower."""

from typing import TYPE_CHECKING

from antiphon.log.disk import NO_DESCRIPTORS
from antiphon.records.batch import CONTROL_BIT, read_header
from antiphon.records.builder import members_of
from antiphon.replication.messages import Entry

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog


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
    for batch in batches:
        header = read_header(batch)
        said = members_of(batch) if header.attributes & CONTROL_BIT else None
        entries.append(Entry(header.leader_epoch, header.base_offset, header.next_offset, batch, said))
        size += len(batch)
    return entries, size
