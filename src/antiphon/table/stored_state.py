"""What a table's shard keeps in its store, and how effects that are committed come there; `table.state` says the rest."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.invariants import unreachable
from antiphon.model.metadata import HASH_MAX
from antiphon.records.attributes import Entry
from antiphon.records.changes import Effect
from antiphon.records.split_entries import Inherit, SplitEntry
from antiphon.table import indexes, key_order, prepared_rows, session_rows
from antiphon.table.effects import USER, USER_END, add_effects
from antiphon.table.meta import ATTRIBUTES_FORMAT, META, META_KEY, ORDER_FORMAT, PLAIN_FORMAT, check_format
from antiphon.table.places import place_of
from antiphon.table.prepared import Prepare, TransactionChange
from antiphon.table.ranges import WHOLE, OwnedRange, advance
from antiphon.table.session_rows import SessionChange
from antiphon.table.store import Batch, Store

if TYPE_CHECKING:
    from antiphon.records.packed_effects import EffectKernels

RANGE_KEY: Final = b"\x00range"
JOBS_KEY: Final = b"\x00jobs"

_range = msgspec.msgpack.Decoder(OwnedRange)


class StoredState:
    """The store of one table shard as of `applied_offset` (exclusive)."""

    def __init__(self, store: Store, path: str) -> None:
        self.store = self._store = store
        self._path = path
        meta = store.get(META_KEY)
        if meta is None:
            self.format, self.applied_offset, self.next_version_id = PLAIN_FORMAT, 0, 0
        else:
            check_format(path, meta)
            self.format, self.applied_offset, self.next_version_id = META.unpack(meta)
        self.durable_offset = self.applied_offset
        stored = store.get(RANGE_KEY)
        self.owned: OwnedRange = WHOLE if stored is None else _range.decode(stored)
        self.limit = HASH_MAX  # no key with a hash beyond this is shown, whatever the log says
        self._purge_from = USER  # how far `purge` has looked
        self.jobs: bytes = store.get(JOBS_KEY) or b""
        self.transactions = prepared_rows.read_prepared(store)  # that are prepared
        self.has_indexes = indexes.has_entries(store)
        self.order = key_order.order_of(store)  # the hierarchical order of its keys, where it is kept
        self.kernels: EffectKernels | None = None  # for large batches

    @property
    def ordered(self) -> bool:
        """Does the store keep the hierarchical order of its keys?"""
        return self.order is not None

    def apply_effects(
        self,
        effects: Iterable[Effect],
        end: int,
        next_version_id: int,
        entries: Sequence[tuple[SplitEntry, int]] = (),
        change: SessionChange | None = None,
    ) -> None:
        """Apply the effects of the log up to `end` (exclusive), atomically.

        Effects are (user's key, new value or None, packed version) as in `records.changes.Effect`; `next_version_id` is
        above the id of every version among them and in the store. `entries` of a split come with their offsets. A `change`
        of a session comes with the effects of its own entry only.
        """
        if end < self.applied_offset:
            unreachable(f"applied state never goes back: {self.applied_offset} -> {end}")
        batch = self._store.batch()
        put = batch.put
        rows = list(effects)
        attributed = add_effects(batch, rows)
        if self.order is not None:
            self.order.follow(batch, rows)
        if attributed or self.has_indexes:
            self.follow_attributes(batch, rows, attributed, {})
        owned, jobs = self.owned, self.jobs
        if change is not None:
            session_rows.apply_change(self._store, batch, change)
        if entries:
            self._purge_from = USER  # what they take away may lie before the place that was reached
            for entry, offset in entries:
                owned = advance(owned, entry, offset)
                if isinstance(entry, Inherit):
                    jobs, next_version_id = entry.jobs, max(next_version_id, entry.next_version_id)
                    session_rows.add_sessions(batch, entry.sessions)
            put(RANGE_KEY, msgspec.msgpack.encode(owned))
            put(JOBS_KEY, jobs)
        put(META_KEY, META.pack(self.format, end, next_version_id))
        self._store.write(batch)
        self.applied_offset, self.next_version_id = end, next_version_id
        self.owned, self.jobs = owned, jobs

    def apply_transaction(self, change: TransactionChange, end: int, next_version_id: int) -> None:
        """Apply a prepared transaction, or its end, which is the log's entry up to `end`."""
        batch = self._store.batch()
        rows = list(prepared_rows.add_change(batch, self.transactions, change))
        self.follow_attributes(batch, rows, self.add_effects(batch, rows), {})
        self.apply_prepared(batch, end, next_version_id)
        if isinstance(change, Prepare):
            self.transactions.prepare(change)
        else:
            self.transactions.end(change.producer_id)

    def batch(self) -> Batch:
        """An empty batch, to be filled with `add_effects` before the effects may be applied."""
        return self._store.batch()

    def add_effects(self, batch: Batch, effects: Sequence[Effect]) -> bool:
        """Add what effects come to in this store, but for secondary indexes; has any row of them attributes?"""
        if self.order is not None:
            self.order.add(batch, effects)
        return add_effects(batch, effects)

    def keep_order(self) -> None:
        """From now on the store keeps the hierarchical order; rows that are there get their entries. Blocks."""
        if self.ordered:
            return
        mark = key_order.make_entries(self._store)
        batch = self._store.batch()
        self.format = ORDER_FORMAT
        batch.put(META_KEY, META.pack(self.format, self.applied_offset, self.next_version_id))
        batch.put(key_order.MARK_KEY, mark)
        self._store.write(batch)
        self.order = key_order.order_of(self._store)

    def apply_prepared(
        self,
        batch: Batch,
        end: int,
        next_version_id: int,
        *,
        attributed: bool = False,
        indexed: bool = False,
        unordered: Sequence[Effect] = (),
    ) -> None:
        """`apply_effects` of effects that are in a batch already, with what they change of the indexes; it is used up.

        `attributed`: rows of them have attributes; `indexed`: indexes may lead to some. `unordered`: those of them whose
        entries in the hierarchical order are not in the batch.
        """
        if end < self.applied_offset:
            unreachable(f"applied state never goes back: {self.applied_offset} -> {end}")
        self.has_indexes = self.has_indexes or indexed
        if attributed:
            self.format = max(self.format, ATTRIBUTES_FORMAT)
        if self.order is not None and unordered:
            self.order.follow(batch, unordered)
        elif self.order is not None:
            self.order.make()
        batch.put(META_KEY, META.pack(self.format, end, next_version_id))
        self._store.write(batch)
        self.applied_offset, self.next_version_id = end, next_version_id

    def follow_attributes(
        self, batch: Batch, effects: list[Effect], attributed: bool, now: dict[bytes, tuple[Entry, ...]]
    ) -> None:
        """Add what effects change of the indexes; `attributed` if rows of them have attributes. `now`: see `add_changes`."""
        if attributed:
            self.format = max(self.format, ATTRIBUTES_FORMAT)  # what knows none does not read it from now on
        if self.has_indexes or (attributed and indexes.is_indexed(effects)):
            self.has_indexes = True
            indexes.add_changes(self._store, batch, effects, now)

    def purge(self, examined_max: int) -> bool:
        """Remove keys that splits took away, among the next `examined_max`; says whether there is more to look at.

        When everything was looked at, the store remembers that. A split that comes in between has it begin anew.
        """
        if not self.owned.purging:
            return False
        batch = self._store.batch()
        following: bytes | None = None
        for examined, (stored_key, stored) in enumerate(self._store.items(self._purge_from)):
            if stored_key >= USER_END:
                break
            if examined >= examined_max:
                following = stored_key
                break
            if not self.owned.first <= place_of(stored_key[1:], stored) <= self.owned.last:
                batch.delete(stored_key)
                indexes.remove_of(batch, stored_key[1:], stored)
                if self.ordered:
                    key_order.remove_of(batch, stored_key[1:])
        owned = self.owned if following is not None else msgspec.structs.replace(self.owned, purging=False)
        batch.put(RANGE_KEY, msgspec.msgpack.encode(owned))
        self._store.write(batch)
        self.owned, self._purge_from = owned, following or USER
        return following is not None
