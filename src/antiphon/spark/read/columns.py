"""Turns what was read into Arrow record batches with exactly the columns of `antiphon.spark.schema`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.records.arrow import array_of, constants, decode, int64_view, null_rows, texts, version_columns
from antiphon.records.changes import VERSION, VERSION_HEADER, ChangeKind
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 50_000  # in one Arrow record batch that is handed to Spark

_KINDS: Final = (ChangeKind.CREATED.value, ChangeKind.MODIFIED.value, ChangeKind.DELETED.value)


def fitted(columns: dict[str, Any], schema: "pa.Schema") -> "pa.RecordBatch":
    """Columns in the schema's order and of its types (casts only where they differ)."""
    import pyarrow as pa

    arrays = []
    for field in schema:
        array = columns[field.name]
        if array.type.equals(field.type):
            arrays.append(array)
        elif field.name == "key" and pa.types.is_string(field.type):
            arrays.append(_text_keys(array, columns))
        else:
            arrays.append(array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text_keys(keys: Any, columns: dict[str, Any]) -> Any:
    """Keys as text; raises InvalidRequestError that says where one is that is not."""
    from antiphon.spark.read.json_text import utf8_text

    try:
        return utf8_text(keys)
    except InvalidRequestError as error:
        row = int(error.details["row"])
        names = [name for name in ("topic", "table", "partition", "offset") if name in columns]
        place = ", ".join(f"{name} {columns[name][row]}" for name in names)
        raise InvalidRequestError(
            f"{place or 'a row'}: the key {keys[row].as_py()[:100]!r} is not UTF-8 text: leave keyFormat=string out"
        ) from None


def log_rows(
    batches: Iterable[memoryview],
    start: int,
    end: int,
    place: tuple[str, int],
    schema: "pa.Schema",
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> "pa.RecordBatch":
    """Records of a topic; `schema` is any choice of their columns. A batch unpacks to at most `limit_bytes`."""
    found = decode(batches, start=start, end=end, columns=schema.names, limit_bytes=limit_bytes)
    return fitted(found.columns | constants(found.rows, *place), schema)


def fit_log_rows(found: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Records of a topic that are Arrow columns already."""
    return fitted({name: found.column(name) for name in schema.names}, schema)


def change_rows(
    batches: Iterable[memoryview], start: int, end: int, place: tuple[str, int], schema: "pa.Schema"
) -> "pa.RecordBatch":
    """Changes of a table: the records that carry a version, with it unpacked; `schema` is any choice of their columns."""
    names = {*schema.names, "value"} if "kind" in schema.names else schema.names
    found = decode(batches, start=start, end=end, columns=names, changes=True)
    topic, partition = constants(found.rows, *place).values()
    columns = found.columns | {"table": topic, "partition": partition}
    if "kind" in schema.names:
        columns["kind"] = kinds(columns["value"], columns["modifications"])
    return fitted(columns, schema)


def fit_change_rows(found: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Changes of a table, of records with headers that are Arrow columns already."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs = pc.list_flatten(found.column("headers"))
    is_named = np.asarray(pc.equal(pc.struct_field(pairs, "key"), VERSION_HEADER).fill_null(fill_value=False))
    named = np.flatnonzero(is_named)
    # Of several headers of this name the first one counts, as everywhere.
    rows, first = np.unique(
        np.asarray(pc.list_parent_indices(found.column("headers")))[named], return_index=True
    )
    packed = pc.struct_field(pairs, "value").take(pa.array(named[first]))
    is_version = pc.equal(pc.binary_length(packed), VERSION.size).fill_null(fill_value=False)
    found = found.take(pa.array(rows).filter(is_version))
    numbers = np.frombuffer(_fixed(packed.filter(is_version)), ">i8").reshape(-1, 4)
    columns = {name: found.column(name) for name in ("key", "value", "partition", "offset", "timestamp")}
    columns |= version_columns(numbers)
    columns["kind"] = kinds(columns["value"], columns["modifications"])
    columns["table"] = found.column("topic")
    return fitted(columns, schema)


def _fixed(packed: Any) -> Any:
    """The bytes of a column in which every value has the size of a version."""
    import pyarrow as pa

    fixed = packed.cast(pa.binary(VERSION.size))
    return (
        fixed.buffers()[1].slice(fixed.offset * VERSION.size, len(fixed) * VERSION.size)
        if len(fixed)
        else b""
    )


def kinds(value: Any, modifications: Any) -> Any:
    """Created, modified or deleted, from a change's columns."""
    import numpy as np

    number = np.where(null_rows(value), 2, int64_view(modifications) != 0)
    return texts(_KINDS).take(array_of(number))


def sliced(batch: "pa.RecordBatch") -> "Iterable[pa.RecordBatch]":
    """The batch in pieces that Spark handles well; nothing for an empty one."""
    for at in range(0, batch.num_rows, ROWS_MAX):
        yield batch.slice(at, ROWS_MAX)
