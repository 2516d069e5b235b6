"""The codec that a topic wants its batches to have, whatever their producers chose: Kafka's `compression.type`.

The leader unpacks the records of a batch as one run of bytes and packs them anew; none of them is decoded. All that the
batch says besides stays as it is: offsets, times, producer, sequences, its transaction. Length, codec and CRC are made anew.
So the CRC that the batch came with is checked first: what was damaged on the way would get a right one.
"""

import sys
from typing import Final

from antiphon.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCompressionError,
)
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
)
from antiphon.records.builder import seal
from antiphon.records.compression import GZIP, MissingCodecError, compress
from antiphon.records.decode import plain_records
from antiphon.records.intake import SHALLOW, IntakeRules, RecordWalker

AT_ONCE_BYTES: Final = 16 * 1024  # of a batch that an event loop packs anew: in about 0.2 ms
AT_ONCE_PLAIN_BYTES: Final = 32 * 1024  # that it unpacks to


def is_other(header: BatchHeader, rules: IntakeRules) -> bool:
    """Does the topic want another codec than the batch has?"""
    return rules.codec not in {-1, header.attributes & CODEC_MASK} and not header.attributes & CONTROL_BIT


def recompressed(
    walker: RecordWalker, header: BatchHeader, batch: Buffer, rules: IntakeRules, *, looks: bool
) -> bytearray:
    """The batch with its records under the topic's codec. `looks`: at every record; the batch passed `check_outside`.

    What is unpacked for this is looked at, too, where the topic's rules are not `shallow`.

    Raises CorruptBatchError and the kinds of it: InvalidRecordError, DecompressedTooLargeError, and
    UnsupportedCompressionError where this node lacks a library.
    """
    check_batch(header, batch)
    packed = bool(header.attributes & CODEC_MASK)
    looks = looks or (packed and rules.validation != SHALLOW and walker.looks_at(rules))
    try:
        plain = walker.walk(header, batch, rules) if looks else None
        if plain is None:
            plain = plain_records(header, batch, rules.plain_bytes_max)
        records = compress(rules.codec, plain, rules.level)
    except MissingCodecError as error:
        raise UnsupportedCompressionError(
            f"this node cannot store the batch as the topic's compression.type={CODEC_NAMES[rules.codec]} requires: "
            f"{error.message}",
            codec=rules.codec,
        ) from None
    except (InvalidRecordError, DecompressedTooLargeError):
        raise
    except CorruptBatchError as error:  # its CRC is right: it was sent so
        raise InvalidRecordError(error.message) from None
    told = header._replace(
        batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(records),
        attributes=header.attributes & ~CODEC_MASK | rules.codec,
    )
    made = bytearray(HEADER_STRUCT.pack(*told)) + records
    seal(made)
    return made


def recompressed_now(
    walker: RecordWalker, header: BatchHeader, batch: Buffer, rules: IntakeRules
) -> bytearray | None:
    """The same for a batch that has passed `walk_now`; None, and nothing done, where an event loop would have to wait."""
    codecs = max(rules.codec, header.attributes & CODEC_MASK)
    if (
        len(batch) > AT_ONCE_BYTES
        or not rules.packs_quickly
        or not walker.walks_quickly(header)
        or (codecs > GZIP and "pyarrow" not in sys.modules)  # whose loading takes a while
    ):
        return None
    bounded = rules._replace(plain_bytes_max=min(rules.plain_bytes_max, AT_ONCE_PLAIN_BYTES))
    try:
        return recompressed(walker, header, batch, bounded, looks=False)
    except DecompressedTooLargeError:
        return None  # a thread sees whether it is more than the topic takes
