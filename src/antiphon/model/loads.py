"""A request that puts many rows at once, whatever was there: what loads send in place of a `TableWrite`."""

from typing import Annotated, NamedTuple

from msgspec import Meta

from antiphon.model.body import OfShard
from antiphon.model.requests import OPS_MAX


class LoadRows(OfShard, frozen=True, array_like=True, tag=True):
    """Put or remove the rows of the payload (`records.packed_rows`) as one entry, in their order and without conditions.

    Answered with `Appended`, of which both offsets are -1 where all were removals of keys that are not there. Producer and
    sequence as for `TableWrite`, and so is `bulk`: the sender can wait.
    """

    rows: Annotated[int, Meta(ge=1, le=OPS_MAX)]
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    timeout_ms: int = 30_000
    bulk: bool = True


class Load(NamedTuple):
    """A `LoadRows` with the bytes of its rows, which nobody has looked at yet."""

    request: LoadRows
    rows: bytes

    @property
    def shard_id(self) -> int:
        """Where to."""
        return self.request.shard_id

    @property
    def bulk(self) -> bool:
        """Can its sender wait?"""
        return self.request.bulk
