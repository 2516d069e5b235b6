"""Walks the records of one batch in plain Python, with the findings of the compiled kernel (`walk_kernels`).

It is asked for batches that are unusual: numbers written longer than they need be, attributes of records that have no
meaning yet. A node must answer the same about them whether its kernel is loaded or not.
"""

from typing import Final

from antiphon.records.batch import Buffer

BAD_LENGTH: Final = 1  # what may be wrong, by the same numbers as the kernel's
BAD_FIELDS: Final = 2
BAD_OFFSET: Final = 3
BAD_NAME: Final = 4
NOT_FILLED: Final = 5
_NUMBER_BYTES: Final = 5
_LONG_NUMBER_BYTES: Final = 10


class _WrongError(Exception):
    """What is wrong with the record."""

    def __init__(self, wrong: int) -> None:
        super().__init__(wrong)
        self.wrong = wrong


def walk_plainly(records: Buffer, count: int) -> tuple[int, int] | None:
    """(number of the record, what is wrong with it) of the first one that is not right, or None."""
    data = bytes(records)
    at = 0
    for record in range(count):
        try:
            at = _after_record(data, at, record)
        except _WrongError as error:
            return record, error.wrong
    return None if at == len(data) else (count - 1, NOT_FILLED)


def without_key(data: bytes, count: int, most: int) -> list[int]:
    """Numbers of the first records whose key is null, at most so many; also where the records before them are not right."""
    found: list[int] = []
    at = 0
    try:
        for record in range(count):
            length, body = _number(data, at, len(data), BAD_LENGTH)
            at = body + (length >> 1)
            _, place = _number(data, body + 1, at, BAD_FIELDS, _LONG_NUMBER_BYTES)
            _, place = _number(data, place, at, BAD_FIELDS)
            if _number(data, place, at, BAD_FIELDS)[0] == 1:
                found.append(record)
                if len(found) == most:
                    break
    except _WrongError:
        pass
    return found


def _after_record(data: bytes, at: int, record: int) -> int:
    length, body = _number(data, at, len(data), BAD_LENGTH)
    if length & 1 or length >> 1 > len(data) - body:
        raise _WrongError(BAD_LENGTH)
    end = body + (length >> 1)
    if length < 2 or data[body] >= 0x80:
        raise _WrongError(BAD_FIELDS)
    _, place = _number(data, body + 1, end, BAD_FIELDS, _LONG_NUMBER_BYTES)
    delta, place = _number(data, place, end, BAD_FIELDS)
    if delta != record << 1:
        raise _WrongError(BAD_OFFSET)
    place = _after_bytes(data, _after_bytes(data, place, end), end)
    count, place = _number(data, place, end, BAD_FIELDS)
    if count & 1:
        raise _WrongError(BAD_FIELDS)
    for _ in range(count >> 1):
        place = _after_bytes(data, _after_name(data, place, end), end)
    if place != end:
        raise _WrongError(BAD_FIELDS)
    return end


def _number(data: bytes, at: int, end: int, wrong: int, bytes_max: int = _NUMBER_BYTES) -> tuple[int, int]:
    """A number as it is written, zigzag, and where it ends."""
    value = shift = 0
    for place in range(at, min(end, at + bytes_max)):
        value |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return value, place + 1
        shift += 7
    raise _WrongError(wrong)


def _after_bytes(data: bytes, at: int, end: int) -> int:
    """Where bytes end that have their length in front (-1, written 1: null)."""
    written, start = _number(data, at, end, BAD_FIELDS)
    if written == 1:
        return start
    if written & 1 or written >> 1 > end - start:
        raise _WrongError(BAD_FIELDS)
    return start + (written >> 1)


def _after_name(data: bytes, at: int, end: int) -> int:
    written, start = _number(data, at, end, BAD_FIELDS)
    after = _after_bytes(data, at, end)
    if written & 1:
        raise _WrongError(BAD_FIELDS)
    try:
        data[start:after].decode()
    except UnicodeDecodeError:
        raise _WrongError(BAD_NAME) from None
    return after
