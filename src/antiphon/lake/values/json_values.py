"""JSON objects as rows: parsed many at a time by Arrow, with the declared columns.

Values are joined by newlines and parsed as one text. That no two of them can be mistaken for others rests on this: each
begins with `{` and ends with `}`; `}` newline `{` occurs inside no JSON document, since a string cannot hold a newline; so
every value is at least one document, and if there are as many rows as values, each is exactly one.

Fields that have no column are found by letting Arrow see them; rows that have some are then looked at one by one.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.staged import lake_schema
from antiphon.lake.values.decoding import (
    DECODE_ERRORS,
    NEW_FIELDS,
    REST,
    DecodeError,
    Decoder,
    ValueSpec,
    check_choice,
    reason,
)
from antiphon.lake.values.options import ValueOptions, columns_of

NESTING_MAX: Final = 1_000  # brackets in one value that are parsed without a closer look
DEPTH_MAX: Final = 60
FIELDS_MAX: Final = 100  # of an object whose fields become columns; more of them are taken for a map
COLUMNS_MAX: Final = 1_000
_UNFIT_NAME: Final = re.compile(r"[ ,;{}()\n\t=.`]|^_|^$")
_INT64_MAX: Final = 2**63 - 1


def spec(options: ValueOptions) -> ValueSpec:
    """See `spec.Format`, as for the others. Refuses types that JSON has not."""
    default = "add" if options.schema is None else "rest"
    new_fields = check_choice("new_fields", options.new_fields or default, NEW_FIELDS)
    columns = None if options.schema is None else lake_schema(columns_of(options.schema))
    found = ValueSpec("json", columns, new_fields=new_fields)
    decoder(found, columns or pa.schema([]))
    return found


def fixed_columns(spec: ValueSpec) -> pa.Schema | None:
    """Those of the schema."""
    return spec.schema


def decoder(spec: ValueSpec, columns: pa.Schema) -> Decoder:
    """See `JsonDecoder`."""
    return JsonDecoder(columns, spec.new_fields, spec.blocked)


def learnt(spec: ValueSpec, values: Sequence[bytes | None], source: str) -> ValueSpec:  # noqa: ARG001 - for errors
    """With the columns of a sample."""
    return replace(spec, schema=infer_columns(values))


class JsonDecoder(Decoder):
    """Objects with given columns. `columns` may hold REST, a string for what has no column."""

    def __init__(self, columns: pa.Schema, new_fields: str, blocked: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.columns = columns
        self._known = pa.schema([one for one in columns if one.name != REST])
        for one in self._known:
            check_type(one.type, one.name)
        self._parsed = pa.schema([pa.field(one.name, _as_parsed(one.type)) for one in self._known])
        self._new_fields = new_fields
        self._blocked = blocked
        self._needs_rest = False  # there are fields that get no column
        self._lower = {name.lower() for name in columns.names}

    def table(self, values: pa.Array) -> pa.Table:
        """Columns of values; with `add`, fields that deserve a column are left in `found`."""
        joined = _joined(values)
        keep = self._new_fields in {"add", "rest"}
        try:
            parsed = self._parse(joined, {"drop": "ignore", "reject": "error"}.get(self._new_fields, "infer"))
            more = keep and _has_more(parsed.schema, self._parsed)
        except pa.ArrowException:
            if not keep:
                raise
            parsed = self._parse(
                joined, "ignore"
            )  # only the fields without a column disagreed with each other
            more = True
        if parsed.num_rows != len(values):
            raise DecodeError("the value is more than one JSON document")
        arrays = [_fitted(parsed.column(one.name), one.type) for one in self._known]
        rest = self._rest(values) if more else pa.nulls(len(values), pa.string())
        if REST in self.columns.names:
            arrays.insert(self.columns.get_field_index(REST), rest)
        elif self._needs_rest or self.mixed:
            self.found[REST] = pa.string()
        table = pa.Table.from_arrays(arrays, schema=self.columns)
        table.validate(full=True)
        return table

    def _parse(self, joined: pa.Buffer, unexpected: str) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=self._parsed, unexpected_field_behavior=unexpected),
        )

    def screen(self, values: pa.Array) -> list[tuple[int, str]]:
        """Values that are no JSON object, and those that a stricter reader suspects and Arrow alone does not take either."""
        found = []
        suspects = msgspec.json.Decoder(_row_type(self._known))
        for index, value in enumerate(values.to_pylist()):
            try:
                check_object(value)
            except DecodeError as error:
                found.append((index, reason(error)))
                continue
            if len(values) == 1:
                continue
            try:
                suspects.decode(value)
            except (msgspec.DecodeError, ValueError):
                try:
                    self.table(values.slice(index, 1))
                except DECODE_ERRORS as error:
                    found.append((index, reason(error)))
        return found

    def _rest(self, values: pa.Array) -> pa.Array:
        """What has no column, as JSON, a row a value."""
        left: list[str | None] = []
        for value in values.to_pylist():
            fields = leftover(msgspec.json.decode(value), self._known)
            if self._new_fields == "add" and fields:
                self._note(fields)
            self._needs_rest |= any(name not in self.found for name in fields)
            left.append(msgspec.json.encode(fields).decode() if fields else None)
        return pa.array(left, pa.string())

    def _note(self, fields: dict[str, Any]) -> None:
        """Remember which fields deserve a column; as long as they have none, they are in REST."""
        for name, value in fields.items():
            if name in self._known.names or not self._may_add(name):
                continue
            kind = unified(self.found.get(name, pa.null()), inferred(value))
            if kind is None:
                self.mixed.add(name)
                self.found.pop(name, None)
            elif kind != pa.null():
                self.found[name] = kind

    def _may_add(self, name: str) -> bool:
        if name in self.found:
            return True
        if name in self.mixed or name in self._blocked:
            return False
        taken = self._lower | {one.lower() for one in self.found}
        return not _UNFIT_NAME.search(name) and name.lower() not in taken and len(taken) < COLUMNS_MAX


def _joined(values: pa.Array) -> pa.Buffer:
    text = pc.utf8_trim_whitespace(values.cast(pa.string()))
    shaped = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    if not pc.all(shaped).as_py():
        raise DecodeError("the value is not a JSON object")
    brackets = pc.add(pc.count_substring(text, "{"), pc.count_substring(text, "["))
    for index in pc.indices_nonzero(pc.greater(brackets, NESTING_MAX)).to_pylist():
        check_object(values[index].as_py())
    return pa.py_buffer(b"\n".join(text.cast(pa.binary()).to_pylist()))


def check_object(value: bytes) -> dict[str, Any]:
    """A JSON object that is not nested too deeply; raises DecodeError."""
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise DecodeError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DecodeError(f"a JSON {type(found).__name__} where an object is needed")
    if value.count(b"{") + value.count(b"[") > NESTING_MAX:
        _check_depth(found)
    return found


def _check_depth(found: Any) -> None:
    level: list[Any] = [found]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise DecodeError(f"JSON nested more than {DEPTH_MAX} deep")


# -- types ----------------------------------------------------------------------------------------------------------


def check_type(kind: pa.DataType, name: str) -> None:
    """Raise InvalidRequestError unless JSON can be read into the type."""
    types = pa.types
    if types.is_struct(kind):
        for one in kind:
            check_type(one.type, f"{name}.{one.name}")
    elif types.is_list(kind):
        check_type(kind.value_type, f"{name}[]")
    elif types.is_map(kind) or types.is_binary(kind):
        raise InvalidRequestError(
            f"column {name}: JSON cannot be read as {kind}; declare a struct, or leave the field out and find it in "
            f"{REST} (new_fields = rest)"
        )


def _row_type(columns: Any) -> Any:
    """A type for msgspec that takes about what Arrow takes."""
    fields: list[Any] = [(f"f{at}", _python_type(one.type) | None, None) for at, one in enumerate(columns)]
    names = {f"f{at}": one.name for at, one in enumerate(columns)}
    return msgspec.defstruct("Row", fields, rename=names)


def _python_type(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _row_type(kind)
    if types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if types.is_floating(kind):
        return float
    if types.is_boolean(kind):
        return bool
    if types.is_decimal(kind):
        return int | float | str
    return str


def _as_parsed(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's JSON reader is asked for; dates it knows only as text."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _as_parsed(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_parsed(kind.value_type))
    return kind


def _has_more(found: Any, wanted: Any) -> bool:
    """Does a parsed schema or struct have fields that the wanted one has not?"""
    names = [one.name for one in found]
    known = {one.name: one.type for one in wanted}
    if any(name not in known for name in names):
        return True
    return any(_type_has_more(one.type, known[one.name]) for one in found)


def _type_has_more(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(found):
        return _has_more(found, wanted)
    if pa.types.is_list(found):
        return _type_has_more(found.value_type, wanted.value_type)
    return False


def _fitted(column: Any, kind: pa.DataType) -> pa.Array:
    """A parsed column in its declared type, without fields that were not declared."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # what combine_chunks makes of several
        array = pa.concat_arrays(array.chunks)
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind):
        fields = [pa.field(one.name, one.type) for one in kind]
        parts = [_fitted(array.field(one.name), one.type) for one in kind]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if pa.types.is_list(kind):
        items = _fitted(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    return array.cast(kind)


def leftover(found: dict[str, Any], wanted: Any) -> dict[str, Any]:
    """The fields of an object that a schema or struct has no place for; nulls and empty things are not worth keeping."""
    known = {one.name: one.type for one in wanted}
    left = {}
    for name, value in found.items():
        more = _leftover(value, known[name]) if name in known else value
        if more not in (None, {}, []):
            left[name] = more
    return left


def _leftover(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return leftover(value, kind)
    if isinstance(value, list) and pa.types.is_list(kind):
        items = [_leftover(item, kind.value_type) for item in value]
        return items if any(items) else None
    return None


# -- inference ------------------------------------------------------------------------------------------------------


def inferred(value: Any) -> pa.DataType | None:
    """The type of a JSON value; null for nothing, None where there is none (mixed, or more like a map)."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_INT64_MAX <= value <= _INT64_MAX else None
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        kind: pa.DataType | None = pa.null()
        for item in value:
            kind = unified(kind, inferred(item))
            if kind is None:
                return None
        return None if kind is None or kind == pa.null() else pa.list_(kind)
    return _inferred_struct(value)


def _inferred_struct(value: dict[str, Any]) -> pa.DataType | None:
    if not value or len(value) > FIELDS_MAX:
        return None
    fields = {name: inferred(item) for name, item in value.items() if not _UNFIT_NAME.search(name)}
    kept = [pa.field(name, kind) for name, kind in fields.items() if kind is not None and kind != pa.null()]
    return pa.struct(kept) if kept else None


def unified(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """A type for values of both; None where there is none."""
    if one is None or other is None:
        return None
    if one == other or other == pa.null():
        return one
    if one == pa.null():
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        kind = unified(one.value_type, other.value_type)
        return None if kind is None else pa.list_(kind)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _unified_struct(one, other)
    return None


def _unified_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    fields = {part.name: part.type for part in one}
    for part in other:
        fields[part.name] = unified(fields[part.name], part.type) if part.name in fields else part.type
    kept = [pa.field(name, kind) for name, kind in fields.items() if kind is not None]
    return pa.struct(kept) if kept and len(fields) <= FIELDS_MAX else None


def infer_columns(values: Sequence[bytes | None]) -> pa.Schema:
    """Columns for JSON objects as in a sample; values that are none are passed over.

    Fields whose values have no type in common, that are null throughout, or whose names no table can have, get no column.
    """
    kinds: dict[str, pa.DataType] = {}
    mixed: set[str] = set()
    for value in values:
        try:
            found = check_object(value) if value is not None else {}
        except DecodeError:
            continue
        for name, item in found.items():
            if name in mixed or _UNFIT_NAME.search(name):
                continue
            kind = inferred(item)
            if kind is None and item in ({}, []):
                continue
            kind = None if kind is None else unified(kinds.get(name, pa.null()), kind)
            if kind is None:
                mixed.add(name)
                kinds.pop(name, None)
            else:
                kinds[name] = kind
    lower: dict[str, str] = {}
    for name in kinds:
        lower.setdefault(name.lower(), name)
    kept = [name for name in lower.values() if kinds[name] != pa.null()]
    return pa.schema([(name, kinds[name]) for name in kept[:COLUMNS_MAX]])
