"""Rows as readers get them, of what a table's store has at their keys."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from antiphon.errors import FrameTooLargeError
from antiphon.model.rows import Row, Version
from antiphon.records.changes import stored_row

GET_BYTES_MAX: Final = 8 * 1024 * 1024  # of the rows of one request that names their keys


def row_from(key: bytes, stored: bytes, include_value: bool) -> Row:
    """The row of a key."""
    version, session_id, attributes, at = stored_row(stored)
    value: Any = stored[at:] if include_value else None
    return Row(key, value, Version(*version), session_id, attributes)


def too_much(count: int) -> FrameTooLargeError:
    """The refusal of a request for more bytes than one answer has."""
    return FrameTooLargeError(
        f"the rows of {count} keys are more than {GET_BYTES_MAX} bytes together; ask for fewer at a time",
        limit_bytes=GET_BYTES_MAX,
    )


def rows_found(keys: Sequence[bytes], find: Callable[[bytes], Row | None]) -> list[Row | None]:
    """What is found for each of `keys`. Raises FrameTooLargeError where that is more than GET_BYTES_MAX together."""
    rows: list[Row | None] = []
    size_bytes = 0
    for key in keys:
        row = find(key)
        if row is not None:
            size_bytes += len(row.key) + len(row.value or b"")
            if size_bytes > GET_BYTES_MAX and rows:
                raise too_much(len(keys))
        rows.append(row)
    return rows
