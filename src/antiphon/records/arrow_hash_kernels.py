"""Kernels that hash keys: Kafka's murmur2 and the short forms of xxHash3."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from antiphon.records.arrow_memory import BytesColumn, byte_at, copy, kernel, part, piece, put_byte, put_int64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_WORD: Final = np.uint64(0xFFFF_FFFF)
_MURMUR_M: Final = np.uint64(0x5BD1E995)
_MURMUR_SEED: Final = np.uint64(0x9747B28C)
_PRIME64_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME64_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_MX1: Final = np.uint64(0x165667919E3779F9)
_PRIME_MX2: Final = np.uint64(0x9FB21C651E98DF25)
XXH3_BYTES_MAX: Final = 240
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


@part
def _little(at: int, count: int) -> Any:
    """`count` bytes as a little-endian number, whatever the machine's order."""
    value = np.uint64(0)
    for n in range(count):
        value |= np.uint64(byte_at(at + n)) << np.uint64(8 * n)
    return value


@part
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


@kernel
def topic_hashes(column: BytesColumn, rows: int) -> "Ints":
    """Kafka's murmur2 of each key without its sign bit; -1 for null."""
    found = np.empty(rows, np.int64)
    for row in range(rows):
        at, size = piece(column, row)
        found[row] = -1 if size < 0 else np.int64(_murmur2(at, size)) & 0x7FFF_FFFF
    return found


@part
def _secret(at: int) -> Any:
    value = np.uint64(0)
    for n in range(8):
        value |= np.uint64(_SECRET[at + n]) << np.uint64(8 * n)
    return value


@part
def _folded_product(left: Any, right: Any) -> Any:
    """The two halves of the 128-bit product, one on the other."""
    half = np.uint64(32)
    low = (left & _WORD) * (right & _WORD)
    middle = (left >> half) * (right & _WORD) + (low >> half)
    cross = (left & _WORD) * (right >> half) + (middle & _WORD)
    high = (left >> half) * (right >> half) + (middle >> half) + (cross >> half)
    return high ^ ((cross << half) | (low & _WORD))


@part
def _mix16(at: int, secret: int) -> Any:
    return _folded_product(_little(at, 8) ^ _secret(secret), _little(at + 8, 8) ^ _secret(secret + 8))


@part
def _avalanche(value: Any) -> Any:
    value ^= value >> np.uint64(37)
    value *= _PRIME_MX1
    return value ^ (value >> np.uint64(32))


@part
def _avalanche64(value: Any) -> Any:
    value ^= value >> np.uint64(33)
    value *= _PRIME64_2
    value ^= value >> np.uint64(29)
    value *= _PRIME64_3
    return value ^ (value >> np.uint64(32))


@part
def _swapped(value: Any, count: int) -> Any:
    """The low `count` bytes in the opposite order."""
    swapped = np.uint64(0)
    for _ in range(count):
        swapped = (swapped << np.uint64(8)) | (value & np.uint64(0xFF))
        value >>= np.uint64(8)
    return swapped


@part
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


@part
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


@kernel
def table_hashes(column: BytesColumn, rows: int) -> "Ints":
    """The low 32 bits of each key's xxHash3; -1 for null, LONG_KEY for more than 240 bytes."""
    found = np.empty(rows, np.int64)
    for row in range(rows):
        at, size = piece(column, row)
        if size < 0:
            found[row] = -1
        elif size > XXH3_BYTES_MAX:
            found[row] = LONG_KEY
        else:
            found[row] = np.int64(_xxh3(at, size) & _WORD)
    return found


@kernel
def packed_hashes(lengths: int, rows: int, content: int, room: int, long_rows: int) -> Any:
    """The sum, modulo 2^64, of the xxHash3 of each packed row that is put (`records.packed_rows`), and the number of rows
    that are too long for it here, whose places and offsets come to `long_rows`, two numbers of 64 bits each.

    Hashed is the length of the key, 8 bytes big-endian, then key and value. `room` has XXH3_BYTES_MAX bytes.
    """
    total, at, passed_over = np.uint64(0), content, 0
    for row in range(rows):
        place = lengths + 8 * row
        key_bytes = value_bytes = 0
        for n in range(4):
            key_bytes = key_bytes << 8 | byte_at(place + n)
            value_bytes = value_bytes << 8 | byte_at(place + 4 + n)
        if value_bytes >= 1 << 31:  # a removal
            at += key_bytes
            continue
        size = 8 + key_bytes + value_bytes
        if size > XXH3_BYTES_MAX:
            put_int64(long_rows + 16 * passed_over, row)
            put_int64(long_rows + 16 * passed_over + 8, at - content)
            passed_over += 1
        else:
            for n in range(4):
                put_byte(room + n, 0)
                put_byte(room + 4 + n, byte_at(place + n))
            copy(room + 8, at, key_bytes + value_bytes)
            total += _xxh3(room, size)
        at += key_bytes + value_bytes
    return total, passed_over
