"""The hierarchical order of a table's keys (`records.key_order`), in the store of a shard: an entry for each row.

| key | value |
|---|---|
| 0x06 + sort key | empty |
| 0x00 "order" | which entries the store has; there once it has one for each row |

An entry follows from the key of its row alone. It is written and removed in the same write as the row, and nothing has to be
read for that. Rows whose keys are no text have none. A store that lacks the mark, because a version that knows no such order
has written it, gets its entries when it is opened.
"""

from collections.abc import Iterable
from typing import Final

from antiphon.records.changes import Effect
from antiphon.records.key_order import is_text, key_of, sort_key
from antiphon.table.effects import USER, USER_END
from antiphon.table.store import Batch, Store

ENTRY: Final = b"\x06"
ENTRY_END: Final = b"\x07"
FLAT: Final = ENTRY + sort_key(b"")  # of a key without slashes, which follows
MARK_KEY: Final = b"\x00order"
MARK: Final = b"1"  # another one where entries are made otherwise: they are made anew then
BUILT_AT_ONCE: Final = 10_000  # entries in one write, where they are made anew


def is_kept(store: Store) -> bool:
    """Has the store an entry for each of its rows?"""
    return store.get(MARK_KEY) == MARK


def add_entries(batch: Batch, effects: Iterable[Effect]) -> None:
    """Add what effects change of the entries."""
    put = batch.put
    for key, value, _ in effects:
        if value is not None and key.isascii() and b"/" not in key:  # most are: without a call for each
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


def make_entries(store: Store) -> None:
    """Make the entries of all rows anew, but for the mark. Blocks for as long as there are rows."""
    batch, count = store.batch(), 0
    for first, end in ((ENTRY, ENTRY_END), (USER, USER_END)):
        for key, _ in store.items(first):
            if key >= end:
                break
            if first == ENTRY:
                batch.delete(key)
            elif is_text(key[1:]):
                batch.put(entry_of(key[1:]), b"")
            count += 1
            if count % BUILT_AT_ONCE == 0:
                store.write(batch)
                batch = store.batch()
    store.write(batch)
