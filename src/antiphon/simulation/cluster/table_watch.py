"""What tables' stores have to hold while a run is under way, where one leader writes: see `watch`.

- `table-is-its-log`: at every offset that a store says it has applied, its rows are what the committed log comes to there.

Each replica has a fold of its own here, of committed batches up to its store's applied offset. When that has risen, the rows
that the new entries changed are compared with what the store has at their keys; so are those that the next entry is to
change, if it changes several: it is there as a whole or not at all. All rows are compared when a store was
opened, or came with a snapshot, and now and then: so a row that goes wrong without being written is found too.

Rows are read past the table's own reading, as they are stored. A store that says it cannot be read is for others to judge.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import StorageFailedError
from antiphon.records.batch import BatchHeader, read_header
from antiphon.records.builder import end_marker_of
from antiphon.records.changes import effects_of
from antiphon.simulation.violation import require
from antiphon.table.effects import USER, USER_END
from antiphon.table.ranges import WHOLE, OwnedRange

if TYPE_CHECKING:
    from antiphon.partition.single_writer import SingleWriterPartition
    from antiphon.simulation.cluster.evidence import Evidence
    from antiphon.simulation.cluster.truth import ShardTruth
    from antiphon.table.state import TableState

WHOLE_EVERY: Final = 64  # so many looks at changed rows lie between two at all rows of a replica

Stored = tuple[bytes, bytes | None]
"""A key and what a store has there, as it is stored: 0x01 before the key, the version before the value. None: nothing."""


class KnownTable:
    """What each committed batch of a shard changes; every batch is decoded once for all replicas, and for the end."""

    def __init__(self, truth: "ShardTruth") -> None:
        self._truth = truth
        self.ends: list[int] = []  # by batch: where the next one begins
        self.changes: list[list[Stored]] = []
        self._prepared: dict[int, list[Stored]] = {}  # by producer, as of the last batch
        self._cuts = truth.cuts

    def learn(self) -> int:
        """Take in what was committed since the last time; returns how far that goes."""
        truth = self._truth
        if truth.cuts != self._cuts:  # a recovery gave up what came behind: nothing is known of it any more
            self._cuts, self.ends, self.changes, self._prepared = truth.cuts, [], [], {}
        ends = self.ends
        for batch in truth.batches[len(ends) :]:
            header = read_header(batch.data)
            found: list[Stored] = [
                (USER + key, None if value is None else version + value)
                for key, value, version in effects_of(batch.data)
            ]
            if header.is_transactional:  # rows with the marker, if it commits
                found = self._in_transaction(header, batch.data, found)
            self.changes.append(found)
            ends.append(batch.next_offset)
        return truth.end

    def _in_transaction(self, header: BatchHeader, batch: bytes, found: list[Stored]) -> list[Stored]:
        if not header.is_control:
            self._prepared.setdefault(header.producer_id, []).extend(found)
            return []
        said, prepared = end_marker_of(batch), self._prepared.pop(header.producer_id, [])
        return prepared if said is not None and said[0] else []

    def rows(self) -> dict[bytes, bytes]:
        """All of it folded, by user's key; with versions, as rows are stored."""
        self.learn()
        found: dict[bytes, bytes | None] = {}
        for changes in self.changes:
            found.update(changes)
        return {key[1:]: row for key, row in found.items() if row is not None}


class WatchedTable:
    """One replica's fold, and what was seen of its store."""

    __slots__ = ("host", "looks", "node_id", "place", "rows", "state")

    def __init__(self, node_id: int, host: "SingleWriterPartition") -> None:
        self.node_id = node_id
        self.host = host
        self.state: TableState | None = None  # whose rows were compared
        self.place = 0  # how many committed batches are in `rows`
        self.rows: dict[bytes, bytes | None] = {}
        self.looks = 0


class TableWatch:
    """See the module's text."""

    def __init__(self, evidence: "Evidence") -> None:
        self._evidence = evidence
        self._known: dict[int, KnownTable] = {}
        self.behind: dict[
            WatchedTable, None
        ] = {}  # their stores have not got what their replicas call settled

    def known(self, shard_id: int) -> KnownTable:
        """What a shard's committed log comes to."""
        found = self._known.get(shard_id)
        if found is None:
            found = self._known[shard_id] = KnownTable(self._evidence.truth(shard_id))
        return found

    def node_gone(self, node_id: int) -> None:
        """Its process ended."""
        self.behind = {one: None for one in self.behind if one.node_id != node_id}

    def look_again(self) -> None:
        """A step is over, and some stores were behind before it."""
        for one in list(self.behind):
            state = one.host.state
            if state.closed or state.failed is not None:
                del self.behind[one]
            else:
                self.look(one)

    def look(self, one: WatchedTable) -> None:
        """The store may have applied more than the last time."""
        host = one.host
        state = host.state.require_table().state
        applied, known = state.applied_offset, self.known(host.shard_id)
        committed = known.learn()
        if applied < host.replica.settled or applied > committed:
            self.behind[one] = None
            if applied > committed:
                return  # of a store that was opened just now: who committed that has not ended its step
        elif one in self.behind:
            del self.behind[one]
        if state is not one.state:
            one.state, one.place, one.rows, one.looks = state, 0, {}, 0
        changed: dict[bytes, bytes | None] = {}
        place, ends, changes = one.place, known.ends, known.changes
        while place < len(ends) and ends[place] <= applied:
            changed.update(changes[place])
            place += 1
        one.place = place
        one.rows.update(changed)
        if (
            place < len(ends) and one.looks and len(changes[place]) > 1
        ):  # of the next one nothing may be there yet
            self._compare(one, state, {key: one.rows.get(key) for key, _ in changes[place]})
        if not one.looks % WHOLE_EVERY:
            self._compare_all(one, state)
        elif changed:
            self._compare(one, state, changed)
        else:
            return
        one.looks += 1

    def _compare(self, one: WatchedTable, state: "TableState", changed: dict[bytes, bytes | None]) -> None:
        if not _is_undivided(state.owned):
            changed = {
                key: row
                for key, row in changed.items()
                if (state.owned.holds(key[1:]) if row is None else state.holds(key[1:], row))
            }
        found = _read(lambda: state._store.get_many(list(changed)))  # noqa: SLF001 - as it is stored
        if found is not None and found != list(changed.values()):
            self._differ(one, state, changed, dict(zip(changed, found, strict=True)))

    def _compare_all(self, one: WatchedTable, state: "TableState") -> None:
        found = _read(lambda: _stored_rows(state))
        if found is None:
            return
        wanted = {key: row for key, row in one.rows.items() if row is not None}
        if not _is_undivided(state.owned):  # what a split took away is removed some time
            wanted = {key: row for key, row in wanted.items() if state.holds(key[1:], row)}
            found = {key: row for key, row in found.items() if state.holds(key[1:], row)}
        if found != wanted:
            self._differ(one, state, wanted, found)

    def _differ(
        self, one: WatchedTable, state: "TableState", wanted: dict[bytes, Any], found: dict[bytes, Any]
    ) -> None:
        keys = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        rows = [(key[1:], found.get(key), wanted.get(key)) for key in keys[:3]]
        require(
            False,
            "table-is-its-log",
            f"the store on node {one.node_id} is at {state.applied_offset} and differs there from what the log comes to in "
            f"{len(keys)} rows: {rows} (key, in the store, by the log)",
            one.host.shard_id,
        )


def _is_undivided(owned: OwnedRange) -> bool:
    return owned.first == WHOLE.first and owned.last == WHOLE.last


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except StorageFailedError:
        return None


def _stored_rows(state: "TableState") -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for key, row in state._store.items(USER):  # noqa: SLF001 - as it is stored
        if key >= USER_END:
            break
        rows[key] = row
    return rows
