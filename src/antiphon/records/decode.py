"""Decodes RecordBatches to Python records, decompressed if needed.

Clients do this; nodes do not read inside a topic's batches. The record loop is aiokafka's compiled one, loaded at first
use.
"""

import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from typing import Any, Final, Generic, NamedTuple

from antiphon.errors import CorruptBatchError
from antiphon.records.batch import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    Buffer,
    check_batch,
    iter_batches,
)
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from antiphon.records.display import html_table, line
from antiphon.records.value_type import ValueT_co

# Length, attributes, timestamp, offset, key length, value length, header count: a byte each
RECORD_BYTES_MIN = 7

NO_SHARD: Final = -1


class Record(NamedTuple, Generic[ValueT_co]):
    """One record as it stands in the log. `timestamp_ms` is ms since 1970 UTC; headers keep their order.

    `Record` is one of bytes; the value of a `Record[Order]` was decoded by a codec of the client. `shard` is the shard of
    the topic that it was read from; -1 where bytes were decoded that nobody says the shard of.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: ValueT_co | None
    headers: tuple[tuple[str, bytes | None], ...]
    shard: int = NO_SHARD

    def display(self) -> dict[str, Any]:
        """Its fields, as people see them: without the shard where that is not known."""
        fields = self._asdict()
        if self.shard == NO_SHARD:
            del fields["shard"]
        return fields

    def __repr__(self) -> str:
        return line("Record", self.display())

    def _repr_html_(self) -> str:
        return html_table([self.display()])


@cache
def load_batch_class() -> Any:
    """The compiled decoder of one plain batch; looking it up each time would cost as much as a small batch."""
    from aiokafka.record._crecords.default_records import DefaultRecordBatch

    return DefaultRecordBatch


def plain_batch(header: BatchHeader, batch: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The batch with its records decompressed: itself, or a copy whose header says codec 0 and the new length.

    The copy's CRC is not set. Raises CorruptBatchError where records cannot be decompressed, or are fewer bytes than their
    count needs, DecompressedTooLargeError where they are more than `limit_bytes`.
    """
    records = plain_records(header, batch, limit_bytes)
    if not header.attributes & CODEC_MASK:
        return batch
    unpacked = header._replace(
        batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(records),
        attributes=header.attributes & ~0x07,
    )
    return HEADER_STRUCT.pack(*unpacked) + bytes(records)


def plain_records(header: BatchHeader, batch: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """What follows the header, decompressed. Raises CorruptBatchError as `plain_batch` does."""
    records: Buffer = memoryview(batch)[HEADER_BYTES:]
    codec = header.attributes & CODEC_MASK
    if codec >= len(CODEC_NAMES):
        raise CorruptBatchError(f"batch has unknown compression codec {codec}", codec=codec)
    if codec:
        records = decompress(codec, records, limit_bytes)
    if header.record_count < 0 or header.record_count * RECORD_BYTES_MIN > len(records):
        raise CorruptBatchError(
            f"batch says {header.record_count} records in {len(records)} bytes",
            record_count=header.record_count,
        )
    return records


def decode_records(
    buf: Buffer,
    *,
    include_control: bool = False,
    check_crc: bool = True,
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
    shard: int = NO_SHARD,
) -> list[Record]:
    """All records of the whole batches that stand in `buf`, in order of offset.

    Args:
        buf: zero or more batches, one after the other. Keys and values are copied out.
        include_control: also records of control batches, which are not user data.
        check_crc: check each batch's CRC and counts first, as the last guard between the producer and the reader.
        limit_bytes: that the records of a batch may unpack to.
        shard: what the records say of where they were read.

    Raises:
        CorruptBatchError: bytes that are not whole valid batches, or records that do not fill their batch.
    """
    found: list[Record] = []
    for header, batch in iter_batches(buf):
        if check_crc:
            check_batch(header, batch)
        if header.is_control and not include_control:
            continue
        _decode_batch(header, batch, found, limit_bytes, shard)
    return found


class BadBatch(NamedTuple):
    """A batch whose records cannot be read, as it stands in the log, and why. The next batch begins at `next_offset`."""

    offset: int
    next_offset: int
    data: bytes
    error: CorruptBatchError


def decode_what_can_be(
    buf: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX, shard: int = NO_SHARD
) -> tuple[list[Record], list[BadBatch]]:
    """The records of all batches in `buf` that can be read, as `decode_records` gives them, and the batches that cannot.

    Raises CorruptBatchError where no whole batch stands: nobody knows where the next one would begin.
    """
    try:
        return decode_records(buf, limit_bytes=limit_bytes, shard=shard), []
    except CorruptBatchError:
        pass
    found: list[Record] = []
    bad: list[BadBatch] = []
    for header, batch in iter_batches(buf):
        try:
            found += decode_records(batch, limit_bytes=limit_bytes, shard=shard)
        except CorruptBatchError as error:
            bad.append(BadBatch(header.base_offset, header.next_offset, bytes(batch), error))
    return found, bad


def raw_records(buf: Buffer) -> list[Any]:
    """The records of whole batches as the decoder makes them, with offset, timestamp, key, value and headers; no control
    batches. The same checks as `decode_records` for half of its cost: for those who look at each record once.

    Raises CorruptBatchError.
    """
    found: list[Any] = []
    for header, batch in data_batches(buf):
        found += records_in(header, batch)
    return found


def data_batches(buf: Buffer) -> Iterator[tuple[BatchHeader, Buffer]]:
    """The batches in `buf` that hold records; control batches are checked and passed over. Raises CorruptBatchError."""
    for header, batch in iter_batches(buf):
        if header.attributes & CONTROL_BIT:
            check_batch(header, batch)
        else:
            yield header, batch


def records_in(header: BatchHeader, batch: Buffer) -> list[Any]:
    """`raw_records` of one batch whose header was read; it is checked here."""
    return next(records_in_pieces(header, batch, sys.maxsize), [])


def records_in_pieces(header: BatchHeader, batch: Buffer, piece: int) -> Iterator[list[Any]]:
    """The same, `piece` records at a time. What is wrong with a later piece is found when that is asked for."""
    check_batch(header, batch)
    cls = load_batch_class()
    last_offset = header.base_offset + header.last_offset_delta
    try:
        # Theirs can be asked for once, and never behind its end
        decoder = chain(cls(plain_batch(header, batch)))
        while records := list(islice(decoder, piece)):
            if records[0].offset < header.base_offset or records[-1].offset > last_offset:
                raise CorruptBatchError(
                    f"records of the batch at offset {header.base_offset} lie outside of it"
                )
            yield records
    except CorruptBatchError:
        raise
    except Exception as error:  # aiokafka's own type, UnicodeDecodeError and the like
        raise CorruptBatchError(f"records of the batch at offset {header.base_offset}: {error}") from error


def _decode_batch(
    header: BatchHeader, batch: Buffer, found: list[Record], limit_bytes: int, shard: int
) -> None:
    cls = load_batch_class()
    plain = plain_batch(header, batch, limit_bytes)
    first = len(found)
    try:
        for r in cls(plain):
            headers = r.headers
            found.append(
                Record(r.offset, r.timestamp, r.key, r.value, tuple(headers) if headers else (), shard)
            )
    except Exception as error:  # aiokafka's own type, UnicodeDecodeError and the like
        raise CorruptBatchError(f"records of the batch at offset {header.base_offset}: {error}") from error
    if len(found) > first:
        lowest, highest = found[first].offset, found[-1].offset
        if lowest < header.base_offset or highest >= header.next_offset:
            raise CorruptBatchError(
                f"records {lowest}..{highest} lie outside their batch {header.base_offset}..{header.next_offset - 1}"
            )
