"""The rows of a load, as they travel: lengths first, then all keys and values.

For each row there are two big-endian numbers of 32 bits, the length of its key and that of its value, -1 for a removal.
Behind them the keys and values stand in the order of the rows, each value behind its key. So who has the rows as columns
need not touch each of them (`records.arrow_rows`), and neither need the node that gets them (`records.effect_kernels`).
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.records.batch import Buffer

REMOVED: Final = -1
LENGTHS_BYTES: Final = 8  # of a row

PackedRow = tuple[bytes, bytes | None]
"""Key, and value or None: the key is to be removed."""


def packed(rows: Sequence[PackedRow]) -> bytes:
    """Rows as they travel."""
    lengths: list[int] = []
    content: list[bytes] = []
    for key, value in rows:
        content.append(key)
        lengths += (len(key), REMOVED if value is None else len(value))
        if value is not None:
            content.append(value)
    return struct.pack(f">{len(lengths)}i", *lengths) + b"".join(content)


def lengths_of(payload: Buffer, rows: int) -> tuple[int, ...]:
    """The lengths of keys and values in turn. Raises InvalidRequestError where the bytes are not so many rows."""
    if len(payload) < LENGTHS_BYTES * rows:
        raise _no_rows(payload, rows)
    lengths = struct.unpack_from(f">{2 * rows}i", payload)
    if min(lengths[::2], default=0) < 0 or min(lengths[1::2], default=0) < REMOVED:
        raise _no_rows(payload, rows)
    if sum(lengths) + lengths[1::2].count(REMOVED) != len(payload) - LENGTHS_BYTES * rows:
        raise _no_rows(payload, rows)
    return lengths


def unpacked(payload: Buffer, rows: int) -> Iterable[PackedRow]:
    """The rows again, which are copied out. Raises InvalidRequestError, before the first one, as `lengths_of` does."""
    lengths, data = lengths_of(payload, rows), bytes(payload)
    at = LENGTHS_BYTES * rows
    found: list[PackedRow] = []
    for key_bytes, value_bytes in zip(lengths[::2], lengths[1::2], strict=True):
        key_end = at + key_bytes
        at = key_end + max(0, value_bytes)
        found.append((data[key_end - key_bytes : key_end], None if value_bytes < 0 else data[key_end:at]))
    return found


def _no_rows(payload: Buffer, rows: int) -> InvalidRequestError:
    return InvalidRequestError(f"a load says {rows} rows, and its {len(payload)} bytes are not so many")
