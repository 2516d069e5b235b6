"""Attributes of a table's rows, as they stand in the log and in stores: a msgpack array.

The attributes say who put the row, how it is placed among the shards, and which indexes lead to it. They are replaced with
each put, and gone with the row.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

INDEXES_MAX: Final = 64  # entries of one row
TEXT_BYTES_MAX: Final = 64 * 1024  # of an identity, a partition key, a name or a key of an index

Entry = tuple[str, bytes]
"""Name of an index, and the key under which a row stands there."""


class Attributes(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """See the module's text.

    Attributes:
        identity: who put the row, as that client says; None: it does not say.
        partition_key: what placed the row in its shard in place of its key; None: nothing did.
        place: the hash by which the row belongs to its shard; -1: that of its key.
        indexes: entries that lead to the row.
    """

    identity: str | None = None
    partition_key: bytes | None = None
    place: int = -1
    indexes: Annotated[tuple[Entry, ...], Meta(max_length=INDEXES_MAX)] = ()


_decoder = msgspec.msgpack.Decoder(Attributes)


def pack(attributes: Attributes) -> bytes:
    """As bytes."""
    return msgspec.msgpack.encode(attributes)


def unpack(packed: bytes) -> Attributes:
    """The reverse. Raises msgspec's errors on bytes that `pack` never made."""
    return _decoder.decode(packed)
