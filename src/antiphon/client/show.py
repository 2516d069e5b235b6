"""Records, rows and changes for people: a table in a notebook, lines in a terminal."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from antiphon.client.watch import Change
from antiphon.errors import InvalidRequestError
from antiphon.model.rows import Row
from antiphon.records.decode import Record
from antiphon.records.display import html_table

ROWS_SHOWN: Final = 20


class Shown:
    """Some items, as `show` took them."""

    def __init__(self, items: list[Any], *, more: bool) -> None:
        self.items = items
        self.more = more

    def __repr__(self) -> str:
        lines = [repr(item) for item in self.items]
        return "\n".join([*lines, "..."] if self.more else lines) or "nothing"

    def _repr_html_(self) -> str:
        title = f"the first {len(self.items)}" if self.more else ""
        there = [item for item in self.items if item is not None]
        kinds = {type(item) for item in there}
        if len(kinds) != 1 or not kinds <= {Record, Row, Change}:
            return html_table([{"": item} for item in self.items], title)
        absent = dict.fromkeys(there[0].display())
        return html_table([absent if item is None else item.display() for item in self.items], title)


def show(items: Iterable[Record[Any] | Row[Any] | Change[Any] | None], limit: int = ROWS_SHOWN) -> Shown:
    """The first `limit` records, rows or changes of a read, a scan or a list, for a notebook or a terminal.

    `antiphon.show(topic.read(shard=0, start=-2))`. No more than one item beyond them is read. Raises InvalidRequestError for
    a limit below 1.
    """
    if limit < 1:
        raise InvalidRequestError(f"limit is 1 or more, not {limit}")
    found = list(islice(items, limit + 1))
    return Shown(found[:limit], more=len(found) > limit)
