"""A task's rows as requests of a bulk load: Arrow columns go in, packed rows come out, no row is touched by itself.

Where requests are cut depends on the rows and their order alone, not on how they came in Arrow batches: a task that is run
again makes the same requests.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from antiphon.records.packed_rows import LENGTHS_BYTES, REMOVED
from antiphon.spark.jobs.digests import Digest, digest_of_packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW_OVERHEAD_BYTES: Final = 16


class Request(NamedTuple):
    """Rows that are sent together. `removals` of them are removals; `size_bytes` with what each row costs besides."""

    payload: bytes
    rows: int
    removals: int
    size_bytes: int

    @property
    def content_bytes(self) -> int:
        """Of keys and values."""
        return len(self.payload) - LENGTHS_BYTES * self.rows

    @property
    def checksum(self) -> int:
        """Of the content, as `shard_writers.table_request` has it."""
        lengths = np.frombuffer(self.payload, ">i4", 2 * self.rows).astype(">i8")
        return crc32c(memoryview(self.payload)[LENGTHS_BYTES * self.rows :], crc32c(lengths.tobytes()))

    def digest(self) -> Digest:
        """Of the rows that are put."""
        return digest_of_packed(self.payload, self.rows)


class RequestMaker:
    """Makes requests of at most `rows_max` rows, and of about `bytes_max` bytes. Rows come sorted by key.

    Attributes:
        superseded: rows that were left out, since their key came again.
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self.superseded = 0
        self._last: tuple[pa.Array, pa.Array] | None = None  # the last row; its key may come again
        self._lengths: list[bytes] = []
        self._content: list[bytes] = []
        self._rows = self._removals = self._size_bytes = 0

    def add(self, keys: pa.Array, values: pa.Array) -> Iterator[Request]:
        """Take rows, one or more; the requests that they complete."""
        if self._last is not None:
            keys, values = (
                pa.concat_arrays([one, more]) for one, more in zip(self._last, (keys, values), strict=True)
            )
        end = len(keys) - 1
        self._last = keys.slice(end), values.slice(end)
        if end:
            is_newest = pc.not_equal(keys.slice(0, end), keys.slice(1))
            keys, values = keys.slice(0, end).filter(is_newest), values.slice(0, end).filter(is_newest)
            self.superseded += end - len(keys)
            yield from self._cut(keys, values)

    def rest(self) -> Iterator[Request]:
        """What is left."""
        if self._last is not None:
            last, self._last = self._last, None
            yield from self._cut(*last)
        if self._rows:
            yield self._made()

    def _cut(self, keys: pa.Array, values: pa.Array) -> Iterator[Request]:
        rows = _PackedColumns(keys, values)
        at, count = 0, len(keys)
        while at < count:
            full_at = rows.weights[at] + self._bytes_max - self._size_bytes
            full = min(at + self._rows_max - self._rows, int(np.searchsorted(rows.weights, full_at)))
            end = min(full, count)
            lengths = rows.lengths[at:end]
            self._lengths.append(lengths.tobytes())
            self._content.append(rows.content(at, end))
            self._rows += end - at
            self._removals += int((lengths[:, 1] == REMOVED).sum())
            self._size_bytes += int(rows.weights[end] - rows.weights[at])
            at = end
            if end == full:
                yield self._made()

    def _made(self) -> Request:
        made = Request(
            b"".join([*self._lengths, *self._content]), self._rows, self._removals, self._size_bytes
        )
        self._lengths, self._content = [], []
        self._rows = self._removals = self._size_bytes = 0
        return made


class _PackedColumns:
    """Rows of an Arrow batch. `weights[n]`: what the first n rows come to, in bytes with what each costs besides."""

    def __init__(self, keys: pa.Array, values: pa.Array) -> None:
        rows = len(keys)
        self.lengths: NDArray[np.int32] = np.empty((rows, 2), ">i4")
        self.lengths[:, 0] = pc.binary_length(keys).to_numpy(zero_copy_only=False)
        self.lengths[:, 1] = pc.fill_null(pc.binary_length(values), REMOVED).to_numpy(zero_copy_only=False)
        self._ends = np.zeros(rows + 1, np.int64)
        np.cumsum(np.maximum(self.lengths, 0).sum(axis=1, dtype=np.int64), out=self._ends[1:])
        self.weights = self._ends + ROW_OVERHEAD_BYTES * np.arange(rows + 1)
        columns = [column.cast(pa.large_binary()) for column in (keys, values)]
        nothing = pa.scalar(b"", pa.large_binary())
        # `replace`: a removal has no value, and its key is there all the same
        joined = pc.binary_join_element_wise(*columns, nothing, null_handling="replace", null_replacement=b"")
        _, offsets, data = joined.buffers()
        start = int(np.frombuffer(offsets, np.int64, 1, 8 * joined.offset)[0])
        self._data = memoryview(data)[start:] if data is not None else memoryview(b"")

    def content(self, at: int, end: int) -> bytes:
        """Keys and values of the rows from `at` to before `end`."""
        return bytes(self._data[int(self._ends[at]) : int(self._ends[end])])
