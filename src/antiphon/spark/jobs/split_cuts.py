"""Which shards of a table count at a cut through its logs, where shards were split.

A shard that was split off has the keys from the *release* on, an entry in the log of the shard that had them; before its own
beginning (`own_start`) its log is a copy. So at a cut the shard counts if, and only if, the other one's part of the cut
holds the release: at one that ends before, its keys are still the other's, and they would be counted twice; at one that ends
after, they are nobody else's, even if nothing was written to the shard itself since.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import InvalidRequestError
from antiphon.model.requests import Fetch, Fetched
from antiphon.records.batch import iter_batches
from antiphon.records.split_entries import Inherit, Release, split_entry_of

if TYPE_CHECKING:
    from antiphon.model.metadata import ShardMeta, TopicMeta

FETCH_BYTES: Final = 1024 * 1024
FETCHES_MAX: Final = 1_000  # between a freeze and its release are the writes of a moment


class Origin(NamedTuple):
    """Where a shard comes from: index of the shard that had its keys, and the offset of the release in that one's log."""

    parent: int
    release: int


def origins_of(cluster: Cluster, table: "TopicMeta") -> dict[int, Origin]:
    """By index, of the shards that were split off. Raises InvalidRequestError where the logs do not tell any more."""
    by_id = {shard.shard_id: shard for shard in table.shards}
    found = {}
    for shard in table.shards:
        if not shard.own_start:
            continue
        entry = _inherit_entry(cluster, shard)
        parent = by_id.get(entry.parent) if entry is not None else None
        release = (
            None if entry is None or parent is None else _release(cluster, parent, entry.frozen_at, shard)
        )
        if parent is None or release is None:
            raise InvalidRequestError(
                f"the log of {table.name} no longer says when its shard {shard.index} was split off, so a state of "
                "the past cannot be put together; read the state of now"
            )
        found[shard.index] = Origin(parent.index, release)
    return found


def settle(cluster: Cluster, table: "TopicMeta", ends: Mapping[int, int], *, exact: bool) -> dict[int, int]:
    """The cut without the shards that do not count at it, and whole where shards do.

    Args:
        cluster: where the table is.
        table: its metadata.
        ends: exclusive ends by index; split-off shards may be missing.
        exact: the ends were given one by one, and nothing is added to them; otherwise they come from a time, which nodes
            do not agree on to the millisecond, and are moved so that they fit together.

    Raises:
        InvalidRequestError: ends that do not fit together, or one is missing.
    """
    origins = origins_of(cluster, table)
    cut = dict(ends)
    shards = {shard.index: shard for shard in table.shards}
    if not exact:
        for index in sorted(origins, reverse=True):  # a shard's parent has a lower index
            parent, release = origins[index]
            if cut.get(index, 0) > shards[index].own_start:
                cut[parent] = max(cut.get(parent, 0), release + 1)
    for index in sorted(shards):
        origin, own_start = origins.get(index), shards[index].own_start
        if origin is None:
            if index not in cut:
                raise _missing(table, index)
        elif origin.parent not in cut or cut[origin.parent] <= origin.release:
            if exact and cut.get(index, 0) > own_start:
                raise InvalidRequestError(
                    f"offset {cut[index]} of {table.name} shard {index} does not go with the end of shard {origin.parent}, "
                    f"which the shard was split off only at offset {origin.release}: there was never such a state"
                )
            cut.pop(index, None)
        elif index not in cut:
            raise _missing(table, index)
        elif cut[index] < own_start:
            if exact:
                raise InvalidRequestError(
                    f"{table.name} shard {index} has changes of its own from offset {own_start} on, {cut[index]} is before"
                )
            cut[index] = own_start
    return dict(sorted(cut.items()))


def _missing(table: "TopicMeta", index: int) -> InvalidRequestError:
    names = ", ".join(str(shard.index) for shard in table.shards)
    return InvalidRequestError(
        f"no offset is given for shard {index} of {table.name}: name all of its shards, {names}"
    )


def _inherit_entry(cluster: Cluster, shard: "ShardMeta") -> Inherit | None:
    """What the shard's log says of where it comes from: the last entry before it becomes the shard's own."""
    request = Fetch(shard.shard_id, max(0, shard.own_start - 1), FETCH_BYTES)
    for header, batch in iter_batches(cluster.call(ShardCall(shard.shard_id, request)).payload):
        if header.base_offset >= shard.own_start:
            return None
        entry = split_entry_of(batch) if header.is_control else None
        if isinstance(entry, Inherit):
            return entry
    return None


def _release(cluster: Cluster, parent: "ShardMeta", frozen_at: int, child: "ShardMeta") -> int | None:
    """The offset at which a shard let go of what `child` holds."""
    offset = frozen_at
    for _ in range(FETCHES_MAX):
        answer = cluster.call(ShardCall(parent.shard_id, Fetch(parent.shard_id, offset, FETCH_BYTES)))
        reply: Fetched = answer.body
        following = offset
        for header, batch in iter_batches(answer.payload):
            following = max(following, header.next_offset)
            entry = split_entry_of(batch) if header.is_control else None
            if isinstance(entry, Release) and entry.child == child.shard_id:
                return header.base_offset
        if following <= offset or following >= reply.high_watermark:
            return None
        offset = following
    return None
