"""What the committed logs of a table come to whose shards may be split, and may lose most of their replicas.

After a recovery a shard's log is another one, and is folded again from its beginning. Which shard holds a key is said by the
releases in the logs, and by the metadata: a recovery may lose a release, and then the keys stay where the metadata has them.
Folded without the code that makes rows of logs (`session_history`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon.model.metadata import key_hash
from antiphon.records.split_entries import Release, split_entry_of
from antiphon.simulation.cluster.hurt_machines import newest_metadata
from antiphon.simulation.cluster.workloads.session_history import ShardSessions, version_of
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.records.decode import Record
    from antiphon.simulation.cluster.cluster import SimulatedCluster

Seen = tuple[bytes, int, int | None]
"""A row: its value, its version id, the session that it belongs to."""


class State(NamedTuple):
    """The rows at an end of the committed log."""

    end: int
    rows: dict[bytes, Seen]


class Begun(NamedTuple):
    """A put begins. `hash`: of its key; `start`: the first hash of the shard that holds it by then, by the metadata."""

    hash: int
    start: int


class RecoveredFold(ShardSessions):
    """The log of one history, folded.

    `states`: after each batch; `versions`: by value, what its put got; `released`: by child, its first hash.
    """

    def __init__(self, shard_id: int, number: int, *, is_child: bool) -> None:
        super().__init__(shard_id, is_child=is_child)
        self.number = number  # of recoveries before
        self.states = [State(0, {})]
        self.versions: dict[bytes, int] = {}
        self.released: dict[int, int] = {}
        self._newest = -1

    def seen(self, records: "list[Record]") -> None:
        """Versions go on from what is left. Copies of a parent's rows have those of the parent, several of a key at once."""
        for record in records:
            if record.value is None:
                continue
            version = version_of(record)
            require(
                self.copies or version > self._newest,
                "versions-go-on",
                f"{record.key!r} = {record.value!r} has version {version}, {self._newest} was given before",
                self.shard_id,
            )
            self._newest = max(self._newest, version)
            self.versions[record.value] = version

    def _control(self, batch: Any) -> None:
        super()._control(batch)
        entry = split_entry_of(batch)
        if isinstance(entry, Release):
            self.released[entry.child] = entry.first

    def note(self, end: int) -> None:
        """A batch was folded."""
        self.states.append(
            State(end, {key: (row.value, row.version_id, row.owner) for key, row in self.rows.items()})
        )

    def between(self, first: int, last: int) -> list[State]:
        """The states from where the log ended at `first` to `last`."""
        before = [state for state in self.states if state.end <= first][-1:]
        return before + [state for state in self.states if first < state.end <= last]


class RecoveredTable:
    """See the module's text. `shard_id`: the one shard that the table was made with."""

    def __init__(self, cluster: "SimulatedCluster", name: str, shard_id: int) -> None:
        self._cluster = cluster
        self._name = name
        self._first = shard_id
        self._joined: dict[int, int] = {}  # children that the metadata has, with their first hashes
        self.folds: dict[int, RecoveredFold] = {}

    def read(self) -> Mapping[int, int]:
        """Fold what is committed by now; returns the first hash of each shard that the table has, by id."""
        starts, waiting = {self._first: 0, **self._joins()}, [self._first, *self._joined]
        while waiting:
            fold = self._folded(waiting.pop(0))
            waiting += [child for child in fold.released if child not in starts]
            starts.update(fold.released)
        return starts

    def begun(self, key: bytes) -> Begun:
        """A put of this key begins now."""
        found = key_hash(key)
        return Begun(found, max([0, *(one for one in self._joins().values() if one <= found)]))

    def _joins(self) -> dict[int, int]:
        meta = newest_metadata(self._cluster)
        for topic in () if meta is None else meta.topics:
            if topic.name == self._name:
                found = [one for one in topic.shards if one.shard_id != self._first and one.split is None]
                self._joined.update({one.shard_id: one.hashes[0] for one in found})
        return self._joined

    def _folded(self, shard_id: int) -> RecoveredFold:
        number, fold = self._cluster.watch.recoveries.number(shard_id), self.folds.get(shard_id)
        if fold is None or fold.number != number:
            fold = RecoveredFold(shard_id, number, is_child=shard_id != self._first)
            self.folds[shard_id] = fold
        for batch in self._cluster.evidence.truth(shard_id).batches[len(fold.states) - 1 :]:
            fold.take(batch.data)
            fold.note(batch.next_offset)
        return fold

    def ends(self) -> dict[int, int]:
        """How far each shard of the table is committed."""
        return {shard_id: self._cluster.evidence.truth(shard_id).end for shard_id in self.read()}

    def recoveries(self) -> int:
        """How many have been led through. -1 while one is not: a reader may still be told of the old history."""
        found = [self._cluster.watch.recoveries.led(shard_id) for shard_id in self.read()]
        return -1 if None in found else sum(one or 0 for one in found)

    def lost(self) -> set[bytes]:
        """Values that were committed in some shard, and are lost with its replicas."""
        lost = self._cluster.watch.recoveries.lost
        return {value for shard_id in self.read() for value in lost.get(shard_id, ())}

    def is_open(self) -> bool:
        """Is a session open in some shard?"""
        return any(self.folds[shard_id].open for shard_id in self.read())

    def misfit(self, rows: Mapping[bytes, Seen], began: Mapping[int, int]) -> str:
        """Was each shard, at some moment since it ended there, as the rows of a scan say? What was not, in words, else ''.

        A scan while the table was split is of several moments, and is not judged.
        """
        starts, ends = self.read(), self.ends()
        if set(began) != set(starts):
            return ""
        for shard_id, fold in ((one, self.folds[one]) for one in starts):
            mine = _of(shard_id, rows, starts)
            states = [
                _of(shard_id, one.rows, starts) for one in fold.between(began[shard_id], ends[shard_id])
            ]
            if mine not in states:
                return (
                    f"found {mine} in shard {shard_id}; between its beginning and its answer the log, from "
                    f"{began[shard_id]} to {ends[shard_id]}, came to {states[-3:]}"
                )
        return ""


def _of(shard_id: int, rows: Mapping[bytes, Seen], starts: Mapping[int, int]) -> dict[bytes, Seen]:
    """The rows whose keys are a shard's. A shard holds the hashes from its first one to where the next shard begins."""
    return {
        key: row
        for key, row in rows.items()
        if max((first, one) for one, first in starts.items() if first <= key_hash(key))[1] == shard_id
    }
