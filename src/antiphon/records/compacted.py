"""Batches as compaction leaves them: with fewer records than offsets, with none, or a *filler* in the place of several.

Each batch keeps its first and last offset, so each still begins where the one before ends. A record that stays keeps every
byte: its offset and time count from the batch's, which stay too. A filler is a header without records, producer or time; it
stands for neighbours of one term of which nothing is left.
"""

from collections.abc import Sequence
from itertools import compress as chosen
from typing import Final

from crc32c import crc32c

from antiphon.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_TIME,
    TRANSACTIONAL_BIT,
    UNCHECKED_BYTES,
    BatchHeader,
    Buffer,
)
from antiphon.records.compression import compress

FILLER_OFFSETS_MAX: Final = (1 << 31) - 1
_EMPTY_BYTES: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
_CRC_AT: Final = slice(17, 21)


def filler(base_offset: int, next_offset: int, term: int) -> bytes:
    """A batch without records that takes these offsets."""
    last = next_offset - base_offset - 1
    return _packed(BatchHeader(base_offset, 0, term, MAGIC, 0, 0, last, NO_TIME, NO_TIME, -1, -1, -1, 0), b"")


def is_filler(header: BatchHeader) -> bool:
    """Has the batch neither records nor a producer? Then any part of its offsets is a batch of the same kind."""
    return not header.record_count and header.producer_id < 0 and not header.attributes & CONTROL_BIT


def rest_of(header: BatchHeader, offset: int) -> bytes:
    """A filler from this offset on, which lies within it."""
    return filler(offset, header.next_offset, header.leader_epoch)


def emptied(header: BatchHeader, *, aborted: bool = False) -> bytes:
    """The batch without its records: what is left tells of its producer's sequence.

    `aborted`: it was part of a transaction that was aborted, and is part of none without them.
    """
    attributes = header.attributes & ~CODEC_MASK
    if aborted:
        attributes &= ~TRANSACTIONAL_BIT
    return _packed(header._replace(attributes=attributes, record_count=0), b"")


def with_records(header: BatchHeader, plain: Buffer, keeps: Sequence[bool], max_timestamp: int) -> bytes:
    """The batch with those of its records that are to be kept.

    Args:
        header: of the batch.
        plain: its records, decompressed.
        keeps: whether each of them stays; one does.
        max_timestamp: of those that stay.
    """
    data = bytes(plain)
    records = b"".join(data[start:end] for start, end in chosen(_places(data, len(keeps)), keeps))
    codec = header.attributes & CODEC_MASK
    left = header._replace(record_count=sum(keeps))
    if not header.is_log_append_time:
        left = left._replace(max_timestamp=max_timestamp)
    return _packed(left, compress(codec, records) if codec else records)


def _places(data: bytes, count: int) -> list[tuple[int, int]]:
    """Where each record begins and ends, by the lengths in front of them. They were decoded before, so they are right."""
    found = []
    at = 0
    for _ in range(count):
        start, byte = at, data[at]
        at += 1
        length, shift = byte & 0x7F, 7
        while byte >= 0x80:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
        at += length >> 1
        found.append((start, at))
    return found


def _packed(header: BatchHeader, records: bytes) -> bytes:
    made = bytearray(HEADER_STRUCT.pack(*header._replace(batch_length=_EMPTY_BYTES + len(records), crc=0)))
    made += records
    made[_CRC_AT] = crc32c(memoryview(made)[UNCHECKED_BYTES:]).to_bytes(4, "big")
    return bytes(made)
