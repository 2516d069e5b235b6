"""From Arrow columns to what is written: which columns there may be, and for tables the rows, one by one.

An error about a row has the row's place in its task as the detail `row`: the same row is refused however often it is tried.

Which shard a row goes to and where batches are cut depends on the rows alone, in their order, so a task that is run again
over the same rows sends the same batches, byte for byte. (Rows of topics stay columns: `topic_rows`.)
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from antiphon.client.given import meant
from antiphon.errors import BatchTooLargeError, InvalidRequestError
from antiphon.spark.job import Job

if TYPE_CHECKING:
    import pyarrow as pa

EXPECTED: Final = "expectedOffset"
TOPIC_COLUMNS: Final = ("key", "value", "headers", "partition", "shard", "timestamp", EXPECTED)
TABLE_COLUMNS: Final = ("key", "value")
TABLE_KEY_BYTES_MAX: Final = 64 * 1024
ROW_ROOM_BYTES: Final = (
    100  # of a row in a table's log, besides its key and value: lengths, times and its version
)
_INTEGERS: Final = ("int", "bigint", "smallint", "tinyint")
_BYTES: Final = ("binary", "string")
_TYPES: Final = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": _INTEGERS,
    "shard": _INTEGERS,
    "timestamp": ("timestamp",),
    EXPECTED: _INTEGERS,
}


class RowData(NamedTuple):
    """One row of a table; a value of None deletes the key."""

    key: bytes | None
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """About what it takes in the table's log, and never more."""
        return ROW_ROOM_BYTES + len(self.key or b"") + len(self.value or b"")


def check_columns(schema: Any, *, table: bool) -> None:
    """Raise InvalidRequestError unless a DataFrame with this schema can be written."""
    allowed = TABLE_COLUMNS if table else TOPIC_COLUMNS
    kind = "table" if table else "topic"
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in allowed:
            hint = meant(field.name, allowed, otherwise="select or rename the columns first")
            raise InvalidRequestError(
                f"column {field.name!r} cannot be written to a {kind}, which takes {', '.join(allowed)}; {hint}"
            )
        found = field.dataType.simpleString()
        if found not in _TYPES[field.name]:
            raise InvalidRequestError(
                f"column {field.name} has type {found}, it has to be {' or '.join(_TYPES[field.name])}"
            )
    needed = TABLE_COLUMNS if table else ("value",)
    for name in needed:
        if name not in names:
            raise InvalidRequestError(
                f"a {kind} needs a column {name}; there is {', '.join(names) or 'none'}"
            )
    if "partition" in names and "shard" in names:
        raise InvalidRequestError("partition and shard are two names of one thing; give one of the columns")


class TableRows:
    """Rows of a task, gathered by the shards that the table was made with and cut after so many rows or bytes."""

    def __init__(self, job: Job, shards: int, rows_max: int, bytes_max: int, limit_bytes: int) -> None:
        """`limit_bytes` is the largest entry that the table takes."""
        self._job = job
        self._shards = shards
        self._rows_max = rows_max
        self._bytes_max = min(bytes_max, limit_bytes)
        self._limit_bytes = limit_bytes
        self._open: dict[int, list[RowData]] = {}
        self._bytes: dict[int, int] = {}
        self.rows = 0

    def add(self, batch: "pa.RecordBatch") -> Iterator[tuple[int, list[RowData]]]:
        """Take rows whose columns passed `check_columns`; gives what they complete, as (shard, rows)."""
        from antiphon.records.arrow_encode import shards_by_key

        keys = _bytes(batch, "key")
        shards = shards_by_key(keys, self._shards, table=True).tolist()
        values = _bytes(batch, "value").to_pylist()
        gathered, filled, bytes_max = self._open, self._bytes, self._bytes_max
        for shard, key, value in zip(shards, keys.to_pylist(), values, strict=True):
            size = ROW_ROOM_BYTES + len(key or b"") + len(value or b"")
            if key is None or size > self._limit_bytes or len(key) > TABLE_KEY_BYTES_MAX:
                self._refuse(key, size)
            rows = gathered.get(shard)
            if rows is not None and filled[shard] + size > bytes_max:
                yield shard, rows
                rows = None
            if rows is None:
                rows = gathered[shard] = []
                filled[shard] = 0
            rows.append(RowData(key, value))
            filled[shard] += size
            if len(rows) >= self._rows_max:
                del gathered[shard]
                yield shard, rows
            self.rows += 1

    def rest(self) -> Iterator[tuple[int, list[RowData]]]:
        """What is left, by shard."""
        left, self._open, self._bytes = sorted(self._open.items()), {}, {}
        yield from left

    def _refuse(self, key: bytes | None, size_bytes: int) -> NoReturn:
        if key is None:
            raise InvalidRequestError(
                f"{self._job}: row {self.rows} has no key; a row without a key cannot be put in a table",
                row=self.rows,
            )
        if len(key) > TABLE_KEY_BYTES_MAX:
            raise InvalidRequestError(
                f"{self._job}: row {self.rows} has a key of {len(key)} bytes, a table takes {TABLE_KEY_BYTES_MAX}",
                row=self.rows,
            )
        raise BatchTooLargeError(
            f"{self._job}: row {self.rows} takes {size_bytes} bytes, the table takes {self._limit_bytes} "
            "(max.message.bytes)",
            size_bytes=size_bytes,
            limit_bytes=self._limit_bytes,
            row=self.rows,
        )


def _bytes(batch: "pa.RecordBatch", name: str) -> Any:
    import pyarrow as pa

    column = batch.column(name)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
