"""How a lake table is laid out, as its options say: partitions, the order within files, properties. Loads no library.

A table is made with what was asked for. One that is there has to have the same, or nothing is written to it; whoever asks
for nothing goes on with the table as it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import InvalidRequestError

IDENTITY: Final = "identity"
# Transforms of Iceberg, and whether they take a number before the column.
TRANSFORMS: Final = {
    "year": False,
    "month": False,
    "day": False,
    "hour": False,
    "bucket": True,
    "truncate": True,
}
LAYOUT_OPTIONS: Final = ("partition_by", "sort_by", "z_order_by", "properties")
OWN_PREFIX: Final = "antiphon."
_CALL: Final = re.compile(r"(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^()]+?)\s*\)")
_ORDER: Final = re.compile(r"(.+?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE)
_COMMAS: Final = re.compile(r",(?![^()]*\))")
NUMBER_MAX: Final = 2**31 - 1


@dataclass(frozen=True)
class Term:
    """What rows of a partition have in common: a column's value, or what `transform` makes of it."""

    column: str
    transform: str = IDENTITY
    number: int | None = None

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.column
        return f"{self.transform}({'' if self.number is None else f'{self.number}, '}{self.column})"


@dataclass(frozen=True)
class Order:
    """A column that rows of a file are sorted by. Nulls come first where it rises, last where it falls, if nobody says."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        return f"{self.column} {'desc' if self.descending else 'asc'} nulls {'first' if self.nulls_first else 'last'}"


@dataclass(frozen=True)
class Layout:
    """What is asked of a table, or what one has; None: nothing is said about it."""

    partition_by: tuple[Term, ...] | None = None
    sort_by: tuple[Order, ...] | None = None
    z_order_by: tuple[str, ...] | None = None
    properties: Mapping[str, str] | None = None

    @property
    def columns(self) -> dict[str, list[str]]:
        """The columns that each option names."""
        return {
            "partition_by": [term.column for term in self.partition_by or ()],
            "sort_by": [order.column for order in self.sort_by or ()],
            "z_order_by": list(self.z_order_by or ()),
        }

    def texts(self, name: str) -> tuple[str, ...]:
        """The items of an option, as they are written."""
        return tuple(str(one) for one in getattr(self, name) or ())


def layout_of(options: Mapping[str, Any], transforms: Sequence[str], kind: str) -> Layout:
    """The layout among a target's options; `transforms`: those that the kind of table knows. Raises InvalidRequestError."""
    terms = _items(options, "partition_by")
    orders = _items(options, "sort_by")
    columns = _items(options, "z_order_by")
    found = Layout(
        None if terms is None else tuple(_term(one, transforms, kind) for one in terms),
        None if orders is None else tuple(_order(one) for one in orders),
        None if columns is None else tuple(_column(one, "z_order_by") for one in columns),
        _properties(options),
    )
    _check_once(found)
    return found


def _items(options: Mapping[str, Any], name: str) -> list[str] | None:
    given = options.get(name)
    if given is None:
        return None
    items = _COMMAS.split(given) if isinstance(given, str) else given
    if not isinstance(items, list | tuple) or not all(isinstance(one, str) and one.strip() for one in items):
        raise InvalidRequestError(f"{name} is a list of columns, such as ['origin'], not {given!r}")
    return [one.strip() for one in items]


def _column(text: str, option: str) -> str:
    name = text.strip()
    if len(name) > 1 and name[0] == name[-1] == "`":
        return name[1:-1].replace("``", "`")
    if "(" in name or ")" in name:
        raise InvalidRequestError(
            f"{option} takes columns, not {text!r}; write `{name}` if a column is called that"
        )
    return name


def _term(text: str, transforms: Sequence[str], kind: str) -> Term:
    call = _CALL.fullmatch(text)
    if call is None:
        return Term(_column(text, "partition_by"))
    name, number, column = call[1].lower(), call[2], _column(call[3], "partition_by")
    if not transforms:
        raise InvalidRequestError(
            f"partition_by of a target of kind {kind} takes columns only, not {text}: give the rows a column of that "
            f'value, with select = "*, ... as {name}"'
        )
    if name not in transforms:
        raise InvalidRequestError(f"partition_by knows {', '.join(transforms)}, not {name!r}")
    if TRANSFORMS[name] != (number is not None):
        raise InvalidRequestError(
            f"partition_by: {name} is written {name}({'NUMBER, ' if TRANSFORMS[name] else ''}COLUMN), not {text}"
        )
    if number is not None and not 1 <= int(number) <= NUMBER_MAX:
        raise InvalidRequestError(f"partition_by: the number of {text} is from 1 to {NUMBER_MAX}")
    return Term(column, name, None if number is None else int(number))


def _order(text: str) -> Order:
    found = _ORDER.fullmatch(text)
    if found is None:
        raise InvalidRequestError(f"sort_by: {text!r} is not COLUMN [asc | desc] [nulls first | nulls last]")
    descending = (found[2] or "").lower() == "desc"
    nulls_first = found[3].lower() == "first" if found[3] else not descending
    return Order(_column(found[1], "sort_by"), descending, nulls_first)


def _properties(options: Mapping[str, Any]) -> dict[str, str] | None:
    given = options.get("properties")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"properties are names with values, such as {{'a.b': 'c'}}, not {given!r}")
    found = {}
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise InvalidRequestError(
                f"property {name} has to be a text, a number, true or false, not {value!r}"
            )
        if str(name).startswith(OWN_PREFIX):
            raise InvalidRequestError(
                f"property {name}: names that begin with {OWN_PREFIX} are Antiphon's own"
            )
        found[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _check_once(layout: Layout) -> None:
    for option, columns in layout.columns.items():
        items = layout.texts(option) if option == "partition_by" else columns
        for name in items:
            if list(items).count(name) > 1:
                raise InvalidRequestError(f"{option} names {name} twice")


def differences(asked: Layout, found: Layout) -> list[str]:
    """What a table has otherwise than asked for, in words; what nobody asked for is as it is."""
    words = [
        f"{name} is {_listed(found.texts(name))}, asked for is {_listed(asked.texts(name))}"
        for name in ("partition_by", "sort_by", "z_order_by")
        if getattr(asked, name) is not None and asked.texts(name) != found.texts(name)
    ]
    known = found.properties or {}
    for name, value in (asked.properties or {}).items():
        if known.get(name) != value:
            there = f"is {known[name]!r}" if name in known else "is not set"
            words.append(f"property {name} {there}, asked for is {value!r}")
    return words


def _listed(items: Sequence[str]) -> str:
    return f"[{', '.join(items)}]" if items else "nothing"
