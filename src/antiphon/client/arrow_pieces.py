"""Records and rows as Arrow columns, and columns as what is written. Imports pyarrow and numpy: loaded when it is needed."""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from antiphon.client.on_unreadable import PassOver
from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.model.rows import Row
from antiphon.records.arrow import array_of, binaries, decode, int64_view, version_columns
from antiphon.records.arrow_encode import BatchEncoder, shards_by_key
from antiphon.records.batch import Buffer
from antiphon.records.decode import BadBatch
from antiphon.records.unreadable import each_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIME: Final = pa.timestamp("us", "UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORDS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
    ]
)
RECORDS_WITH_HEADERS: Final = RECORDS.append(pa.field("headers", _HEADERS))
ROWS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("version", pa.int64()),
        ("modifications", pa.int64()),
        ("created", _TIME),
        ("modified", _TIME),
        ("session_id", pa.int64()),
    ]
)
SLICE_ROWS: Final = 50_000  # that are encoded at once
OFFSET_MAX: Final = 2**63 - 1


class ArrowPieces:
    """What is read of one shard, as record batches."""

    def __init__(self, passing: PassOver, *, headers: bool) -> None:
        self._passing = passing
        self._shard = passing.shard
        self._schema = RECORDS_WITH_HEADERS if headers else RECORDS

    async def decode(self, chunk: memoryview) -> "AsyncGenerator[pa.RecordBatch, None]":
        """The records of a chunk at once, or batch by batch where one of them cannot be read.

        Raises CorruptBatchError with topic, shard and offset.
        """
        try:
            whole = self._rows(chunk)
        except CorruptBatchError:
            pass
        else:
            yield whole
            return
        try:
            for found in each_batch(chunk, self._rows):
                if isinstance(found, BadBatch):
                    await self._passing.deal(found)
                else:
                    yield found
        except CorruptBatchError as error:
            if "topic" in error.details:
                raise
            message = f"{self._passing.topic} shard {self._shard}: {error.message}"
            details = {**error.details, "topic": self._passing.topic, "shard": self._shard}
            raise type(error)(message, **details) from error

    def _rows(self, batches: Buffer) -> "pa.RecordBatch":
        limit_bytes = self._passing.limit_bytes
        names = self._schema.names
        found = decode([batches], start=0, end=OFFSET_MAX, columns=names, limit_bytes=limit_bytes)
        return self._batch(found.columns, found.rows)

    def within(self, batch: "pa.RecordBatch", start: int, end: int | None) -> "pa.RecordBatch | None":
        """Those with start <= offset < end; None without any."""
        bounds = (start, OFFSET_MAX if end is None else end)
        first, last = np.searchsorted(int64_view(batch.column("offset")), bounds).tolist()
        return batch.slice(first, last - first) if last > first else None

    def archived(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Rows of an archived file."""
        names = [name for name in self._schema.names if name != "shard"]
        columns = {name: batch.column(name).cast(self._schema.field(name).type) for name in names}
        return self._batch(columns, batch.num_rows)

    def _batch(self, columns: dict[str, Any], rows: int) -> "pa.RecordBatch":
        columns["shard"] = array_of(np.full(rows, self._shard, np.int32), pa.int32())
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


def rows_batch(rows: Sequence[Row]) -> "pa.RecordBatch":
    """Rows of a table, with their values, as columns."""
    versions = np.empty((len(rows), 4), np.int64)
    for at, name in enumerate(("id", "modifications", "created_ms", "modified_ms")):
        versions[:, at] = [getattr(row.version, name) for row in rows]
    columns = version_columns(versions)
    columns["key"] = binaries([row.key for row in rows])
    columns["value"] = binaries([row.value for row in rows])
    columns["session_id"] = pa.array([row.session_id for row in rows], pa.int64())
    return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)


def table_of(batches: "Sequence[pa.RecordBatch]", schema: "pa.Schema") -> "pa.Table":
    """All batches as one table."""
    return pa.Table.from_batches(batches, schema)


def batches_of(data: Any) -> "Iterator[pa.RecordBatch]":
    """Record batches of bounded size of what a program gives: a Table, a RecordBatch, several of those, a reader, or any
    object that exports Arrow (a DataFrame of Polars, for instance). A DataFrame of pandas is converted.

    Raises InvalidRequestError for anything else.
    """
    if isinstance(data, pa.RecordBatch):
        for at in range(0, data.num_rows, SLICE_ROWS):
            yield data.slice(at, SLICE_ROWS)
    elif isinstance(data, pa.Table):
        for batch in data.to_batches(max_chunksize=SLICE_ROWS):
            yield from batches_of(batch)
    elif hasattr(data, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(data):
            yield from batches_of(batch)
    elif hasattr(data, "iloc"):
        yield from batches_of(pa.Table.from_pandas(data, preserve_index=False))
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        for one in data:
            yield from batches_of(one)
    else:
        raise InvalidRequestError(
            f"give a table or record batches of Arrow, or a DataFrame, not {type(data).__name__}"
        )


def checked(batch: "pa.RecordBatch", *needed: str) -> "pa.RecordBatch":
    """The batch, if it has these columns. Raises InvalidRequestError."""
    for name in needed:
        if name not in batch.schema.names:
            names = ", ".join(batch.schema.names) or "none"
            raise InvalidRequestError(f"there is no column {name!r}; the columns are {names}")
    return batch


class ArrowToBatches:
    """Makes record batches of a topic's shards of rows. `rows` counts those that were taken."""

    def __init__(self, shards: int, shard: int | None, limit_bytes: int, compression: str, producer_id: int):
        """With `shard` all rows go there; else keys decide, and rows without a key are spread."""
        self._shards = shards
        self._shard = shard
        self._encoder = BatchEncoder(
            shards,
            SLICE_ROWS,
            limit_bytes,
            producer_id=producer_id,
            producer_epoch=0,
            compression=compression,
        )
        self.rows = 0

    def add(self, batch: "pa.RecordBatch", now_ms: int) -> dict[int, list[bytearray]]:
        """The batches that come of these rows, by shard, in order. Raises InvalidRequestError, BatchTooLargeError."""
        made: dict[int, list[bytearray]] = {}
        encoded = self._encoder.add(checked(batch, "value"), self._shards_of(batch), now_ms)
        for one in [*encoded, *self._encoder.rest()]:
            made.setdefault(one.shard, []).append(one.batch)
        self.rows += batch.num_rows
        return made

    def _shards_of(self, batch: "pa.RecordBatch") -> "NDArray[np.int32]":
        if self._shard is not None:
            return np.full(batch.num_rows, self._shard, np.int32)
        in_turn = ((self.rows + np.arange(batch.num_rows)) % self._shards).astype(np.int32)
        if "key" not in batch.schema.names:
            return in_turn
        by_key = shards_by_key(batch.column("key"), self._shards, table=False)
        return np.where(by_key < 0, in_turn, by_key)


def puts_of(batch: "pa.RecordBatch") -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table's rows. Raises InvalidRequestError."""
    columns = []
    for name in ("key", "value"):
        column = checked(batch, name).column(name)
        if column.null_count:
            raise InvalidRequestError(f"a row of a table has a {name}: column {name!r} has nulls")
        try:
            columns.append(column.cast(pa.binary()).to_pylist())
        except pa.ArrowException:
            raise InvalidRequestError(f"a {name} is binary or string, not {column.type}") from None
    yield from zip(*columns, strict=True)
