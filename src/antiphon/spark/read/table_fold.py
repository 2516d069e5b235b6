"""The last change of every key, of changes in Arrow columns, without a Python object per change."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antiphon.records.arrow import null_rows
from antiphon.records.arrow_encode import key_hashes
from antiphon.spark.read.table_cut import Hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES_MIN: Final = 128 * 1024 * 1024  # that are gathered before the first look for keys that changed twice


class Fold:
    """Takes changes in the order of their offsets; memory holds about twice the keys that changed, or `BYTES_MIN`.

    `drop_deleted`: forget keys whose last change removed them. Right when the changes begin with the table itself.
    """

    def __init__(self, *, drop_deleted: bool) -> None:
        self._drop_deleted = drop_deleted
        self._parts: list[pa.RecordBatch] = []
        self._bytes = 0
        self._kept_bytes = 0

    def add(self, changes: pa.RecordBatch) -> None:
        """The next changes, with at least the columns key and value."""
        if changes.num_rows:
            self._parts.append(changes)
            self._bytes += changes.nbytes
            if self._bytes > max(2 * self._kept_bytes, BYTES_MIN):
                self._compact()

    def _compact(self) -> None:
        self._parts = _last_of_each(self._parts, drop_deleted=self._drop_deleted)
        self._bytes = self._kept_bytes = sum(part.nbytes for part in self._parts)

    def result(self) -> list[pa.RecordBatch]:
        """The last change of every key."""
        if self._parts:
            self._compact()
        return self._parts


def _last_of_each(parts: Sequence[pa.RecordBatch], *, drop_deleted: bool) -> list[pa.RecordBatch]:
    encoded = pa.chunked_array([part.column("key") for part in parts]).dictionary_encode()
    rows = np.concatenate([_numbers(chunk.indices) for chunk in encoded.chunks])
    last = np.zeros(len(encoded.chunk(0).dictionary), np.int64)
    last[rows] = np.arange(len(rows))  # where an index comes several times the last one stays
    is_last = np.zeros(len(rows), bool)
    is_last[last] = True
    found, at = [], 0
    for part in parts:
        chosen = is_last[at : at + part.num_rows]
        at += part.num_rows
        if drop_deleted:
            chosen = chosen & ~null_rows(part.column("value"))
        if chosen.any():
            found.append(part if chosen.all() else part.filter(_mask(chosen)))
    return found


def with_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows whose value is not null."""
    null = null_rows(rows.column("value"))
    return rows.filter(_mask(~null)) if null.any() else rows


def _numbers(indices: pa.Array) -> "NDArray[np.int32]":
    return np.frombuffer(indices.buffers()[1], np.int32, len(indices), 4 * indices.offset)


def _mask(chosen: "NDArray[np.bool_]") -> pa.Array:
    """Which rows to take, without `pa.array`, which would load pandas into every task."""
    bits = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(chosen), [None, bits], 0)


def within(rows: pa.RecordBatch, ranges: Sequence[Hashes]) -> pa.RecordBatch:
    """The rows whose key's hash is in one of the ranges."""
    hashes = key_hashes(rows.column("key"))
    mask = np.zeros(rows.num_rows, bool)
    for first, last in ranges:
        mask |= (hashes >= first) & (hashes <= last)
    return rows.filter(_mask(mask))


def without_keys(rows: pa.RecordBatch, gone: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows whose key is in none of `gone`."""
    if not gone:
        return rows
    keys = pa.chunked_array([part.column("key") for part in gone])
    return rows.filter(pc.invert(pc.is_in(rows.column("key"), keys)))


def joined(parts: Sequence[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of up to about `rows_max` rows, so that many small ones do not cost much each."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for part in parts:
        waiting.append(part)
        rows += part.num_rows
        if rows >= rows_max:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
