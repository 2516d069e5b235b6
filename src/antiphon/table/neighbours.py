"""What stands in a store at, or next to, a key of a sorted part of it."""

from collections.abc import Iterator
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.table.store import Store

EQUAL, FLOOR, CEILING, LOWER, HIGHER = range(5)
"""Comparisons, as in `model.requests.TableGet`."""

DOWN: Final = frozenset({FLOOR, LOWER})


def entries_next_to(
    store: Store, wanted: bytes, comparison: int, part: tuple[bytes, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Entries from the one that is next to `wanted` on, away from it, as long as they are in `part` (first, end).

    FLOOR (<=), CEILING (>=), LOWER (<) or HIGHER (>). All are of one moment.
    """
    cursor = store.cursor()
    if comparison in DOWN:
        cursor.seek_for_prev(wanted)
        if comparison == LOWER and cursor.valid() and cursor.key() == wanted:
            cursor.prev()
        step = cursor.prev
    elif comparison in {CEILING, HIGHER}:
        cursor.seek(wanted)
        if comparison == HIGHER and cursor.valid() and cursor.key() == wanted:
            cursor.next()
        step = cursor.next
    else:
        raise InvalidRequestError(
            f"comparison {comparison}: it is 0 (equal) to 4 (higher)", comparison=comparison
        )
    first, end = part
    while cursor.valid() and first <= (found := cursor.key()) < end:
        yield found, cursor.value()
        step()
