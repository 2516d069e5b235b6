"""Kernels that lay out records: from Arrow's columns to the bytes of RecordBatches (`arrow_encode`)."""

from typing import TYPE_CHECKING, Final

import numpy as np

from antiphon.records.arrow_memory import (
    BytesColumn,
    copy,
    edge,
    int64_at,
    is_null,
    kernel,
    part,
    piece,
    put_byte,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# The column of lists of headers: offsets (0: there is none), wide, bitmap and its first bit; then the headers' own bitmap.
HeaderLists = tuple[int, int, int, int, int, int]

RECORD_BYTES_MAX: Final = 2**31 - 1

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


@part
def _varint_bytes(value: int) -> int:
    """How many bytes the zigzag number takes."""
    rest = (value << 1) ^ (value >> 63)
    count = 1
    while rest & ~0x7F:
        rest = (rest >> 7) & 0x01FF_FFFF_FFFF_FFFF
        count += 1
    return count


@part
def _put_varint(at: int, value: int) -> int:
    """Write a zigzag number; where it ends."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        put_byte(at, (rest & 0x7F) | 0x80)
        rest = (rest >> 7) & 0x01FF_FFFF_FFFF_FFFF
        at += 1
    put_byte(at, rest)
    return at + 1


@part
def _piece_bytes(column: BytesColumn, row: int) -> int:
    """What a key or value takes with its length in front."""
    _, size = piece(column, row)
    return _varint_bytes(size) + max(size, 0)


@part
def _put_piece(at: int, column: BytesColumn, row: int) -> int:
    source, size = piece(column, row)
    at = _put_varint(at, size)
    if size > 0:
        copy(at, source, size)
        at += size
    return at


@part
def _name_bytes(names: BytesColumn, pair: int) -> int:
    """What a header's name takes; null stands for an empty one."""
    size = max(piece(names, pair)[1], 0)
    return _varint_bytes(size) + size


@part
def _pairs(lists: HeaderLists, row: int) -> tuple[int, int]:
    """Which of all headers are the row's; some of them may be null."""
    offsets, wide, valid, first_bit, _, _ = lists
    if offsets == 0 or is_null(valid, first_bit + row):
        return 0, 0
    return edge(offsets, wide, row), edge(offsets, wide, row + 1)


@part
def _measure_headers(
    lists: HeaderLists, names: BytesColumn, values: BytesColumn, row: int
) -> tuple[int, int]:
    """How many headers a row has and what they take, their count not included."""
    first, last = _pairs(lists, row)
    count = size = 0
    for pair in range(first, last):
        if not is_null(lists[4], lists[5] + pair):
            count += 1
            size += _name_bytes(names, pair) + _piece_bytes(values, pair)
    return count, size


@part
def _put_headers(at: int, lists: HeaderLists, names: BytesColumn, values: BytesColumn, row: int) -> int:
    first, last = _pairs(lists, row)
    for pair in range(first, last):
        if not is_null(lists[4], lists[5] + pair):
            at = _put_varint(at, 0) if piece(names, pair)[1] < 0 else _put_piece(at, names, pair)
            at = _put_piece(at, values, pair)
    return at


@kernel
def encode_rows(
    out: int,
    room: int,
    state: "Ints",
    rows: int,
    at: int,
    upto: int,
    key: BytesColumn,
    value: BytesColumn,
    lists: HeaderLists,
    names: BytesColumn,
    values: BytesColumn,
    times_ms: int,
    rows_max: int,
    bytes_max: int,
) -> tuple[int, int]:
    """Append rows[at:upto] to the batch in the `room` bytes at `out` until it is complete.

    A batch is complete with `rows_max` rows, or where the next row would make it larger than `bytes_max`. `rows` are row
    numbers (int64). Returns how far it came, and why it stopped.
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


@kernel
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
