"""Columns whose type becomes wider: `int` to `bigint`, `float` to `double`, a `decimal` with more digits before its point.

Every value of the narrower type is one of the wider type, so rows that are there stay as they are: the table's columns
change, and its files do not. Which kinds of lake tables can do that is in their rows (`kinds.TargetKind.widens`).
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

_WIDER: Final = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def is_narrower(one: pa.DataType, other: pa.DataType) -> bool:
    """Is every value of `one` one of `other` as well, a wider type of the same sort? Both are types of lake tables."""
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.scale == other.scale and one.precision < other.precision)
    return (one, other) in _WIDER


def widest(found: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of a column (`found`) and those to be written; None where there is none.

    Fields of structs and items of lists and maps are widened each for itself.
    """
    if found.equals(wanted) or is_narrower(wanted, found):
        return found
    if is_narrower(found, wanted):
        return wanted
    types = pa.types
    if types.is_struct(found) and types.is_struct(wanted):
        return _struct(found, wanted)
    if types.is_list(found) and types.is_list(wanted):
        items = widest(found.value_type, wanted.value_type)
        return None if items is None else pa.list_(items)
    if types.is_map(found) and types.is_map(wanted) and found.key_type.equals(wanted.key_type):
        items = widest(found.item_type, wanted.item_type)
        return None if items is None else pa.map_(found.key_type, items)
    return None


def _struct(found: Any, wanted: Any) -> pa.DataType | None:
    if [one.name for one in found] != [one.name for one in wanted]:
        return None
    fields = []
    for one, other in zip(found, wanted, strict=True):
        kind = widest(one.type, other.type)
        if kind is None:
            return None
        fields.append(pa.field(one.name, kind))
    return pa.struct(fields)


def widened(schema: pa.Schema, fields: Sequence[pa.Field]) -> pa.Schema:
    """A table's columns with the wider of their types and those of `fields`, which somebody may have given them already."""
    wanted = {one.name: one.type for one in fields}
    return pa.schema(
        [one.with_type(widest(one.type, wanted.get(one.name, one.type)) or one.type) for one in schema]
    )
