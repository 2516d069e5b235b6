"""What the new shard of a split writes of its parent's rows and changes. Pure; driven by `node.split_copy`.

Copies are made at different moments. Two rules make them come out right. Both follow from one fact: in a shard version
ids only rise, and a removal names the version that it removes.

* A row counts if its version is above that of the present row. So an old change does no harm if a newer row was copied
  before it.
* A removal counts if the present row has the version that it removes, or an older one.

A copier that compares the rows once, and then applies all changes since the comparison began, ends with exactly the
parent's rows, whatever was here before.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from antiphon.records.changes import (
    ATTRIBUTES_HEADER,
    SESSION,
    SESSION_HEADER,
    VERSION,
    VERSION_HEADER,
    stored_row,
)
from antiphon.table.evaluation import RecordInput


class CopiedRow(NamedTuple):
    """A row with its version as stores keep it; a `value` of None: the removal of the row that had this version."""

    key: bytes
    version: bytes
    value: bytes | None
    timestamp_ms: int = 0

    @property
    def version_id(self) -> int:
        """Id of the version."""
        found: int = VERSION.unpack_from(self.version)[0]
        return found


def differences(theirs: Sequence[CopiedRow], own: Sequence[CopiedRow], now_ms: int) -> list[CopiedRow]:
    """The changes that make `own`, the rows of a range of keys here, equal to `theirs` at the parent, unless it is
    ahead of them.
    """
    have = {row.key: row for row in own}
    found = []
    for row in theirs:
        mine = have.pop(row.key, None)
        if mine is None or mine.version_id < row.version_id:
            found.append(row)
    found += [CopiedRow(row.key, row.version, None, now_ms) for row in have.values()]
    return found


def left_behind(
    theirs: Sequence[CopiedRow], own: Sequence[CopiedRow], next_version_id: int, now_ms: int
) -> list[CopiedRow]:
    """`differences` where either side may be ahead: a row that only we have is removed if the parent had given its version
    by then (`next_version_id`), and so has removed it since.
    """
    known = {row.key for row in theirs}
    return differences(
        theirs, [row for row in own if row.key in known or row.version_id < next_version_id], now_ms
    )


def newer(changes: Iterable[CopiedRow], known: dict[bytes, int | None]) -> list[CopiedRow]:
    """The changes that count. `known` has the version id that each key has here (None: no row) and is brought up to date."""
    found = []
    for change in changes:
        version_id, current = change.version_id, known[change.key]
        if change.value is not None and (current is None or version_id > current):
            known[change.key] = version_id
            found.append(change)
        elif change.value is None and current is not None and version_id >= current:
            known[change.key] = None
            found.append(change)
    return found


def records_of(rows: Iterable[CopiedRow]) -> list[RecordInput]:
    """The records of a table's log that say this. A row that belongs to a session goes on to; no removal ends one."""
    return [(row.key, row.value, _headers(row), row.timestamp_ms) for row in rows]


def _headers(row: CopiedRow) -> list[tuple[str, bytes | None]]:
    if len(row.version) == VERSION.size:
        return [(VERSION_HEADER, row.version)]
    version, session_id, attributes, _ = stored_row(row.version)
    headers: list[tuple[str, bytes | None]] = [(VERSION_HEADER, VERSION.pack(*version))]
    if session_id is not None and row.value is not None:
        headers.append((SESSION_HEADER, SESSION.pack(session_id)))
    if attributes is not None and row.value is not None:
        headers.append((ATTRIBUTES_HEADER, attributes))
    return headers
