"""The index beside each segment: one 40-byte entry per batch, in order.

An entry is written only *after* the fdatasync of its batch (unless its flag says otherwise). So a valid entry with a
bad batch proves damage, and a bad batch without an entry is the torn end of a write that was not acknowledged to
anybody. The entry's head CRC covers the batch's bytes 0-20, which the batch's own CRC does not cover, so every flipped
bit of the data is found. The index itself is not synced per group; entries that a crash removes are made again from the
data.

File: a 40-byte header, then the entries. Big-endian::

    header: magic 8s "ANTIPHIX" | version u32 | base_offset i64 | zeros 16 | crc u32 (of the 36 bytes before it)
    entry:  base_offset i64 | max_timestamp i64 | position u32 | size u32 (bit 31: written without sync) | term i32
            | offset_count u32 | head_crc u32 (bytes 0-20 of the batch) | crc u32 (of the 36 bytes before it)
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from antiphon.errors import NewerFormatError
from antiphon.log.disk import File
from antiphon.records.batch import UNCHECKED_BYTES, BatchHeader, Buffer

ENTRY_BYTES: Final = 40
INDEX_VERSION: Final = 1
INDEX_MAGIC: Final = b"ANTIPHIX"
UNSYNCED_BIT: Final = 0x8000_0000
SIZE_MASK: Final = 0x7FFF_FFFF
_BODY: Final = struct.Struct(">qqIIiII")
_ENTRY: Final = struct.Struct(">qqIIiIII")
_HEADER_BODY: Final = struct.Struct(">8sIq16x")
_CRC: Final = struct.Struct(">I")
_CHECKED_BYTES: Final = ENTRY_BYTES - 4
_CHUNK_ENTRIES: Final = 1024
_BLOCK_ENTRIES: Final = 64


class IndexEntry(NamedTuple):
    """One batch as the index knows it."""

    base_offset: int
    max_timestamp: int
    position: int
    size_flags: int
    term: int
    offset_count: int
    head_crc: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes of the batch."""
        return self.size_flags & SIZE_MASK

    @property
    def synced(self) -> bool:
        """The batch was on the disk before this entry was written."""
        return not self.size_flags & UNSYNCED_BIT

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.offset_count


# What `IndexEntry._make` does but for a check of the number of fields: a cold read makes one for each batch.
_new_entry: Callable[[type[IndexEntry], tuple[Any, ...]], IndexEntry] = tuple.__new__


def pack_entry(header: BatchHeader, batch: Buffer, position: int, *, unsynced: bool = False) -> bytes:
    """The entry of a batch that stands at `position` of its segment."""
    size = header.batch_length + 12
    body = _BODY.pack(
        header.base_offset,
        header.max_timestamp,
        position,
        size | UNSYNCED_BIT if unsynced else size,
        header.leader_epoch,
        header.last_offset_delta + 1,
        crc32c(batch[:UNCHECKED_BYTES]),
    )
    return body + _CRC.pack(crc32c(body))


def unpack_entry(data: Buffer, at: int = 0) -> IndexEntry | None:
    """The entry at byte `at`, or None when it is cut off or its CRC is wrong."""
    if len(data) - at < ENTRY_BYTES:
        return None
    entry = IndexEntry._make(_ENTRY.unpack_from(data, at))
    if crc32c(data[at : at + ENTRY_BYTES - 4]) != entry.crc:
        return None
    return entry


def pack_index_header(base_offset: int) -> bytes:
    """The first 40 bytes of an index file."""
    body = _HEADER_BODY.pack(INDEX_MAGIC, INDEX_VERSION, base_offset)
    return body + _CRC.pack(crc32c(body))


def is_index_header(data: bytes, base_offset: int) -> bool:
    """Does `data` start with the header of this segment's index? NewerFormatError for a version above ours."""
    if len(data) < ENTRY_BYTES or _CRC.unpack_from(data, ENTRY_BYTES - 4)[0] != crc32c(
        data[: ENTRY_BYTES - 4]
    ):
        return False
    magic, version, base = _HEADER_BODY.unpack_from(data)
    if magic != INDEX_MAGIC:
        return False
    if version > INDEX_VERSION:
        raise NewerFormatError(
            f"an index file has format {version}, this version knows up to {INDEX_VERSION}; "
            "start the newer version of Antiphon that wrote it",
            found=version,
            known=INDEX_VERSION,
        )
    return bool(base == base_offset)


def entry_position(number: int) -> int:
    """Where entry `number` (from 0) stands in its file."""
    return ENTRY_BYTES * (number + 1)


def read_entry(file: File, number: int) -> IndexEntry | None:
    """Entry `number`, or None when it is not there or not valid."""
    return unpack_entry(file.pread(ENTRY_BYTES, entry_position(number)))


def find_entry(file: File, count: int, offset: int, first_offset: int, end_offset: int) -> int:
    """Number of the entry whose batch holds `offset`, among the first `count`; -1 if there is none.

    `first_offset` and `end_offset` are those of the segment. Most batches take similar numbers of offsets, so a
    proportional guess usually finds the right block of entries at once; every second step halves the rest. An entry
    that cannot be read counts as lying after `offset`, as during a truncation.
    """
    low, high = 0, count  # entries before `low` start at or before `offset`, those from `high` on behind it
    for step in range(2 * count.bit_length() + 1):
        if high - low <= _BLOCK_ENTRIES:
            break
        middle = (low + high) // 2
        if step % 2 == 0:
            guess = low + (offset - first_offset) * (high - low) // max(1, end_offset - first_offset)
            middle = min(max(guess, low), high - 1)
        start = min(max(middle - _BLOCK_ENTRIES // 2, low), high - _BLOCK_ENTRIES)
        data = file.pread(ENTRY_BYTES * _BLOCK_ENTRIES, entry_position(start))
        first = unpack_entry(data)
        if first is None or first.base_offset > offset:
            high = start
            end_offset = end_offset if first is None else first.base_offset
            continue
        low, first_offset = start, first.base_offset
        last = unpack_entry(data, ENTRY_BYTES * (_BLOCK_ENTRIES - 1))
        if last is None or last.base_offset > offset:
            high = start + _BLOCK_ENTRIES
        else:
            low, first_offset = start + _BLOCK_ENTRIES - 1, last.base_offset
    data = file.pread(ENTRY_BYTES * (high - low), entry_position(low))
    at, end = 0, high - low
    while at < end:
        middle = (at + end) // 2
        entry = unpack_entry(data, ENTRY_BYTES * middle)
        if entry is None or entry.base_offset > offset:
            end = middle
        else:
            at = middle + 1
    found = unpack_entry(data, ENTRY_BYTES * (at - 1)) if at else None
    return low + at - 1 if found is not None and found.base_offset <= offset < found.next_offset else -1


def iter_entries(file: File, first: int, count: int) -> Iterator[IndexEntry | None]:
    """Entries `first` up to `count` (exclusive) in order; ends early where the file does; None for an invalid one."""
    at = first
    while at < count:
        data = file.pread(ENTRY_BYTES * min(_CHUNK_ENTRIES, count - at), entry_position(at))
        found = len(data) // ENTRY_BYTES
        if not found:
            return
        view = memoryview(data)
        checked = 0
        for fields in _ENTRY.iter_unpack(view[: found * ENTRY_BYTES]):
            is_valid = crc32c(view[checked : checked + _CHECKED_BYTES]) == fields[-1]
            yield _new_entry(IndexEntry, fields) if is_valid else None
            checked += ENTRY_BYTES
        at += found
