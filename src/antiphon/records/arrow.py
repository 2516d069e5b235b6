"""RecordBatches to one Arrow record batch, without a Python object per record.

One short loop finds where each record starts (each one's length says where the next begins); everything else is done for
all records at once: variable-length numbers by numpy, keys and values by Arrow, which copies them out of the batches' bytes
in one go (a binary array over alternating "wanted" and "between" pieces, of which every second one is taken).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.records.batch import HEADER_BYTES, HEADER_STRUCT, BatchHeader, Buffer, check_batch, iter_batches
from antiphon.records.decode import decode_records, plain_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_ARROW_BYTES_MAX: Final = 2**31 - 1
_HEADERS_MAX: Final = 256  # per record; records with more go the slow way
_HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("term", pa.int64()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.insert(7, pa.field("headers", pa.list_(_HEADER_TYPE)))


class _Pieces(NamedTuple):
    """Byte ranges in the joined buffer; a range that is null has `null` set and is empty."""

    start: "Ints"
    end: "Ints"
    null: "NDArray[np.bool_]"


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
    headers, regions = _collect(batches, start, end)
    if not headers:
        return _empty(include_headers)
    data = b"".join(regions)
    if len(data) > _ARROW_BYTES_MAX:
        raise InvalidRequestError(f"{len(data)} bytes of records at once, at most {_ARROW_BYTES_MAX} fit")
    starts, ends = _find_records(data, headers, regions)
    return _Decoder(data, headers, starts, ends).build(start, end, topic, partition, include_headers)


def _empty(include_headers: bool) -> pa.RecordBatch:
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _collect(batches: Iterable[Buffer], start: int, end: int) -> tuple[list[BatchHeader], list[memoryview]]:
    """Headers and decompressed record bytes of the data batches that reach into the range."""
    headers: list[BatchHeader] = []
    regions: list[memoryview] = []
    for buffer in batches:
        for header, batch in iter_batches(buffer):
            check_batch(header, batch)
            if not header.is_control and header.next_offset > start and header.base_offset < end:
                headers.append(header)
                regions.append(memoryview(plain_batch(header, batch))[HEADER_BYTES:])
    return headers, regions


def _find_records(
    data: bytes, headers: Sequence[BatchHeader], regions: Sequence[memoryview]
) -> tuple["Ints", "Ints"]:
    """Where each record starts (at its length) and ends."""
    marks: list[int] = []
    at = region_end = 0
    try:
        for header, region in zip(headers, regions, strict=True):
            region_end += len(region)
            for _ in range(header.record_count):
                marks.append(at)
                byte = data[at]
                if byte < 0x80:
                    at += 1 + (byte >> 1)
                    continue
                second = data[at + 1]
                if second < 0x80:
                    at += 2 + (((byte & 0x7F) | (second << 7)) >> 1)
                    continue
                at = _long_record(data, at)
            if at != region_end:
                raise _corrupt(f"records of the batch at offset {header.base_offset} do not fill it")
    except IndexError as error:
        raise _corrupt("a record reaches beyond its batch") from error
    starts = np.array(marks, np.int64)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[-1:] = at
    return starts, ends


def _long_record(data: bytes, at: int) -> int:
    """End of a record whose length takes three to five bytes."""
    value = 0
    for number in range(5):
        byte = data[at + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return at + number + 1 + (value >> 1)
    raise _corrupt("a record's length takes more than five bytes")


def _corrupt(message: str) -> CorruptBatchError:
    return CorruptBatchError(message)


class _Decoder:
    """Decodes the fields of all records at once."""

    def __init__(self, data: bytes, headers: Sequence[BatchHeader], starts: "Ints", ends: "Ints") -> None:
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        self.headers = headers
        self.starts = starts
        self.ends = ends
        self.counts = np.array([header.record_count for header in headers], np.int64)

    def build(
        self, start: int, end: int, topic: str, partition: int, include_headers: bool
    ) -> pa.RecordBatch:
        length, at = self._varints(self.starts)
        if not np.array_equal(at + length, self.ends):
            raise _corrupt("a record has an impossible length")
        timestamps, at = self._varints(at + 1, limit=10)  # one byte of attributes
        deltas, at = self._varints(at)
        keys, at = self._piece(at)
        values, at = self._piece(at)
        header_counts, at = self._varints(at)
        if (
            (at > self.ends).any()
            or (header_counts < 0).any()
            or (at[header_counts == 0] != self.ends[header_counts == 0]).any()
        ):
            raise _corrupt("a record's fields do not fill it")
        offsets = self._offsets(deltas)
        chosen = np.flatnonzero((offsets >= start) & (offsets < end))
        rows = len(chosen)
        columns = [
            self._take(keys, chosen, pa.binary()),
            self._take(values, chosen, pa.binary()),
            pa.repeat(pa.scalar(topic, pa.string()), rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            pa.array(offsets[chosen]),
            self._timestamps(timestamps, chosen),
            pa.array(self._per_record([h.is_log_append_time for h in self.headers])[chosen].astype(np.int32)),
            pa.array(self._per_record([h.leader_epoch for h in self.headers])[chosen]),
        ]
        if not include_headers:
            return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        columns.insert(7, self._headers(header_counts, at, chosen))
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)

    def _per_record(self, per_batch: Sequence[int]) -> "Ints":
        return np.repeat(np.array(per_batch, np.int64), self.counts)

    def _offsets(self, deltas: "Ints") -> "Ints":
        if (deltas < 0).any() or (
            deltas >= self._per_record([h.last_offset_delta + 1 for h in self.headers])
        ).any():
            raise _corrupt("a record's offset lies outside of its batch")
        return self._per_record([h.base_offset for h in self.headers]) + deltas

    def _timestamps(self, deltas: "Ints", chosen: "Ints") -> pa.Array:
        with np.errstate(over="ignore"):
            stamps = self._per_record([h.base_timestamp for h in self.headers]) + deltas
        from_log = self._per_record([h.is_log_append_time for h in self.headers]) != 0
        if from_log.any():
            stamps = np.where(from_log, self._per_record([h.max_timestamp for h in self.headers]), stamps)
        stamps = np.clip(stamps[chosen], -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX) * 1000
        return pa.array(stamps).view(pa.timestamp("us", "UTC"))

    def _varints(self, at: "Ints", limit: int = 5) -> tuple["Ints", "Ints"]:
        """Zigzag numbers that start at the given places, and the places behind them."""
        last = len(self.bytes) - 1
        if len(at) and at.max() > last:
            raise _corrupt("a record reaches beyond its batch")
        byte = self.bytes[at]
        raw = (byte & 0x7F).astype(np.uint64)
        after = at + 1
        more = np.flatnonzero(byte >= 0x80)
        for number in range(1, limit):
            if not len(more):
                break
            places = after[more]
            if places.max() > last:
                raise _corrupt("a record reaches beyond its batch")
            byte = self.bytes[places]
            raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
            after[more] += 1
            more = more[byte >= 0x80]
        if len(more):
            raise _corrupt(f"a number takes more than {limit} bytes")
        value = (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)
        return value, after

    def _piece(self, at: "Ints", ends: "Ints | None" = None) -> tuple[_Pieces, "Ints"]:
        """Length-prefixed bytes; a length of -1 is null."""
        size, begin = self._varints(at)
        null = size < 0
        finish = begin + np.maximum(size, 0)
        if (size < -1).any() or (finish > (self.ends if ends is None else ends)).any():
            raise _corrupt("a key, value or header reaches beyond its record")
        return _Pieces(begin, finish, null), finish

    def _take(self, pieces: _Pieces, chosen: "Ints", kind: pa.DataType) -> pa.Array:
        """Copy the chosen pieces, which rise and do not overlap, into an Arrow array."""
        rows = len(chosen)
        if rows == 0:
            return pa.array([], kind)
        edges = np.empty(2 * rows, np.int32)
        edges[0::2] = pieces.start[chosen]
        edges[1::2] = pieces.end[chosen]
        spread = pa.Array.from_buffers(
            kind, 2 * rows - 1, [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        )
        taken = spread.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int64)))
        null = pieces.null[chosen]
        if not null.any():
            return taken
        bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
        return pa.Array.from_buffers(kind, rows, [bitmap, *taken.buffers()[1:]])

    def _headers(self, counts: "Ints", at: "Ints", chosen: "Ints") -> pa.Array:
        """The headers column: one round for every record's first header, one for the second, and so on."""
        if counts.max(initial=0) > _HEADERS_MAX:
            return self._headers_one_by_one(chosen)
        owners: list[Ints] = []
        keys: list[_Pieces] = []
        values: list[_Pieces] = []
        at = at.copy()
        active = np.flatnonzero(counts > 0)
        for number in range(_HEADERS_MAX + 1):
            active = active[counts[active] > number]
            if not len(active):
                break
            key, after = self._piece(at[active], self.ends[active])
            value, after = self._piece(after, self.ends[active])
            if key.null.any():
                raise _corrupt("a header has no key")
            at[active] = after
            owners.append(active)
            keys.append(key)
            values.append(value)
        if (at != self.ends).any():
            raise _corrupt("a record's headers do not fill it")
        lengths = counts[chosen]
        offsets = np.zeros(len(chosen) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        if not owners:
            empty = pa.array([], _HEADER_TYPE)
            return pa.ListArray.from_arrays(pa.array(offsets), empty)
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")  # by record; within it in the order of the rounds
        order = order[np.isin(owner[order], chosen)]
        names = self._take(_joined(keys), order, pa.string())
        try:
            names.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _corrupt(f"a header's key is not UTF-8: {error}") from error
        pairs = pa.StructArray.from_arrays(
            [names, self._take(_joined(values), order, pa.binary())], fields=list(_HEADER_TYPE)
        )
        return pa.ListArray.from_arrays(pa.array(offsets), pairs)

    def _headers_one_by_one(self, chosen: "Ints") -> pa.Array:
        """For records with very many headers."""
        found: list[Any] = []
        at = 0
        for header in self.headers:
            first, last = self.starts[at], self.ends[at + header.record_count - 1]
            plain = header._replace(
                attributes=header.attributes & ~0x07, batch_length=HEADER_BYTES - 12 + int(last - first)
            )
            batch = HEADER_STRUCT.pack(*plain) + self.data[first:last]
            found += [record.headers for record in decode_records(batch, check_crc=False)]
            at += header.record_count
        rows = [[{"key": key, "value": value} for key, value in found[number]] for number in chosen]
        return pa.array(rows, pa.list_(_HEADER_TYPE))


def _joined(pieces: Sequence[_Pieces]) -> _Pieces:
    return _Pieces(
        np.concatenate([piece.start for piece in pieces]),
        np.concatenate([piece.end for piece in pieces]),
        np.concatenate([piece.null for piece in pieces]),
    )
