"""What was decided about epochs: the internal table `__epochs`, one shard.

| key | value | meaning |
|---|---|---|
| `head/TARGET/QUERY` | `Epoch` | the query's newest epoch for that topic or table, with its manifest until it is applied |
| `pending/TARGET/QUERY` | ms since 1970 | that epoch is not applied yet; when somebody last worked on it |
| `open/TARGET/QUERY` | `Opened` | tasks stage blobs of that epoch, from these offsets of `__staged` on |

TARGET is the id of the topic or table in hexadecimal, QUERY whatever names the query.

**Putting an epoch's manifest in `head` is the commit point.** It is a compare-and-set on the row of the epoch before, which
has to be applied by then. So of several drivers, and of several runs of one epoch, exactly one gets its manifest stored, all
others find it there; and an epoch can neither be skipped over by a late one nor come again when a later one is stored.
`pending` is put with the manifest and removed when the epoch is marked as applied, each time in one atomic request.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from antiphon.client.blocking import Cluster, ShardCall, list_offsets
from antiphon.errors import UNDECODABLE, CorruptBatchError, InvalidRequestError
from antiphon.invariants import invariant
from antiphon.model.epochs import EpochHead
from antiphon.model.metadata import TopicMeta
from antiphon.model.requests import (
    Delete,
    OffsetReply,
    OpResult,
    OpStatus,
    Put,
    TableGet,
    TableOp,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.model.rows import Row
from antiphon.spark.staging.blobs import BlobAt

T = TypeVar("T")

ABSENT: Final = -1
HEAD: Final = "head"
PENDING: Final = "pending"
OPEN: Final = "open"
ROW_BYTES_MAX: Final = 512 * 1024
QUERY_BYTES_MAX: Final = 16 * 1024
OPEN_REFRESH_MS: Final = 10 * 60 * 1000
TRIES_MAX: Final = 100
SCAN_ROWS: Final = 500
END_OF_LOG: Final = -1  # as ListOffset has it


Offset = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(gt=0)]  # bytes of a blob's batch
Places = tuple[tuple[Offset, Size], ...]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one task staged: its blobs by (offset, bytes) in a shard of `__staged`, or where a list of them is."""

    partition: int
    attempt: bytes
    rows: int
    shard_id: int
    blobs: Places
    index: tuple[Offset, Size] | None = None

    @property
    def first_offset(self) -> int:
        """Nothing of it is before this offset of its shard; only for parts with rows."""
        offsets = [offset for offset, _ in self.blobs]
        return offsets[0] if offsets else self.index[0] if self.index is not None else 0


class Epoch(EpochHead, frozen=True, array_like=True):
    """An epoch of a query. Once it is applied, `parts` and `spilled` are empty.

    Attributes:
        oldest: by shard id of `__staged`: nothing below this offset is needed.
        parts: what the tasks staged.
        spilled: where `parts` are, if they are too many for a row: (shard id of `__staged`, offset, bytes).
        once: nobody will ever ask for this query again; the row may go soon after it is applied.
    """

    oldest: dict[int, Offset]
    parts: tuple[Part, ...]
    spilled: tuple[int, Offset, Size] | None = None
    once: bool = False

    @property
    def is_applied(self) -> bool:
        """Is everything of it in the target?"""
        return self.applied_ms > 0

    def __str__(self) -> str:
        return f"epoch {self.number} of {self.query}"


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """Tasks stage blobs of an epoch; by shard id of `__staged`, all of them are from these offsets on."""

    number: int
    refreshed_ms: int
    starts: dict[int, Offset]


class Stored(NamedTuple):
    """A row as it is, with the version to compare with when it is changed."""

    epoch: Epoch
    version: int


_EPOCH: Final = msgspec.msgpack.Decoder(Epoch)
_OPENED: Final = msgspec.msgpack.Decoder(Opened)
_MS: Final = msgspec.msgpack.Decoder(int)


def key_of(kind: str, target_id: bytes, query: str) -> bytes:
    """A row's key; raises InvalidRequestError for a name that is too long."""
    name = query.encode()
    if len(name) > QUERY_BYTES_MAX:
        raise InvalidRequestError(f"txnId has {len(name)} bytes, at most {QUERY_BYTES_MAX} are allowed")
    return f"{kind}/{target_id.hex()}/".encode() + name


def split_key(key: bytes) -> tuple[str, bytes, str]:
    """(kind, target id, query); raises CorruptBatchError."""
    try:
        kind, target, query = key.decode().split("/", 2)
        return kind, bytes.fromhex(target), query
    except ValueError:
        raise CorruptBatchError(f"a row of __epochs has the key {key!r}") from None


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Epochs:
    """Reads and changes rows. Every method is one request or a few; they raise what `Cluster.call` raises."""

    def __init__(self, cluster: Cluster, table: TopicMeta) -> None:
        self._cluster = cluster
        (self._shard_id,) = [shard.shard_id for shard in table.shards]

    # -- epochs -------------------------------------------------------------------------------------------------

    def newest(self, target_id: bytes, query: str) -> Stored | None:
        """The query's newest epoch."""
        (row,) = self._get(key_of(HEAD, target_id, query))
        return None if row is None else stored_of(row)

    def decide(self, epoch: Epoch, before: Stored | None) -> Stored | None:
        """Put a manifest in the place of an applied epoch, or of none: the commit point. None: somebody was faster."""
        invariant(before is None or before.epoch.is_applied, "the epoch before is applied first")
        key = key_of(HEAD, epoch.target_id, epoch.query)
        value = msgspec.msgpack.encode(epoch)
        expected = ABSENT if before is None else before.version
        pending = Put(key_of(PENDING, epoch.target_id, epoch.query), msgspec.msgpack.encode(epoch.decided_ms))
        results = self._results([Put(key, value, expected), pending], atomic=True)
        version = results[0].version
        if results[0].status == OpStatus.OK and version is not None:
            return Stored(epoch, version.id)
        (row,) = self._get(key)  # an answer was lost and the request came again?
        return stored_of(row) if row is not None and row.value == value else None

    def applied(self, stored: Stored) -> bool:
        """Mark an epoch as applied; False: it was already, or a later one is there."""
        done = msgspec.structs.replace(stored.epoch, applied_ms=now_ms(), parts=(), spilled=None, oldest={})
        head = Put(key_of(HEAD, done.target_id, done.query), msgspec.msgpack.encode(done), stored.version)
        return self._write([head, Delete(key_of(PENDING, done.target_id, done.query))], atomic=True)

    def working(self, target_id: bytes, query: str) -> None:
        """Note that somebody applies the pending epoch, so that nobody else begins to."""
        key = key_of(PENDING, target_id, query)
        (row,) = self._get(key)
        if row is not None:
            self._write([Put(key, msgspec.msgpack.encode(now_ms()), row.version.id)])

    # -- what tasks stage ---------------------------------------------------------------------------------------

    def open(self, target_id: bytes, query: str, number: int, staged: Sequence[int]) -> Stored | None:
        """Protect what is staged for an epoch from now on from being trimmed. Call it first and every ten minutes.

        `staged`: shard ids of `__staged`. Returns the epoch if it is decided already: nothing needs to be staged then.
        """
        key, head = key_of(OPEN, target_id, query), key_of(HEAD, target_id, query)
        for _ in range(TRIES_MAX):
            found, row = self._get(key, head)
            decided = None if row is None else stored_of(row)
            if decided is not None and decided.epoch.number >= number:
                return decided
            opened = None if found is None else opened_of(found)
            now = now_ms()
            if opened is not None and opened.number == number and now - opened.refreshed_ms < OPEN_REFRESH_MS:
                return None
            starts = self.ends(staged)
            if opened is not None and opened.number == number:
                starts = {
                    shard: min(start, opened.starts.get(shard, start)) for shard, start in starts.items()
                }
            value = msgspec.msgpack.encode(Opened(number, now, starts))
            if self._write([Put(key, value, ABSENT if found is None else found.version.id)]):
                return None
        raise InvalidRequestError(
            f"the row of {query} in __epochs changes all the time: how many run under this name?"
        )

    def ends(self, shard_ids: Sequence[int]) -> dict[int, int]:
        """Committed ends of shards."""
        return {shard_id: reply.high_watermark for shard_id, reply in self._bounds(shard_ids).items()}

    def starts(self, shard_ids: Sequence[int]) -> dict[int, int]:
        """Where the logs of shards start."""
        return {shard_id: reply.log_start for shard_id, reply in self._bounds(shard_ids).items()}

    def _bounds(self, shard_ids: Sequence[int]) -> dict[int, OffsetReply]:
        return list_offsets(self._cluster, dict.fromkeys(shard_ids, END_OF_LOG))

    # -- for the housekeeper ------------------------------------------------------------------------------------

    def scan(self, kind: str) -> Iterator[Row]:
        """All rows of a kind."""
        start, end = f"{kind}/".encode(), f"{kind}0".encode()  # "0" comes after "/"
        while True:
            answer = self._cluster.call(
                ShardCall(self._shard_id, TableScan(self._shard_id, start, end, SCAN_ROWS))
            )
            reply: TableRows = answer.body
            rows = [row for row in reply.rows if row is not None]
            yield from rows
            if not reply.more or not rows:
                return
            start = rows[-1].key + b"\x00"

    def remove(self, row: Row) -> bool:
        """Delete a row if it is as it was read."""
        return self._write([Delete(row.key, row.version.id)])

    # -- the table ----------------------------------------------------------------------------------------------

    def _get(self, *keys: bytes) -> list[Row | None]:
        answer = self._cluster.call(ShardCall(self._shard_id, TableGet(self._shard_id, keys)))
        reply: TableRows = answer.body
        return list(reply.rows)

    def _write(self, ops: Sequence[TableOp], *, atomic: bool = False) -> bool:
        """Were all operations carried out?"""
        return all(result.status == OpStatus.OK for result in self._results(ops, atomic=atomic))

    def _results(self, ops: Sequence[TableOp], *, atomic: bool) -> tuple[OpResult, ...]:
        request = TableWrite(self._shard_id, tuple(ops), atomic=atomic, internal=True)
        written: TableWritten = self._cluster.call(ShardCall(self._shard_id, request)).body
        return written.results


def stored_of(row: Row) -> Stored:
    """A head row; raises CorruptBatchError."""
    return Stored(_decoded(_EPOCH, row, "is no epoch"), row.version.id)


def opened_of(row: Row) -> Opened:
    """An open row; raises CorruptBatchError."""
    return _decoded(_OPENED, row, "is no open epoch")


def pending_since_ms(row: Row) -> int:
    """When somebody last worked on a pending epoch."""
    return _decoded(_MS, row, "has no time")


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", row: Row, else_it: str) -> T:
    try:
        return decoder.decode(row.value or b"")
    except UNDECODABLE as error:
        raise CorruptBatchError(f"the row {row.key!r} of __epochs {else_it}: {error}") from error


def blobs_of(pairs: Sequence[tuple[int, int]]) -> list[BlobAt]:
    """Places of blobs as rows have them."""
    return [BlobAt(offset, size) for offset, size in pairs]
