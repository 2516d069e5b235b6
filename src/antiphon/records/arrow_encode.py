"""Rows of Arrow columns as RecordBatches, and the shards that keys belong to, without a Python object per row.

The batches are byte for byte those of `antiphon.records.builder.build_batch`. Where they are cut depends on the rows of a
shard and their order alone, not on how the rows came in Arrow batches, so a task that is run again over the same rows makes
the same batches.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from antiphon.errors import BatchTooLargeError, InvalidRequestError
from antiphon.records.arrow import int64_view, null_rows
from antiphon.records.batch import BATCH_BYTES_MAX, HEADER_BYTES, HEADER_STRUCT, LENGTH_PREFIX_BYTES, MAGIC
from antiphon.records.builder import recompress, seal
from antiphon.records.compression import codec_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from antiphon.records.arrow_encode_kernels import HeaderLists
    from antiphon.records.arrow_memory import BytesColumn

    Ints = NDArray[np.int64]

OPEN_BYTES_MAX: Final = 512 * 1024 * 1024  # over the batches of all shards that are not complete yet
_BATCH_BYTES_MIN: Final = 4 * 1024
_OPEN_BYTES_MIN: Final = 16 * 1024
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_MS_OF_UNIT: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


class Encoded(NamedTuple):
    """A batch that is complete but for base offset and term. `first_row` counts the encoder's rows for that shard."""

    shard: int
    first_row: int
    rows: int
    batch: bytearray


class BatchEncoder:
    """Gathers rows per shard and makes batches of them.

    A batch has at most `rows_max` rows, and at most `bytes_max` bytes before compression unless a single row takes more.
    The memory for batches that are not complete is at most `OPEN_BYTES_MAX`: with very many shards, batches are cut earlier.
    With a `producer_id`, batches carry it, `producer_epoch`, and as sequence the row's place among the shard's rows.
    """

    def __init__(
        self,
        shards: int,
        rows_max: int,
        bytes_max: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        compression: str = "none",
    ) -> None:
        """Raises InvalidRequestError for limits below 1 and unknown compressions."""
        if min(shards, rows_max, bytes_max) < 1:
            raise InvalidRequestError(
                f"{shards} shards, batches of at most {rows_max} rows and {bytes_max} bytes: each is at least 1"
            )
        self._shards = shards
        self._rows_max = rows_max
        self._bytes_max = min(bytes_max, max(_BATCH_BYTES_MIN, OPEN_BYTES_MAX // shards), BATCH_BYTES_MAX)
        self._producer = (producer_id, producer_epoch)
        self._codec = codec_number(compression)
        self._open: dict[int, _Open] = {}
        self._rows_made: dict[int, int] = {}
        self._typical_bytes = _OPEN_BYTES_MIN

    def add(
        self,
        batch: pa.RecordBatch,
        shard_of_row: "NDArray[np.int32]",
        default_time_ms: int | Callable[[], int],
    ) -> list[Encoded]:
        """Take rows; the batches that they complete, those of one shard in order.

        Args:
            batch: columns key and value (binary or string; either may be missing or null), and if there are any headers
                (list of struct of key and value) and timestamp.
            shard_of_row: index of the shard of each row.
            default_time_ms: the timestamp of rows that have none; a function is called only if there is such a row.

        Raises:
            InvalidRequestError: a column has another type, or a shard does not exist.
            BatchTooLargeError: a row of more than 2^31-1 bytes.
        """
        from antiphon.records.arrow_encode_kernels import group_rows

        shard_of_row = np.array(shard_of_row, np.int32)  # one that can be written to, as kernels want it
        if len(shard_of_row) != batch.num_rows:
            raise InvalidRequestError(f"{batch.num_rows} rows, but shards for {len(shard_of_row)}")
        if batch.num_rows == 0:
            return []
        if shard_of_row.min() < 0 or shard_of_row.max() >= self._shards:
            wrong = shard_of_row[(shard_of_row < 0) | (shard_of_row >= self._shards)][0]
            raise InvalidRequestError(f"a row asks for shard {wrong}, there are 0 to {self._shards - 1}")
        columns = _Columns(batch, default_time_ms)
        rows, starts = group_rows(shard_of_row, self._shards)
        made: list[Encoded] = []
        for shard in np.flatnonzero(np.diff(starts)).tolist():
            self._encode(shard, rows, (int(starts[shard]), int(starts[shard + 1])), columns, made)
        return made

    def rest(self) -> list[Encoded]:
        """What is left of all shards; afterwards more rows may be added, which begin new batches."""
        return [self._complete(shard) for shard in sorted(self._open)]

    def _encode(
        self, shard: int, rows: "Ints", span: tuple[int, int], columns: "_Columns", made: list[Encoded]
    ) -> None:
        from antiphon.records import arrow_encode_kernels as kernels

        at, end = span
        while at < end:
            filling = self._open.get(shard)
            if filling is None:
                filling = self._open[shard] = _Open(self._typical_bytes)
            at, reason = kernels.encode_rows(
                filling.address,
                filling.size,
                filling.state,
                rows.ctypes.data,
                at,
                end,
                *columns.arguments,
                self._rows_max,
                self._bytes_max,
            )
            if reason == kernels.GROW:
                filling.grow(self._bytes_max)
            elif reason == kernels.TOO_LARGE:
                raise BatchTooLargeError(
                    f"a row takes more than {BATCH_BYTES_MAX} bytes", limit_bytes=BATCH_BYTES_MAX
                )
            elif reason == kernels.FULL:
                made.append(self._complete(shard))

    def _complete(self, shard: int) -> Encoded:
        first = self._rows_made.get(shard, 0)
        producer_id, producer_epoch = self._producer
        sequence = first & _SEQUENCE_MASK if producer_id >= 0 else -1
        filled = self._open.pop(shard)
        rows, batch = filled.complete(producer_id, producer_epoch, sequence)
        self._typical_bytes = max(_OPEN_BYTES_MIN, min(len(batch) * 9 // 8, self._bytes_max))
        if self._codec:
            batch = recompress(batch, self._codec)
        else:
            seal(batch)
        self._rows_made[shard] = first + rows
        return Encoded(shard, first, rows, batch)


class _Open:
    """A batch that is being filled."""

    __slots__ = ("_buffer", "_view", "address", "size", "state")

    def __init__(self, size_bytes: int) -> None:
        from antiphon.records.arrow_encode_kernels import STATE_FIELDS, USED

        self._use(bytearray(size_bytes))
        self.state = np.zeros(STATE_FIELDS, np.int64)
        self.state[USED] = HEADER_BYTES

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = np.frombuffer(buffer, np.uint8)  # while there is a view, the bytes stay where they are
        self.address = self._view.ctypes.data
        self.size = len(buffer)

    def grow(self, bytes_max: int) -> None:
        """Make room for the row that did not fit; `bytes_max` is what a batch normally takes at most."""
        from antiphon.records.arrow_encode_kernels import NEEDED, USED

        larger = bytearray(max(int(self.state[NEEDED]), min(2 * self.size, bytes_max)))
        used = int(self.state[USED])
        larger[:used] = memoryview(self._buffer)[:used]
        self._use(larger)

    def complete(self, producer_id: int, producer_epoch: int, sequence: int) -> tuple[int, bytearray]:
        """Rows and bytes of the batch; its CRC is not set. The object is of no use any more."""
        used, rows, first_ms, max_ms, _ = self.state.tolist()
        batch = self._buffer
        del self._view, self.address
        del batch[used:]
        HEADER_STRUCT.pack_into(
            batch,
            0,
            0,
            used - LENGTH_PREFIX_BYTES,
            -1,
            MAGIC,
            0,
            0,
            rows - 1,
            first_ms,
            max_ms,
            producer_id,
            producer_epoch,
            sequence,
            rows,
        )
        return rows, batch


class _Columns:
    """The columns of an Arrow batch as kernels take them; keeps what the addresses point to."""

    def __init__(self, batch: pa.RecordBatch, default_time_ms: int | Callable[[], int]) -> None:
        self._kept: list[Any] = []
        names = batch.schema.names
        self._rows = batch.num_rows
        key, value = (
            self._bytes(batch.column(name), name) if name in names else self._all_null()
            for name in ("key", "value")
        )
        headers = self._headers(batch.column("headers") if "headers" in names else None)
        times_ms = _times_ms(
            batch.column("timestamp") if "timestamp" in names else None, self._rows, default_time_ms
        )
        self.arguments = (key, value, *headers, self._address(times_ms))

    def _address(self, array: "NDArray[Any]") -> int:
        self._kept.append(array)
        return int(array.ctypes.data)

    def _bytes(self, column: pa.Array, what: str) -> "BytesColumn":
        found, kept = bytes_column(column, what)
        self._kept.append(kept)
        return found

    def _all_null(self) -> "BytesColumn":
        return 0, 0, 0, self._address(np.zeros((self._rows + 7) // 8, np.uint8)), 0

    def _headers(self, column: pa.Array | None) -> "tuple[HeaderLists, BytesColumn, BytesColumn]":
        """Where each row's headers are among all, and their columns of names and values."""
        if column is None:
            return (0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)
        kind = column.type
        wide = pa.types.is_large_list(kind)
        if not (wide or pa.types.is_list(kind)) or not pa.types.is_struct(kind.value_type):
            raise InvalidRequestError(f"headers are a list of structs of key and value, not {kind}")
        fields = [field.name for field in kind.value_type]
        if sorted(fields) != ["key", "value"]:
            raise InvalidRequestError(f"headers are structs of key and value, not of {', '.join(fields)}")
        column.validate()
        pairs = column.values
        names = pairs.field(fields.index("key"))
        try:
            names = names if pa.types.is_string(names.type) else names.cast(pa.large_string())
            names.validate(full=True)
        except pa.ArrowException as error:
            raise InvalidRequestError(f"a header's key is text: {error}") from error
        self._kept += (column, pairs)
        first = column.buffers()[1].address + column.offset * (8 if wide else 4)
        lists = first, int(wide), _bitmap(column), column.offset, _bitmap(pairs), pairs.offset
        values = pairs.field(fields.index("value"))
        return lists, self._bytes(names, "header's key"), self._bytes(values, "header's value")


def shards_by_key(column: pa.Array, shards: int, *, table: bool) -> "NDArray[np.int32]":
    """The shard of each key: as Kafka's default partitioner has it, or as tables of so many shards do; null keys give -1.

    A table that was split has its own ranges: count the shards that it was made with. Raises InvalidRequestError.
    """
    if shards < 1:
        raise InvalidRequestError(f"{shards} shards: there is at least 1")
    if not table:
        from antiphon.records.arrow_hash_kernels import topic_hashes

        keys, kept = bytes_column(column, "key")
        hashes = topic_hashes(keys, len(kept))
        return np.where(hashes < 0, -1, hashes % shards).astype(np.int32)
    hashes = key_hashes(column)
    last_of_shard = (np.arange(1, shards + 1, dtype=np.uint64) << np.uint64(32)) // np.uint64(shards) - 1
    found = np.searchsorted(last_of_shard.astype(np.int64), hashes)
    return np.where(hashes < 0, -1, found).astype(np.int32)


def key_hashes(column: pa.Array) -> "Ints":
    """The hashes that place keys of tables (`model.metadata.key_hash`); -1 for null. Raises InvalidRequestError."""
    from antiphon.records.arrow_hash_kernels import LONG_KEY, table_hashes

    keys, kept = bytes_column(column, "key")
    hashes = table_hashes(keys, len(kept))
    for row in np.flatnonzero(hashes == LONG_KEY).tolist():
        hashes[row] = xxh3_64_intdigest(kept[row].as_buffer()) & 0xFFFF_FFFF
    return hashes


def compile_kernels() -> None:
    """Compile everything between Arrow and record batches, where that was not done yet: some seconds, once.

    Without it the first task of an installation takes that time.
    """
    from antiphon.records.arrow import SCHEMA_WITH_HEADERS, decode

    keys = pa.array([b"k"])
    rows = pa.RecordBatch.from_arrays(
        [keys, pa.array([[{"key": "h", "value": b"v"}]])], names=["key", "headers"]
    )
    encoder = BatchEncoder(1, 1, _BATCH_BYTES_MIN)
    for table in (False, True):
        (made,) = encoder.add(rows, shards_by_key(keys, 1, table=table), 0)
        decode([made.batch], start=0, end=1, columns=SCHEMA_WITH_HEADERS.names, changes=table)


def bytes_column(column: pa.Array, what: str) -> "tuple[BytesColumn, pa.Array]":
    """A column of bytes or text as kernels take it, and the array that keeps its bytes alive.

    Raises InvalidRequestError for other types; `what` is its name in the message.
    """
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind) or _is_large(kind)):
        try:
            column = column.cast(pa.large_binary())
        except pa.ArrowException as error:
            raise InvalidRequestError(f"a {what} is binary or string, not {kind}") from error
    column.validate()
    _, offsets, data = column.buffers()
    wide = int(_is_large(column.type))
    first_offset = 0 if offsets is None else offsets.address + column.offset * (8 if wide else 4)
    return (first_offset, wide, 0 if data is None else data.address, _bitmap(column), column.offset), column


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def _bitmap(column: pa.Array) -> int:
    validity = column.buffers()[0]
    return 0 if validity is None or column.null_count == 0 else int(validity.address)


def _times_ms(column: pa.Array | None, rows: int, default_time_ms: int | Callable[[], int]) -> "Ints":
    if column is None or column.null_count == rows:
        return np.full(rows, _default(default_time_ms), np.int64)
    if not pa.types.is_timestamp(column.type):
        raise InvalidRequestError(f"a timestamp column has the type timestamp, not {column.type}")
    times_ms = int64_view(column)
    factor, divisor = _MS_OF_UNIT[column.type.unit]
    times_ms = times_ms * factor if divisor == 1 else times_ms // divisor
    if column.null_count:
        times_ms[null_rows(column)] = _default(default_time_ms)
    return times_ms


def _default(time_ms: int | Callable[[], int]) -> int:
    return time_ms() if callable(time_ms) else time_ms
