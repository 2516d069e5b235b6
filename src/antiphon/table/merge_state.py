"""The store of a table with `writers=multi`: the changes of its log, merged key by key, with tombstones kept.

The replica's log holds the changes of all writers in the order in which they arrived here. Folding them by the table's
conflict rule gives the same rows on every replica (see `table.merge`). Rows are stored as in any table's store. The
same atomic writes also keep:

- 0x10 + user key: the version of a removed key, until every replica has the removal (`forget_tombstones`);
- 0x11: the latest modification time that was ever folded, in ms. A writer's clock never falls behind it. So a writer
  that changes what it has seen wins over it, however wrong the clocks are.
"""

import contextlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final, Self

from antiphon.errors import StorageFailedError
from antiphon.invariants import invariant
from antiphon.records.batch import Buffer, iter_batches
from antiphon.records.changes import VERSION, Effect, effects_in_pieces
from antiphon.table.effects import USER, VERSION_ID
from antiphon.table.folding import FoldSteps
from antiphon.table.merge import Cell, ConflictRule, unpack_id
from antiphon.table.meta import META, META_KEY, PLAIN_FORMAT
from antiphon.table.state import TableState, open_state
from antiphon.table.store import Store, StoreEngine

TOMBSTONE: Final = b"\x10"
TOMBSTONE_END: Final = b"\x11"
CLOCK_KEY: Final = b"\x11"
_CLOCK: Final = struct.Struct(">q")


class MergedState(TableState):
    """Rows of one shard of such a table as of `applied_offset` (exclusive, in this replica's log)."""

    def __init__(self, store: Store, path: str, rule: ConflictRule) -> None:
        super().__init__(store, path)
        self.rule = rule
        stored = store.get(CLOCK_KEY)
        self.clock_ms = -1 if stored is None else int(_CLOCK.unpack(stored)[0])
        # The same, but of changes that were not made by `own_origin` in this life
        self.foreign_ms = self.clock_ms
        self.own_origin = 0
        self.conflicts = 0  # changes that did not win over what was there

    @classmethod
    def open(cls, path: str, rule: ConflictRule, engine: StoreEngine) -> Self:
        """Open the store in directory `path`, or make an empty one; raises as `open_state` does."""
        state = open_state(path, engine)
        try:
            return cls(state._store, path, rule)  # noqa: SLF001 - the same store, seen by a subclass
        except StorageFailedError:
            with contextlib.suppress(StorageFailedError):
                state.close()
            raise

    def folding(self, batches: Iterable[Buffer], piece: int) -> FoldSteps:
        """Merge committed batches in steps of about `piece` records, or changed keys; see `table.folding`.

        Tombstones are not to be forgotten between two steps. Raises CorruptBatchError at a batch of which nothing is
        merged, and StorageFailedError.
        """
        merging, end = Merging(self), self.applied_offset
        for buffer in batches:
            for header, batch in iter_batches(buffer):
                if header.next_offset <= end:
                    continue
                invariant(
                    header.base_offset == end, f"a table merges without gaps: {end}, {header.base_offset}"
                )
                if not header.is_control:
                    for number, effects in enumerate(effects_in_pieces(header, batch, piece)):
                        if number:
                            yield
                        merging.take(effects)
                end = header.next_offset
                if len(merging.cells) >= piece:
                    yield from self._write(merging, end, piece)
                    yield
                    merging = Merging(self)
        if end > self.applied_offset:
            yield from self._write(merging, end, piece)

    def _write(self, merging: "Merging", end: int, piece: int) -> FoldSteps:
        """Bring what was merged to the store, with one write at the end."""
        batch, before = self._store.batch(), merging.before
        for number, (key, cell) in enumerate(merging.cells.items(), 1):
            known = before[key]
            if cell.value is None:
                if known is not None and known.value is not None:
                    batch.delete(USER + key)
                if cell != known:
                    batch.put(TOMBSTONE + key, VERSION.pack(*cell.version))
            else:
                if known is not None and known.value is None:
                    batch.delete(TOMBSTONE + key)
                if cell != known:
                    batch.put(USER + key, VERSION.pack(*cell.version) + cell.value)
            if not number % piece:
                yield
        invariant(
            self.applied_offset == merging.begun_at,
            f"something was merged while a batch was: the store was at {merging.begun_at}, is at {self.applied_offset}",
        )
        batch.put(META_KEY, META.pack(PLAIN_FORMAT, end, 0))
        batch.put(CLOCK_KEY, _CLOCK.pack(merging.clock_ms))
        self._store.write(batch)
        self.applied_offset, self.clock_ms, self.foreign_ms = end, merging.clock_ms, merging.foreign_ms
        self.conflicts += merging.conflicts

    def cells(self, keys: Iterable[bytes]) -> dict[bytes, Cell | None]:
        """The cells of `keys`, tombstones included, None where nothing is known of a key."""
        wanted = list(dict.fromkeys(keys))
        rows = self._store.get_many([USER + key for key in wanted])
        found: dict[bytes, Cell | None] = {}
        gone = []
        for key, row in zip(wanted, rows, strict=True):
            found[key] = None if row is None else Cell(row[VERSION.size :], VERSION.unpack_from(row))
            if row is None:
                gone.append(key)
        if gone:
            for key, version in zip(
                gone, self._store.get_many([TOMBSTONE + key for key in gone]), strict=True
            ):
                if version is not None:
                    found[key] = Cell(None, VERSION.unpack(version))
        return found

    def tombstones(self) -> int:
        """How many removed keys are remembered; counts them."""
        return sum(1 for _ in self._tombstones(b""))

    def _tombstones(self, start: bytes) -> Iterable[tuple[bytes, bytes]]:
        for key, version in self._store.items(TOMBSTONE + start):
            if key >= TOMBSTONE_END:
                return
            yield key, version

    def forget_tombstones(self, stable: tuple[int, ...], start: bytes, examined_max: int) -> bytes | None:
        """Drop tombstones that every member has, among the first `examined_max` from `start` on; where to go on, or None.

        `stable` is a vector clock that every member has, while this replica has all that any of them had when it said so.
        Then nothing older than such a tombstone is still to come, and everything newer wins over it; that is so for rules
        that say they `forget`, the others keep their tombstones.
        """
        if not self.rule.forgets:
            return None
        batch = self._store.batch()
        following: bytes | None = None
        for examined, (key, version) in enumerate(self._tombstones(start)):
            if examined >= examined_max:
                following = key[1:]
                break
            origin, lsn, _ = unpack_id(VERSION_ID.unpack_from(version)[0])
            if origin < len(stable) and lsn <= stable[origin]:
                batch.delete(key)
        self._store.write(batch)
        return following


class Merging:
    """Changes on their way to the store of a `MergedState`.

    Attributes:
        begun_at: the store's applied offset.
        before: what the store has of the keys.
        cells: what these keys come to.
        clock_ms, foreign_ms, conflicts: as of a MergedState.
    """

    def __init__(self, state: MergedState) -> None:
        self._state = state
        self.begun_at = state.applied_offset
        self.before: dict[bytes, Cell | None] = {}
        self.cells: dict[bytes, Cell] = {}
        self.clock_ms, self.foreign_ms, self.conflicts = state.clock_ms, state.foreign_ms, 0

    def take(self, effects: Sequence[Effect]) -> None:
        """Merge some more."""
        merge, before, cells = self._state.rule.merge, self.before, self.cells
        before.update(self._state.cells([key for key, *_ in effects if key not in before]))
        for key, value, version in effects:
            change = Cell(value, VERSION.unpack(version))
            self.clock_ms = max(self.clock_ms, change.version[3])
            if unpack_id(change.version[0])[0] != self._state.own_origin:
                self.foreign_ms = max(self.foreign_ms, change.version[3])
            known = cells.get(key) or before[key]
            cells[key] = change if known is None else merge(known, change)
            if known is not None and cells[key] != change:
                self.conflicts += 1
