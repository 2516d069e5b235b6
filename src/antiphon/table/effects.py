"""What effects of a table's log come to in a store."""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.records.changes import VERSION, Effect, has_attributes
from antiphon.table import session_rows
from antiphon.table.store import Batch

USER: Final = b"\x01"
USER_END: Final = b"\x02"
VERSION_ID: Final = struct.Struct(">q")


def add_effects(batch: Batch, effects: Iterable[Effect]) -> bool:
    """Add what effects come to in a store; has any row of them attributes?"""
    put, delete, attributed = batch.put, batch.delete, False
    for key, value, version in effects:
        if value is None:
            delete(USER + key)
        else:
            put(USER + key, version + value)
            if len(version) > VERSION.size:
                attributed = attributed or has_attributes(version)
                if version[VERSION_ID.size] >= 0x80:
                    session_rows.link(batch, key, version)
    return attributed


def newest_id(effects: Sequence[Effect]) -> int:
    """The largest version id of them; ids are never negative and big-endian, so that is of the largest version."""
    newest: int = VERSION_ID.unpack_from(max([version for *_, version in effects]))[0] if effects else -1
    return newest
