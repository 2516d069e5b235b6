"""What is done once per record on the way between Arrow and RecordBatches, compiled by numba.

Kernels take the addresses of buffers (`arrow_memory` says why); whoever calls them keeps the buffers alive.

A column of bytes is the tuple `(offsets, wide, data, valid, first_bit)`: row n is the bytes from `offsets[n]` to
`offsets[n + 1]` of `data`; offsets are int64 where `wide` is 1, else int32; `valid` is the bitmap of which the column's bits
begin at `first_bit`, 0 where no row is null.

The compiled code is kept on disk beside this file, or in the user's cache where that cannot be written to. numba looks only
at the file of a kernel to see whether the kept code is of this source, so all that kernels call stands in this one file.
Importing it takes about a tenth of a second: do that when there are rows to move. No kernel holds the interpreter's lock.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numba
import numpy as np

from antiphon.records.arrow_memory import byte_at, copy, int32_at, int64_at, put_byte

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

BytesColumn = tuple[int, int, int, int, int]
Function = TypeVar("Function", bound=Callable[..., Any])

RECORD_BYTES_MAX: Final = 2**31 - 1


def _kernel(function: Function) -> Function:
    """For what Python calls: compiled once and kept."""
    try:
        compiled: Function = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place on disk to keep it: compile it in every process
        compiled = numba.njit(nogil=True)(function)
    return compiled


def _part(function: Function) -> Function:
    """For what only kernels call: compiled into them."""
    compiled: Function = numba.njit(nogil=True)(function)
    return compiled


@_part
def _varint_bytes(value: int) -> int:
    """How many bytes the zigzag number takes."""
    rest = (value << 1) ^ (value >> 63)
    count = 1
    while rest & ~0x7F:
        rest = (rest >> 7) & 0x01FF_FFFF_FFFF_FFFF
        count += 1
    return count


@_part
def _put_varint(at: int, value: int) -> int:
    """Write a zigzag number; where it ends."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        put_byte(at, (rest & 0x7F) | 0x80)
        rest = (rest >> 7) & 0x01FF_FFFF_FFFF_FFFF
        at += 1
    put_byte(at, rest)
    return at + 1


@_part
def _is_null(valid: int, bit: int) -> bool:
    return valid != 0 and (byte_at(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0


@_part
def _edge(offsets: int, wide: int, row: int) -> Any:
    return int64_at(offsets + 8 * row) if wide else int32_at(offsets + 4 * row)


@_part
def _piece(column: BytesColumn, row: int) -> tuple[int, int]:
    """Address and size of a row's bytes; size -1 for null."""
    offsets, wide, data, valid, first_bit = column
    if _is_null(valid, first_bit + row):
        return 0, -1
    start = _edge(offsets, wide, row)
    return data + start, _edge(offsets, wide, row + 1) - start


# -- from columns to records ---------------------------------------------------------------------------------------

DONE: Final = 0  # all rows are in the batch
FULL: Final = 1  # the batch is complete
GROW: Final = 2  # the next row needs a larger buffer: state[NEEDED]
TOO_LARGE: Final = 3  # the next row cannot be a record
# Places in the state of a batch that is being filled:
USED: Final = 0  # bytes, header included
ROWS: Final = 1
FIRST_MS: Final = 2  # timestamps
MAX_MS: Final = 3
NEEDED: Final = 4
STATE_FIELDS: Final = 5


@_part
def _piece_bytes(column: BytesColumn, row: int) -> int:
    """What a key or value takes with its length in front."""
    _, size = _piece(column, row)
    return _varint_bytes(size) + max(size, 0)


@_part
def _put_piece(at: int, column: BytesColumn, row: int) -> int:
    source, size = _piece(column, row)
    at = _put_varint(at, size)
    if size > 0:
        copy(at, source, size)
        at += size
    return at


@_part
def _measure_headers(
    lists: tuple[int, int, int], names: BytesColumn, values: BytesColumn, row: int
) -> tuple[int, int]:
    """How many headers a row has and what they take, their count not included."""
    offsets, valid, first_bit = lists
    count = size = 0
    if offsets:
        for pair in range(int64_at(offsets + 8 * row), int64_at(offsets + 8 * row + 8)):
            if not _is_null(valid, first_bit + pair):
                count += 1
                size += _piece_bytes(names, pair) + _piece_bytes(values, pair)
    return count, size


@_part
def _put_headers(
    at: int, lists: tuple[int, int, int], names: BytesColumn, values: BytesColumn, row: int
) -> int:
    offsets, valid, first_bit = lists
    for pair in range(int64_at(offsets + 8 * row), int64_at(offsets + 8 * row + 8)):
        if not _is_null(valid, first_bit + pair):
            at = _put_piece(at, names, pair)
            at = _put_piece(at, values, pair)
    return at


@_kernel
def encode_rows(
    out: int,
    room: int,
    state: "Ints",
    rows: int,
    at: int,
    upto: int,
    key: BytesColumn,
    value: BytesColumn,
    lists: tuple[int, int, int],
    names: BytesColumn,
    values: BytesColumn,
    times_ms: int,
    rows_max: int,
    bytes_max: int,
) -> tuple[int, int]:
    """Append rows[at:upto] to the batch in the `room` bytes at `out` until it is complete.

    A batch is complete with `rows_max` rows, or where the next row would make it larger than `bytes_max`. `rows` are row
    numbers (int64). `lists`: int64 offsets of the headers of each row (0: there are none), bitmap of the headers and its
    first bit; `names` have no nulls. Returns how far it came, and why it stopped.
    """
    used, count, first_ms, max_ms = state[USED], state[ROWS], state[FIRST_MS], state[MAX_MS]
    reason = DONE
    while at < upto:
        row = int64_at(rows + 8 * at)
        time_ms = int64_at(times_ms + 8 * row)
        if count == 0:
            first_ms = max_ms = time_ms
        header_count, header_bytes = _measure_headers(lists, names, values, row)
        body = 1 + _varint_bytes(time_ms - first_ms) + _varint_bytes(count)
        body += _piece_bytes(key, row) + _piece_bytes(value, row) + _varint_bytes(header_count) + header_bytes
        end = used + _varint_bytes(body) + body
        if count > 0 and end > bytes_max:
            reason = FULL
            break
        if end > RECORD_BYTES_MAX:
            reason = TOO_LARGE
            break
        if end > room:
            state[NEEDED] = end
            reason = GROW
            break
        place = _put_varint(out + used, body)
        put_byte(place, 0)  # attributes
        place = _put_varint(place + 1, time_ms - first_ms)
        place = _put_varint(place, count)
        place = _put_piece(place, key, row)
        place = _put_piece(place, value, row)
        place = _put_varint(place, header_count)
        if header_count:
            _put_headers(place, lists, names, values, row)
        used = end
        max_ms = max(max_ms, time_ms)
        count += 1
        at += 1
        if count == rows_max:
            reason = FULL
            break
    state[USED], state[ROWS], state[FIRST_MS], state[MAX_MS] = used, count, first_ms, max_ms
    return at, reason


@_kernel
def group_rows(shard_of_row: "NDArray[np.int32]", shards: int) -> "tuple[Ints, Ints]":
    """Row numbers ordered by shard, and where each shard's rows begin among them; shard numbers were checked."""
    starts = np.zeros(shards + 1, np.int64)
    for row in range(len(shard_of_row)):
        starts[shard_of_row[row] + 1] += 1
    for shard in range(shards):
        starts[shard + 1] += starts[shard]
    next_place = starts[:-1].copy()
    rows = np.empty(len(shard_of_row), np.int64)
    for row in range(len(shard_of_row)):
        shard = shard_of_row[row]
        rows[next_place[shard]] = row
        next_place[shard] += 1
    return rows, starts


# -- hashes of keys ------------------------------------------------------------------------------------------------

_WORD: Final = np.uint64(0xFFFF_FFFF)
_MURMUR_M: Final = np.uint64(0x5BD1E995)
_MURMUR_SEED: Final = np.uint64(0x9747B28C)
_PRIME64_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME64_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_MX1: Final = np.uint64(0x165667919E3779F9)
_PRIME_MX2: Final = np.uint64(0x9FB21C651E98DF25)
_XXH3_BYTES_MAX: Final = 240
LONG_KEY: Final = -2  # hashed elsewhere
_SECRET: Final = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)


@_part
def _little(at: int, count: int) -> Any:
    """`count` bytes as a little-endian number, whatever the machine's order."""
    value = np.uint64(0)
    for n in range(count):
        value |= np.uint64(byte_at(at + n)) << np.uint64(8 * n)
    return value


@_part
def _murmur2(start: int, size: int) -> Any:
    value = _MURMUR_SEED ^ np.uint64(size)
    at = start
    for _ in range(size >> 2):
        k = (_little(at, 4) * _MURMUR_M) & _WORD
        k ^= k >> np.uint64(24)
        value = ((value * _MURMUR_M) & _WORD) ^ ((k * _MURMUR_M) & _WORD)
        at += 4
    if size & 3:
        value = ((value ^ _little(at, size & 3)) * _MURMUR_M) & _WORD
    value ^= value >> np.uint64(13)
    value = (value * _MURMUR_M) & _WORD
    return value ^ (value >> np.uint64(15))


@_kernel
def topic_hashes(column: BytesColumn, rows: int) -> "Ints":
    """Kafka's murmur2 of each key without its sign bit; -1 for null."""
    found = np.empty(rows, np.int64)
    for row in range(rows):
        at, size = _piece(column, row)
        found[row] = -1 if size < 0 else np.int64(_murmur2(at, size)) & 0x7FFF_FFFF
    return found


@_part
def _secret(at: int) -> Any:
    value = np.uint64(0)
    for n in range(8):
        value |= np.uint64(_SECRET[at + n]) << np.uint64(8 * n)
    return value


@_part
def _folded_product(left: Any, right: Any) -> Any:
    """The two halves of the 128-bit product, one on the other."""
    half = np.uint64(32)
    low = (left & _WORD) * (right & _WORD)
    middle = (left >> half) * (right & _WORD) + (low >> half)
    cross = (left & _WORD) * (right >> half) + (middle & _WORD)
    high = (left >> half) * (right >> half) + (middle >> half) + (cross >> half)
    return high ^ ((cross << half) | (low & _WORD))


@_part
def _mix16(at: int, secret: int) -> Any:
    return _folded_product(_little(at, 8) ^ _secret(secret), _little(at + 8, 8) ^ _secret(secret + 8))


@_part
def _avalanche(value: Any) -> Any:
    value ^= value >> np.uint64(37)
    value *= _PRIME_MX1
    return value ^ (value >> np.uint64(32))


@_part
def _avalanche64(value: Any) -> Any:
    value ^= value >> np.uint64(33)
    value *= _PRIME64_2
    value ^= value >> np.uint64(29)
    value *= _PRIME64_3
    return value ^ (value >> np.uint64(32))


@_part
def _swapped(value: Any, count: int) -> Any:
    """The low `count` bytes in the opposite order."""
    swapped = np.uint64(0)
    for _ in range(count):
        swapped = (swapped << np.uint64(8)) | (value & np.uint64(0xFF))
        value >>= np.uint64(8)
    return swapped


@_part
def _xxh3_short(at: int, size: int) -> Any:
    """Keys of at most 16 bytes."""
    length = np.uint64(size)
    if size > 8:
        low = _little(at, 8) ^ (_secret(24) ^ _secret(32))
        high = _little(at + size - 8, 8) ^ (_secret(40) ^ _secret(48))
        return _avalanche(length + _swapped(low, 8) + high + _folded_product(low, high))
    if size >= 4:
        both = _little(at + size - 4, 4) + (_little(at, 4) << np.uint64(32))
        value = both ^ (_secret(8) ^ _secret(16))
        left = (value << np.uint64(49)) | (value >> np.uint64(15))
        value ^= left ^ ((value << np.uint64(24)) | (value >> np.uint64(40)))
        value *= _PRIME_MX2
        value ^= (value >> np.uint64(35)) + length
        value *= _PRIME_MX2
        return value ^ (value >> np.uint64(28))
    if size > 0:
        first, middle = np.uint64(byte_at(at)), np.uint64(byte_at(at + (size >> 1)))
        value = (first << np.uint64(16)) | (middle << np.uint64(24)) | np.uint64(byte_at(at + size - 1))
        value |= length << np.uint64(8)
        return _avalanche64(value ^ ((_secret(0) ^ (_secret(0) >> np.uint64(32))) & _WORD))
    return _avalanche64(_secret(56) ^ _secret(64))


@_part
def _xxh3(at: int, size: int) -> Any:
    """xxHash3 (64 bits, no seed) of at most 240 bytes."""
    if size <= 16:
        return _xxh3_short(at, size)
    value = np.uint64(size) * _PRIME64_1
    if size <= 128:
        for n in range((size - 1) >> 5, -1, -1):
            value += _mix16(at + 16 * n, 32 * n)
            value += _mix16(at + size - 16 * (n + 1), 32 * n + 16)
        return _avalanche(value)
    for n in range(8):
        value += _mix16(at + 16 * n, 16 * n)
    value = _avalanche(value)
    for n in range(8, size >> 4):
        value += _mix16(at + 16 * n, 16 * (n - 8) + 3)
    value += _mix16(at + size - 16, 119)
    return _avalanche(value)


@_kernel
def table_hashes(column: BytesColumn, rows: int) -> "Ints":
    """The low 32 bits of each key's xxHash3; -1 for null, LONG_KEY for more than 240 bytes."""
    found = np.empty(rows, np.int64)
    for row in range(rows):
        at, size = _piece(column, row)
        if size < 0:
            found[row] = -1
        elif size > _XXH3_BYTES_MAX:
            found[row] = LONG_KEY
        else:
            found[row] = np.int64(_xxh3(at, size) & _WORD)
    return found
