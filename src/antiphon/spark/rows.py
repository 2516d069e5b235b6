"""From Arrow columns to what is appended: which shard a row goes to, and where batches are cut.

Both depend on the rows alone, in their order, so a task that is run again over the same rows sends the same batches, byte
for byte.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.client.hashing import shard_of_table_key, shard_of_topic_key
from antiphon.errors import InvalidRequestError, UnknownShardError

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC_COLUMNS: Final = ("key", "value", "headers", "partition", "shard", "timestamp")
TABLE_COLUMNS: Final = ("key", "value")
_BYTES: Final = ("binary", "string")
_TYPES: Final = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "shard": ("int", "bigint", "smallint", "tinyint"),
    "timestamp": ("timestamp",),
}


class RowData(NamedTuple):
    """One row. `shard` None: by the key. `timestamp_ms` None: the epoch's."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    shard: int | None
    timestamp_ms: int | None

    @property
    def size_bytes(self) -> int:
        """About what it takes in a batch."""
        size = 16 + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += 4 + len(name) + len(value or b"")
        return size


def check_columns(schema: Any, *, table: bool) -> None:
    """Raise InvalidRequestError unless a DataFrame with this schema can be written."""
    allowed = TABLE_COLUMNS if table else TOPIC_COLUMNS
    kind = "table" if table else "topic"
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in allowed:
            near = difflib.get_close_matches(field.name, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else "select or rename the columns first"
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


def rows_of(batch: "pa.RecordBatch") -> Iterator[RowData]:
    """The rows of a batch whose columns passed `check_columns`."""
    count = batch.num_rows
    nothing: Sequence[None] = [None] * count
    names = batch.schema.names
    keys = _bytes(batch, "key") if "key" in names else nothing
    values = _bytes(batch, "value")
    headers = batch.column("headers").to_pylist() if "headers" in names else nothing
    place = "partition" if "partition" in names else "shard"
    shards = batch.column(place).to_pylist() if place in names else nothing
    times = _times_ms(batch.column("timestamp")) if "timestamp" in names else nothing
    for key, value, pairs, shard, time_ms in zip(keys, values, headers, shards, times, strict=True):
        yield RowData(key, value, _pairs(pairs) if pairs else (), shard, time_ms)


def _bytes(batch: "pa.RecordBatch", name: str) -> Sequence[bytes | None]:
    import pyarrow as pa

    column = batch.column(name)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _pairs(pairs: Sequence[dict[str, Any] | None]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((pair["key"] or "", pair["value"]) for pair in pairs if pair is not None)


def _times_ms(column: Any) -> list[int | None]:
    import pyarrow as pa

    found: list[int | None] = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if value is None else value // 1000 for value in found]


class Router:
    """Chooses shards: as asked for, else by the key, else one after the other by the row's place in its partition."""

    def __init__(self, name: str, shards: int, *, table: bool) -> None:
        self._name = name
        self._shards = shards
        self._by_key = shard_of_table_key if table else shard_of_topic_key
        self._known: dict[bytes, int] = {}
        self._row = 0

    def shard(self, row: RowData) -> int:
        """Index of the shard; raises UnknownShardError."""
        row_number = self._row
        self._row += 1
        if row.shard is not None:
            if not 0 <= row.shard < self._shards:
                raise UnknownShardError(
                    f"{self._name} has shards 0 to {self._shards - 1}, a row asks for {row.shard}"
                )
            return row.shard
        if row.key is None:
            return row_number % self._shards
        found = self._known.get(row.key)
        if found is None:
            if len(self._known) >= KNOWN_KEYS_MAX:
                self._known.clear()
            found = self._known[row.key] = self._by_key(row.key, self._shards)
        return found


KNOWN_KEYS_MAX: Final = 100_000


class Cutter:
    """Gathers rows per shard and cuts batches after so many rows or bytes."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._rows: dict[int, list[RowData]] = {}
        self._bytes: dict[int, int] = {}

    def add(self, shard: int, row: RowData) -> list[RowData] | None:
        """Take a row; the shard's batch, if the row completes it."""
        rows = self._rows.setdefault(shard, [])
        rows.append(row)
        size = self._bytes.get(shard, 0) + row.size_bytes
        if len(rows) < self._rows_max and size < self._bytes_max:
            self._bytes[shard] = size
            return None
        self._bytes[shard] = 0
        return self._rows.pop(shard)

    def rest(self) -> list[tuple[int, list[RowData]]]:
        """What is left, by shard."""
        left = sorted((shard, rows) for shard, rows in self._rows.items() if rows)
        self._rows, self._bytes = {}, {}
        return left
