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
from collections.abc import Sequence
from typing import Final, Self

from antiphon.errors import InvalidRequestError, StorageFailedError
from antiphon.model.rows import Row
from antiphon.records.changes import (
    VERSION,
    VersionTuple,
    stored_version,
)
from antiphon.table import session_rows
from antiphon.table.effects import USER, USER_END
from antiphon.table.folding import Folding
from antiphon.table.found_rows import GET_BYTES_MAX, row_from, rows_found, too_much
from antiphon.table.neighbours import EQUAL, entries_next_to
from antiphon.table.places import place_of
from antiphon.table.ranges import OwnedRange, narrowed
from antiphon.table.store import StoreEngine
from antiphon.table.stored_versions import VersionsFound, versions_of

GET_KEYS: Final = (16, 512)  # that are read from the store at once: at first, and where rows are small
SMALL_ROW_BYTES: Final = 4096
SCAN_ROWS_MAX: Final = 10_000
SCAN_BYTES_MAX: Final = 2 * 1024 * 1024


class TableState(Folding):
    """Rows of one table shard as of `applied_offset` (exclusive). `open_state` makes one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

    def versions_in(self, start: bytes, end: bytes, examined_max: int) -> VersionsFound:
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
