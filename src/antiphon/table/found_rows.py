"""Rows as readers get them, of what a table's store has at their keys."""

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
