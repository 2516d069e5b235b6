"""A digest of records that does not depend on how they are stored: as batches in a log, or as rows in a file.

Each column of the records (offset, time, key, ...) goes through a hash of its own, lengths and bytes apart, and the digest
is the hash of those. So both sides are quick: rows come as whole Arrow buffers, and batches are taken apart by the compiled
decoder that consumers use, which has nothing in common with the one that makes Arrow columns (`records.arrow`): what one of
them gets wrong, the comparison shows.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh3_128

from antiphon.errors import CorruptBatchError
from antiphon.records.batch import TIMESTAMP_MS_MAX, BatchHeader, Buffer, iter_batches
from antiphon.records.decode import BadBatch, raw_records

if TYPE_CHECKING:
    import pyarrow as pa

_FIXED: Final = ("offset", "timestamp", "timestampType", "term", "headers")
_VARIABLE: Final = ("key", "value", "header key", "header value")


class RecordDigest:
    """Takes records in order, from either side."""

    def __init__(self) -> None:
        self.rows = 0
        self._hashes = {name: xxh3_128() for name in (*_FIXED, *_VARIABLE)}
        self._lengths = {name: xxh3_128() for name in _VARIABLE}

    def hexdigest(self) -> str:
        """32 hexadecimal digits for all that was added."""
        total = xxh3_128(b"%d" % self.rows)
        for hashes in (self._hashes, self._lengths):
            for name, one in hashes.items():
                total.update(name.encode() + one.digest())
        return total.hexdigest()

    def _numbers(self, name: str, numbers: Any) -> None:
        self._hashes[name].update(np.ascontiguousarray(numbers, np.int64).astype("<i8", copy=False).data)

    def _pieces(self, name: str, lengths: Any, data: Buffer) -> None:
        self._lengths[name].update(np.ascontiguousarray(lengths, np.int64).astype("<i8", copy=False).data)
        self._hashes[name].update(data)

    # -- from a log ---------------------------------------------------------------------------------------------

    def add_batches(
        self, batches: Iterable[Buffer], start: int, end: int, passed: dict[int, BadBatch] | None = None
    ) -> int:
        """Add the records of whole batches with start <= offset < end.

        Returns how many of these offsets are control batches', or of batches that are passed over: those whose first offset
        is in `passed`, and those that cannot be read, which are entered there.

        Raises CorruptBatchError where a batch cannot be read and there is no `passed`.
        """
        controls = 0
        for buffer in batches:
            for header, batch in iter_batches(buffer):
                first, last = max(start, header.base_offset), min(end, header.next_offset)
                if header.is_control:
                    controls += max(0, last - first)
                elif first < last:
                    records = _records(header, batch, passed)
                    if records is None:
                        controls += last - first
                        continue
                    if first > header.base_offset or last < header.next_offset:
                        records = [record for record in records if start <= record.offset < end]
                    self._add_records(header, records)
        return controls

    def _add_records(self, header: BatchHeader, records: list[Any]) -> None:
        rows = len(records)
        self.rows += rows
        self._numbers("offset", [record.offset for record in records])
        times = np.array([record.timestamp for record in records], np.int64)
        self._numbers("timestamp", np.clip(times, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX) * 1000)
        self._numbers("timestampType", np.full(rows, int(header.is_log_append_time)))
        self._numbers("term", np.full(rows, header.leader_epoch))
        self._values("key", [record.key for record in records])
        self._values("value", [record.value for record in records])
        headers = [record.headers or () for record in records]
        self._numbers("headers", [len(some) for some in headers])
        pairs = [pair for some in headers for pair in some]
        self._values("header key", [name.encode() for name, _ in pairs])
        self._values("header value", [value for _, value in pairs])

    def _values(self, name: str, values: list[bytes | None]) -> None:
        lengths = [-1 if value is None else len(value) for value in values]
        self._pieces(name, lengths, b"".join([value for value in values if value]))

    # -- from rows ----------------------------------------------------------------------------------------------

    def add_rows(self, batch: "pa.RecordBatch") -> None:
        """Add rows with the columns of `records.arrow.SCHEMA_WITH_HEADERS`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self.rows += batch.num_rows
        self._numbers("offset", batch.column("offset").to_numpy())
        self._numbers("timestamp", batch.column("timestamp").cast(pa.int64()).to_numpy())
        self._numbers("timestampType", batch.column("timestampType").to_numpy())
        self._numbers("term", batch.column("term").to_numpy())
        self._column("key", batch.column("key"))
        self._column("value", batch.column("value"))
        headers = batch.column("headers")
        self._numbers("headers", pc.fill_null(pc.list_value_length(headers), 0).to_numpy())
        names, values = headers.flatten().flatten()
        self._column("header key", names.cast(pa.binary()))
        self._column("header value", values)

    def _column(self, name: str, values: "pa.Array") -> None:
        import pyarrow.compute as pc

        lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy()
        plain = values.fill_null(b"") if values.null_count else values
        if not len(plain):
            return
        _, edges, data = plain.buffers()
        bounds = np.frombuffer(edges, np.int32)[plain.offset : plain.offset + len(plain) + 1]
        if data is None:
            if bounds[-1] != bounds[0]:
                raise CorruptBatchError(f"column {name} has lengths and no bytes")
            self._pieces(name, lengths, b"")
            return
        self._pieces(name, lengths, memoryview(data)[bounds[0] : bounds[-1]])


def _records(header: BatchHeader, batch: Buffer, passed: dict[int, BadBatch] | None) -> list[Any] | None:
    """The records of a batch; None: it is passed over."""
    if passed is None:
        return raw_records(batch)
    if header.base_offset in passed:
        return None
    try:
        return raw_records(batch)
    except CorruptBatchError as error:
        passed[header.base_offset] = BadBatch(header.base_offset, header.next_offset, bytes(batch), error)
        return None


def digest_of_batches(
    batches: Iterable[Buffer], start: int, end: int, passed: dict[int, BadBatch] | None = None
) -> tuple[str, int, int]:
    """(digest, records, other offsets) of a range of a log; see `RecordDigest.add_batches`."""
    made = RecordDigest()
    controls = made.add_batches(batches, start, end, passed)
    return made.hexdigest(), made.rows, controls


def digest_of_rows(rows: "Iterable[pa.RecordBatch]") -> tuple[str, int]:
    """(digest, records) of rows."""
    made = RecordDigest()
    for batch in rows:
        made.add_rows(batch)
    return made.hexdigest(), made.rows
