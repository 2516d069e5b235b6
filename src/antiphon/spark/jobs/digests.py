"""Digests of rows: equal for the same rows in whatever order, partitions and place they are.

A row's hash is over key and value with the key's length in front; the digest is their sum modulo 2^64 and their number. So
what was read can be compared with what arrived without bringing either to one place.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from antiphon.records.packed_rows import LENGTHS_BYTES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_LENGTH: Final = struct.Struct(">q")
_MASK: Final = (1 << 64) - 1


class Digest(NamedTuple):
    """Of some rows."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: object) -> "Digest":
        """Of both together."""
        if not isinstance(other, Digest):
            return NotImplemented
        return Digest(self.rows + other.rows, (self.total + other.total) & _MASK)

    def __str__(self) -> str:
        return f"{self.rows:,} rows, digest {self.total:016x}"


def row_hash(key: bytes, value: bytes) -> int:
    """64 bits."""
    return xxh3_64_intdigest(_LENGTH.pack(len(key)) + key + value)


def digest_of(rows: Iterable[tuple[bytes, bytes | None]]) -> Digest:
    """Of rows; those without a value are deletions and do not count."""
    count = total = 0
    for key, value in rows:
        if value is not None:
            count += 1
            total += row_hash(key, value)
    return Digest(count, total & _MASK)


def digest_of_packed(payload: bytes, rows: int) -> Digest:
    """The same of packed rows (`records.packed_rows`)."""
    import numpy as np

    from antiphon.records.arrow_hash_kernels import XXH3_BYTES_MAX, packed_hashes

    source, room = np.frombuffer(payload, np.uint8), np.empty(XXH3_BYTES_MAX, np.uint8)
    lengths = source[: LENGTHS_BYTES * rows].view(">i4").reshape(rows, 2)
    long_rows = np.empty((rows, 2), np.int64)
    start, places = source.ctypes.data, long_rows.ctypes.data
    total, count = packed_hashes(start, rows, start + LENGTHS_BYTES * rows, room.ctypes.data, places)
    total = int(total)
    for row, offset in long_rows[:count].tolist():
        at = LENGTHS_BYTES * rows + offset
        key_bytes, value_bytes = lengths[row].tolist()
        key_end = at + key_bytes
        total += row_hash(payload[at:key_end], payload[key_end : key_end + value_bytes])
    return Digest(int((lengths[:, 1] >= 0).sum()), total & _MASK)


def _of_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    found = Digest()
    for batch in batches:
        keys, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        found += digest_of(zip(keys, values, strict=True))
    yield pa.RecordBatch.from_pydict({"rows": [found.rows], "total": [str(found.total)]})


def frame_digest(frame: "DataFrame") -> Digest:
    """Of a DataFrame's rows, by the columns `key` and `value` of bytes; runs a Spark job."""
    found = Digest()
    for row in frame.select("key", "value").mapInArrow(_of_batches, "rows long, total string").collect():
        found += Digest(row["rows"], int(row["total"]))
    return found
