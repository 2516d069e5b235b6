"""A table's store in memory, and what the store has to be at every offset of the committed log.

`MemoryTable` is the node's `TableState` with rows in a dictionary in the place of RocksDB: how batches become effects, and
what versions are, is the original's. `TableTruth` folds the committed log of a shard once more, entry by entry.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from antiphon.invariants import InvariantError, invariant
from antiphon.replication.messages import Entry
from antiphon.simulation.stored_log import StoredLog
from antiphon.simulation.table_messages import KeyState, TableData
from antiphon.simulation.violation import require
from antiphon.table.state import USER, TableState

if TYPE_CHECKING:
    from antiphon.records.split_entries import SplitEntry
    from antiphon.simulation.table_host import TableHosted
    from antiphon.table.store import Store

EVERYTHING = 1 << 60
Image = tuple[dict[bytes, bytes], int]  # rows as they are stored, next version id


class _Rows:
    """As much of a store of keys and values as `TableState` reads from."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of several."""
        return [self.rows.get(key) for key in keys]


class MemoryTable(TableState):
    """Rows of a table as of `applied_offset` (exclusive)."""

    def __init__(self, image: Image = ({}, 0), offset: int = 0) -> None:
        self._memory = _Rows()
        super().__init__(cast("Store", self._memory), "in memory")
        self.install(image, offset)

    def install(self, image: Image, offset: int) -> None:
        """Become what a snapshot says."""
        self._memory.rows, self.next_version_id = dict(image[0]), image[1]
        self.applied_offset = self.durable_offset = offset

    def image(self) -> Image:
        """A copy of everything."""
        return dict(self._memory.rows), self.next_version_id

    def has(self, image: Image) -> bool:
        """Is this what the store holds?"""
        return (self._memory.rows, self.next_version_id) == image

    def key_state(self, key: bytes) -> KeyState:
        """What a get of the key finds."""
        row = self.get(key)
        return None if row is None else (row.version.id, row.value or b"")

    def apply_effects(
        self,
        effects: Iterable[tuple[bytes, bytes | None, bytes]],
        end: int,
        next_version_id: int,
        entries: Sequence[tuple["SplitEntry", int]] = (),
    ) -> None:
        """Apply the effects of the log up to `end` (exclusive)."""
        invariant(
            end >= self.applied_offset, f"applied state never goes back: {self.applied_offset} -> {end}"
        )
        invariant(not entries, "simulated tables are not split")
        rows = self._memory.rows
        for key, value, version in effects:
            if value is None:
                rows.pop(USER + key, None)
            else:
                rows[USER + key] = bytes(version) + bytes(value)
        self.applied_offset, self.next_version_id = end, next_version_id

    def apply_entries(self, entries: Iterable[Entry]) -> None:
        """Apply entries of the log; those that are no client's have no effects."""
        for entry in entries:
            if isinstance(entry.data, TableData):
                self.apply([entry.data.batch])
            elif entry.next_offset > self.applied_offset:
                self.apply_effects((), entry.next_offset, self.next_version_id)


class TableTruth:
    """What the store of a shard is at each end of an entry in the committed log."""

    def __init__(self, shard: int, committed: StoredLog) -> None:
        self._shard = shard
        self._committed = committed
        self._fold = MemoryTable()
        self._images: dict[int, Image] = {0: self._fold.image()}

    def image_at(self, offset: int) -> Image | None:
        """The store as of `offset`; None where nothing is committed that ends there."""
        fold = self._fold
        for entry in self._committed.read(fold.applied_offset, self._committed.end_offset, EVERYTHING):
            fold.apply_entries((entry,))
            self._images[entry.next_offset] = fold.image()
        return self._images.get(offset)

    def batch_at(self, base_offset: int) -> bytes:
        """The committed batch of effects that begins there."""
        (entry,) = self._committed.read(base_offset, EVERYTHING, 1)
        data = entry.data
        if not isinstance(data, TableData):
            raise InvariantError(f"no effects of a table at {base_offset}")
        return data.batch

    def check(self, hosted: "TableHosted", applied_before: int) -> None:
        """A replica has applied what it knows to be committed."""
        applied, mark = hosted.table.applied_offset, hosted.replica.high_watermark
        node = f"node {hosted.node}"
        require(
            applied >= applied_before,
            "applied-committed",
            self._shard,
            f"{node}: its table fell from {applied_before} to {applied}",
        )
        require(
            applied <= max(mark, applied_before),
            "applied-committed",
            self._shard,
            f"{node} has applied up to {applied}, its high watermark is {mark}",
        )
        image = self.image_at(applied)
        require(
            image is not None,
            "applied-committed",
            self._shard,
            f"{node} has applied up to {applied}, committed is {self._committed.end_offset}",
        )
        require(
            image is not None and hosted.table.has(image),
            "tables-agree",
            self._shard,
            f"{node}: its table at {applied} is not what the committed log comes to there",
        )
