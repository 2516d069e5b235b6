"""Columns whose type becomes wider: `int` to `bigint`, `float` to `double`, a `decimal` with more digits before its point,
and a struct with more fields.

Every value of the narrower type is one of the wider type (with null in new fields), so rows that are there stay as they are:
the table's columns change, and its files do not. Fields are added to structs in all kinds of lake tables, maps
excepted; which kinds can do the rest is in their rows (`kinds.TargetKind.widens`).
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

    Fields of structs and items of lists and maps are widened each for itself. Fields that one struct alone has are in the
    result too, those of `found` first: whoever has no value for one leaves it null.
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
    more = {one.name: one.type for one in wanted}
    if not any(one.name in more for one in found):
        return None  # nothing in common: another struct, and hardly what was meant
    fields = []
    for one in found:
        kind = widest(one.type, more.pop(one.name, one.type))
        if kind is None:
            return None
        fields.append(pa.field(one.name, kind))
    return pa.struct([*fields, *(pa.field(name, kind) for name, kind in more.items())])


def only_adds(found: pa.DataType, wider: pa.DataType) -> bool:
    """Does the wider of two types, as `widest` gives it, differ by fields that structs in it have more, and by no other?

    Not where that is in a map: deltalake 1.6 reads such files, and cannot compact them.
    """
    types = pa.types
    if types.is_struct(found) and types.is_struct(wider):
        return all(only_adds(one.type, wider.field(one.name).type) for one in found)
    if types.is_list(found) and types.is_list(wider):
        return only_adds(found.value_type, wider.value_type)
    return bool(found.equals(wider))


def widened(schema: pa.Schema, fields: Sequence[pa.Field]) -> pa.Schema:
    """A table's columns with the wider of their types and those of `fields`, which somebody may have given them already."""
    wanted = {one.name: one.type for one in fields}
    return pa.schema(
        [one.with_type(widest(one.type, wanted.get(one.name, one.type)) or one.type) for one in schema]
    )
