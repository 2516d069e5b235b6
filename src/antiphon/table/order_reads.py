"""Rows of a table's shard in the hierarchical order (`table.key_order`), of stores that keep it."""

from collections.abc import Sequence

from antiphon.errors import InvalidRequestError
from antiphon.invariants import unreachable
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.rows import Row
from antiphon.records.changes import VERSION, VersionTuple, stored_version
from antiphon.records.key_order import key_of, sort_key
from antiphon.table.effects import USER
from antiphon.table.found_rows import row_from, rows_found
from antiphon.table.key_order import KeyOrder
from antiphon.table.neighbours import DOWN, EQUAL
from antiphon.table.places import place_of
from antiphon.table.prepared import PreparedTransactions, locked_error
from antiphon.table.state import SCAN_BYTES_MAX, SCAN_ROWS_MAX, TableState
from antiphon.table.stored_versions import VersionsFound

Hashes = tuple[int, int]
"""The first and the last hash that a reader may see; (-1, -1): all that are there."""


def check_ordered(state: TableState) -> KeyOrder:
    """The order of a shard's keys; raises InvalidRequestError where they have no such order."""
    if state.order is None:
        raise InvalidRequestError(
            "the keys of this table are in the order of their bytes only (key.sorting=natural): ask for them in that order, "
            "or make a table with key.sorting=hierarchical"
        )
    return state.order


def bounds_of(start: bytes, end: bytes, after: bytes | None = None) -> tuple[bytes, bytes]:
    """The sort keys from which on, and before which, keys are asked for (empty: to the end); `after`: behind this key."""
    return (
        sort_key(start) if after is None else sort_key(after) + b"\x00",
        sort_key(end) if end else b"",
    )


def find_ordered(
    state: TableState, keys: Sequence[bytes], comparison: int, hashes: Sequence[int], *, include_value: bool
) -> list[Row | None]:
    """For each of `keys` the row next to it: FLOOR to HIGHER.

    Raises FrameTooLargeError where several of them are more than GET_BYTES_MAX together.
    """
    if comparison == EQUAL:
        raise InvalidRequestError("rows at keys are the same in any order: get them by their keys")
    seen = state.bounds(hashes)
    return rows_found(keys, lambda key: _find(state, key, comparison, seen, include_value))


def _find(state: TableState, key: bytes, comparison: int, seen: Hashes, include_value: bool) -> Row | None:
    for found in check_ordered(state).next_to(key, comparison):
        stored = _stored(state, found, seen)
        if stored is not None:
            return row_from(found, stored, include_value)
    return None


def check_found(prepared: PreparedTransactions, asked: OrderedFind, rows: Sequence[Row | None]) -> None:
    """Raise KeyLockedError where a prepared transaction may change what was found."""
    for key, row in zip(asked.keys, rows, strict=True):
        wanted, found = sort_key(key), None if row is None else sort_key(row.key)
        if asked.comparison in DOWN:
            locked = prepared.first_ordered(found or b"", wanted + b"\x00")
        else:
            locked = prepared.first_ordered(wanted, b"" if found is None else found + b"\x00")
        if locked is not None:
            raise locked_error(key_of(locked))


def _stored(state: TableState, key: bytes, seen: Hashes) -> bytes | None:
    """The row that the order leads to, as it is stored; None for one that the reader is not to see."""
    stored = state.store.get(USER + key)
    if stored is None:
        unreachable(f"the order of keys leads to {key!r}, which is not there")
    return stored if seen[0] < 0 or seen[0] <= place_of(key, stored) <= seen[1] else None


def scan_ordered(
    state: TableState, asked: OrderedScan, bounds: tuple[bytes, bytes]
) -> tuple[list[Row], bool]:
    """Rows in the order, and whether there are more. Stops as `TableState.scan` does; all are of one moment."""
    rows: list[Row] = []
    size_bytes, limit, seen = 0, _limit(asked), state.bounds(asked.hashes)
    for key in check_ordered(state).keys(*bounds):
        stored = _stored(state, key, seen)
        if stored is None:
            continue
        if len(rows) == limit or size_bytes > SCAN_BYTES_MAX:
            return rows, True
        rows.append(row_from(key, stored, True))
        size_bytes += len(key) + len(stored)
    return rows, False


def list_ordered(
    state: TableState, asked: OrderedScan, bounds: tuple[bytes, bytes]
) -> tuple[list[bytes], bool]:
    """Keys in the order, and whether there are more. Rows are looked at only while some of them are not to be seen."""
    keys: list[bytes] = []
    size_bytes, limit, seen = 0, _limit(asked), state.bounds(asked.hashes)
    for key in check_ordered(state).keys(*bounds):
        if seen[0] >= 0 and _stored(state, key, seen) is None:
            continue
        if len(keys) == limit or size_bytes > SCAN_BYTES_MAX:
            return keys, True
        keys.append(key)
        size_bytes += len(key) + VERSION.size
    return keys, False


def _limit(asked: OrderedScan) -> int:
    if asked.limit < 1:
        raise InvalidRequestError(
            f"a scan returns at least one row, limit is {asked.limit}", limit=asked.limit
        )
    return min(asked.limit, SCAN_ROWS_MAX)


def versions_ordered(state: TableState, start: bytes, end: bytes, examined_max: int) -> VersionsFound:
    """Keys whose sort keys are in [start, end) with their versions (empty end: to the end), and the sort key to go on with.

    Looks at no more than `examined_max` rows.
    """
    found: list[tuple[bytes, VersionTuple]] = []
    seen = state.bounds(())
    for examined, key in enumerate(check_ordered(state).keys(start, end)):
        if examined >= examined_max:
            return found, sort_key(key)
        stored = _stored(state, key, seen)
        if stored is not None:
            found.append((key, stored_version(stored)[0]))
    return found, None
