"""The kernel that walks the records of one batch without decoding them: what intake asks before a batch is appended.

The bytes are untrusted: every field is known to lie within its record before it is passed over, every record within the
batch.
"""

from typing import Any, Final

from antiphon.records.arrow_memory import byte_at, inlined, kernel, part, raw_number

# What may be wrong, with the number of the record in the upper bits: `found = record << WRONG_BITS | wrong`.
WRONG_BITS: Final = 3
GOOD: Final = 0
BAD_LENGTH: Final = 1
BAD_FIELDS: Final = 2
BAD_OFFSET: Final = 3
BAD_NAME: Final = 4
NOT_FILLED: Final = 5


@inlined
def _after_bytes(at: int, end: int) -> int:
    """Where bytes end that have their length in front (-1, written 1: null); 0 if not before `end`."""
    written, start = raw_number(at, min(end, at + 5))
    size = 0 if written == 1 else written >> 1
    is_good = start != 0 and (written == 1 or written & 1 == 0) and size <= end - start
    return start + size if is_good else 0


@part
def _is_utf8(at: int, end: int) -> bool:
    """Is a text what Python's decoder takes: no overlong forms, no surrogates, nothing above U+10FFFF?"""
    while at < end:
        lead = byte_at(at)
        at += 1
        if lead < 0x80:
            continue
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if lead < 0xC2 or lead > 0xF4 or end - at < more:
            return False
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        for _ in range(more):
            byte = byte_at(at)
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
            at += 1
    return True


@part
def _after_headers(at: int, end: int) -> tuple[int, int]:
    """Where a record's headers end or 0, and what is wrong."""
    count, at = raw_number(at, min(end, at + 5))
    if at == 0 or count & 1:
        return 0, BAD_FIELDS
    for _ in range(count >> 1):
        name = at
        at = _after_bytes(name, end)
        written, start = raw_number(name, min(end, name + 5))
        if at == 0 or written & 1:
            return 0, BAD_FIELDS
        if not _is_utf8(start, at):
            return 0, BAD_NAME
        at = _after_bytes(at, end)
        if at == 0:
            return 0, BAD_FIELDS
    return at, GOOD


@kernel
def walk_records(at: int, size: int, count: int) -> Any:
    """Walk `count` records that stand in `size` bytes from address `at`: GOOD, or what is wrong with which of them.

    Looked at: lengths, that the fields fill their record and the records the bytes, offset deltas 0, 1, 2..., and that
    headers' names are UTF-8.
    """
    end = at + size
    for record in range(count):
        length, body = raw_number(at, min(end, at + 5))
        if body == 0 or length & 1 or length >> 1 > end - body:
            return record << WRONG_BITS | BAD_LENGTH
        at = body + (length >> 1)
        if length < 2 or byte_at(body) >= 0x80:  # attributes, a byte that has no meaning yet
            return record << WRONG_BITS | BAD_FIELDS
        _, place = raw_number(body + 1, min(at, body + 11))
        delta, place = raw_number(place, min(at, place + 5) if place else 0)
        if place == 0:
            return record << WRONG_BITS | BAD_FIELDS
        if delta != record << 1:
            return record << WRONG_BITS | BAD_OFFSET
        place = _after_bytes(place, at)
        place = _after_bytes(place, at) if place else 0
        if place == 0:
            return record << WRONG_BITS | BAD_FIELDS
        if at - place == 1 and byte_at(place) == 0:  # no headers
            continue
        place, wrong = _after_headers(place, at)
        if wrong != GOOD or place != at:
            return record << WRONG_BITS | (wrong if wrong != GOOD else BAD_FIELDS)
    return GOOD if at == end else (count - 1) << WRONG_BITS | NOT_FILLED
