"""Requests by the hierarchical order of a table's keys (`records.key_order`): what Oxia's clients ask of such a table."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body, OfShard
from antiphon.model.sessions import HASHES_MAX

KEYS_MAX: Final = 1_000  # of one request


class DeleteOrdered(
    msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6, forbid_unknown_fields=True
):
    """Remove every key from `start` to before `end` in that order (empty: to the end). What is no text stays."""

    start: bytes
    end: bytes


class OrderedFind(OfShard, frozen=True, array_like=True, tag=True):
    """Find the rows next to keys in that order: 1 floor, 2 ceiling, 3 lower, 4 higher. Answered by `TableRows`."""

    keys: Annotated[tuple[bytes, ...], Meta(max_length=KEYS_MAX)]
    comparison: int
    include_value: bool = True
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()


class OrderedScan(OfShard, frozen=True, array_like=True, tag=True):
    """Rows from `start` to before `end` in that order (empty: to the end), behind the key `after` if that is given.

    At most `limit` rows and ~2 MiB a reply: `TableRows`, or `OrderedKeys` with `keys_only`.
    """

    start: bytes
    end: bytes
    after: bytes | None = None
    limit: int = 1000
    keys_only: bool = False
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()


class OrderedKeys(Body, frozen=True, array_like=True, tag=True):
    """Keys in that order. `more`: continue behind the last."""

    keys: tuple[bytes, ...]
    more: bool = False
