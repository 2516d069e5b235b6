"""The headers of one record as it stands in a batch, without decoding the rest of it."""

from collections.abc import Iterator

from antiphon.records.varint import take_varint


def headers_of(record: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Name and value of each header, in order; a null value is empty. `record`: what follows the record's length.

    Raises IndexError where its fields reach beyond it.
    """
    at = 1  # attributes
    for _ in range(2):  # timestamp and offset
        _, at = take_varint(record, at)
    for _ in range(2):  # key and value
        _, at = _taken(record, at)
    count, at = take_varint(record, at)
    for _ in range(count):
        name, at = _taken(record, at)
        value, at = _taken(record, at)
        yield name, value


def _taken(record: memoryview, at: int) -> tuple[memoryview, int]:
    """Bytes that have their length in front, and where they end."""
    size, at = take_varint(record, at)
    end = at + size
    if end > len(record):
        raise IndexError(end)
    return record[at:end], end
