"""Rows of groups of the classic protocol: `classic/<group>` in the group's shard of `__groups`.

Every write rests on the version of the row before it. So whoever coordinates no more, or holds a group as it was, writes
nothing. A row that is none of ours is passed over, with a line in the node's log.

Nodes of earlier versions do not read these rows, and keep groups in memory only. A row would be out of date once one of
them has coordinated the group. So no row is written, and none is believed, while a node of the cluster is of such a version.
"""

from typing import Final, NamedTuple

import structlog

from antiphon.coordination.cluster_records import CLASSIC_FORMAT
from antiphon.errors import UNDECODABLE, UnavailableError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.classic_row import ClassicRow, decoded, encoded
from antiphon.kafka.groups.consumer_rows import ABSENT, WRITE_MS, GroupChangedError, rows_of
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
from antiphon.transactions.group_offsets import escaped
from antiphon.transactions.internal_rows import UnreadableRows, rows_between

ROW_BYTES_MAX: Final = 768 * 1024  # of a group; a batch of the table has 1 MiB at most
SCAN_ROWS: Final = 50
_PREFIX: Final = b"classic/"
_AFTER_PREFIX: Final = b"classic0"  # "0" is the byte after "/"


class Kept(NamedTuple):
    """A group as the table has it; no row where there is none, or none that can be read."""

    row: ClassicRow | None
    version: int


class ClassicRows:
    """Reads and writes rows in shards that this node leads. Methods raise what the gateway's table calls raise."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._unreadable = UnreadableRows("group_row_not_readable")
        self._too_large: set[str] = set()  # groups whose size the log tells of

    @property
    def are_kept(self) -> bool:
        """Does every node of the cluster know such rows?"""
        nodes = self._gateway.metadata.nodes
        return bool(nodes) and all(node.reads >= CLASSIC_FORMAT for node in nodes)

    async def load(self, shard_id: int) -> dict[str, Kept]:
        """Every group of a shard that has members, by name."""
        found: dict[str, Kept] = {}
        count = 0
        async for row in rows_between(self._gateway, shard_id, _PREFIX, _AFTER_PREFIX, limit=SCAN_ROWS):
            count += 1
            kept = self._read(row)
            if kept.row is not None and kept.row.members:
                found[_group_of(row.key)] = kept
        if count and not self.are_kept:
            # A node of an earlier version may have coordinated meanwhile, or may do so next.
            await self._write(shard_id, DeleteRange(_PREFIX, _AFTER_PREFIX))
            return {}
        return found

    async def load_one(self, shard_id: int, group: str) -> Kept:
        """One group, with members or without."""
        (row,) = (await self._gateway.table_get(TableGet(shard_id, (row_key(group),)))).rows
        if row is None:
            return Kept(None, ABSENT)
        kept = self._read(row)
        return kept if self.are_kept else Kept(None, kept.version)

    async def write(self, shard_id: int, group: str, version: int, row: ClassicRow) -> int:
        """Keep the group like this; returns the row's version when that is committed. Raises GroupChangedError."""
        is_empty = row.empty_since_ms is not None
        if not self.are_kept or (is_empty and not await self._has_offsets(shard_id, group)):
            await self.forget(shard_id, group, version)
            return ABSENT
        value = encoded(row)
        if len(value) > ROW_BYTES_MAX:
            self._log_too_large(group, len(value))
            value = encoded(row.without_members)
        found = await self._write(shard_id, Put(row_key(group), value, expected_version=version))
        if found is None:
            raise UnavailableError(f"the row of group {group!r} was written without a version")
        return found

    async def forget(self, shard_id: int, group: str, version: int) -> None:
        """Keep nothing of the group. Raises GroupChangedError."""
        if version != ABSENT:
            await self._write(shard_id, Delete(row_key(group), expected_version=version))

    async def _has_offsets(self, shard_id: int, group: str) -> bool:
        """A group without members and offsets is none: nothing has to be remembered of it."""
        for prefix in ("offset", "pending"):
            scan = TableScan(shard_id, *rows_of(prefix, group), limit=1, include_value=False)
            if (await self._gateway.table_scan(scan)).rows:
                return True
        return False

    async def _write(self, shard_id: int, op: TableOp) -> int | None:
        written = await self._gateway.table_write(
            TableWrite(shard_id, (op,), atomic=True, timeout_ms=WRITE_MS)
        )
        (result,) = written.results
        if result.status != OpStatus.OK:
            raise GroupChangedError
        return None if result.version is None else result.version.id

    def _read(self, row: Row) -> Kept:
        try:
            group = _group_of(row.key)
            if row_key(group) != row.key:
                raise ValueError("not as this node would write it")
            return Kept(decoded(row.value or b""), row.version.id)
        except (*UNDECODABLE, ValueError) as error:
            self._unreadable.log(row.key, str(error))
            return Kept(None, row.version.id)

    def _log_too_large(self, group: str, size: int) -> None:
        if group not in self._too_large and len(self._too_large) < 1_000:
            self._too_large.add(group)
            structlog.get_logger().warning(
                "classic_group_too_large", group=group, size_bytes=size, limit_bytes=ROW_BYTES_MAX
            )


def row_key(group: str) -> bytes:
    """The key of a group's row."""
    return f"classic/{escaped(group)}".encode()


def _group_of(key: bytes) -> str:
    return key.decode().partition("/")[2].replace("%2F", "/").replace("%25", "%")
