"""Attributes of rows: what a row says beside its value, for clients of Oxia's protocol."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body, OfShard
from antiphon.model.rows import Row
from antiphon.model.sessions import HASHES_MAX
from antiphon.records.attributes import Attributes

DELTAS_MAX: Final = 16  # numbers of a key of a sequence


class PutAttributed(
    msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag=5
):
    """Set a key as `Put` does, with attributes in place of those that the row had; `session_id`: as `PutEphemeral`.

    With `sequence` the key is the beginning of one: the shard adds a number for each delta, each that of the last key of
    the sequence and the delta.
    """

    key: bytes
    value: bytes
    attributes: Attributes
    expected_version: int | None = None
    session_id: int | None = None
    sequence: Annotated[tuple[int, ...], Meta(max_length=DELTAS_MAX)] = ()


class IndexRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of an index with the row that it leads to."""

    secondary: bytes
    row: Row


class IndexFind(OfShard, frozen=True, array_like=True, tag=True):
    """Find the row whose entry in an index is at, or next to, `secondary`; `comparison` as for `TableGet`."""

    index: str
    secondary: bytes
    comparison: int = 0
    include_value: bool = True


class IndexScan(OfShard, frozen=True, array_like=True, tag=True):
    """Rows by an index: start <= secondary key < end (empty end: to the end), behind the entry `after`, if that is given."""

    index: str
    start: bytes
    end: bytes
    after: tuple[bytes, bytes] | None = None  # secondary key, key
    limit: int = 1000
    include_value: bool = True
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()


class IndexRows(Body, frozen=True, array_like=True, tag=True):
    """Rows in the order of their entries: secondary key, then key. `more`: continue after the last."""

    rows: tuple[IndexRow, ...]
    more: bool = False
