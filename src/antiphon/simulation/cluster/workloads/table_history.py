"""What the committed logs of a table come to: every change in order, each key's over splits, by which reads are judged.

A read is linearizable when what it returned stood in the table at some moment between its beginning and its answer. Moments
are given as positions: how far each shard's log was known to be committed. What was acknowledged before a read began is
below the position at its beginning, and what its answer holds is below the position at its end.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from antiphon.records.batch import iter_batches
from antiphon.records.changes import decode_changes
from antiphon.records.split_entries import Release, split_entry_of

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster

Positions = Mapping[int, int]
"""By shard: the end of what was committed."""

Seen = tuple[int, bytes | None] | None
"""A row as a reader sees it: version id and value (None where only keys were asked for); None: the key is not there."""


class Written(NamedTuple):
    """A committed change. `batch` is the base offset of its batch, which is committed where a position is `end` or more."""

    shard_id: int
    offset: int
    batch: int
    end: int
    key: bytes
    value: bytes | None
    version: int

    @property
    def row(self) -> Seen:
        """The key's row after it."""
        return None if self.value is None else (self.version, self.value)


def positions(cluster: "SimulatedCluster") -> Positions:
    """How far everything is committed now."""
    return {shard_id: truth.end for shard_id, truth in cluster.evidence.truths.items()}


def latest_starts(cluster: "SimulatedCluster") -> Positions:
    """Where the log of a replica has begun so far, at the latest: what is before may be gone."""
    return {shard_id: truth.latest_start for shard_id, truth in cluster.evidence.truths.items()}


class TableHistory:
    """See the module's text. `shard_ids`: the shards that the table was made with."""

    def __init__(self, cluster: "SimulatedCluster", shard_ids: Iterable[int]) -> None:
        self.starts = dict.fromkeys(
            shard_ids, 0
        )  # by shard: where its own log begins, behind what it inherited
        self.released: dict[
            int, tuple[int, int]
        ] = {}  # by shard that took keys over: from which, at which offset
        self.by_shard: dict[int, list[Written]] = {}
        self.by_key: dict[bytes, list[Written]] = {}
        waiting = list(self.starts)
        self.is_split = False
        while waiting:  # a parent before its children: so each key's changes are in order
            shard_id = waiting.pop(0)
            children = self._read(cluster, shard_id)
            for child, start in children:
                self.is_split = True
                self.starts[child] = start
                waiting.append(child)

    def _read(self, cluster: "SimulatedCluster", shard_id: int) -> list[tuple[int, int]]:
        start, children = self.starts[shard_id], []
        found = self.by_shard[shard_id] = []
        for committed in cluster.evidence.truth(shard_id).batches:
            if committed.base_offset < start:
                continue
            for header, data in iter_batches(committed.data):
                if header.is_control:
                    entry = split_entry_of(data)
                    if isinstance(entry, Release):
                        children.append((entry.child, entry.start))
                        self.released[entry.child] = (shard_id, header.base_offset)
                    continue
                for change in decode_changes([data]):
                    place = (shard_id, change.offset, header.base_offset, header.next_offset)
                    found.append(Written(*place, change.key, change.value, change.version_id))
        for written in found:
            self.by_key.setdefault(written.key, []).append(written)
        return children

    def allowed(self, key: bytes, began: Positions, ended: Positions) -> list[Seen]:
        """Every state that the key was in between two moments."""
        written = self.by_key.get(key, [])
        first, last = _known(written, began), _known(written, ended)
        return [written[at - 1].row if at else None for at in range(first, last + 1)]

    def states(self, shard_id: int, began: Positions, ended: Positions) -> Iterable[dict[bytes, Seen]]:
        """Every state that a shard was in between two moments; of a table that was never split."""
        written = self.by_shard[shard_id]
        first, last = _known(written, began), _known(written, ended)
        rows = {one.key: one.row for one in written[:first]}
        yield rows
        for at in range(first, last):
            rows[written[at].key] = written[at].row
            if at + 1 == len(written) or written[at + 1].batch != written[at].batch:
                yield rows


def _known(written: list[Written], at: Positions) -> int:
    """How many of these changes are below the positions."""
    count = 0
    for one in written:
        if one.end > at.get(one.shard_id, 0):
            break
        count += 1
    return count
