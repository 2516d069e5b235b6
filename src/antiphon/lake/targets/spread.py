"""Which rows go to which file, and in which order: what tasks do for tables with partitions or a sort order.

The value of a partition is kept as what JSON can hold: texts, whole numbers (dates as days, timestamps as microseconds since
1970), true and false. What the transforms give is said in Iceberg's specification ("Partition Transforms").
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.layout import IDENTITY, Layout, Order, Term

Value = str | int | bool | None
DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000
EPOCH: Final = date(1970, 1, 1)
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  # Hive's name of a folder whose value is null
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(1, 32)}

_types: Final = pa.types
_WHOLE: Final = (_types.is_int32, _types.is_int64)
_TIMES: Final = (_types.is_date32, _types.is_timestamp)
_PLAIN: Final = (*_WHOLE, _types.is_string, _types.is_boolean, _types.is_date32)
_TAKES: Final[dict[str, tuple[Callable[[Any], bool], ...]]] = {
    "year": _TIMES, "month": _TIMES, "day": _TIMES, "hour": (_types.is_timestamp,),
    "bucket": (*_WHOLE, *_TIMES, _types.is_string, _types.is_binary),
    "truncate": (*_WHOLE, _types.is_string, _types.is_binary),
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """How rows become files. Travels to tasks; without terms and order all rows go to one file, as they come.

    `terms`: what rows of one file have in common. `in_files`: are the columns of partitions in the files, too? Where they
    are not, an empty text is null, since a folder's name cannot tell one from the other.
    """

    terms: tuple[Term, ...] = ()
    sort_by: tuple[Order, ...] = ()
    in_files: bool = True

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the files."""
        if self.in_files or not self.terms:
            return schema
        apart = {term.column for term in self.terms}
        return pa.schema([one for one in schema if one.name not in apart])

    def split(self, rows: pa.Table) -> Iterator[tuple[dict[str, Value], pa.Table]]:
        """The rows by partition, in their order; a partition is a value for each term, by its text."""
        values = [self._values(term, rows.column(term.column)) for term in self.terms]
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for one in values:
            found = one.dictionary_encode(null_encoding="encode")
            codes = codes * len(found.dictionary) + found.indices.to_numpy(zero_copy_only=False)
            _, codes = np.unique(codes, return_inverse=True)
        ranked = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[ranked], prepend=-1))
        kept = rows.select(self.stored(rows.schema).names)
        for start, end in zip(starts, [*starts[1:], len(ranked)], strict=True):
            chosen = ranked[start:end]
            partition = {
                str(term): one[int(chosen[0])].as_py() for term, one in zip(self.terms, values, strict=True)
            }
            yield partition, kept if len(starts) == 1 else kept.take(pa.array(chosen))

    def _values(self, term: Term, column: pa.ChunkedArray) -> pa.Array:
        found = transformed(term, column.combine_chunks())
        if not self.in_files and pa.types.is_string(found.type):
            found = pc.if_else(pc.equal(found, ""), pa.scalar(None, pa.string()), found)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def arranged(self, rows: pa.Table) -> pa.Table:
        """The rows in the table's order, where it has one; rows that are equal in it stay as they were."""
        orders = [order for order in self.sort_by if order.column in rows.column_names]
        if not orders:
            return rows
        keys: dict[str, Any] = {}
        ways: list[tuple[str, str]] = []
        for number, order in enumerate(orders):
            column = rows.column(order.column)
            keys[f"null{number}"] = pc.cast(pc.is_null(column), pa.int8())
            keys[f"key{number}"] = pc.cast(column, pa.int8()) if pa.types.is_boolean(column.type) else column
            ways.append((f"null{number}", "descending" if order.nulls_first else "ascending"))
            ways.append((f"key{number}", "descending" if order.descending else "ascending"))
        return rows.take(pc.sort_indices(pa.table(keys), sort_keys=ways))


def transformed(term: Term, column: Any) -> Any:
    """What a transform makes of a column's values, as the values of partitions are kept."""
    kind = column.type
    if term.transform == IDENTITY:
        return column.cast(_inner(kind))
    if term.transform == "bucket":
        return _each(term, column)
    if term.transform == "truncate":
        return _truncated(column, term.number or 1)
    if term.transform in {"year", "month"}:
        years = pc.subtract(pc.cast(pc.year(column), pa.int32()), pa.scalar(1970, pa.int32()))
        if term.transform == "year":
            return years
        months = pc.subtract(pc.cast(pc.month(column), pa.int32()), pa.scalar(1, pa.int32()))
        return pc.add(pc.multiply(years, pa.scalar(12, pa.int32())), months)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    return _floored(column.cast(pa.int64()), DAY_US if term.transform == "day" else HOUR_US, pa.int32())


def _inner(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _floored(column: Any, width: int, kind: pa.DataType) -> pa.Array:
    """Whole numbers divided, rounded down (Arrow's own division rounds toward zero)."""
    valid = np.asarray(column.is_valid())
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False) // width
    return pa.array(numbers, mask=~valid).cast(kind)


def _truncated(column: Any, width: int) -> Any:
    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, width)
    if pa.types.is_binary(column.type):
        return pc.cast(pc.binary_slice(column, 0, width), pa.binary())
    floor = _floored(column.cast(pa.int64()), width, pa.int64())
    return pc.multiply(floor, pa.scalar(width, pa.int64())).cast(column.type)


def _each(term: Term, column: Any) -> pa.Array:
    """By pyiceberg's own function, once for each value that occurs."""
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import BinaryType, DateType, IntegerType, LongType, StringType, TimestamptzType

    kinds = (
        (_types.is_int32, IntegerType()),
        (_types.is_int64, LongType()),
        (_types.is_string, StringType()),
        (_types.is_binary, BinaryType()),
        (_types.is_date32, DateType()),
        (_types.is_timestamp, TimestamptzType()),
    )
    kind = next(one for test, one in kinds if test(column.type))
    bucket = BucketTransform(term.number or 1).transform(kind)
    found = column.cast(_inner(column.type)).dictionary_encode()
    buckets = pa.array([bucket(value) for value in found.dictionary.to_pylist()], pa.int32())
    return buckets.take(found.indices)


# -- checks ---------------------------------------------------------------------------------------------------------


def check_columns(layout: Layout, schema: pa.Schema, *, identity_of_times: bool) -> None:
    """Raises InvalidRequestError where a layout names a column that is not there, or whose type does not do."""
    for option, columns in layout.columns.items():
        for name in columns:
            if name not in schema.names:
                raise InvalidRequestError(
                    f"{option}: there is no column {name}; there is {', '.join(schema.names)}"
                )
            if pa.types.is_nested(schema.field(name).type):
                raise InvalidRequestError(
                    f"{option}: column {name} has parts, of type {schema.field(name).type}"
                )
    for term in layout.partition_by or ():
        kind = schema.field(term.column).type
        tests = (*_PLAIN, _types.is_timestamp) if identity_of_times else _PLAIN
        if not any(test(kind) for test in _TAKES.get(term.transform, tests)):
            raise InvalidRequestError(
                f"partition_by: {term} cannot be of a column of type {kind}"
                + (
                    ""
                    if term.transform != IDENTITY
                    else "; a text, a whole number, a date, true or false can"
                )
            )
    named = {term.column for term in layout.partition_by or ()}
    if named and not set(schema.names) - named:
        raise InvalidRequestError("partition_by names every column: some have to be left for the files")


# -- values as text, and folders of Hive ------------------------------------------------------------------------------


def text_of(value: Value, kind: pa.DataType) -> str | None:
    """The value of a column's partition as Delta and Hive write it; None is null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if pa.types.is_date32(kind) and isinstance(value, int):
        return (EPOCH + timedelta(days=value)).isoformat()
    return str(value)


def folder_of(partition: Mapping[str, Value], schema: pa.Schema) -> str:
    """`column=value/column=value`, escaped as Hive and Spark do."""
    parts = []
    for name, value in partition.items():
        text = text_of(value, schema.field(name).type)
        parts.append(f"{_escaped(name)}={NO_VALUE if text is None else _escaped(text)}")
    return "/".join(parts)


def _escaped(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in text)


def values_of_folder(path: str) -> dict[str, str | None]:
    """The reverse of `folder_of`, as text."""
    found: dict[str, str | None] = {}
    for part in path.split("/"):
        name, equals, text = part.partition("=")
        if equals:
            found[unquote(name)] = None if text == NO_VALUE else unquote(text)
    return found


def with_values(rows: pa.Table, values: Mapping[str, str | None], schema: pa.Schema) -> pa.Table:
    """Rows of a file with the columns of its partition, in the schema's order."""
    columns = []
    for one in schema:
        if one.name in values:
            text = pa.array([values[one.name]], pa.string()).cast(one.type)
            columns.append(
                pa.repeat(text[0], rows.num_rows)
                if text.null_count == 0
                else pa.nulls(rows.num_rows, one.type)
            )
        else:
            columns.append(rows.column(one.name))
    return pa.Table.from_arrays(columns, schema=schema)


def same_terms(partitions: Sequence[Mapping[str, Value]], terms: Sequence[Term]) -> bool:
    """Were files written for these terms?"""
    texts = [str(term) for term in terms]
    return all(list(one) == texts for one in partitions)
