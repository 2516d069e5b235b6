"""RecordBatch v2 as the log sees it: a 61-byte header that is read, checked and stamped, and opaque records behind it.

An entry of a shard's log *is* such a batch, byte for byte as a client sent it (a topic may want another codec, see
`recompression`). The leader sets the base offset (bytes 0-7) and the leader epoch (bytes 12-15, our term); the batch's
CRC-32C covers bytes 21 to the end, so neither needs a new CRC. The other side of that coin: no checksum of the batch's own
covers bytes 0-20, which is why the log's index keeps one.

All numbers are big-endian::

     0 base_offset i64        21 attributes i16          43 producer_id i64
     8 batch_length i32       23 last_offset_delta i32   51 producer_epoch i16
    12 leader_epoch i32       27 base_timestamp i64      53 base_sequence i32
    16 magic i8 = 2           35 max_timestamp i64       57 record_count i32
    17 crc u32                                           61 records

`batch_length` counts the bytes after itself, so a batch takes 12 + batch_length bytes. Attributes: bits 0-2 codec, bit 3
timestamp type (1: the log's), bit 4 transactional, bit 5 control.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from antiphon.errors import CorruptBatchError

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12  # base_offset and batch_length: what batch_length does not count
UNCHECKED_BYTES: Final = 21  # bytes 0-20, which the batch's own CRC does not cover
MAGIC: Final = 2
BATCH_BYTES_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1  # what offsets take in a batch: the one behind the last record fits too
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000  # that microseconds can hold; columns and digests go no further

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

HEADER_STRUCT: Final = struct.Struct(">qiibIhiqqqhii")
_UNPACK: Final = HEADER_STRUCT.unpack_from
_MAKE: Final = tuple.__new__
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LEADER_EPOCH_AT: Final = 12
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_PRODUCER: Final = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_AT: Final = 43
_ATTRIBUTES_LOW_AT: Final = 22  # the byte with the bits that have a meaning
NO_TIME: Final = -1  # Kafka's value for a time that is not set


class BatchHeader(NamedTuple):
    """The 61 header bytes of one batch, in the order in which they stand. Timestamps are ms since 1970 UTC."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last one (exclusive end)."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_PREFIX_BYTES + self.batch_length

    @property
    def last_sequence(self) -> int:
        """Sequence of the batch's last record, wrapped to 0 after 2^31-1 as producers do; -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def is_control(self) -> bool:
        """A control batch: takes offsets, but consumers do not see its records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Every record carries `max_timestamp` as its timestamp."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def codec(self) -> int:
        """Compression codec number: an index of `CODEC_NAMES` where it is known (5-7 are not)."""
        return self.attributes & CODEC_MASK


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Unpack the header that starts at byte `at`; checks only that there are 61 bytes (CorruptBatchError)."""
    if at < 0 or len(buf) - at < HEADER_BYTES:
        raise CorruptBatchError(
            f"a batch header takes {HEADER_BYTES} bytes, found {max(0, len(buf) - at)}",
            found_bytes=max(0, len(buf) - at),
        )
    return _MAKE(BatchHeader, _UNPACK(buf, at))  # `_make` would count its fields, which the struct has


def validate_batch(buf: Buffer) -> BatchHeader:
    """Check that `buf` is exactly one whole RecordBatch v2 and return its header.

    Checked: length, magic, CRC-32C, offsets against record count, codec number, sequence of a batch with a producer. A
    batch takes at least as many offsets as it has records: compaction takes records away. What clients send is held to
    more (`intake.check_outside`). The records behind the header are not looked at. Any base offset behind which the
    records have room and any leader epoch pass: they are the leader's to set.

    Raises:
        CorruptBatchError: says what was found and what was expected.
    """
    header = read_header(buf)
    check_batch(header, buf)
    return header


def check_batch(header: BatchHeader, buf: Buffer) -> None:
    """`validate_batch` where the header of `buf` was read already."""
    if header.magic != MAGIC:
        raise CorruptBatchError(
            f"batch has magic {header.magic}, only {MAGIC} (RecordBatch v2) is accepted", magic=header.magic
        )
    if header.batch_length + LENGTH_PREFIX_BYTES != len(buf):
        raise CorruptBatchError(
            f"batch says it takes {header.size_bytes} bytes, found {len(buf)}",
            said_bytes=header.size_bytes,
            found_bytes=len(buf),
        )
    crc = crc32c(memoryview(buf)[UNCHECKED_BYTES:])
    if crc != header.crc:
        raise CorruptBatchError(
            f"batch has CRC {header.crc:#010x}, its bytes give {crc:#010x}",
            said_crc=header.crc,
            found_crc=crc,
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1 or header.last_offset_delta < 0:
        raise CorruptBatchError(
            f"batch has {header.record_count} records but takes {header.last_offset_delta + 1} offsets",
            record_count=header.record_count,
            offsets=header.last_offset_delta + 1,
        )
    if header.base_offset >= OFFSET_MAX - header.last_offset_delta:
        raise CorruptBatchError(
            f"batch at {header.base_offset} with {header.last_offset_delta + 1} offsets goes beyond offset {OFFSET_MAX}",
            base_offset=header.base_offset,
        )
    if header.attributes & CODEC_MASK >= len(CODEC_NAMES):
        raise CorruptBatchError(f"batch has unknown compression codec {header.codec}", codec=header.codec)
    if (
        header.producer_id >= 0
        and (header.base_sequence < 0 or header.producer_epoch < 0)
        and not header.attributes & CONTROL_BIT  # the end of a transaction has no sequence
    ):
        raise CorruptBatchError(
            f"batch of producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}; both must be at least 0",
            producer_id=header.producer_id,
        )


def checked_batches(buf: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """The whole batches that stand one after the other in `buf`, each checked as by `validate_batch`, without copying.

    Raises CorruptBatchError at the first place where no whole batch stands.
    """
    view = memoryview(buf)
    found: list[tuple[BatchHeader, memoryview]] = []
    at, end = 0, len(view)
    while at < end:
        header = read_header(view, at)
        size = LENGTH_PREFIX_BYTES + header.batch_length
        if size < HEADER_BYTES or size > end - at:
            raise _not_whole(header, at, end)
        batch = view[at : at + size]
        check_batch(header, batch)
        found.append((header, batch))
        at += size
    return found


def iter_batches(buf: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Walk whole batches that stand one after the other in `buf`, without copying and without checking CRCs.

    Safe on any bytes: each step moves forward by at least a header, and lengths are checked before they are used.

    Raises:
        CorruptBatchError: at the first place where no whole batch of magic 2 stands; batches before it were yielded.
    """
    view = memoryview(buf)
    end = len(view)
    at = 0
    while at < end:
        header = read_header(view, at)
        size = LENGTH_PREFIX_BYTES + header.batch_length
        if header.magic != MAGIC or size < HEADER_BYTES or size > end - at:
            raise _not_whole(header, at, end)
        yield header, view[at : at + size]
        at += size


def _not_whole(header: BatchHeader, at: int, end: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"no whole batch at byte {at} of {end}: magic {header.magic}, size {header.size_bytes} bytes",
        at=at,
        magic=header.magic,
        size_bytes=header.size_bytes,
    )


def stamp(
    buf: bytearray | memoryview, base_offset: int, leader_epoch: int, append_time_ms: int = NO_TIME
) -> None:
    """Set base offset and leader epoch (term, fits int32) of the batch at the start of `buf`, in place.

    The CRC stays valid. `buf` must be writable and at least a header long. With `append_time_ms` that is the time of all of
    its records: `buf` has to be this batch alone, whose CRC is made anew.
    """
    if len(buf) < HEADER_BYTES:
        raise CorruptBatchError(f"a batch header takes {HEADER_BYTES} bytes, found {len(buf)}")
    _BASE_OFFSET.pack_into(buf, 0, base_offset)
    _LEADER_EPOCH.pack_into(buf, _LEADER_EPOCH_AT, leader_epoch)
    if append_time_ms != NO_TIME:
        buf[_ATTRIBUTES_LOW_AT] |= TIMESTAMP_TYPE_BIT
        _MAX_TIMESTAMP.pack_into(buf, _MAX_TIMESTAMP_AT, append_time_ms)
        _CRC.pack_into(buf, _CRC_AT, crc32c(memoryview(buf)[UNCHECKED_BYTES:]))


def is_later(sequence: int, other: int) -> bool:
    """Does a producer's sequence come after the other one? They have 31 bits, and begin anew after the last."""
    return 0 < (sequence - other) % (1 << 31) < 1 << 30


def as_plain(batch: Buffer, producer_id: int, base_sequence: int) -> bytearray:
    """The batch as another producer's, in its epoch 0, to be appended anew: no part of a transaction, and at no offset yet.

    Records stay as they are, byte for byte; the CRC is made anew. `batch` is one whole batch.
    """
    owned = bytearray(batch)
    _BASE_OFFSET.pack_into(owned, 0, 0)
    owned[_ATTRIBUTES_LOW_AT] &= ~TRANSACTIONAL_BIT & 0xFF
    _PRODUCER.pack_into(owned, _PRODUCER_AT, producer_id, 0, base_sequence)
    _CRC.pack_into(owned, _CRC_AT, crc32c(memoryview(owned)[UNCHECKED_BYTES:]))
    return owned
