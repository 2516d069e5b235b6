"""Turns what was read into Arrow record batches with exactly the columns of `antiphon.spark.schema`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from antiphon.records.arrow import to_arrow
from antiphon.records.changes import VERSION, VERSION_HEADER, ChangeKind

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
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def log_rows(
    batches: Iterable[memoryview], start: int, end: int, place: tuple[str, int], schema: "pa.Schema"
) -> "pa.RecordBatch":
    """Records of a topic."""
    with_headers = "headers" in schema.names
    found = to_arrow(
        batches, start=start, end=end, topic=place[0], partition=place[1], include_headers=with_headers
    )
    return fit_log_rows(found, schema)


def fit_log_rows(found: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Records of a topic that are Arrow columns already."""
    return fitted({name: found.column(name) for name in schema.names}, schema)


def change_rows(
    batches: Iterable[memoryview], start: int, end: int, place: tuple[str, int], schema: "pa.Schema"
) -> "pa.RecordBatch":
    """Changes of a table: the records that carry a version, with it unpacked."""
    found = to_arrow(batches, start=start, end=end, topic=place[0], partition=place[1], include_headers=True)
    return fit_change_rows(found, schema)


def fit_change_rows(found: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Changes of a table, of records with headers that are Arrow columns already."""
    import pyarrow.compute as pc

    headers = found.column("headers")
    rows = pc.list_parent_indices(headers)
    pairs = pc.list_flatten(headers)
    is_version = pc.and_kleene(
        pc.equal(pc.struct_field(pairs, "key"), VERSION_HEADER),
        pc.equal(pc.binary_length(pc.struct_field(pairs, "value")), VERSION.size),
    )
    found = found.take(rows.filter(is_version))
    packed = pc.struct_field(pairs, "value").filter(is_version)
    columns = {name: found.column(name) for name in ("key", "value", "partition", "offset", "timestamp")}
    columns |= version_columns(list(VERSION.iter_unpack(b"".join(packed.to_pylist()))))
    columns["kind"] = kinds(columns["value"], columns["modifications"])
    columns["table"] = found.column("topic")
    return fitted(columns, schema)


def kinds(value: Any, modifications: Any) -> Any:
    """Created, modified or deleted, from a change's columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    created, modified, deleted = (pa.scalar(kind, pa.string()) for kind in _KINDS)
    kept = pc.if_else(pc.equal(modifications, 0), created, modified)
    return pc.if_else(pc.is_null(value), deleted, kept)


def version_columns(versions: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """(version id, modifications, created ms, modified ms) per row, as columns."""
    import pyarrow as pa

    ids, modifications, created, modified = zip(*versions, strict=True) if versions else ((), (), (), ())
    return {
        "version": pa.array(ids, pa.int64()),
        "modifications": pa.array(modifications, pa.int64()),
        "created": timestamps(created),
        "modified": timestamps(modified),
    }


def timestamps(values_ms: Sequence[int]) -> Any:
    """Milliseconds since 1970 as Spark's timestamps."""
    import pyarrow as pa

    return pa.array(values_ms, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def sliced(batch: "pa.RecordBatch") -> "Iterable[pa.RecordBatch]":
    """The batch in pieces that Spark handles well; nothing for an empty one."""
    for at in range(0, batch.num_rows, ROWS_MAX):
        yield batch.slice(at, ROWS_MAX)
