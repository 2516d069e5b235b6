"""What a transaction that spans shards asks of one shard of a table: reads, the prepare at its commit, a last look."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body, OfShard
from antiphon.model.requests import Check, Delete, Put
from antiphon.model.rows import Row
from antiphon.model.sessions import HASHES_MAX
from antiphon.model.transactions import Name

READS_MAX: Final = 1_000  # keys of one request
PREPARE_OPS_MAX: Final = 1_000  # operations of one prepare
PRODUCER_ID_MAX: Final = (1 << 61) - 1  # what is above is no transactional producer's
EPOCH_MAX: Final = (1 << 15) - 1
SEQUENCE_MAX: Final = (1 << 31) - 1

PreparedOp = Put | Delete | Check


class ReadKeys(OfShard, frozen=True, array_like=True, tag=True):
    """Read keys, linearizably, for a transaction that says at its commit what it has read.

    `key_locked` while one of them belongs to a transaction that is about to end.
    """

    keys: Annotated[tuple[bytes, ...], Meta(min_length=1, max_length=READS_MAX)]


class KeysRead(Body, frozen=True, array_like=True, tag=True):
    """One row or None per key. `position`: of the shard's log, up to which all of it is in these rows."""

    rows: tuple[Row | None, ...]
    position: int


class ReadKey(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A key that was read. `version`: of its row, or -1 (ABSENT), and then `position` says when that was so."""

    key: bytes
    version: int
    position: int = -1


class CheckReads(OfShard, frozen=True, array_like=True, tag=True):
    """Is what was read still so? Asked when all that the transaction changes is prepared; answered with `ReadsChecked`.

    A key that was not there must not have come and gone meanwhile. `key_locked` where another transaction is about to change
    one of the keys.
    """

    reads: Annotated[tuple[ReadKey, ...], Meta(min_length=1, max_length=READS_MAX)]


class ReadsChecked(Body, frozen=True, array_like=True, tag=True):
    """`changed`: places of keys that are not as they were read, or may not be, with the versions there now (-1: none)."""

    changed: tuple[tuple[int, int], ...]


class PrepareWrite(OfShard, frozen=True, array_like=True, tag=True):
    """Judge all operations of a transaction on this shard, and prepare their effects, all or nothing; `TableWritten`.

    The shard has joined the transaction. Its effects become rows with the transaction's commit, and their keys are locked
    until its end. A refused operation refuses all, and nothing is prepared. `key_locked`: another transaction has one of the
    keys. A repeat with the same epoch and sequence is answered with its first outcome. `hashes` as for `TableWrite`.
    """

    transactional_id: Name
    producer_id: Annotated[int, Meta(ge=0, le=PRODUCER_ID_MAX)]
    producer_epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
    sequence: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)]
    ops: Annotated[tuple[PreparedOp, ...], Meta(min_length=1, max_length=PREPARE_OPS_MAX)]
    timeout_ms: int = 30_000
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()


TableTransactionRequest = ReadKeys | CheckReads | PrepareWrite
TableTransactionReply = KeysRead | ReadsChecked
