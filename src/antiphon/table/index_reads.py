"""Rows of a table's shard by a secondary index (`table.indexes`)."""

from antiphon.errors import InvalidRequestError
from antiphon.invariants import unreachable
from antiphon.model.rows import Row
from antiphon.records.changes import VERSION
from antiphon.table.indexes import entries_before, entries_from
from antiphon.table.neighbours import DOWN, EQUAL, FLOOR, HIGHER, LOWER
from antiphon.table.places import place_of_row
from antiphon.table.state import SCAN_BYTES_MAX, SCAN_ROWS_MAX, TableState


def find_by_index(
    state: TableState, name: str, secondary: bytes, comparison: int, *, include_value: bool = True
) -> tuple[bytes, Row] | None:
    """The entry of an index at, or next to, a secondary key, with its row: EQUAL to HIGHER as in `TableState.find`."""
    if comparison not in range(HIGHER + 1):
        raise InvalidRequestError(
            f"comparison {comparison}: it is 0 (equal) to 4 (higher)", comparison=comparison
        )
    if comparison != LOWER:
        start = secondary + b"\x00" if comparison == HIGHER else secondary
        for found, key in entries_from(state.store, name, start, None):
            if found != secondary and comparison in {EQUAL, FLOOR}:
                break
            row = _row_of(state, key, include_value)
            if row is not None:
                return found, row
    if comparison in DOWN:
        for found, key in entries_before(state.store, name, secondary):
            row = _row_of(state, key, include_value)
            if row is not None:
                return found, row
    return None


def _row_of(state: TableState, key: bytes, include_value: bool) -> Row | None:
    """The row that an entry leads to; None for one that a split took away."""
    row = state.get(key, include_value=include_value)
    if row is None:
        unreachable(f"an index leads to key {key!r}, which is not there")
    shown = state.shown
    if shown.purging and not shown.first <= place_of_row(row) <= shown.last:
        return None
    return row


def scan_index(
    state: TableState,
    name: str,
    bounds: tuple[bytes, bytes],
    after: tuple[bytes, bytes] | None,
    limit: int,
    *,
    include_value: bool = True,
) -> tuple[list[tuple[bytes, Row]], bool]:
    """Entries with start <= secondary key < end (empty end: to the end) with their rows, and whether there are more.

    Begins behind the entry `after`, if that is given. Stops as `TableState.scan` does.
    """
    rows: list[tuple[bytes, Row]] = []
    size_bytes = 0
    start, end = bounds
    for secondary, key in entries_from(state.store, name, start, after):
        if end and secondary >= end:
            break
        if len(rows) >= min(limit, SCAN_ROWS_MAX) or size_bytes > SCAN_BYTES_MAX:
            return rows, True
        row = _row_of(state, key, include_value)
        if row is not None:
            rows.append((secondary, row))
            size_bytes += len(secondary) + len(key) + VERSION.size + len(row.value or b"")
    return rows, False
