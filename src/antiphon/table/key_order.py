"""The hierarchical order of a table's keys (`records.key_order`), in the store of a shard: entries that stand in that order.

| key | value |
|---|---|
| 0x06 + sort key | empty |
| 0x00 "order" | `COMPLETE`: each row has an entry; `DEEP_ONLY`: rows whose keys have slashes have one |

An entry follows from the key of its row alone. It is written and removed in the same write as the row, and nothing has to be
read for that. Rows whose keys are no text have none.

Keys without slashes (*flat* ones) come first in the order, as they stand among the rows. So a new store has no entries of
them: they are found among the rows, past all that begin like a key with a slash at once. That would take long where many of
those stand between. So once a key with a slash is written, or somebody reads in the order, each write makes entries of some
more rows, until the store is complete. That it stays.

A store that lacks the mark, because a version that knows no such order has written it, gets its entries when it is opened.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from antiphon.records.changes import Effect
from antiphon.records.key_order import is_text, key_of, sort_key
from antiphon.table.effects import USER, USER_END
from antiphon.table.neighbours import CEILING, DOWN, FLOOR, HIGHER, entries_next_to
from antiphon.table.store import Batch, Store

ENTRY: Final = b"\x06"
ENTRY_END: Final = b"\x07"
FLAT: Final = ENTRY + sort_key(b"")  # of a key without slashes, which follows
DEEP: Final = ENTRY + sort_key(b"/")[:2]  # entries from here on are of keys with slashes
MARK_KEY: Final = b"\x00order"
COMPLETE: Final = b"1"
DEEP_ONLY: Final = b"deep"  # whoever does not know it makes all entries anew
BUILT_AT_ONCE: Final = 10_000  # entries in one write, where they are made anew
MADE_AT_ONCE: Final = 512  # rows that a write makes entries of beside its own, at most: about 1 ms
SLASH: Final = b"/"
AFTER_SLASH: Final = b"0"


class KeyOrder:
    """The order of one store, which has the mark."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_complete = store.get(MARK_KEY) == COMPLETE
        self._is_wanted = not self.is_complete and any(self._entries(DEEP, ENTRY_END))
        self._made_to = USER  # rows before that have entries, once it is wanted
        # It doubles with each write: small stores are through soon, large ones, too
        self._pace = min(1, MADE_AT_ONCE)

    # -- writing ------------------------------------------------------------------------------------------------

    def follow(self, batch: Batch, effects: Sequence[Effect]) -> None:
        """Add what effects change of the entries to a batch, which has to be the next that is written."""
        if self.is_complete or self._is_wanted or SLASH in b"".join([key for key, _, _ in effects]):
            self.add(batch, effects)
            self.make()
        else:
            add_entries(batch, [effect for effect in effects if effect[1] is None])

    def add(self, batch: Batch, effects: Sequence[Effect]) -> None:
        """The same of effects that are written some time later: all entries of them, whatever is made by then."""
        add_entries(batch, effects)
        if not self.is_complete and not self._is_wanted:
            self._is_wanted = any(SLASH in key for key, _, _ in effects)

    def make(self) -> None:
        """Make entries of some more rows where they are wanted, in a write of its own, before other rows are written."""
        if self.is_complete or not self._is_wanted:
            return
        batch, following = self._store.batch(), None
        for examined, (stored, _) in enumerate(self._store.items(self._made_to)):
            if stored >= USER_END:
                break
            if examined >= self._pace:
                following = stored
                break
            key = stored[1:]
            if SLASH not in key and is_text(key):
                batch.put(FLAT + key, b"")
        if following is None:
            batch.put(MARK_KEY, COMPLETE)
        self._store.write(batch)
        self.is_complete, self._made_to = following is None, following or USER
        self._pace = min(2 * self._pace, MADE_AT_ONCE)

    # -- reading ------------------------------------------------------------------------------------------------

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys whose sort keys are from `start` to before `end` (empty: to the end), in the order."""
        first, stop = ENTRY + start, ENTRY + end if end else ENTRY_END
        if not self.is_complete:
            self._is_wanted = True
            if first < DEEP:
                below = USER_END if stop >= DEEP else USER + stop[len(FLAT) :]
                yield from self._flat_up(USER + first[len(FLAT) :], below)
            first = max(first, DEEP)
        yield from self._entries(first, stop)

    def next_to(self, key: bytes, comparison: int) -> Iterator[bytes]:
        """Keys from the one that is next to `key` on, away from it: FLOOR (<=) to HIGHER (>)."""
        wanted, part = entry_of(key), (ENTRY if self.is_complete else DEEP, ENTRY_END)
        is_flat = not self.is_complete and wanted < DEEP
        self._is_wanted = True
        if is_flat and comparison in DOWN:
            yield from self._flat_down(USER + key, at_it=comparison == FLOOR)
            return
        if is_flat and comparison in {CEILING, HIGHER}:
            yield from self._flat_up(USER + key + (b"" if comparison == CEILING else b"\x00"), USER_END)
            wanted, comparison = DEEP, CEILING
        for entry, _ in entries_next_to(self._store, wanted, comparison, part):
            yield key_at(entry)
        if not self.is_complete and comparison in DOWN:
            yield from self._flat_down(USER_END, at_it=False)

    def _entries(self, first: bytes, stop: bytes) -> Iterator[bytes]:
        for entry, _ in self._store.items(first):
            if entry >= stop:
                return
            yield key_at(entry)

    def _flat_up(self, first: bytes, stop: bytes) -> Iterator[bytes]:
        """Flat keys of rows that are stored from `first` to before `stop`."""
        cursor = self._store.cursor()
        cursor.seek(first)
        while cursor.valid() and (stored := cursor.key()) < stop:
            begins, slash, _ = stored.partition(SLASH)
            if slash:
                cursor.seek(begins + AFTER_SLASH)
                continue
            if is_text(stored[1:]):
                yield stored[1:]
            cursor.next()

    def _flat_down(self, last: bytes, *, at_it: bool) -> Iterator[bytes]:
        """Flat keys of rows that are stored before `last`, or `at_it`, the last first."""
        cursor = self._store.cursor()
        cursor.seek_for_prev(last)
        if not at_it and cursor.valid() and cursor.key() == last:
            cursor.prev()
        while cursor.valid() and (stored := cursor.key()) >= USER:
            begins, slash, _ = stored.partition(SLASH)
            if not slash:
                if is_text(stored[1:]):
                    yield stored[1:]
                cursor.prev()
                continue
            cursor.seek_for_prev(begins + SLASH)
            if cursor.valid() and cursor.key() == begins + SLASH:
                cursor.prev()


def order_of(store: Store) -> KeyOrder | None:
    """The order that a store keeps, if it keeps it."""
    return None if store.get(MARK_KEY) is None else KeyOrder(store)


def add_entries(batch: Batch, effects: Sequence[Effect]) -> None:
    """Add what effects change of the entries, of flat keys, too."""
    put = batch.put
    for key, value, _ in effects:
        if value is not None and key.isascii() and SLASH not in key:  # most are: without a call for each
            put(FLAT + key, b"")
        elif is_text(key):
            if value is None:
                batch.delete(entry_of(key))
            else:
                put(entry_of(key), b"")


def remove_of(batch: Batch, key: bytes) -> None:
    """Add the removal of the entry of a row that goes without an effect: a split took it away."""
    if is_text(key):
        batch.delete(entry_of(key))


def entry_of(key: bytes) -> bytes:
    """Where the entry of a key stands, or would stand."""
    return ENTRY + sort_key(key)


def key_at(entry: bytes) -> bytes:
    """The key that an entry is of."""
    return key_of(entry[1:])


def make_entries(store: Store) -> bytes:
    """Make the entries of all rows anew, and say what the mark is now. Blocks for as long as there are rows."""
    batch, count, rows = store.batch(), 0, 0
    for first, end in ((ENTRY, ENTRY_END), (USER, USER_END)):
        for key, _ in store.items(first):
            if key >= end:
                break
            if first == ENTRY:
                batch.delete(key)
            else:
                rows += 1
                if is_text(key[1:]):
                    batch.put(entry_of(key[1:]), b"")
            count += 1
            if count % BUILT_AT_ONCE == 0:
                store.write(batch)
                batch = store.batch()
    store.write(batch)
    return COMPLETE if rows else DEEP_ONLY
