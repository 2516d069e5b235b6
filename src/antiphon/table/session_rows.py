"""What a table's store keeps of sessions, beside the rows.

| key | value |
|---|---|
| 0x02 + session id (int64) | time-out in ms (int64) |
| 0x03 + session id (int64) + user key | id of the version (int64) that the key got when it was put under the session |

A row belongs to a session as long as it has that version: whoever puts the key again need not know of the session. What the
row itself says of it (`records.changes.owned_version`) is for readers.

The entry that ends a session takes both away, and the rows with them, in one write.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from antiphon.records.changes import SESSION, VERSION, Effect
from antiphon.records.session_entries import SessionEntry, SessionOpened
from antiphon.table.store import Batch, Store

SESSION_ROW: Final = b"\x02"
LINK: Final = b"\x03"
NUMBER: Final = struct.Struct(">q")
ENDED: Final = -1


class SessionChange(NamedTuple):
    """A session was opened with this time-out, or ended (`ENDED`)."""

    session_id: int
    timeout_ms: int


def change_by(entry: SessionEntry) -> SessionChange:
    """What an entry changes."""
    return SessionChange(entry.session_id, entry.timeout_ms if isinstance(entry, SessionOpened) else ENDED)


def end_in(effects: list[Effect]) -> SessionChange | None:
    """The end of a session, if that is what a batch with these effects is."""
    if not effects or effects[0][1] is not None or len(effects[0][2]) == VERSION.size:
        return None
    return SessionChange(SESSION.unpack_from(effects[0][2], VERSION.size)[0], ENDED)


def link(batch: Batch, key: bytes, version: bytes) -> None:
    """Note that a row with a version as `owned_version` makes it belongs to the session."""
    session = version[VERSION.size : VERSION.size + SESSION.size]
    batch.put(LINK + session + key, version[: NUMBER.size])


def apply_change(store: Store, batch: Batch, change: SessionChange) -> None:
    """Add what a change of a session comes to. What came before it is in the store."""
    session = SESSION.pack(change.session_id)
    if change.timeout_ms != ENDED:
        batch.put(SESSION_ROW + session, NUMBER.pack(change.timeout_ms))
        return
    batch.delete(SESSION_ROW + session)
    for key in keys_of(store, change.session_id):
        batch.delete(LINK + session + key)


def add_sessions(batch: Batch, sessions: Iterable[tuple[int, int]]) -> None:
    """Add sessions that a shard takes over from the one that it was split off."""
    for session_id, timeout_ms in sessions:
        batch.put(SESSION_ROW + SESSION.pack(session_id), NUMBER.pack(timeout_ms))


def sessions_in(store: Store) -> dict[int, int]:
    """Sessions that are open, by id, with their time-outs in ms."""
    found = {}
    for key, stored in store.items(SESSION_ROW):
        if not key.startswith(SESSION_ROW):
            break
        found[SESSION.unpack_from(key, 1)[0]] = NUMBER.unpack(stored)[0]
    return found


def keys_of(store: Store, session_id: int) -> dict[bytes, int]:
    """Keys that were put under a session, with the ids of the versions that they got then."""
    prefix = LINK + SESSION.pack(session_id)
    found = {}
    for key, stored in store.items(prefix):
        if not key.startswith(prefix):
            break
        found[key[len(prefix) :]] = NUMBER.unpack(stored)[0]
    return found
