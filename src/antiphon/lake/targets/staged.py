"""Data files before they belong to a table: written by tasks, named so that nobody finds them until they are committed."""

import json
import os
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.folder import LOCAL, Folder
from antiphon.lake.targets.spread import Spread, Value, with_values

COMPRESSION: Final = "zstd"
GROUP_BYTES: Final = 32 * 1024 * 1024  # in memory, before they become a row group
OPEN_MAX: Final = 64  # files of partitions that a task writes to at the same time
WAITING_BYTES_MAX: Final = 4 * GROUP_BYTES  # in memory, over all of them
REPORT: Final = "report string"  # the one column of what a staging task tells the driver, as JSON


@dataclass(frozen=True)
class DataFile:
    """A Parquet file: its name within the target's data folder, its rows and bytes, and figures of its columns.

    `partition`: what its rows have in common in a table with partitions, by term (`spread.Spread`).
    """

    name: str
    rows: int
    size_bytes: int
    nulls: dict[str, int] = field(default_factory=dict, hash=False)
    lowest: dict[str, int] = field(default_factory=dict, hash=False)
    highest: dict[str, int] = field(default_factory=dict, hash=False)
    partition: dict[str, Value] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """As what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`."""
        return cls(**found)


class PartWriter:
    """One new Parquet file in a folder, made when the first row comes. Use as a context; `file` is there after it.

    A file that is left by an error is removed; one that is left by a crash is nobody's, and expiry removes it.
    """

    def __init__(self, folder: Folder, schema: pa.Schema, spread: Spread | None = None) -> None:
        self.file: DataFile | None = None
        self._spread = spread or Spread()
        self._folder = folder
        self._schema = schema
        self._name = f"part-{uuid.uuid4().hex}.parquet"
        self._stream: Any = None
        self._writer: Any = None
        self._meta: list[Any] = []
        self._rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self.discard()
        else:
            self._close()

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows that have exactly the schema."""
        if rows.num_rows == 0:
            return
        if self._writer is None:
            self._stream = self._folder.open_write(self._name)
            self._writer = pq.ParquetWriter(
                self._stream, self._schema, compression=COMPRESSION, metadata_collector=self._meta
            )
        self._waiting.append(pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows)
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._waiting_bytes >= GROUP_BYTES:
            self.flush()

    @property
    def waiting_bytes(self) -> int:
        """In memory, until they become a row group."""
        return self._waiting_bytes

    def flush(self) -> None:
        """Make what waits a row group, in the order that the table has."""
        if self._waiting:
            self._writer.write_table(self._spread.arranged(pa.concat_tables(self._waiting)))
        self._waiting, self._waiting_bytes = [], 0

    def discard(self) -> None:
        """Close and remove what was written."""
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is not None:
            self._writer.close()
            self._stream.close()
            self._folder.delete(self._name)
            self._writer = None
        self.file = None

    def _close(self) -> None:
        if self._writer is None:
            return
        self.flush()
        self._writer.close()
        self._writer = None
        size_bytes = self._stream.tell()
        if self._folder.local_path is not None:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._stream.close()
        nulls, lowest, highest = _figures(self._meta[0]) if self._meta else ({}, {}, {})
        self.file = DataFile(self._name, self._rows, size_bytes, nulls, lowest, highest)


class FilesWriter:
    """New Parquet files in a folder: one, or one for each partition that rows come for. Use as a context.

    At most OPEN_MAX files are open: where more are needed, the one that was not written to for longest is closed, and rows
    that come for its partition later make another file. `files` is there after it.
    """

    def __init__(self, folder: Folder, schema: pa.Schema, spread: Spread | None = None) -> None:
        self.files: list[DataFile] = []
        self._folder = folder
        self._spread = spread or Spread()
        self._schema = self._spread.stored(schema)
        self._open: OrderedDict[str, tuple[dict[str, Value], PartWriter]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self.discard()
            return
        while self._open:
            self._close_one()

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows that have exactly the schema."""
        if rows.num_rows == 0:
            return
        if not self._spread.terms:
            self._part({}).write(rows)
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for partition, part in self._spread.split(table):
            self._part(partition).write(part)
        writers = [writer for _, writer in self._open.values()]
        if sum(one.waiting_bytes for one in writers) >= WAITING_BYTES_MAX:
            max(writers, key=lambda one: one.waiting_bytes).flush()

    def _part(self, partition: dict[str, Value]) -> PartWriter:
        name = json.dumps(partition)
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name][1]
        if len(self._open) >= OPEN_MAX:
            self._close_one()
        writer = PartWriter(self._folder, self._schema, self._spread)
        self._open[name] = partition, writer
        return writer

    def _close_one(self) -> None:
        _, (partition, writer) = self._open.popitem(last=False)
        writer.__exit__(None, None, None)
        if writer.file is not None:
            self.files.append(replace(writer.file, partition=partition))

    def discard(self) -> None:
        """Close and remove what was written."""
        for _, writer in self._open.values():
            writer.discard()
        for file in self.files:
            self._folder.delete(file.name)
        self._open.clear()
        self.files = []


def _figures(meta: Any) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Nulls of plain columns, and bounds of whole numbers, from a Parquet file's footer."""
    nulls: dict[str, int] = {}
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(meta.num_row_groups):
        for index in range(meta.num_columns):
            column = meta.row_group(group).column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None or not found.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            plain = column.physical_type in {"INT32", "INT64"} and found.logical_type.type in {"NONE", "INT"}
            if not plain:
                continue
            if found.has_min_max:
                lowest[name] = min(lowest.get(name, found.min), found.min)
                highest[name] = max(highest.get(name, found.max), found.max)
            elif found.num_values:
                unknown.add(name)
    for name in unknown:
        for figures in (nulls, lowest, highest):
            figures.pop(name, None)
    return nulls, lowest, highest


# -- types ----------------------------------------------------------------------------------------------------------


def lake_type(kind: Any) -> Any:
    """The type that a column has in every kind of lake table; raises InvalidRequestError where there is none."""
    types = pa.types
    for test, plain in _PLAIN:
        if test(kind):
            return plain
    if types.is_dictionary(kind):
        return lake_type(kind.value_type)
    if types.is_decimal(kind):
        return pa.decimal128(min(38, kind.precision), kind.scale)
    if types.is_struct(kind):
        if not kind.num_fields:
            raise InvalidRequestError("a struct without fields cannot be a column of a lake table")
        return pa.struct([pa.field(one.name, lake_type(one.type)) for one in kind])
    if types.is_map(kind):
        return pa.map_(lake_type(kind.key_type), lake_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(lake_type(kind.value_type))
    raise InvalidRequestError(f"type {kind} cannot be a column of a lake table")


_PLAIN: Final = (
    (pa.types.is_boolean, pa.bool_()),
    (lambda kind: pa.types.is_int8(kind) or pa.types.is_int16(kind) or pa.types.is_int32(kind), pa.int32()),
    (lambda kind: pa.types.is_uint8(kind) or pa.types.is_uint16(kind), pa.int32()),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint32(kind), pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), pa.float32()),
    (pa.types.is_float64, pa.float64()),
    (
        lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
        pa.string(),
    ),
    (
        lambda kind: pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind),
        pa.binary(),
    ),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_timestamp, pa.timestamp("us", "UTC")),
    (pa.types.is_time, pa.int64()),
)  # fmt: skip


def lake_schema(schema: pa.Schema) -> pa.Schema:
    """A schema with the types of lake tables, every column nullable; raises InvalidRequestError naming the column."""
    fields = []
    for one in schema:
        try:
            fields.append(pa.field(one.name, lake_type(one.type)))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"column {one.name}: {error.message}") from error
    return pa.schema(fields)


def fitted(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the schema's columns in its order; missing ones are null. Raises ArrowInvalid where a value does not fit."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    columns = []
    for one in schema:
        at = table.schema.get_field_index(one.name)
        if at < 0:
            columns.append(pa.nulls(table.num_rows, one.type))
        else:
            column = table.column(at)
            columns.append(column if column.type.equals(one.type) else column.cast(one.type))
    return pa.Table.from_arrays(columns, schema=schema)


# -- staging a DataFrame --------------------------------------------------------------------------------------------


class StageRows:
    """What a task does for `stage_frame`: its rows go to one file, or to one for each partition."""

    def __init__(self, folder: Folder, schema: pa.Schema, spread: Spread) -> None:
        self.folder = folder
        self.spread = spread
        self.schema_bytes = schema.serialize().to_pybytes()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, then tell of the files."""
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))
        with FilesWriter(self.folder, schema, self.spread) as parts:
            for batch in batches:
                parts.write(fitted(batch, schema))
        if parts.files:
            yield reports([file.to_json() for file in parts.files])


def reports(found: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """What a task tells the driver."""
    return pa.record_batch({"report": pa.array([json.dumps(one) for one in found], pa.string())})


def collected(frame: Any) -> list[dict[str, Any]]:
    """What the tasks of a staging DataFrame tell; runs them."""
    return [json.loads(row["report"]) for row in frame.collect()]


def stage_frame(frame: Any, folder: Folder, schema: pa.Schema, spread: Spread) -> list[DataFile]:
    """Write a DataFrame's rows to new files in `folder`, which nobody reads until they are committed."""
    task = StageRows(folder, schema, spread)
    return [DataFile.from_json(one) for one in collected(frame.mapInArrow(task, REPORT))]


# -- reading files as a DataFrame ------------------------------------------------------------------------------------


class ReadFiles:
    """What a task does for `read_frame`: the rows of the files that it is given, by URL, with fsspec.

    A file comes with the values of the columns that it lacks because they are those of its partition, as a JSON object.
    """

    def __init__(self, options: Mapping[str, Any], schema: pa.Schema) -> None:
        self.options = dict(options)
        self.schema_bytes = schema.serialize().to_pybytes()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A batch after the other, columns that a file lacks as nulls."""
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))
        for batch in batches:
            for url, said in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                where, _, name = url.rpartition("/")
                values = json.loads(said)
                with Folder(where, self.options).open_read(name) as stream:
                    for rows in pq.ParquetFile(stream).iter_batches():
                        yield from with_values(fitted(rows, schema), values, schema).to_batches()


def read_frame(
    spark: Any, urls: Sequence[str], schema: pa.Schema, options: Mapping[str, Any],
    values: Sequence[Mapping[str, str | None]] = (),
) -> Any:  # fmt: skip
    """Parquet files as a DataFrame with these columns, in the tasks.

    Spark reads files of this machine itself. For an object store it would want a jar, and would ask for a login that only
    fsspec was told: there the tasks read as they write, and so they do where `values` says, file by file, what the columns
    of its partition are.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema)
    if not urls:
        return spark.createDataFrame([], columns)
    if not any(values) and all(url.startswith(LOCAL) for url in urls):
        return spark.read.schema(columns).parquet(*urls)
    said = [json.dumps(one) for one in values] or ["{}"] * len(urls)
    names = spark.createDataFrame(list(zip(urls, said, strict=True)), "url string, partition string")
    return names.mapInArrow(ReadFiles(options, schema), columns)
