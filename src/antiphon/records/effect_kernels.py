"""The kernels between a table's log, its store and the rows of a load: what is done once per row where rows come in bulk.

Two layouts are of these files alone. What the store takes is *stored*: for each row a byte in front of its key, the key, the
version as `records.changes.VERSION` packs it, and the value, one row after the other. Its *edges* are, for each row, where
its key begins and where its version does, and behind the last row where that ends. The rows of a load are *packed*
(`records.packed_rows`).

The bytes are untrusted, as those of `walk_kernels` are.
"""

from typing import Any, Final

from antiphon.records.arrow_memory import (
    byte_at,
    copy,
    inlined,
    int64_at,
    kernel,
    part,
    put_byte,
    put_int64,
    raw_number,
)

NOT_PLAIN: Final = -1  # for those who look at each record
_VERSION_BYTES: Final = 32
_VERSION_HEADER: Final = 0x76  # v
# Of a record's headers: their number, the name with its length, the version with its length
_HEADER_BYTES: Final = 36
RECORD_BYTES_MAX: Final = 60  # of a record with its headers, besides key and value
RECORD_BYTES_MIN: Final = _HEADER_BYTES


@inlined
def _big32(at: int) -> Any:
    """A big-endian number of 32 bits with a sign."""
    value = byte_at(at) << 24 | byte_at(at + 1) << 16 | byte_at(at + 2) << 8 | byte_at(at + 3)
    return value - (1 << 32) if value >= 1 << 31 else value


@inlined
def _put_big64(at: int, value: int) -> None:
    for place in range(8):
        put_byte(at + place, (value >> (56 - 8 * place)) & 0xFF)


@inlined
def _big64(at: int) -> Any:
    value = byte_at(at)
    for place in range(1, 8):
        value = value << 8 | byte_at(at + place)
    return value


@kernel
def store_rows(lengths: int, rows: int, content: int, size: int, prefix: int, stored: int, edges: int) -> Any:
    """Lay packed rows out as they are stored, without their versions; returns how many bytes that takes.

    NOT_PLAIN: a row is a removal, or the lengths do not come to the `size` bytes at `content`.
    """
    at, end, to = content, content + size, stored
    for row in range(rows):
        key_bytes, value_bytes = _big32(lengths + 8 * row), _big32(lengths + 8 * row + 4)
        if key_bytes < 0 or value_bytes < 0 or key_bytes + value_bytes > end - at:
            return NOT_PLAIN
        put_int64(edges + 16 * row, to - stored)
        put_byte(to, prefix)
        copy(to + 1, at, key_bytes)
        to += 1 + key_bytes
        put_int64(edges + 16 * row + 8, to - stored)
        copy(to + _VERSION_BYTES, at + key_bytes, value_bytes)
        to += _VERSION_BYTES + value_bytes
        at += key_bytes + value_bytes
    put_int64(edges + 16 * rows, to - stored)
    return to - stored if at == end else NOT_PLAIN


@part
def _put_number(at: int, value: int) -> int:
    """A number that is not negative, zigzag, as records have it; returns where it ends."""
    left = value << 1
    while left >= 0x80:
        put_byte(at, (left & 0x7F) | 0x80)
        left >>= 7
        at += 1
    put_byte(at, left)
    return at + 1


@inlined
def _number_bytes(value: int) -> int:
    left, size = value << 1, 1
    while left >= 0x80:
        left >>= 7
        size += 1
    return size


@kernel
def log_rows(
    stored: int, edges: int, rows: int, first_id: int, before: int, now_ms: int, records: int
) -> Any:
    """Give stored rows their versions, and write them as records of a batch whose time is `now_ms`; returns their bytes.

    The versions' ids are `first_id` and those that follow. `before`: modifications and time of creation of each row as it is
    from now on, as numbers of 64 bits; 0: all rows are new. Each row has room for RECORD_BYTES_MAX beside key and value.
    """
    at = records
    for row in range(rows):
        key, version = stored + int64_at(edges + 16 * row) + 1, stored + int64_at(edges + 16 * row + 8)
        value, end = version + _VERSION_BYTES, stored + int64_at(edges + 16 * row + 16)
        _put_big64(version, first_id + row)
        _put_big64(version + 8, int64_at(before + 16 * row) if before else 0)
        _put_big64(version + 16, int64_at(before + 16 * row + 8) if before else now_ms)
        _put_big64(version + 24, now_ms)
        key_bytes, value_bytes = version - key, end - value
        body = 2 + _number_bytes(row) + _number_bytes(key_bytes) + key_bytes
        at = _put_number(at, body + _number_bytes(value_bytes) + value_bytes + _HEADER_BYTES)
        put_byte(at, 0)  # attributes
        put_byte(at + 1, 0)  # time, counted from the batch's
        at = _put_number(at + 2, row)
        at = _put_number(at, key_bytes)
        copy(at, key, key_bytes)
        at = _put_number(at + key_bytes, value_bytes)
        copy(at, value, value_bytes)
        at += value_bytes
        put_byte(at, 2)  # one header
        put_byte(at + 1, 2)  # with a name of one byte
        put_byte(at + 2, _VERSION_HEADER)
        put_byte(at + 3, 2 * _VERSION_BYTES)
        copy(at + 4, version, _VERSION_BYTES)
        at += 4 + _VERSION_BYTES
    return at - records


@inlined
def _number(at: int, limit: int) -> tuple[int, int]:
    """A number of a record, and where it ends: 0 if that is not before `limit`."""
    written, ended = raw_number(at, limit)
    return (written >> 1) ^ -(written & 1), ended


@kernel
def store_records(at: int, size: int, count: int, prefix: int, stored: int, edges: int) -> Any:
    """Lay a batch's records out as they are stored; returns the largest id of their versions.

    The version of a removal is left out, so its row has no bytes there. NOT_PLAIN: a record is no effect with a version
    alone, or something is wrong with it. What is stored takes less than the records do.
    """
    end, to, newest = at + size, stored, 0
    for row in range(count):
        length, body = _number(at, min(end, at + 5))
        if body == 0 or length < 0 or length > end - body:
            return NOT_PLAIN
        at = body + length
        if length < 1 or byte_at(body) != 0:
            return NOT_PLAIN
        _, place = _number(body + 1, min(at, body + 11))
        delta, place = _number(place, min(at, place + 5) if place else 0)
        if place == 0 or delta != row:
            return NOT_PLAIN
        key_bytes, key = _number(place, min(at, place + 5))
        if key == 0 or key_bytes < 0 or key_bytes > at - key:
            return NOT_PLAIN
        place = key + key_bytes
        value_bytes, value = _number(place, min(at, place + 5))
        if value == 0 or value_bytes < -1 or value_bytes > at - value:
            return NOT_PLAIN
        place = value + max(0, value_bytes)
        if at - place != _HEADER_BYTES:
            return NOT_PLAIN
        if byte_at(place) != 2 or byte_at(place + 1) != 2 or byte_at(place + 2) != _VERSION_HEADER:
            return NOT_PLAIN
        if byte_at(place + 3) != 2 * _VERSION_BYTES:
            return NOT_PLAIN
        version = place + 4
        newest = max(newest, _big64(version))
        put_int64(edges + 16 * row, to - stored)
        put_byte(to, prefix)
        copy(to + 1, key, key_bytes)
        to += 1 + key_bytes
        put_int64(edges + 16 * row + 8, to - stored)
        if value_bytes >= 0:
            copy(to, version, _VERSION_BYTES)
            copy(to + _VERSION_BYTES, value, value_bytes)
            to += _VERSION_BYTES + value_bytes
    put_int64(edges + 16 * count, to - stored)
    return newest if at == end else NOT_PLAIN
