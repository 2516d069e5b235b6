"""The store of one table shard: the fold of its log, kept by an engine of `table.store` (RocksDB in a node).

Applying an effect needs no decision and cannot fail: an effect says what the row becomes, and nothing here can refuse
it. Rows, the applied offset and the next version id change in one write batch, so whatever a crash leaves on disk is
the state at one offset of the log. The store has no write-ahead log of its own, because the shard's log is one: after a
crash the store is at an earlier offset, and the log is applied again from there. Batches below the applied offset are
skipped: repeats do no harm.

A committed entry may be applied before this node's own disk has it (the other disks made the majority). So after a
crash `applied_offset` can lie beyond the end of the local log. It is still committed state, and applying continues when
the log has caught up.

Layout: key 0x00 holds `META` (format, applied offset, next version id); key 0x01 + user key holds the 32 packed bytes
of `records.changes.VERSION` and then the value. If the shard was ever split, 0x00 "range" holds its part of the table
(`table.ranges`), and 0x00 "jobs" what it inherited of Spark's jobs. Sessions and what belongs to them: `table.session_rows`;
prepared transactions: `table.prepared_rows`; secondary indexes: `table.indexes`; the hierarchical order of keys, where
the table has it: `table.key_order`.

Keys that a split moved away are invisible at once (scans leave them out). `purge` removes them from the store in
pieces, whenever there is time. Replicas need not agree on when that happens.

Reads and writes take microseconds and are made on the event loop. `flush`, `checkpoint`, `open_state` and `close` use
the disk and belong into a thread if the loop must not wait. A store may be flushed and copied in threads while it is
used; `close` waits for them, and a flush that comes after it raises. Every method may raise StorageFailedError. The
replica must then stop, because a read that continues would return less than there is.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self

import msgspec

from antiphon.errors import InvalidRequestError, StorageFailedError
from antiphon.invariants import unreachable
from antiphon.model.metadata import HASH_MAX
from antiphon.model.rows import Row
from antiphon.records.attributes import Entry
from antiphon.records.changes import (
    VERSION,
    Effect,
    VersionTuple,
    stored_version,
)
from antiphon.records.split_entries import Inherit, SplitEntry
from antiphon.table import indexes, key_order, prepared_rows, session_rows
from antiphon.table.effects import USER, USER_END, add_effects
from antiphon.table.folding import Folding
from antiphon.table.found_rows import GET_BYTES_MAX, row_from, rows_found, too_much
from antiphon.table.meta import ATTRIBUTES_FORMAT, META, META_KEY, ORDER_FORMAT, PLAIN_FORMAT, check_format
from antiphon.table.neighbours import EQUAL, entries_next_to
from antiphon.table.places import place_of
from antiphon.table.prepared import Prepare, TransactionChange
from antiphon.table.ranges import WHOLE, OwnedRange, advance, narrowed
from antiphon.table.session_rows import SessionChange
from antiphon.table.store import Batch, Store, StoreEngine
from antiphon.table.stored_versions import versions_of

if TYPE_CHECKING:
    from antiphon.records.packed_effects import EffectKernels

RANGE_KEY: Final = b"\x00range"
JOBS_KEY: Final = b"\x00jobs"

GET_KEYS: Final = (16, 512)  # that are read from the store at once: at first, and where rows are small
SMALL_ROW_BYTES: Final = 4096
SCAN_ROWS_MAX: Final = 10_000
SCAN_BYTES_MAX: Final = 2 * 1024 * 1024

_range = msgspec.msgpack.Decoder(OwnedRange)


class TableState(Folding):
    """Rows of one table shard as of `applied_offset` (exclusive). `open_state` makes one."""

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ordered(self) -> bool:
        """Does the store keep the hierarchical order of its keys?"""
        return self.order is not None

    # -- writing ------------------------------------------------------------------------------------------------

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

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, key: bytes, *, include_value: bool = True) -> Row | None:
        """The row of `key`, or None."""
        stored = self._store.get(USER + key)
        return None if stored is None else row_from(key, stored, include_value)

    def get_many(self, keys: Sequence[bytes], *, include_value: bool = True) -> list[Row | None]:
        """The rows of `keys` in their order, None where a key is not there.

        Raises FrameTooLargeError where several of them are more than GET_BYTES_MAX together; little more is read.
        """
        if len(keys) == 1:
            return [self.get(keys[0], include_value=include_value)]
        rows: list[Row | None] = []
        size_bytes = 0
        while len(rows) < len(keys):
            small = rows and size_bytes < len(rows) * SMALL_ROW_BYTES
            part = keys[len(rows) : len(rows) + GET_KEYS[1 if small else 0]]
            found = self._store.get_many([USER + key for key in part])
            for key, stored in zip(part, found, strict=True):
                if stored is None:
                    rows.append(None)
                    continue
                size_bytes += len(key) + (len(stored) if include_value else VERSION.size)
                if size_bytes > GET_BYTES_MAX and len(rows) > 0:
                    raise too_much(len(keys))
                rows.append(row_from(key, stored, include_value))
        return rows

    def find_many(
        self, keys: Sequence[bytes], comparison: int, *, include_value: bool = True
    ) -> list[Row | None]:
        """See `find`, for each of `keys`, and `get_many` for what is too much."""
        return rows_found(keys, lambda key: self.find(key, comparison, include_value=include_value))

    def versions(self, keys: Sequence[bytes]) -> list[VersionTuple | None]:
        """The versions of `keys` in their order, None where a key is not there."""
        return versions_of(self._store, [USER + key for key in keys])

    def sessions(self) -> dict[int, int]:
        """Sessions that are open, by id, with their time-outs in ms."""
        return session_rows.sessions_in(self._store)

    def session_keys(self, session_id: int) -> dict[bytes, int]:
        """Keys that were put under a session, with the ids of the versions that they got then.

        A row belongs to the session as long as it has that version.
        """
        return session_rows.keys_of(self._store, session_id)

    def find(self, key: bytes, comparison: int, *, include_value: bool = True) -> Row | None:
        """The row at, or next to, `key` in byte order: EQUAL, FLOOR (<=), CEILING (>=), LOWER (<) or HIGHER (>)."""
        if comparison == EQUAL:
            return self.get(key, include_value=include_value)
        for found, stored in entries_next_to(self._store, USER + key, comparison, (USER, USER_END)):
            if not self.shown.purging or self.holds(found[1:], stored):
                return row_from(found[1:], stored, include_value)
        return None

    def holds(self, key: bytes, stored: bytes) -> bool:
        """Does a row that is in the store belong to this shard?"""
        shown = self.shown
        return shown.first <= place_of(key, stored) <= shown.last

    @property
    def shown(self) -> OwnedRange:
        """What readers are shown: what this shard holds by its log, and up to the limit."""
        return narrowed(self.owned, self.limit)

    def scan(
        self,
        start: bytes,
        end: bytes,
        limit: int,
        *,
        include_value: bool = True,
        size_bytes_max: int = SCAN_BYTES_MAX,
        hashes: Sequence[int] = (),
    ) -> tuple[list[Row], bool]:
        """Rows with start <= key < end in byte order (empty end: to the end), and whether there are more.

        Stops after `limit` rows (capped at 10,000) or about `size_bytes_max` bytes; the rows are of one moment. With
        `hashes` only keys whose hash is from the first to the second of them.
        """
        if limit < 1:
            raise InvalidRequestError(f"a scan returns at least one row, limit is {limit}", limit=limit)
        limit = min(limit, SCAN_ROWS_MAX)
        rows: list[Row] = []
        size_bytes = 0
        stop = USER + end if end else USER_END
        low, high = self.bounds(hashes)
        for key, stored in self._store.items(USER + start):
            if key >= stop:
                break
            if low >= 0 and not low <= place_of(key[1:], stored) <= high:
                continue
            if len(rows) == limit or size_bytes > size_bytes_max:
                return rows, True
            rows.append(row_from(key[1:], stored, include_value))
            size_bytes += len(key) + (len(stored) if include_value else VERSION.size)
        return rows, False

    def versions_in(
        self, start: bytes, end: bytes, examined_max: int
    ) -> tuple[list[tuple[bytes, VersionTuple]], bytes | None]:
        """Keys in [start, end) with their versions (empty end: to the end), and the key to go on with.

        Looks at no more than `examined_max` rows.
        """
        found: list[tuple[bytes, VersionTuple]] = []
        stop = USER + end if end else USER_END
        low, high = self.bounds(())
        for examined, (key, stored) in enumerate(self._store.items(USER + start)):
            if key >= stop:
                break
            if examined >= examined_max:
                return found, key[1:]
            if low < 0 or low <= place_of(key[1:], stored) <= high:
                found.append((key[1:], stored_version(stored)[0]))
        return found, None

    def bounds(self, hashes: Sequence[int]) -> tuple[int, int]:
        """The hashes that a reader may see; (-1, -1): all that are there."""
        owned = self.shown
        if not hashes and not owned.purging:
            return -1, -1
        first, last = hashes or (owned.first, owned.last)
        return max(first, owned.first), min(last, owned.last)

    def stored_rows(
        self,
        start: bytes,
        end: bytes | None,
        hashes: tuple[int, int],
        *,
        examined_max: int,
        size_bytes_max: int,
    ) -> tuple[list[tuple[bytes, bytes, bytes]], bytes | None]:
        """Rows (key, version as it is stored, value) from key `start` to before `end` (None: to the end) whose hash is from
        the first to the second of `hashes`, and the key to go on with.

        Looks at no more than `examined_max` rows and takes about `size_bytes_max` bytes; what it returns is of one moment.
        """
        rows: list[tuple[bytes, bytes, bytes]] = []
        size_bytes = 0
        stop = USER_END if end is None else USER + end
        for examined, (key, stored) in enumerate(self._store.items(USER + start)):
            if key >= stop:
                break
            if examined >= examined_max or size_bytes > size_bytes_max:
                return rows, key[1:]
            if hashes[0] <= place_of(key[1:], stored) <= hashes[1]:
                at = stored_version(stored)[2]
                rows.append((key[1:], stored[:at], stored[at:]))
                size_bytes += len(key) + len(stored)
        return rows, None

    def size_bytes(self) -> int:
        """Bytes on disk and in write buffers, about."""
        return self._store.size_bytes()

    # -- disk ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Bring everything applied to disk; `durable_offset` says up to where that is known.

        The log must be kept from `durable_offset` on. Blocks for a disk write.
        """
        reached = self.applied_offset
        self._store.flush()
        self.durable_offset = max(self.durable_offset, reached)

    def checkpoint(self, path: str) -> int:
        """Make a consistent copy in the new directory `path` (hard links where that can be) and return its offset.

        The copy is itself a store that `open_state` opens; its files never change. Blocks for a flush.
        """
        self._store.checkpoint(path)
        with open_state(path, self._store.engine) as copy:
            return copy.applied_offset

    def close(self) -> None:
        """Flush and let go of the files. Nothing else may be called afterwards; a second close does nothing."""
        self._store.close()


def open_state(path: str, engine: StoreEngine, *, ordered: bool = False) -> TableState:
    """Open the store in directory `path`, or make an empty one. `ordered`: it is to keep the hierarchical order.

    Raises:
        NewerFormatError: a newer version of Antiphon wrote it.
        StorageFailedError: it is damaged, locked or not readable. The log, or a snapshot, brings it back.
    """
    store = engine.open(path)
    try:
        state = TableState(store, path)
        if ordered:
            state.keep_order()
        return state
    except Exception:
        with contextlib.suppress(StorageFailedError):
            store.close()
        raise
