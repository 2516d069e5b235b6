"""The keys of its table that a shard holds, according to its own log; all keys that are sent to it until it is split.

    whole --Freeze--> frozen --Release--> less, and purging
                      frozen --Thaw--> as before
    empty --Inherit--> a range of its own

Pure: `advance` is the fold of the split entries (`antiphon.records.split_entries`). The leader folds an entry when it
appends it, so that no later write can come in between. Every replica folds it when it is committed, and keeps the
result in its store. An entry that does not match (a thaw of another freeze) changes nothing, on every replica alike.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from antiphon.errors import NotReadyError, WrongShardError
from antiphon.model.attributes import PutAttributed
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.metadata import HASH_MAX, key_hash
from antiphon.model.requests import Delete, DeleteRange, TableOp
from antiphon.model.shard_part import ShardPart
from antiphon.records.split_entries import Freeze, Inherit, Release, SplitEntry, Thaw

NOT_FROZEN: Final = -1
RANGES: Final = (DeleteRange, DeleteOrdered)


class OwnedRange(msgspec.Struct, frozen=True, array_like=True):
    """This shard holds the hashes from `first` to `last`.

    During a split `frozen_from` is the first hash that accepts no writes, `frozen_at` the offset of the freeze entry,
    and `child` the shard that receives these hashes. `purging`: keys beyond the range are still in the store and must
    be removed from it without writing to the log.
    """

    first: int = 0
    last: int = HASH_MAX
    frozen_from: int = NOT_FROZEN
    frozen_at: int = -1
    child: int = -1
    purging: bool = False

    @property
    def is_whole(self) -> bool:
        """Nothing was ever split off, and nothing is being split off: any key belongs here."""
        return self.frozen_from == NOT_FROZEN and self.first == 0 and self.last == HASH_MAX

    @property
    def is_frozen(self) -> bool:
        """Is a part of it closed for writes at the moment?"""
        return self.frozen_from != NOT_FROZEN

    def holds(self, key: bytes) -> bool:
        """Does this shard hold the key?"""
        return self.first <= key_hash(key) <= self.last


WHOLE: Final = OwnedRange()


def narrowed(owned: OwnedRange, limit: int) -> OwnedRange:
    """The range up to hash `limit`. What is beyond it may be in the store, and is another shard's."""
    return owned if owned.last <= limit else OwnedRange(owned.first, limit, purging=True)


def releases(owned: OwnedRange, part: ShardPart) -> bool:
    """Has the shard given keys away, by the metadata, of which its log does not say so?

    A shard that was made with its table holds by its log all keys that are sent to it, also where another one was split.
    """
    return min(owned.last, part.last_ever) > part.last


def inherits(owned: OwnedRange, part: ShardPart) -> bool:
    """Was the shard split off another one, by the metadata, and its log does not say that the copy is complete?"""
    return part.own_start > 0 and owned.first < part.first


def advance(owned: OwnedRange, entry: SplitEntry, offset: int) -> OwnedRange:
    """The shard's range after `entry`, which is in its log at `offset`."""
    replace = msgspec.structs.replace
    match entry:
        case Freeze(first, child):
            if owned.is_frozen or not owned.first < first <= owned.last:
                return owned
            return replace(owned, frozen_from=first, frozen_at=offset, child=child)
        case Thaw(frozen_at):
            if owned.frozen_at != frozen_at:
                return owned
            return replace(owned, frozen_from=NOT_FROZEN, frozen_at=-1, child=-1)
        case Release(frozen_at, first):
            if owned.frozen_at != frozen_at or owned.frozen_from != first:
                return owned
            return OwnedRange(owned.first, first - 1, purging=True)
        case Inherit(first, last):
            return OwnedRange(first, last)


def check_ops(
    owned: OwnedRange,
    ops: Sequence[TableOp],
    hashes: Sequence[int],
    *,
    placed: bool = False,
    strays: bool = False,
) -> bool:
    """May these operations be evaluated here? False is final (`WrongShardError` once that is committed).

    `hashes` is the range that the sender expects in this shard; empty if it knows of no split of the table. Raises
    NotReadyError while keys are frozen. With `placed` the sender has found the shard otherwise than by the keys of what
    there may be: then a removal is taken by the range alone. While rows that a split took away are still in the store
    (`strays`), nothing is said of keys that may be among them.
    """
    frozen = owned.frozen_from if owned.is_frozen else HASH_MAX + 1
    for op in ops:
        if isinstance(op, RANGES):
            if not covers(owned, hashes):
                return False
            if (hashes[1] if hashes else owned.last) >= frozen:
                raise _frozen(owned)
            continue
        if placed and isinstance(op, Delete):
            if not covers(owned, hashes):
                return False
            if owned.is_frozen:
                raise _frozen(owned)
            if strays and not owned.holds(op.key):
                raise _straying(owned)
            continue
        own = op.attributes.place if isinstance(op, PutAttributed) else -1
        place = own if own >= 0 else key_hash(op.key)
        if not owned.first <= place <= owned.last:
            return False
        if own >= 0 and strays and not owned.holds(op.key):
            raise _straying(owned)
        if place >= frozen:
            raise _frozen(owned)
    return True


def covers(owned: OwnedRange, hashes: Sequence[int]) -> bool:
    """Does the shard hold everything that the sender expects in it (empty: an even part of a table that was never
    split)?
    """
    if not hashes:
        return owned.first == 0 and owned.last == HASH_MAX
    return owned.first <= hashes[0] and hashes[1] <= owned.last


def wrong_shard(shard_id: int, owned: OwnedRange) -> WrongShardError:
    """The refusal of keys that another shard holds."""
    return WrongShardError(
        f"shard {shard_id} holds keys with hashes {owned.first} to {owned.last}, and was asked for others: it was split; "
        "nothing was carried out, ask for the table's metadata",
        shard_id=shard_id,
    )


def _straying(owned: OwnedRange) -> NotReadyError:
    return NotReadyError(
        f"keys with hashes beyond {owned.first} to {owned.last} have moved to another shard and are about to be removed "
        "here; retry"
    )


def _frozen(owned: OwnedRange) -> NotReadyError:
    return NotReadyError(
        f"keys with hashes from {owned.frozen_from} on are moving to shard {owned.child}, which takes a moment; retry"
    )
