"""What a batch that a client sends must be, beyond whole: such that every reader can read it.

A topic's `record.validation` says how far a node looks:

- `shallow`: at the header, and at what compressed records say of themselves in front.
- `uncompressed`: at every record of batches that are not compressed as well: lengths, offsets, headers' names.
- `full`: at every record; compressed ones are unpacked, up to `max.decompressed.bytes`.

Records are walked by a compiled kernel (`walk_kernels`: 10 ns a record measured), which takes a second and 60 MB to load. So
the first records that a node gets are decoded and encoded again instead (1 us a record), with the same findings. Where numba
is not installed that is all there is, and only `full` looks at records.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from antiphon.errors import (
    AntiphonError,
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCompressionError,
)
from antiphon.records.batch import (
    BATCH_BYTES_MAX,
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    check_batch,
)
from antiphon.records.builder import load_builder
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX, MissingCodecError, declared_bytes
from antiphon.records.decode import RECORD_BYTES_MIN, load_batch_class, plain_records
from antiphon.records.walk_plain import walk_plainly, without_key

SHALLOW: Final = "shallow"
UNCOMPRESSED: Final = "uncompressed"
FULL: Final = "full"
VALIDATIONS: Final = (FULL, UNCOMPRESSED, SHALLOW)
DEFAULT: Final = UNCOMPRESSED
BATCH_RECORDS_MAX: Final = 1_000_000
AS_SENT: Final = -1  # in the place of a codec

_NAMED: Final = 1_000  # records without a key that a refusal names at most
NO_KEY: Final = "a compacted topic keeps the newest record of each key, so each record needs one"
_KNOWN_ATTRIBUTES: Final = 0x3F
KERNEL_AFTER_RECORDS: Final = 10_000
_AT_ONCE: Final = 50_000  # records that the kernel walks in half a millisecond
_AT_ONCE_DECODED: Final = 200
_PROBLEMS: Final = (  # by what `walk_records` returns
    "",
    "its length is impossible",
    "its fields do not fill it, or reach beyond it",
    "its offset is not the next one",
    "a header's name is not UTF-8",
    "bytes follow the last record",
)


class IntakeRules(NamedTuple):
    """What a topic takes.

    Attributes:
        validation: one of VALIDATIONS.
        batch_records_max: records of a compressed batch; one that is not compressed is bounded by its bytes.
        plain_bytes_max: bytes that the records of a batch may unpack to.
        needs_keys: each record has a key, by which the log is compacted. Then every record is looked at.
        codec: that batches are stored with (`recompression`), by its number; AS_SENT: with the one they came with.
        level: of that codec; None: as its library has it.
        packs_quickly: is that level one with which small batches do not hold an event loop up?
        expects: may a header of its records say at which offset a batch must be written (`records/expected.py`)?
    """

    validation: str = DEFAULT
    batch_records_max: int = BATCH_RECORDS_MAX
    plain_bytes_max: int = DECOMPRESSED_BYTES_MAX
    needs_keys: bool = False
    codec: int = AS_SENT
    level: int | None = None
    packs_quickly: bool = True
    expects: bool = False


DEFAULT_RULES: Final = IntakeRules()


def check_outside(header: BatchHeader, batch: Buffer, rules: IntakeRules) -> None:
    """Check what a batch says of itself, without looking at records.

    Whether length, magic and CRC are right is for `check_batch`, which is asked first where anything is wrong: who sent
    damaged bytes is told that, and may send them again.

    Raises CorruptBatchError and the kinds of it: InvalidRecordError, InvalidTimestampError, UnsupportedCompressionError,
    DecompressedTooLargeError.
    """
    count, attributes = header.record_count, header.attributes
    problem: CorruptBatchError | None = None
    if count <= 0 or header.last_offset_delta + 1 != count:
        problem = InvalidRecordError(
            f"a batch of {count} records takes {header.last_offset_delta + 1} offsets"
        )
    elif attributes & ~_KNOWN_ATTRIBUTES:
        problem = InvalidRecordError(f"a batch has attributes {attributes:#x}, some of which are unknown")
    elif attributes & TIMESTAMP_TYPE_BIT:
        problem = InvalidTimestampError("a producer does not set the timestamp type LogAppendTime")
    elif header.producer_id < -1:
        problem = InvalidRecordError(f"no producer has the id {header.producer_id}")
    elif header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        problem = InvalidRecordError(
            f"batch of producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}; both must be at least 0"
        )
    elif attributes & CODEC_MASK:
        problem = _outside_compressed(header, batch, rules)
    elif count * RECORD_BYTES_MIN > len(batch) - HEADER_BYTES:
        problem = InvalidRecordError(f"a batch says {count} records in {len(batch) - HEADER_BYTES} bytes")
    if problem is not None:
        raise _first_told(header, batch, problem)


def _outside_compressed(header: BatchHeader, batch: Buffer, rules: IntakeRules) -> CorruptBatchError | None:
    if header.codec >= len(CODEC_NAMES):
        return UnsupportedCompressionError(
            f"batch has unknown compression codec {header.codec}; there is {', '.join(CODEC_NAMES)}",
            codec=header.codec,
        )
    if header.record_count > rules.batch_records_max:
        return InvalidRecordError(
            f"a compressed batch of {header.record_count} records; "
            f"this topic takes {rules.batch_records_max} (max.batch.records)"
        )
    try:
        told = declared_bytes(header.codec, memoryview(batch)[HEADER_BYTES:])
    except CorruptBatchError as error:
        return InvalidRecordError(error.message)
    if told is None or told <= rules.plain_bytes_max:
        return None
    return DecompressedTooLargeError(
        f"a batch decompresses to {told} bytes; this topic takes {rules.plain_bytes_max} (max.decompressed.bytes)",
        limit_bytes=rules.plain_bytes_max,
    )


def _first_told(header: BatchHeader, batch: Buffer, problem: CorruptBatchError) -> CorruptBatchError:
    """Damage on the way explains everything else."""
    try:
        check_batch(header._replace(attributes=0, last_offset_delta=0, producer_id=-1, record_count=1), batch)
    except CorruptBatchError as damage:
        return damage
    return problem


class RecordWalker:
    """Walks the records of batches. One for each node: it loads the kernel when there is work for it.

    `in_thread` has a function called in another thread.
    """

    def __init__(self, in_thread: Callable[[Callable[[], None]], object]) -> None:
        self._in_thread = in_thread
        self._kernel: Any = None
        self._left = KERNEL_AFTER_RECORDS
        self._may_load = find_spec("numba") is not None
        self._has_numba = self._may_load

    def load_kernel(self) -> None:
        """Load the kernel. Takes a second or more."""
        from antiphon.records import walk_kernels

        walk_kernels.walk_records(0, 0, 0)
        self._kernel = walk_kernels

    def walk_now(self, header: BatchHeader, batch: Buffer, rules: IntakeRules) -> bool:
        """Look at every record as far as the rules say; False, and nothing done, where an event loop would have to wait.

        The batch has passed `check_outside`. Raises what `walk` raises.
        """
        looks_at_all = rules.validation == FULL or rules.needs_keys
        if (header.attributes and not looks_at_all) or header.attributes & CONTROL_BIT:
            return True
        if not looks_at_all and (rules.validation == SHALLOW or not self._has_numba):
            return True
        if self._left < 0 and self._may_load:
            self._may_load = False
            self._in_thread(self.load_kernel)
        if header.attributes or header.record_count > (
            _AT_ONCE_DECODED if self._kernel is None or rules.needs_keys else _AT_ONCE
        ):
            return False
        self.walk(header, batch, rules)
        return True

    def looks_at(self, rules: IntakeRules) -> bool:
        """Does this node look at records that are not compressed?"""
        return (
            rules.validation == FULL or rules.needs_keys or (rules.validation != SHALLOW and self._has_numba)
        )

    def walks_quickly(self, header: BatchHeader) -> bool:
        """May an event loop wait for a walk over so many records?"""
        return header.record_count <= (_AT_ONCE_DECODED if self._kernel is None else _AT_ONCE)

    def walk(self, header: BatchHeader, batch: Buffer, rules: IntakeRules) -> Buffer | None:
        """Look at every record, compressed or not; returns them, decompressed. None: there is no library to do so.

        Raises InvalidRecordError, DecompressedTooLargeError, and CorruptBatchError where the CRC is wrong too.
        """
        try:
            records: Buffer = (
                plain_records(header, batch, rules.plain_bytes_max)
                if header.attributes
                else memoryview(batch)[HEADER_BYTES:]
            )
            kernel = self._kernel
            if rules.needs_keys:
                _check_keys(bytes(records), header.record_count)
            if kernel is None:
                self._left -= header.record_count
                _walk_decoded(header, records)
                return records
            import numpy as np

            kept = np.frombuffer(records, np.uint8)
            address = kept.__array_interface__["data"][0]  # `.ctypes.data` takes three calls of Python to it
            found = kernel.walk_records(address, len(kept), header.record_count)
            if found:
                record, wrong = found >> kernel.WRONG_BITS, found & (1 << kernel.WRONG_BITS) - 1
                raise wrong_record(record, _PROBLEMS[wrong])
            return records
        except MissingCodecError as error:
            if rules.needs_keys:
                raise InvalidRecordError(
                    f"{NO_KEY}, and whether there is cannot be seen: {error.message}"
                ) from None
            return None  # what cannot be unpacked here was looked at from outside
        except (InvalidRecordError, DecompressedTooLargeError) as problem:
            raise _first_told(header, batch, problem) from None
        except CorruptBatchError as error:
            raise _first_told(header, batch, InvalidRecordError(error.message)) from None


def _check_keys(records: bytes, count: int) -> None:
    """Refuse records without a key. Where records are not as they should be, what walks them next says so."""
    places = without_key(records, count, _NAMED)
    if len(places) == 1:
        raise wrong_record(places[0], NO_KEY)
    if places:
        many = f"{len(places)} records" if len(places) < _NAMED else f"{_NAMED} records or more"
        raise InvalidRecordError(
            f"{many} of the batch, the first of them record {places[0]}: {NO_KEY}",
            record=places[0],
            reason=NO_KEY,
            records=" ".join(map(str, places)),
        )


def wrong_record(record: int, reason: str) -> InvalidRecordError:
    """`record`: its place in the batch."""
    return InvalidRecordError(f"record {record} of the batch: {reason}", record=record, reason=reason)


def _walk_decoded(header: BatchHeader, records: Buffer) -> None:
    """The same by decoding the records, and encoding them again: where that gives other bytes, each of them is looked at."""
    size = len(records)
    head = HEADER_STRUCT.pack(
        *header._replace(
            base_offset=0,
            batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + size,
            attributes=header.attributes & ~CODEC_MASK,
            base_timestamp=0,
        )
    )
    builder = load_builder()(MAGIC, 0, False, -1, -1, -1, BATCH_BYTES_MAX)
    append = builder.append
    append(0, 0, None, None, [])  # the others' timestamps count from this one's
    at = 0
    try:
        for record in load_batch_class()(head + bytes(records)):
            if record.offset != at:
                raise wrong_record(at, _PROBLEMS[3])
            append(at, record.timestamp, record.key, record.value, record.headers)
            at += 1
    except AntiphonError:
        raise
    except Exception as error:  # aiokafka's own type, UnicodeDecodeError and the like
        _look_closely(header, records)
        raise wrong_record(min(at, header.record_count - 1), f"it cannot be decoded: {error}") from error
    if builder.build()[HEADER_BYTES + RECORD_BYTES_MIN :] != records:
        _look_closely(header, records)


def _look_closely(header: BatchHeader, records: Buffer) -> None:
    """Raise what the kernel would find."""
    found = walk_plainly(records, header.record_count)
    if found is not None:
        record, wrong = found
        raise wrong_record(record, _PROBLEMS[wrong])
