"""The record with which a table's store begins: its format, how far it has applied the log, and the next version id."""

import struct
from typing import Any, Final

from antiphon.errors import NewerFormatError, StorageFailedError

FORMAT: Final = 3
PLAIN_FORMAT: Final = 1  # without rows that have attributes, and without the entries of an order
ATTRIBUTES_FORMAT: Final = 2
ORDER_FORMAT: Final = 3  # an older version would write rows without their entries; rows may have attributes
META: Final = struct.Struct(">iqq")  # format, applied offset (exclusive), next version id
META_KEY: Final = b"\x00"


def check_format(path: str, meta: Any) -> None:
    """Raise NewerFormatError or StorageFailedError for a store that this version cannot read."""
    (found,) = struct.unpack_from(">i", meta)
    if found > FORMAT:
        raise NewerFormatError(
            f"table store {path} has format {found}, this version reads up to {FORMAT}: use a newer Antiphon",
            found=found,
            supported=FORMAT,
        )
    if found < PLAIN_FORMAT or len(meta) != META.size:
        raise StorageFailedError(
            f"table store {path} has a meta record of {len(meta)} bytes and format {found}"
        )
