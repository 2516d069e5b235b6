"""The entries of a split in a table's log: control batches, which consumers skip and every replica obeys.

In the log of the shard that is split (the parent):

- `Freeze`: from here on no write touches the keys from hash `first` on. Its offset names this freeze for good.
- `Thaw`: the freeze is over, and the keys stay.
- `Release`: from here on the keys belong to another shard. They are no longer part of the table that this log folds into.
  They have no tombstones, because they were moved and not deleted.

In the log of the shard that takes them over (the child):

- `Inherit`: everything before is a copy of the parent's keys as of the freeze; from here on the log is the shard's own.
"""

import msgspec

from antiphon.records.batch import Buffer
from antiphon.records.builder import build_control, control_entry

SPLIT_TYPE = 102


class _Entry(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the entries."""


class Freeze(_Entry, frozen=True, array_like=True, tag=1):
    """No writes to keys with hashes from `first` on, which shard `child` is to take over."""

    first: int
    child: int


class Thaw(_Entry, frozen=True, array_like=True, tag=2):
    """The freeze that stands at offset `frozen_at` is over."""

    frozen_at: int


class Release(_Entry, frozen=True, array_like=True, tag=3):
    """The keys that were frozen at offset `frozen_at` are shard `child`'s now, whose own log begins at offset `start`."""

    frozen_at: int
    first: int
    child: int
    start: int


class Inherit(_Entry, frozen=True, array_like=True, tag=4):
    """This shard holds the keys with hashes `first` to `last`, as its parent had them at offset `frozen_at`.

    Version ids go on from `next_version_id`. `jobs` is what the parent remembers of Spark's jobs, encoded
    (`antiphon.log.producer_state`): what they wrote there is not to be written here again. `sessions` are those that were
    open there, with their time-outs in ms.
    """

    first: int
    last: int
    parent: int
    frozen_at: int
    next_version_id: int
    jobs: bytes = b""
    sessions: tuple[tuple[int, int], ...] = ()


SplitEntry = Freeze | Thaw | Release | Inherit

_decoder: msgspec.msgpack.Decoder[SplitEntry] = msgspec.msgpack.Decoder(SplitEntry)
_encode = msgspec.msgpack.Encoder().encode


def build_split_entry(entry: SplitEntry, term: int, base_offset: int, timestamp_ms: int) -> bytearray:
    """The control batch of an entry: one record, one offset."""
    return build_control(SPLIT_TYPE, _encode(entry), term, base_offset, timestamp_ms)


def split_entry_of(batch: Buffer) -> SplitEntry | None:
    """The entry in a control batch; None for every other batch. Raises CorruptBatchError where it cannot be read."""
    return control_entry(batch, SPLIT_TYPE, _decoder, "split")
