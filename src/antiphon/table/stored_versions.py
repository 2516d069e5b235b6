"""The versions that rows have in a store, for many keys at once. Keys have the byte in front that they have there."""

from collections.abc import Iterable, Sequence

from antiphon.records.changes import VERSION, VersionTuple, stored_version
from antiphon.table.effects import VERSION_ID
from antiphon.table.store import Store

Versions = list[VersionTuple | None]
"""In the order of the keys; None where a key is not there."""

VersionsFound = tuple[list[tuple[bytes, VersionTuple]], bytes | None]
"""Keys of a range with their versions, and the key to go on with; None: that is all of it."""


def versions_of(store: Store, stored_keys: Sequence[bytes]) -> Versions:
    """By a look-up of each."""
    return _unpacked(store.get_many(stored_keys))


def versions_between(store: Store, stored_keys: Sequence[bytes], examined_max: int) -> Versions | None:
    """By a walk from the first to the last of the keys: quick where there is little between them.

    None where more than `examined_max` rows are there. A walk over none costs as much as a few look-ups.
    """
    cursor, last = store.cursor(), max(stored_keys)
    cursor.seek(min(stored_keys))
    rows: dict[bytes, bytes] = {}
    while cursor.valid() and (key := cursor.key()) <= last:
        if len(rows) == examined_max:
            return None
        rows[key] = cursor.value()
        cursor.next()
    if not rows:
        return [None] * len(stored_keys)
    return _unpacked(rows.get(key) for key in stored_keys)


def _unpacked(found: Iterable[bytes | None]) -> Versions:
    unpack = VERSION.unpack_from
    return [
        None
        if stored is None
        else unpack(stored)
        if stored[VERSION_ID.size] < 0x80 > stored[2 * VERSION_ID.size]  # of no session, without attributes
        else stored_version(stored)[0]
        for stored in found
    ]
