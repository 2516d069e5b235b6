"""A look at the manifests of a RocksDB store before RocksDB reads them.

RocksDB 9.8 reads for ever where a manifest has a record of a recycled file: it takes it for an old one, and reads it again.
One flipped bit is enough, and the thread that opens the store never comes back. Manifests are never recycled, so such a
record is damage. So is a CURRENT that names no manifest that is there: RocksDB says of it that a file does not exist, as of
a folder that was never a store.

The format (blocks of 32 KiB; a record is CRC-32C masked, length, type and bytes, and lies within one block) is RocksDB's
`log_format.h`; the checksum covers type and bytes.
"""

import os
import re
import struct
from typing import Final

from crc32c import crc32c

BLOCK_BYTES: Final = 32 * 1024
RECYCLED: Final = frozenset((5, 6, 7, 8, 11))
"""Types of records that RocksDB writes into files that it used before: whole, first, middle, last, and compressed with a
size of timestamps. The same ones are read for ever."""
_HEADER: Final = struct.Struct("<IHB")
_MASK_DELTA: Final = 0xA282EAD8
NAME_BYTES_MAX: Final = 64
_CURRENT: Final = re.compile(rb"MANIFEST-\d+\n")


def recycled_record(data: bytes) -> int | None:
    """Where the first record of a recycled file begins; None: there is none.

    As RocksDB does, what follows a record that is not whole is passed over up to the next block.
    """
    at = 0
    while at + _HEADER.size <= len(data):
        end_of_block = (at // BLOCK_BYTES + 1) * BLOCK_BYTES
        if at + _HEADER.size > end_of_block:
            at = end_of_block
            continue
        checksum, size, kind = _HEADER.unpack_from(data, at)
        if kind in RECYCLED:
            return at
        end = at + _HEADER.size + size
        whole = end <= min(end_of_block, len(data)) and _masked(crc32c(data[at + 6 : end])) == checksum
        at = end if whole else end_of_block
    return None


def _masked(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unreadable_manifest(folder: str) -> str | None:
    """What is wrong with a store's manifests that RocksDB would not tell; None: nothing. Raises OSError."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if name.startswith("MANIFEST-"):
            with open(os.path.join(folder, name), "rb") as file:
                at = recycled_record(file.read())
            if at is not None:
                return f"{name} has a record of a recycled file at {at}"
    return _named_by_current(folder, names) if "CURRENT" in names else None


def _named_by_current(folder: str, names: list[str]) -> str | None:
    """What is wrong with the manifest that CURRENT names. RocksDB looks for it, and tells of a file that is not there."""
    with open(os.path.join(folder, "CURRENT"), "rb") as file:
        named = file.read(NAME_BYTES_MAX)
    if not _CURRENT.fullmatch(named):
        return f"CURRENT names no manifest: {named!r}"
    name = named[:-1].decode()
    return None if name in names else f"CURRENT names {name}, which is not there"
