"""How large an answer with rows is, before it is encoded."""

from typing import Any, Final

from antiphon.model.attributes import IndexRows
from antiphon.model.key_order import OrderedKeys

KEY_BYTES: Final = 256  # of a row beside what has a length of its own


def size_of(reply: Any) -> int:
    """What the rows of an answer, or their keys, take, about; 0: it has none."""
    if isinstance(reply, OrderedKeys):
        return sum(map(len, reply.keys)) + KEY_BYTES * len(reply.keys)
    rows = [one.row for one in reply.rows] if isinstance(reply, IndexRows) else getattr(reply, "rows", ())
    return sum(
        KEY_BYTES + len(row.key) + len(row.value or b"") + len(row.attributes or b"")
        for row in rows
        if row is not None
    )
