"""Offsets that become a group's when a transaction commits, in the group's shard of `__groups`.

`pending/<group>/<producer id>/<topic>/<partition>` is such an offset, as a row of `offset/...` would be.
`ended/<group>/<producer id>` has the number of the producer's last transaction that ended here, and counts what is
pending. Each write of pending offsets, and the one write that ends a transaction, are on the condition of that row's
version. So an offset that was delayed past its transaction's end is refused, and none is left pending for ever.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from antiphon import system
from antiphon.coordination.transactions import Producer, Refused
from antiphon.errors import UNDECODABLE, OverloadedError, UnavailableError
from antiphon.gateway.interface import Gateway
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
from antiphon.transactions.group_offsets import (
    OPS_MAX,
    GroupOffsets,
    OffsetAt,
    committed_of,
    escaped,
    row_key,
    row_value,
    shard_of_group,
)
from antiphon.transactions.internal_rows import rows_between

TRIES: Final = 16  # of a write whose condition does not hold any more
PENDING_MAX: Final = 5_000  # offsets of one producer in one group
PENDING_BYTES_MAX: Final = 512 * 1024  # of them, as they are written with the end of the transaction
ROW_BYTES: Final = 64  # about, of a row beside its key and value
# A producer is forgotten that ended nothing for so long; longer than its id is kept
KEPT_MS: Final = 8 * 86_400_000
SWEEP_MS: Final = 3_600_000  # between two looks for those, in one group
SWEPT_MAX: Final = 20_000
SCAN_ROWS: Final = 1_000
ABSENT: Final = -1
_ENDED: Final = b"ended/"
_AFTER_ENDED: Final = b"ended0"  # "0" is the byte after "/"


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """`number`: of the last transaction that ended. `count`, `size_bytes`: what was made pending since, at most."""

    number: int
    epoch: int
    changed_ms: int
    count: int = 0
    size_bytes: int = 0


class _Kept(NamedTuple):
    ended: Ended
    version: int


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Ended)
_NOTHING: Final = Ended(0, -1, 0)


class PendingOffsets:
    """Reads and writes these rows, on the node that coordinates the group. Raises what the gateway's table calls raise."""

    def __init__(self, gateway: Gateway, offsets: GroupOffsets) -> None:
        self._gateway = gateway
        self._offsets = offsets
        self._swept_ms: dict[str, int] = {}

    async def add(
        self, group: str, producer: Producer, number: int, offsets: Sequence[OffsetAt]
    ) -> Refused | None:
        """Make offsets pending in the transaction of this number; returns when they are committed as that."""
        for at in range(0, len(offsets), OPS_MAX - 1):
            refused = await self._add(group, producer, number, offsets[at : at + OPS_MAX - 1])
            if refused is not None:
                return refused
        return None

    async def _add(
        self, group: str, producer: Producer, number: int, offsets: Sequence[OffsetAt]
    ) -> Refused | None:
        puts = [Put(_key(group, producer.producer_id, at), row_value(at.committed)) for at in offsets]
        for _ in range(TRIES):
            kept = await self._read(group, producer.producer_id)
            if number <= kept.ended.number:
                return Refused.STATE
            if producer.epoch < kept.ended.epoch:
                return Refused.FENCED
            count = kept.ended.count + len(puts)
            size_bytes = kept.ended.size_bytes + sum(len(p.key) + len(p.value) + ROW_BYTES for p in puts)
            if count > PENDING_MAX or size_bytes > PENDING_BYTES_MAX:
                return Refused.TOO_MANY
            now = msgspec.structs.replace(
                kept.ended, changed_ms=system.wall_ms(), count=count, size_bytes=size_bytes
            )
            if await self._write(group, producer.producer_id, _Kept(now, kept.version), puts):
                return None
        raise OverloadedError(f"too many write offsets of group {group!r} at the same time; try again")

    async def end(self, group: str, producer: Producer, number: int, *, commit: bool) -> None:
        """End the producer's transaction: what is pending becomes the group's, or goes away, in one write."""
        for _ in range(TRIES):
            kept = await self._read(group, producer.producer_id)
            if number <= kept.ended.number:
                return
            pending = await self._scan(group, *_range(group, producer.producer_id))
            ops: list[TableOp] = await self._commits(group, pending) if commit else []
            if pending:
                ops.append(DeleteRange(*_range(group, producer.producer_id)))
            now = Ended(number, producer.epoch, system.wall_ms())
            if await self._write(group, producer.producer_id, _Kept(now, kept.version), ops):
                await self._sweep(group)
                return
        raise OverloadedError(f"too many write offsets of group {group!r} at the same time; try again")

    async def _commits(self, group: str, pending: Sequence[Row]) -> list[TableOp]:
        """What makes offsets of pending ones. Of two offsets of a partition the one stays that was written last."""
        shard_id = shard_of_group(self._gateway, group).shard_id
        ops: list[TableOp] = []
        for at in range(0, len(pending), OPS_MAX):
            part = pending[at : at + OPS_MAX]
            keys = tuple(_offset_key(group, row.key) for row in part)
            found = (await self._gateway.table_get(TableGet(shard_id, keys))).rows
            for row, key, old in zip(part, keys, found, strict=True):
                offset = committed_of(row.value)
                if offset is not None and (old is None or _written(old) < row.version.id):
                    value = row_value(msgspec.structs.replace(offset, written=row.version.id))
                    ops.append(Put(key, value, expected_version=ABSENT if old is None else old.version.id))
        return ops

    async def unstable(self, group: str) -> set[tuple[str, int]]:
        """Partitions with pending offsets."""
        start, end = f"pending/{escaped(group)}/".encode(), f"pending/{escaped(group)}0".encode()
        found = set()
        for row in await self._scan(group, start, end, values=False):
            topic, partition = row.key.decode().rsplit("/", 2)[-2:]
            found.add((topic, int(partition)))
        return found

    async def forget(self, group: str) -> None:
        """The group is deleted: nothing is pending any more. What ended stays known, for what comes late."""
        shard_id = shard_of_group(self._gateway, group).shard_id
        start, end = f"pending/{escaped(group)}/".encode(), f"pending/{escaped(group)}0".encode()
        await self._gateway.table_write(TableWrite(shard_id, (DeleteRange(start, end),)))

    async def sweep(self, shard_id: int, now_ms: int) -> None:
        """Forget producers of all groups of a shard that ended nothing for long, also of groups that are gone."""
        ended = rows_between(
            self._gateway, shard_id, _ENDED, _AFTER_ENDED, limit=SCAN_ROWS, include_value=False
        )
        old = [row async for row in ended if row.version.modified_ms < now_ms - KEPT_MS]
        for at in range(0, len(old), OPS_MAX):
            part = old[at : at + OPS_MAX]
            gone = tuple(Delete(row.key, expected_version=row.version.id) for row in part)
            await self._gateway.table_write(TableWrite(shard_id, gone))

    async def _read(self, group: str, producer_id: int) -> _Kept:
        shard_id = shard_of_group(self._gateway, group).shard_id
        (row,) = (await self._gateway.table_get(TableGet(shard_id, (_ended_key(group, producer_id),)))).rows
        if row is None:
            return _Kept(_NOTHING, ABSENT)
        try:
            return _Kept(_DECODER.decode(row.value or b""), row.version.id)
        except UNDECODABLE as error:
            raise UnavailableError(f"a row of group {group!r} is not readable: {error}") from error

    async def _write(self, group: str, producer_id: int, now: _Kept, ops: Sequence[TableOp]) -> bool:
        """All of it, if nobody wrote what it rests on meanwhile."""
        shard_id = shard_of_group(self._gateway, group).shard_id
        put = Put(_ended_key(group, producer_id), _ENCODER.encode(now.ended), expected_version=now.version)
        written = await self._gateway.table_write(TableWrite(shard_id, (put, *ops), atomic=True))
        return all(result.status == OpStatus.OK for result in written.results)

    async def _scan(self, group: str, start: bytes, end: bytes, *, values: bool = True) -> list[Row]:
        shard_id = shard_of_group(self._gateway, group).shard_id
        found = rows_between(self._gateway, shard_id, start, end, limit=SCAN_ROWS, include_value=values)
        return [row async for row in found]

    async def _sweep(self, group: str) -> None:
        """Forget producers that ended nothing for long, now and then."""
        now_ms = system.wall_ms()
        if now_ms < self._swept_ms.get(group, 0) + SWEEP_MS:
            return
        if len(self._swept_ms) >= SWEPT_MAX:
            self._swept_ms.clear()
        self._swept_ms[group] = now_ms
        start, end = f"ended/{escaped(group)}/".encode(), f"ended/{escaped(group)}0".encode()
        shard_id = shard_of_group(self._gateway, group).shard_id
        found = await self._gateway.table_scan(
            TableScan(shard_id, start, end, limit=OPS_MAX, include_value=False)
        )
        old = [row for row in found.rows if row is not None and row.version.modified_ms < now_ms - KEPT_MS]
        if old:
            gone = tuple(Delete(row.key, expected_version=row.version.id) for row in old)
            await self._gateway.table_write(TableWrite(shard_id, gone))


def _written(old: Row) -> int:
    """When a committed offset was written: with a transaction, when it became pending."""
    committed = committed_of(old.value)
    return old.version.id if committed is None or committed.written < 0 else committed.written


def _key(group: str, producer_id: int, at: OffsetAt) -> bytes:
    return f"pending/{escaped(group)}/{producer_id}/{at.topic}/{at.partition}".encode()


def _ended_key(group: str, producer_id: int) -> bytes:
    return f"ended/{escaped(group)}/{producer_id}".encode()


def _range(group: str, producer_id: int) -> tuple[bytes, bytes]:
    start = f"pending/{escaped(group)}/{producer_id}"
    return f"{start}/".encode(), f"{start}0".encode()


def _offset_key(group: str, pending_key: bytes) -> bytes:
    topic, partition = pending_key.decode().rsplit("/", 2)[-2:]
    return row_key(group, topic, int(partition))
