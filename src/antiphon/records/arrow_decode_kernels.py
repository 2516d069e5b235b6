"""Kernels that decode records: from the bytes of RecordBatches to Arrow's columns (`arrow`).

The bytes are untrusted until they are checked: everything that is read is known to lie within its record, every record
within its batch, and the output was sized by the batches' own lengths.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from antiphon.records.arrow_memory import (
    byte_at,
    copy,
    int32_at,
    int64_at,
    kernel,
    part,
    put_byte,
    put_int32,
    put_int64,
)
from antiphon.records.batch import OFFSET_MAX, TIMESTAMP_MS_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# Fields of the table of batches, a row each:
ADDRESS: Final = 0  # of the plain records
SIZE: Final = 1
COUNT: Final = 2
BASE_OFFSET: Final = 3
TIME_MS: Final = 4
LOG_TIME: Final = 5  # 1: every record has the batch's time, 0: a record adds its own to it
TERM: Final = 6
PLACE: Final = 7  # of the whole batch, behind the beginning of its buffer
UNREAD: Final = 8  # bits: CHECK the CRC, UNPACK the records, SKIP them
OFFSETS: Final = 9  # that the batch takes: at least as many as it has records
BATCH_FIELDS: Final = 10
CHECK: Final = 1
UNPACK: Final = 2
SKIP: Final = 4
# Places in what is found:
FOUND_ROWS: Final = 0
KEY_BYTES: Final = 1
KEY_NULLS: Final = 2
VALUE_BYTES: Final = 3
VALUE_NULLS: Final = 4
HEADERS: Final = 5
NAME_BYTES: Final = 6
HEADER_VALUE_BYTES: Final = 7
BATCH: Final = 8  # where a record is bad
FOUND_FIELDS: Final = 9
# What may be wrong:
GOOD: Final = 0
BAD_LENGTH: Final = 1
BAD_FIELDS: Final = 2
BAD_OFFSET: Final = 3
NOT_FILLED: Final = 4

VERSION_BYTES: Final = 32
_VERSION_NAME: Final = ord("v")

Target = tuple[int, int, int]  # int32 offsets, data, zeroed bitmap; all 0: not wanted


_HEADER_BYTES: Final = 61
_RECORD_BYTES_MIN: Final = 7
_CODECS: Final = 5
# Above this size the machine's own instruction, called from Python, is faster than the table.
_CRC_BYTES_MAX: Final = 1500


def _crc_table() -> "NDArray[np.int64]":
    table = np.zeros((8, 256), np.int64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table[0, byte] = crc
    for n in range(1, 8):
        table[n] = (table[n - 1] >> 8) ^ table[0][table[n - 1] & 0xFF]
    return table


_CRC_TABLE: Final = _crc_table()


@part
def _crc32c(at: int, size: int) -> Any:
    """CRC-32C, eight bytes at a time."""
    crc = 0xFFFF_FFFF
    for _ in range(size >> 3):
        crc ^= byte_at(at) | byte_at(at + 1) << 8 | byte_at(at + 2) << 16 | byte_at(at + 3) << 24
        crc = (
            _CRC_TABLE[7, crc & 0xFF]
            ^ _CRC_TABLE[6, (crc >> 8) & 0xFF]
            ^ _CRC_TABLE[5, (crc >> 16) & 0xFF]
            ^ _CRC_TABLE[4, crc >> 24]
            ^ _CRC_TABLE[3, byte_at(at + 4)]
            ^ _CRC_TABLE[2, byte_at(at + 5)]
            ^ _CRC_TABLE[1, byte_at(at + 6)]
            ^ _CRC_TABLE[0, byte_at(at + 7)]
        )
        at += 8
    for _ in range(size & 7):
        crc = _CRC_TABLE[0, (crc ^ byte_at(at)) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc ^ 0xFFFF_FFFF


@part
def _big(at: int, count: int) -> Any:
    """A signed number, the highest byte first."""
    value = byte_at(at)
    if value >= 0x80:
        value -= 0x100
    for n in range(1, count):
        value = (value << 8) | byte_at(at + n)
    return value


@kernel
def scan_batches(data: int, size: int, first: int, last: int, table: int) -> tuple[int, int]:
    """List the batches that stand in `size` bytes; how many there are, and where the first bad one is (`size`: nowhere).

    What `records.batch.check_batch` checks is checked, but for the CRC of large batches, which is left to do as UNREAD
    says. SKIP is said of control batches, and of batches without records, or without offsets in first..last. `table` has
    room for as many batches as there can be headers.
    """
    at = count = 0
    while at < size:
        if size - at < _HEADER_BYTES:
            return count, at
        batch = data + at
        batch_bytes = 12 + _big(batch + 8, 4)
        if byte_at(batch + 16) != 2 or batch_bytes < _HEADER_BYTES or batch_bytes > size - at:
            return count, at
        attributes, records = _big(batch + 21, 2), _big(batch + 57, 4)
        codec, offsets = attributes & 7, _big(batch + 23, 4) + 1
        if records < 0 or offsets <= 0 or records > offsets or codec >= _CODECS:
            return count, at
        if _big(batch + 43, 8) >= 0 and (_big(batch + 51, 2) < 0 or _big(batch + 53, 4) < 0):
            return count, at
        if batch_bytes > _CRC_BYTES_MAX:
            unread = CHECK
        elif _crc32c(batch + 21, batch_bytes - 21) == _big(batch + 17, 4) & 0xFFFF_FFFF:
            unread = 0
        else:
            return count, at
        base_offset = _big(batch, 8)
        if base_offset > OFFSET_MAX - offsets:
            return count, at
        if attributes & 0x20 or records == 0 or base_offset >= last or base_offset + offsets <= first:
            unread |= SKIP
        elif codec:
            unread |= UNPACK
        elif records > (batch_bytes - _HEADER_BYTES) // _RECORD_BYTES_MIN:
            return count, at
        from_log = (attributes >> 3) & 1
        row = table + 8 * BATCH_FIELDS * count
        put_int64(row + 8 * ADDRESS, batch + _HEADER_BYTES)
        put_int64(row + 8 * SIZE, batch_bytes - _HEADER_BYTES)
        put_int64(row + 8 * COUNT, records)
        put_int64(row + 8 * BASE_OFFSET, base_offset)
        put_int64(row + 8 * TIME_MS, _big(batch + (35 if from_log else 27), 8))
        put_int64(row + 8 * LOG_TIME, from_log)
        put_int64(row + 8 * TERM, _big(batch + 12, 4))
        put_int64(row + 8 * PLACE, at)
        put_int64(row + 8 * UNREAD, unread)
        put_int64(row + 8 * OFFSETS, offsets)
        count += 1
        at += batch_bytes
    return count, at


@part
def _varint(at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """The zigzag number at an address, and where it ends: 0 if not before `end` or `bytes_max`, or if `at` is 0."""
    value = shift = 0
    if at == 0:
        return 0, 0
    limit = min(end, at + bytes_max)
    while at < limit:
        byte = byte_at(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFF_FFFF_FFFF_FFFF) ^ -(value & 1), at
        shift += 7
    return 0, 0


@part
def _sized(at: int, end: int) -> tuple[int, int, int]:
    """Address and size (-1: null) of bytes with their length in front, and where they end: 0 if not before `end`."""
    size, start = _varint(at, end, 5)
    if start == 0 or size < -1 or size > end - start:
        return 0, -1, 0
    return start, size, start + max(size, 0)


@part
def _walk_headers(at: int, end: int, count: int) -> tuple[int, int, int, int]:
    """Bytes of the names and of the values, address of the table version (0: none), and where the headers end or 0."""
    name_bytes = value_bytes = version = 0
    seen = False
    for _ in range(count):
        name, size, at = _sized(at, end)
        value, value_size, at = _sized(at, end)
        if at == 0 or size < 0:
            return 0, 0, 0, 0
        name_bytes += size
        value_bytes += max(value_size, 0)
        if not seen and size == 1 and byte_at(name) == _VERSION_NAME:
            seen = True  # only the first one counts
            version = value if value_size == VERSION_BYTES else 0
    return name_bytes, value_bytes, version, at


@part
def _store(target: Target, row: int, used: int, source: int, size: int) -> int:
    """Append a row's bytes; how many bytes the column has then."""
    offsets, data, bitmap = target
    if offsets == 0:
        return used
    if size >= 0:
        copy(data + used, source, size)
        used += size
        put_byte(bitmap + (row >> 3), byte_at(bitmap + (row >> 3)) | (1 << (row & 7)))
    put_int32(offsets + 4 * row + 4, used)
    return used


@part
def _microseconds(time_ms: int) -> int:
    return max(-TIMESTAMP_MS_MAX, min(TIMESTAMP_MS_MAX, time_ms)) * 1000


@part
def _store_version(versions: tuple[int, int, int, int], row: int, at: int) -> None:
    ids, modifications, created, modified = versions
    put_int64(ids + 8 * row, _big(at, 8))
    put_int64(modifications + 8 * row, _big(at + 8, 8))
    put_int64(created + 8 * row, _microseconds(_big(at + 16, 8)))
    put_int64(modified + 8 * row, _microseconds(_big(at + 24, 8)))


@part
def _store_numbers(
    numbers: tuple[int, int, int, int], row: int, offset: int, time_ms: int, log_time: int, term: int
) -> None:
    offsets, timestamps, types, terms = numbers
    if offsets:
        put_int64(offsets + 8 * row, offset)
    if timestamps:
        put_int64(timestamps + 8 * row, _microseconds(time_ms))
    if types:
        put_int32(types + 4 * row, log_time)
    if terms:
        put_int64(terms + 8 * row, term)


@part
def _fields(body: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Time and offset deltas, address and size of key and value, how many headers and where: 0 if the record is bad."""
    delta_ms, at = _varint(body + 1, end, 10)  # after one byte of attributes
    delta, at = _varint(at, end, 5)
    key_at, key_size, at = _sized(at, end)
    value_at, value_size, at = _sized(at, end)
    header_count, at = _varint(at, end, 5)
    return (
        delta_ms,
        delta,
        key_at,
        key_size,
        value_at,
        value_size,
        header_count,
        at if header_count >= 0 else 0,
    )


@kernel
def _store_list(headers: tuple[int, int], row: int, end: int, place: int) -> None:
    """Where a row's headers end among all, and where they stand in the batch."""
    put_int32(headers[0] + 4 * row + 4, end)
    put_int64(headers[1] + 8 * row, place)


@kernel
def decode_records(
    batches: int,
    batch_count: int,
    first: int,
    last: int,
    key: Target,
    value: Target,
    numbers: tuple[int, int, int, int],
    headers: tuple[int, int],
    versions: tuple[int, int, int, int],
    found: "Ints",
) -> int:
    """Check every record of the batches, and write those with first <= offset < last to columns.

    `batches`: the table of batches, int64. `numbers`: addresses for offsets, timestamps in us, timestamp types (int32) and
    terms; 0 where not wanted. `headers`: for int32 offsets and, per row, the address of its first header, which is what
    `decode_headers` needs. `versions`: for the four numbers of a table's change; then records without are left out. There is
    room for as many rows as there are records, and for as many bytes as the batches have. Sums are left in `found`; returns
    what is wrong, and in found[BATCH] where.
    """
    for offsets in (key[0], value[0], headers[0]):
        if offsets:
            put_int32(offsets, 0)
    rows = key_bytes = value_bytes = key_nulls = value_nulls = 0
    header_total = name_total = header_value_total = 0
    for number in range(batch_count):
        found[BATCH] = number
        batch = batches + 8 * BATCH_FIELDS * number
        at = int64_at(batch + 8 * ADDRESS)
        end = at + int64_at(batch + 8 * SIZE)
        log_time = int64_at(batch + 8 * LOG_TIME)
        for _ in range(int64_at(batch + 8 * COUNT)):
            length, body = _varint(at, end, 5)
            if body == 0 or length < 0 or length > end - body:
                return BAD_LENGTH
            at = body + length
            delta_ms, delta, key_at, key_size, value_at, value_size, header_count, place = _fields(body, at)
            name_bytes, header_value_bytes, version, place_after = _walk_headers(place, at, header_count)
            if place_after != at:
                return BAD_FIELDS
            if delta < 0 or delta >= int64_at(batch + 8 * OFFSETS):
                return BAD_OFFSET
            offset = int64_at(batch + 8 * BASE_OFFSET) + delta
            if offset < first or offset >= last or (versions[0] != 0 and version == 0):
                continue
            key_bytes = _store(key, rows, key_bytes, key_at, key_size)
            value_bytes = _store(value, rows, value_bytes, value_at, value_size)
            key_nulls += key_size < 0
            value_nulls += value_size < 0
            time_ms = int64_at(batch + 8 * TIME_MS) + (0 if log_time else delta_ms)
            _store_numbers(numbers, rows, offset, time_ms, log_time, int64_at(batch + 8 * TERM))
            if versions[0]:
                _store_version(versions, rows, version)
            if headers[0]:
                header_total += header_count
                name_total += name_bytes
                header_value_total += header_value_bytes
                _store_list(headers, rows, header_total, place)
            rows += 1
        if at != end:
            return NOT_FILLED
    found[FOUND_ROWS] = rows
    found[KEY_BYTES], found[KEY_NULLS] = key_bytes, key_nulls
    found[VALUE_BYTES], found[VALUE_NULLS] = value_bytes, value_nulls
    found[HEADERS], found[NAME_BYTES] = header_total, name_total
    found[HEADER_VALUE_BYTES] = header_value_total
    return GOOD


@kernel
def decode_headers(rows: int, lists: int, places: int, names: Target, values: Target) -> int:
    """Write the headers that `decode_records` checked; how many have no value."""
    put_int32(names[0], 0)
    put_int32(values[0], 0)
    name_bytes = value_bytes = nulls = header = 0
    for row in range(rows):
        at = int64_at(places + 8 * row)
        for _ in range(int32_at(lists + 4 * row + 4) - int32_at(lists + 4 * row)):
            size, source = _varint(at, at + 5, 5)
            name_bytes = _store(names, header, name_bytes, source, size)
            at = source + size
            size, source = _varint(at, at + 5, 5)
            value_bytes = _store(values, header, value_bytes, source, size)
            at = source + max(size, 0)
            nulls += size < 0
            header += 1
    return nulls
