"""RecordBatches to Arrow columns, without a Python object per record.

What is done once per record is done by compiled kernels (`arrow_decode_kernels`): one pass checks the records and copies
keys and values straight into Arrow's buffers.

Arrays are made of buffers, never of Python's values: for those pyarrow loads pandas, at a cost to every task.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.records.batch import (
    HEADER_BYTES,
    TIMESTAMP_MS_MAX,
    Buffer,
    check_batch,
    iter_batches,
    read_header,
)
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX
from antiphon.records.decode import plain_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_NONE: Final = np.empty(0, np.int64)
_ARROW_BYTES_MAX: Final = 2**31 - 1
_HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TIMESTAMP: Final = pa.timestamp("us", "UTC")

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
        ("term", pa.int64()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.insert(7, pa.field("headers", pa.list_(_HEADER_TYPE)))

_NUMBERS: Final = {
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "timestampType": pa.int32(),
    "term": pa.int64(),
}
_VERSIONS: Final = {
    "version": pa.int64(),
    "modifications": pa.int64(),
    "created": _TIMESTAMP,
    "modified": _TIMESTAMP,
}
# Of the table of batches that kernels take.
_SIZE, _COUNT, _BASE_OFFSET, _BATCH_FIELDS = 1, 2, 3, 10
_PROBLEMS: Final = (  # by what `decode_records` returns
    "",
    "a record has an impossible length",
    "a record's fields do not fill it, or reach beyond it",
    "a record's offset lies outside of its batch",
    "the records do not fill the batch",
)


class Decoded(NamedTuple):
    """Columns by name, each of so many rows."""

    rows: int
    columns: dict[str, pa.Array]


def to_arrow(
    batches: Iterable[Buffer],
    *,
    start: int,
    end: int,
    topic: str,
    partition: int,
    include_headers: bool = False,
) -> pa.RecordBatch:
    """Records with start <= offset < end, control batches left out, as columns.

    Columns: key binary, value binary, topic string, partition int32, offset int64, timestamp timestamp[us, UTC],
    timestampType int32 (0: the producer's, 1: the log's), headers list<struct<key: string, value: binary>> if asked for,
    term int64. Timestamps that microseconds cannot hold are cut to the nearest that they can.

    Args:
        batches: buffers of one or more whole batches each, in the order of their offsets.
        start: first offset wanted.
        end: offset after the last one wanted.
        topic: value of that column.
        partition: value of that column.
        include_headers: add the column `headers`.

    Raises:
        CorruptBatchError: a batch or its records are not valid.
        InvalidRequestError: more than 2^31-1 bytes at once; ask for less.
    """
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    found = decode(batches, start=start, end=end, columns=schema.names)
    place = constants(found.rows, topic, partition)
    return pa.RecordBatch.from_arrays(
        [place[name] if name in place else found.columns[name] for name in schema.names], schema=schema
    )


def constants(rows: int, topic: str, partition: int) -> dict[str, pa.Array]:
    """The columns that say where rows came from."""
    name = topic.encode()
    edges = np.arange(rows + 1, dtype=np.int32) * np.int32(len(name))
    topics = [None, pa.py_buffer(edges), pa.py_buffer(name * rows)]
    return {
        "topic": pa.Array.from_buffers(pa.string(), rows, topics, 0),
        "partition": array_of(np.full(rows, partition, np.int32), pa.int32()),
    }


def array_of(numbers: "NDArray[Any]", kind: pa.DataType | None = None) -> pa.Array:
    """Numbers as a column: int64 (default), or any type whose values are laid out as these are."""
    if kind is None:
        kind, numbers = pa.int64(), numbers.astype(np.int64)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))], 0)


def texts(values: Sequence[str]) -> pa.Array:
    """A column of a few texts."""
    encoded = [value.encode() for value in values]
    edges = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(edges), pa.py_buffer(b"".join(encoded))], 0
    )


def binaries(values: Sequence[bytes]) -> pa.Array:
    """A binary column of a few values, none of them null."""
    edges = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=edges[1:])
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(edges), data], 0)


def version_columns(versions: Any) -> dict[str, pa.Array]:
    """(version id, modifications, created ms, modified ms) per row, as columns."""
    numbers = np.asarray(versions, np.int64).reshape(-1, 4)
    times_us = np.clip(numbers[:, 2:], -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX) * 1000
    return {
        "version": array_of(numbers[:, 0]),
        "modifications": array_of(numbers[:, 1]),
        "created": array_of(times_us[:, 0], _TIMESTAMP),
        "modified": array_of(times_us[:, 1], _TIMESTAMP),
    }


def int64_view(column: pa.Array) -> "Ints":
    """The values of an int64 or timestamp column; anything where it is null."""
    return (
        np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset) if len(column) else _NONE
    )


def null_rows(column: pa.Array) -> "NDArray[np.bool_]":
    """Which rows are null."""
    validity = column.buffers()[0]
    if validity is None or column.null_count == 0:
        return np.zeros(len(column), bool)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    nulls: NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] == 0
    return nulls


def decode(
    batches: Iterable[Buffer],
    *,
    start: int,
    end: int,
    columns: Collection[str],
    changes: bool = False,
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> Decoded:
    """The columns that are asked for, of what `to_arrow` says but for topic and partition.

    With `changes`, only records that carry the version of a table's row (`antiphon.records.changes`), which is there as the
    columns version, modifications, created and modified too. Raises as `to_arrow` does.
    """
    decoder = _Decoder(*_collect(batches, start, end, limit_bytes), columns, changes=changes)
    decoder.run(start, end)
    return Decoded(decoder.rows, decoder.columns(columns))


def _collect(
    batches: Iterable[Buffer], start: int, end: int, limit_bytes: int
) -> "tuple[list[pa.Buffer], Ints]":
    """The table of data batches that reach into the range, for kernels, and what keeps their records alive."""
    kept: list[pa.Buffer] = []
    tables: list[Ints] = []
    size_bytes = 0
    for buffer in batches:
        if len(buffer):
            view = memoryview(buffer)
            table = _scan(view, start, end, kept, limit_bytes)
            tables.append(table)
            size_bytes += int(table[:, _SIZE].sum())
            if size_bytes > _ARROW_BYTES_MAX:
                raise InvalidRequestError(
                    f"{size_bytes} bytes of records at once, at most {_ARROW_BYTES_MAX} fit"
                )
    if len(tables) == 1:
        return kept, tables[0]
    return kept, np.concatenate(tables) if tables else np.empty((0, _BATCH_FIELDS), np.int64)


def _scan(view: memoryview, start: int, end: int, kept: list[pa.Buffer], limit_bytes: int) -> "Ints":
    """The table of one buffer's batches: all are checked, and compressed ones that are wanted are unpacked."""
    from antiphon.records import arrow_decode_kernels as kernels

    whole = pa.py_buffer(view)
    kept.append(whole)
    table = np.empty((len(view) // HEADER_BYTES + 1, _BATCH_FIELDS), np.int64)
    count, at = kernels.scan_batches(whole.address, len(view), start, end, table.ctypes.data)
    if at < len(view):
        raise _refusal(view[at:])
    table = table[:count]
    for row in np.flatnonzero(table[:, kernels.UNREAD] & (kernels.CHECK | kernels.UNPACK)).tolist():
        place = int(table[row, kernels.PLACE])
        header = read_header(view, place)
        batch = view[place : place + header.size_bytes]
        check_batch(header, batch)
        if table[row, kernels.UNREAD] & kernels.UNPACK:
            records = pa.py_buffer(plain_records(header, batch, limit_bytes))
            kept.append(records)
            table[row, kernels.ADDRESS], table[row, _SIZE] = records.address, records.size
    wanted: Ints = table[table[:, kernels.UNREAD] & kernels.SKIP == 0]
    return wanted


def _refusal(bad: memoryview) -> CorruptBatchError:
    """What is wrong with the batch that comes first."""
    try:
        header, batch = next(iter_batches(bad))
        check_batch(header, batch)
        plain_records(header, batch)
    except CorruptBatchError as error:
        return error
    return CorruptBatchError(f"batch at offset {header.base_offset} cannot be read")


class _Pieces:
    """Room for a column of bytes."""

    def __init__(self, rows: int, size_bytes: int) -> None:
        self._offsets = pa.allocate_buffer(4 * (rows + 1))
        self._data = pa.allocate_buffer(size_bytes)
        self._bitmap = pa.py_buffer(bytearray((rows + 7) // 8))
        self.target = (self._offsets.address, self._data.address, self._bitmap.address)

    def array(self, kind: pa.DataType, rows: int, size_bytes: int, nulls: int) -> pa.Array:
        """What was written."""
        validity = self._bitmap if nulls else None
        return pa.Array.from_buffers(
            kind, rows, [validity, self._offsets, self._data.slice(0, size_bytes)], nulls
        )


class _Decoder:
    """Runs the kernels over the records of batches that were checked, and holds what they write."""

    def __init__(
        self, kept: list[pa.Buffer], table: "Ints", wanted: Collection[str], *, changes: bool
    ) -> None:
        self._kept = kept  # what the table has addresses of
        self._table = table
        self.rows = 0
        records = int(table[:, _COUNT].sum())
        size_bytes = int(table[:, _SIZE].sum())
        self._pieces = {name: _Pieces(records, size_bytes) for name in ("key", "value") if name in wanted}
        numbers = _NUMBERS | (_VERSIONS if changes else {})
        self._numbers = {
            name: pa.allocate_buffer(records * kind.bit_width // 8)
            for name, kind in numbers.items()
            if name in wanted or name in _VERSIONS
        }
        self._headers = (
            (pa.allocate_buffer(4 * (records + 1)), pa.allocate_buffer(8 * records))
            if "headers" in wanted
            else None
        )
        self._found: list[int] = []

    def run(self, start: int, end: int) -> None:
        """Check all records and decode those of the range."""
        if not len(self._table):
            return
        from antiphon.records import arrow_decode_kernels as kernels

        found = np.zeros(kernels.FOUND_FIELDS, np.int64)
        key, value = (
            self._pieces[name].target if name in self._pieces else (0, 0, 0) for name in ("key", "value")
        )
        headers = (self._headers[0].address, self._headers[1].address) if self._headers else (0, 0)
        problem = kernels.decode_records(
            self._table.ctypes.data,
            len(self._table),
            start,
            end,
            key,
            value,
            self._addresses(_NUMBERS),
            headers,
            self._addresses(_VERSIONS),
            found,
        )
        self._found = found.tolist()
        if problem:
            base_offset = self._table[self._found[kernels.BATCH], _BASE_OFFSET]
            raise CorruptBatchError(f"batch at offset {base_offset}: {_PROBLEMS[problem]}")
        self.rows = self._found[kernels.FOUND_ROWS]

    def _addresses(self, names: Iterable[str]) -> tuple[int, int, int, int]:
        """Of four columns of numbers; 0 where one is not wanted."""
        one, two, three, four = (
            int(self._numbers[name].address) if name in self._numbers else 0 for name in names
        )
        return one, two, three, four

    def columns(self, names: Collection[str]) -> dict[str, pa.Array]:
        """The columns that are asked for; the versions of changes are among them always."""
        if not self.rows:
            kinds = {field.name: field.type for field in SCHEMA_WITH_HEADERS} | _VERSIONS
            return {name: pa.nulls(0, kinds[name]) for name in (*names, *self._numbers) if name in kinds}
        from antiphon.records import arrow_decode_kernels as kernels

        sizes = {"key": kernels.KEY_BYTES, "value": kernels.VALUE_BYTES}
        found = {
            name: pieces.array(pa.binary(), self.rows, self._found[sizes[name]], self._found[sizes[name] + 1])
            for name, pieces in self._pieces.items()
        }
        kinds = _NUMBERS | _VERSIONS
        for name, buffer in self._numbers.items():
            found[name] = pa.Array.from_buffers(kinds[name], self.rows, [None, buffer], 0)
        if self._headers is not None:
            found["headers"] = self._headers_array(*self._headers)
        return found

    def _headers_array(self, lists: pa.Buffer, places: pa.Buffer) -> pa.Array:
        from antiphon.records import arrow_decode_kernels as kernels

        count, name_bytes, value_bytes = self._found[kernels.HEADERS : kernels.HEADER_VALUE_BYTES + 1]
        names, values = _Pieces(count, name_bytes), _Pieces(count, value_bytes)
        nulls = kernels.decode_headers(self.rows, lists.address, places.address, names.target, values.target)
        texts = names.array(pa.string(), count, name_bytes, 0)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptBatchError(f"a header's key is not UTF-8: {error}") from error
        pairs = pa.StructArray.from_arrays(
            [texts, values.array(pa.binary(), count, value_bytes, nulls)], fields=list(_HEADER_TYPE)
        )
        return pa.Array.from_buffers(pa.list_(_HEADER_TYPE), self.rows, [None, lists], 0, children=[pairs])
