"""Where a row belongs: the hash by which a table's shards are told apart."""

from antiphon.model.metadata import key_hash
from antiphon.model.rows import Row
from antiphon.records.attributes import unpack
from antiphon.records.changes import has_attributes, stored_row


def place_of(key: bytes, stored: bytes) -> int:
    """The hash by which a row belongs to its shard; `stored`: at least its version, as stores keep it."""
    if has_attributes(stored):
        attributes = stored_row(stored)[2]
        place = -1 if attributes is None else unpack(attributes).place
        if place >= 0:
            return place
    return key_hash(key)


def place_of_row(row: Row) -> int:
    """The same of a row that was read."""
    place = -1 if row.attributes is None else unpack(row.attributes).place
    return place if place >= 0 else key_hash(row.key)
