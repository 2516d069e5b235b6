"""Committed offsets of consumer groups, in the internal table `__groups`.

A row is `offset/<group>/<topic>/<partition>`; a slash or percent sign in a group's name is written as %2F or %25. All rows
of a group are in one shard of the table, chosen by the hash of the group's name, and the leader of that shard is the group's
coordinator. A commit is answered when it is committed in that shard, so it survives what any acknowledged write survives.

A row that is none of ours is passed over, with a line in the node's log: whoever wrote it must not keep a group from its
offsets.

The topic's id is kept with the offset: when a topic is deleted and made again, offsets of the old one do not apply.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from antiphon.errors import UNDECODABLE, UnavailableError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.model.internal import GROUPS_TABLE
from antiphon.model.metadata import ShardMeta
from antiphon.model.requests import (
    Delete,
    DeleteRange,
    OpStatus,
    Put,
    TableGet,
    TableOp,
    TableScan,
    TableWrite,
)
from antiphon.model.rows import Row
from antiphon.transactions.internal_rows import UnreadableRows, rows_between
from antiphon.transactions.internal_table import shard_of_name

OPS_MAX: Final = 500  # operations in one write or read of the table
SCAN_ROWS: Final = 1_000
_PREFIX: Final = b"offset/"
_AFTER_PREFIX: Final = b"offset0"  # "0" is the byte after "/"
_TEXT_BYTES_MAX: Final = 32_767  # of a string in Kafka's older protocol versions
_INT32_MAX: Final = 2**31 - 1


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """A row's value. `offset` is the next one to read; `topic_id` is the topic's at the time of the commit.

    `written`: version of the row in which the offset was pending, if it came with a transaction; -1 otherwise.
    `retention_ms`: for how long from the commit on the client wanted it kept; -1: as long as nodes keep such offsets.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    topic_id: bytes
    written: int = -1
    retention_ms: int = -1


class _BadRowError(ValueError):
    """A row that this table's writers do not write."""


class OffsetAt(NamedTuple):
    """A committed offset and the partition it is for."""

    topic: str
    partition: int
    committed: Committed


class StoredOffset(NamedTuple):
    """A row as it was read. `version`, `modified_ms`: of the row. `is_current`: is it of the topic that has the name now?"""

    key: bytes
    at: OffsetAt
    version: int
    modified_ms: int
    is_current: bool


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Committed)


def shard_of_group(gateway: Gateway, group: str) -> ShardMeta:
    """The shard that holds the group; raises UnknownTopicError while there is no such table."""
    return shard_of_name(gateway, GROUPS_TABLE, group)


class GroupOffsets:
    """Reads and writes rows. Methods raise what the gateway's table calls raise."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._unreadable = UnreadableRows("group_row_not_readable")

    async def commit(self, group: str, offsets: Sequence[OffsetAt]) -> None:
        """Store offsets; returns when they are committed."""
        puts = [Put(row_key(group, at.topic, at.partition), row_value(at.committed)) for at in offsets]
        await self._write(group, puts)

    async def fetch(self, group: str, wanted: Sequence[tuple[str, int]]) -> list[Committed | None]:
        """Offsets of partitions in the order asked for; None where nothing was committed for the topic as it is now."""
        shard_id = shard_of_group(self._gateway, group).shard_id
        found: list[Committed | None] = []
        for at in range(0, len(wanted), OPS_MAX):
            part = wanted[at : at + OPS_MAX]
            keys = tuple(row_key(group, topic, partition) for topic, partition in part)
            reply = await self._gateway.table_get(TableGet(shard_id, keys))
            for (topic, _), row in zip(part, reply.rows, strict=True):
                at_row = self._read(row) if row is not None else None
                is_current = at_row is not None and self._is_current(topic, at_row.committed)
                found.append(at_row.committed if at_row is not None and is_current else None)
        return found

    async def fetch_all(self, group: str) -> list[OffsetAt]:
        """Every offset of the group, by topic and partition."""
        shard_id = shard_of_group(self._gateway, group).shard_id
        start, end = _range(group)
        every = rows_between(self._gateway, shard_id, start, end, limit=SCAN_ROWS)
        rows = [self._read(row) async for row in every]
        found = [at for at in rows if at is not None and self._is_current(at.topic, at.committed)]
        return sorted(found, key=lambda at: (at.topic, at.partition))

    async def stored(self, shard_id: int, group: str) -> AsyncIterator[StoredOffset]:
        """Every offset of the group, those of deleted topics, too."""
        async for row in rows_between(self._gateway, shard_id, *_range(group), limit=SCAN_ROWS):
            at = self._read(row)
            if at is not None:
                is_current = self._is_current(at.topic, at.committed)
                yield StoredOffset(row.key, at, row.version.id, row.version.modified_ms, is_current)

    async def remove(self, shard_id: int, rows: Sequence[StoredOffset]) -> int:
        """Remove rows that are as they were read, `OPS_MAX` at most; says how many."""
        ops = tuple(Delete(row.key, expected_version=row.version) for row in rows)
        written = await self._gateway.table_write(TableWrite(shard_id, ops))
        return sum(result.status == OpStatus.OK for result in written.results)

    async def delete(self, group: str) -> None:
        """Forget all offsets of the group."""
        await self._write(group, [DeleteRange(*_range(group))])

    async def delete_some(self, group: str, partitions: Sequence[tuple[str, int]]) -> None:
        """Forget some offsets; those that are not there are no error."""
        ops: list[TableOp] = []
        for topic, partition in partitions:
            key = row_key(group, topic, partition)
            ops.append(DeleteRange(key, key + b"\x00"))
        await self._write(group, ops)

    async def groups_of(self, shard_id: int) -> list[str]:
        """Names of all groups with offsets in a shard: one look-up a group, however many offsets it has."""
        names: list[str] = []
        start = _PREFIX
        while True:
            scan = TableScan(shard_id, start, _AFTER_PREFIX, limit=1, include_value=False)
            rows = [row for row in (await self._gateway.table_scan(scan)).rows if row is not None]
            if not rows:
                return names
            try:
                group, _, _ = _split(rows[0].key)
            except _BadRowError as error:
                self._unreadable.log(rows[0].key, str(error))
                start = rows[0].key + b"\x00"
                continue
            if len(group.encode()) <= _TEXT_BYTES_MAX:
                names.append(group)
            start = _range(group)[1]

    async def _write(self, group: str, ops: Sequence[TableOp]) -> None:
        shard_id = shard_of_group(self._gateway, group).shard_id
        for part in _chunks(ops):
            written = await self._gateway.table_write(TableWrite(shard_id, part))
            if any(result.status not in {OpStatus.OK, OpStatus.KEY_NOT_FOUND} for result in written.results):
                raise UnavailableError(f"{GROUPS_TABLE} refused a write without conditions")

    def _read(self, row: Row) -> OffsetAt | None:
        """What a row says; None, and a line in the log, for a bad one."""
        try:
            _, topic, partition = _split(row.key)
            return OffsetAt(topic, partition, _decoded(row.value or b""))
        except _BadRowError as error:
            self._unreadable.log(row.key, str(error))
            return None

    def _is_current(self, topic: str, committed: Committed) -> bool:
        try:
            return self._gateway.topic(topic).topic_id == committed.topic_id
        except UnknownTopicError:
            return False


def _chunks(ops: Sequence[TableOp]) -> Iterator[tuple[TableOp, ...]]:
    for at in range(0, len(ops), OPS_MAX):
        yield tuple(ops[at : at + OPS_MAX])


def row_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset."""
    return f"offset/{escaped(group)}/{topic}/{partition}".encode()


def _range(group: str) -> tuple[bytes, bytes]:
    """From the group's first possible key to the one after its last."""
    return f"offset/{escaped(group)}/".encode(), f"offset/{escaped(group)}0".encode()


def _split(key: bytes) -> tuple[str, str, int]:
    """Group, topic and partition of a key, exactly as `_key` makes it; raises _BadRowError."""
    try:
        _, written, topic, number = key.decode().split("/")
        group, partition = written.replace("%2F", "/").replace("%25", "%"), int(number)
    except ValueError as error:
        raise _BadRowError(f"not offset/GROUP/TOPIC/PARTITION: {error}") from error
    # Another spelling of the same names would be found again and again by who goes on behind them.
    if row_key(group, topic, partition) != key or not 0 <= partition <= _INT32_MAX:
        raise _BadRowError("not as this node would write it")
    return group, topic, partition


def place_of(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition of a row's key; None for a bad one."""
    try:
        return _split(key)
    except _BadRowError:
        return None


def _decoded(value: bytes) -> Committed:
    """A row's value, within what answers can carry; raises _BadRowError."""
    try:
        found = _DECODER.decode(value)
    except UNDECODABLE as error:
        raise _BadRowError(f"not a committed offset: {error}") from error
    in_range = -(2**63) <= found.offset < 2**63 and -_INT32_MAX <= found.leader_epoch <= _INT32_MAX
    if not in_range or len(found.metadata.encode()) > _TEXT_BYTES_MAX:
        raise _BadRowError("a number or text that is too large")
    return found


def row_value(committed: Committed) -> bytes:
    """The value of a committed offset."""
    return _ENCODER.encode(committed)


def committed_of(value: bytes | None) -> Committed | None:
    """What a row's value says; None for a bad one."""
    try:
        return _decoded(value or b"")
    except _BadRowError:
        return None


def escaped(group: str) -> str:
    """A group's name as part of a key."""
    return group.replace("%", "%25").replace("/", "%2F")
