"""The offset at which a batch's records ask to be written: a conditional append (KIP-27) by a header of its records.

For clients whose library sets the base offset of a batch by itself (librdkafka's, Java's). A library puts into a batch what
it was given meanwhile, so a batch may have several records with the header, each with a condition of its own. All of them
can be kept only if they name one place for the batch. Nothing is looked for unless the topic asks for it
(`expected.offset.header`).
"""

import re
from collections.abc import Iterator
from typing import Final

from antiphon.errors import CorruptBatchError, DecompressedTooLargeError, InvalidRecordError
from antiphon.records.batch import HEADER_BYTES, BatchHeader, Buffer, check_batch
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX, MissingCodecError
from antiphon.records.decode import plain_records
from antiphon.records.headers import headers_of
from antiphon.records.intake import wrong_record
from antiphon.records.varint import take_varint

NAME: Final = b"antiphon.expected.offset"
RECORDS_MAX: Final = 1_000  # of a batch with conditions: Python looks at each of them, about 2 us a record
AT_ONCE: Final = 100  # records that an event loop may wait for
_FOUND: Final = re.compile(re.escape(NAME))
_OFFSET: Final = re.compile(rb"[0-9]{1,18}")


def is_quick(header: BatchHeader, batch: Buffer) -> bool:
    """May an event loop wait for `expected_offset_of`?"""
    if header.codec:
        return False
    return header.record_count <= AT_ONCE or _FOUND.search(batch, HEADER_BYTES) is None


def expected_offset_of(
    header: BatchHeader, batch: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> int | None:
    """Where the batch's first record must be written so that each condition of its records is kept; None: there is none.

    `limit_bytes`: to which its records may unpack. Raises CorruptBatchError where it was damaged on the way,
    InvalidRecordError, which names the record where one is to blame, and DecompressedTooLargeError.
    """
    if not header.codec and _FOUND.search(batch, HEADER_BYTES) is None:
        return None
    check_batch(header, batch)  # a digit may have been changed on the way
    records = _unpacked(header, batch, limit_bytes)
    if _FOUND.search(records) is None:
        return None
    if header.record_count > RECORDS_MAX:
        raise InvalidRecordError(
            f"a batch with the header {NAME.decode()} has {header.record_count} records; {RECORDS_MAX} are the most"
        )
    expected: int | None = None
    for place, offset in _conditions(records, header.record_count):
        if expected is None:
            expected = offset - place
        if expected < 0 or expected != offset - place:
            raise wrong_record(
                place,
                f"it expects offset {offset}, and the batch would have to begin at {offset - place}"
                + (f", not at {expected} as for a record before it" if expected >= 0 else ""),
            )
    if expected is not None and header.is_transactional:
        raise InvalidRecordError("a conditional append is no part of a transaction")
    return expected


def _unpacked(header: BatchHeader, batch: Buffer, limit_bytes: int) -> Buffer:
    try:
        return plain_records(header, batch, limit_bytes)
    except MissingCodecError as error:
        raise InvalidRecordError(
            f"whether a record expects an offset cannot be seen: {error.message}"
        ) from None
    except DecompressedTooLargeError:
        raise
    except CorruptBatchError as error:  # its CRC is right: it was sent so
        raise InvalidRecordError(error.message) from None


def _conditions(records: Buffer, count: int) -> Iterator[tuple[int, int]]:
    """Place in the batch, and the offset that it expects, of each record that expects one."""
    view = memoryview(records)
    at = 0
    for place in range(count):
        try:
            length, at = take_varint(view, at)
            end = at + length
            if length < 0 or end > len(view):
                raise wrong_record(place, "its length is impossible")
            found = [bytes(value) for name, value in headers_of(view[at:end]) if _is_ours(name)]
        except IndexError as error:
            raise wrong_record(place, "its fields do not fill it, or reach beyond it") from error
        at = end
        if len(found) > 1:
            raise wrong_record(place, f"it has the header {NAME.decode()} {len(found)} times")
        if found:
            if not _OFFSET.fullmatch(found[0]):
                raise wrong_record(place, f"its header {NAME.decode()} must be an offset in decimal digits")
            yield place, int(found[0])


def _is_ours(name: memoryview) -> bool:
    return len(name) == len(NAME) and bytes(name) == NAME
