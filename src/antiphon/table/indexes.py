"""Secondary indexes of a table's shard, in its store: entries that lead from a secondary key to a row.

| key | value |
|---|---|
| 0x05 + name + 0x00 0x00 + secondary key + 0x00 0x00 + user key | empty |

A zero byte in a name or a secondary key is written as 0x00 0xff, so that entries are in the order of (secondary key, key).

Entries follow from the rows: each row names its own in its attributes (`records.attributes`). They change in the same write
as the row. For that the row that was there before is read, once the shard has any entries; a table without indexes reads
nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from antiphon.records.attributes import Entry, unpack
from antiphon.records.changes import Effect, has_attributes, stored_row
from antiphon.table.store import Batch, Store

INDEX: Final = b"\x05"
_ENDS: Final = b"\x00\x00"
_ESCAPED: Final = b"\x00\xff"
_USER: Final = b"\x01"


def entries_of(version: bytes) -> tuple[Entry, ...]:
    """The entries that lead to a row whose version stores keep like this."""
    if not has_attributes(version):
        return ()
    attributes = stored_row(version)[2]
    return () if attributes is None else unpack(attributes).indexes


def entry_key(name: str, secondary: bytes, key: bytes) -> bytes:
    """Where an entry stands in the store."""
    return prefix_of(name) + escaped(secondary) + _ENDS + key


def prefix_of(name: str) -> bytes:
    """How all entries of an index begin."""
    return INDEX + escaped(name.encode()) + _ENDS


def escaped(text: bytes) -> bytes:
    """A text without the two zeros that end it."""
    return text.replace(b"\x00", _ESCAPED)


def parsed(stored_key: bytes, prefix: bytes) -> tuple[bytes, bytes]:
    """(secondary key, key) of an entry."""
    secondary, _, key = stored_key[len(prefix) :].partition(_ENDS)
    return secondary.replace(_ESCAPED, b"\x00"), key


def has_entries(store: Store) -> bool:
    """Does any index lead to a row of this store?"""
    for key, _ in store.items(INDEX):
        return key.startswith(INDEX)
    return False


def is_indexed(effects: Iterable[Effect]) -> bool:
    """Do indexes lead to any of these rows?"""
    return any(
        value is not None and has_attributes(version) and entries_of(version) for _, value, version in effects
    )


def add_changes(
    store: Store, batch: Batch, effects: Iterable[Effect], now: dict[bytes, tuple[Entry, ...]]
) -> None:
    """Add what effects change of the entries. What came before them is in the store, and in `now` what earlier effects of
    the same batch came to, by key; these are added there.
    """
    effects = list(effects)
    keys = list(dict.fromkeys(key for key, _, _ in effects if key not in now))
    found = store.get_many([_USER + key for key in keys]) if keys else []
    for key, stored in zip(keys, found, strict=True):
        now[key] = () if stored is None else entries_of(stored)
    for key, value, version in effects:
        for name, secondary in now[key]:
            batch.delete(entry_key(name, secondary, key))
        now[key] = () if value is None else entries_of(version)
        for name, secondary in now[key]:
            batch.put(entry_key(name, secondary, key), b"")


def remove_of(batch: Batch, key: bytes, stored: bytes) -> None:
    """Add the removal of the entries of a row that goes without an effect: a split took it away."""
    for name, secondary in entries_of(stored):
        batch.delete(entry_key(name, secondary, key))


def entries_from(
    store: Store, name: str, start: bytes, after: tuple[bytes, bytes] | None
) -> Iterator[tuple[bytes, bytes]]:
    """(secondary key, key) of an index in order: from the first secondary key `start` on, or behind an entry."""
    prefix = prefix_of(name)
    first = prefix + escaped(start) if after is None else entry_key(name, *after) + b"\x00"
    for stored_key, _ in store.items(first):
        if not stored_key.startswith(prefix):
            return
        yield parsed(stored_key, prefix)


def entries_before(store: Store, name: str, secondary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(secondary key, key) of an index backwards, from the last entry before those of a secondary key."""
    prefix = prefix_of(name)
    wanted = prefix + escaped(secondary) + _ENDS
    cursor = store.cursor()
    cursor.seek_for_prev(wanted)
    while cursor.valid():
        stored_key = cursor.key()
        if not stored_key.startswith(prefix):
            return
        if stored_key != wanted:
            yield parsed(stored_key, prefix)
        cursor.prev()
