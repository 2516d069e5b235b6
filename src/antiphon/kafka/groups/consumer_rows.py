"""Rows of groups of the consumer protocol, and of share groups, in the group's shard of `__groups`.

`consumer/<group>/<kind>/<name>`, and `sharegroup/...` for share groups: the group itself (no name), its members and their
targets by member id, and what regular expressions matched. Every write of a group rests on the version of the group's own
row, and puts a new one. So whoever holds a group as it was reads it again before it changes anything.

A row that is none of ours is passed over, with a line in the node's log.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.coordination.consumer_terms import (
    Changes,
    GroupRow,
    Kind,
    Member,
    Place,
    Places,
    RowBody,
    RowName,
)
from antiphon.errors import UNDECODABLE, UnavailableError
from antiphon.gateway.interface import Gateway
from antiphon.model.requests import (
    Check,
    Delete,
    DeleteRange,
    OpStatus,
    Put,
    TableGet,
    TableOp,
    TableWrite,
)
from antiphon.model.rows import Row
from antiphon.transactions.group_offsets import escaped
from antiphon.transactions.internal_rows import UnreadableRows, rows_between
from antiphon.transactions.share_rows import (
    SHARE_GROUP,
    group_of_settings,
    settings_key,
    settings_of,
    settings_row,
    settings_rows,
    state_rows,
)

ABSENT: Final = -1  # version of a row that is not there
WRITE_MS: Final = 10_000
WRITE_BYTES_MAX: Final = (
    512 * 1024
)  # of targets that are written beside the rows that have to be written together
CONSUMER: Final = "consumer"
SHARE: Final = SHARE_GROUP
_INT32_MAX: Final = 2**31 - 1

_Packed = dict[bytes, tuple[int, ...]]  # partitions by topic id


class _PackedMember(msgspec.Struct, frozen=True):
    member: Member
    assigned: _Packed
    revoking: _Packed


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final[dict[Kind, msgspec.msgpack.Decoder[Any]]] = {
    Kind.GROUP: msgspec.msgpack.Decoder(GroupRow),
    Kind.MEMBER: msgspec.msgpack.Decoder(_PackedMember),
    Kind.TARGET: msgspec.msgpack.Decoder(_Packed),
    Kind.REGEX: msgspec.msgpack.Decoder(tuple[str, ...]),
}


class StoredGroup(NamedTuple):
    """A group as the table has it. `version`: of its own row. `sizes`: bytes of each row. `settings`: an operator's."""

    rows: dict[RowName, RowBody]
    version: int
    sizes: dict[RowName, int]
    settings: dict[str, str] = {}


class GroupChangedError(Exception):
    """The group was written by somebody else since it was read, or by a write of ours that was thought lost."""


class ConsumerRows:
    """Reads and writes rows in shards that this node leads. Methods raise what the gateway's table calls raise."""

    def __init__(self, gateway: Gateway, prefix: str = CONSUMER) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._unreadable = UnreadableRows("group_row_not_readable")

    async def load(self, shard_id: int) -> dict[str, StoredGroup]:
        """Every group of a shard, by name."""
        found = await self._read(shard_id, f"{self._prefix}/".encode(), f"{self._prefix}0".encode())
        async for row in rows_between(self._gateway, shard_id, *settings_rows()):
            group = group_of_settings(row.key)
            if group in found:
                found[group] = found[group]._replace(settings=settings_of(row.value))
        return found

    async def load_one(self, shard_id: int, group: str) -> StoredGroup:
        """One group; without rows where there is none."""
        found = await self._read(shard_id, *rows_of(self._prefix, group))
        settings = await self.settings(shard_id, group)
        return found.get(group, StoredGroup({}, ABSENT, {}))._replace(settings=settings)

    async def settings(self, shard_id: int, group: str) -> dict[str, str]:
        """What an operator set of a group, be there one of this name or not."""
        (row,) = (await self._gateway.table_get(TableGet(shard_id, (settings_key(group),)))).rows
        return settings_of(None if row is None else row.value)

    async def write(
        self,
        shard_id: int,
        group: str,
        version: int,
        row: GroupRow,
        changes: Changes,
        also: Sequence[TableOp] = (),
    ) -> tuple[int, dict[RowName, int]]:
        """Write rows, and `row` as the group's own; returns its version, and the sizes of the rows, when all is committed.

        What members have is written at once, and so is `also`, with all else. Targets that are too many for that go before
        it, while the group's own row says that its target is yet to be made. Raises GroupChangedError.
        """
        sizes: dict[RowName, int] = {}
        together: list[TableOp] = []
        waiting: list[TableOp] = []
        held = 0
        for name, body in changes.items():
            if name[0] is Kind.GROUP:
                continue
            op = self._op(group, name, body)
            sizes[name] = len(op.value) if isinstance(op, Put) else 0
            if name[0] is not Kind.TARGET:
                together.append(op)
                continue
            waiting.append(op)
            held += sizes[name]
            if held > WRITE_BYTES_MAX and not also:
                unmade = msgspec.structs.replace(row, target_epoch=min(row.target_epoch, row.epoch - 1))
                version = await self._write(shard_id, group, version, unmade, waiting)
                waiting, held = [], 0
        sizes[Kind.GROUP, ""] = len(_ENCODER.encode(row))
        return await self._write(shard_id, group, version, row, [*also, *waiting, *together]), sizes

    async def replace(
        self, shard_id: int, group: str, version: int, names: Iterable[RowName], by: Put
    ) -> int:
        """Remove the group, with all its members, for a row of another kind; returns that row's version, when all is
        committed. What an operator set of the group stays. Raises GroupChangedError.
        """
        own = (Kind.GROUP, "")
        gone = [Delete(row_key(self._prefix, group, name)) for name in names if name != own]
        ops: tuple[TableOp, ...] = (
            by, Delete(row_key(self._prefix, group, own), expected_version=version), *gone
        )  # fmt: skip
        written = await self._gateway.table_write(TableWrite(shard_id, ops, atomic=True, timeout_ms=WRITE_MS))
        if any(result.status not in {OpStatus.OK, OpStatus.KEY_NOT_FOUND} for result in written.results):
            raise GroupChangedError
        found = written.results[0].version
        if found is None:
            raise UnavailableError(f"the row of group {group!r} was written without a version")
        return found.id

    async def settle(self, shard_id: int, group: str, version: int) -> None:
        """Return when it is decided what became of every write of the group before this one."""
        check = Check(row_key(self._prefix, group, (Kind.GROUP, "")), version)
        await self._gateway.table_write(TableWrite(shard_id, (check,), atomic=True, timeout_ms=WRITE_MS))

    async def confirm(self, shard_id: int, group: str, version: int) -> dict[str, str]:
        """Return when it is certain that the group's own row was of this version, with the group's settings then.

        Raises GroupChangedError.
        """
        keys = (row_key(self._prefix, group, (Kind.GROUP, "")), settings_key(group))
        row, settings = (await self._gateway.table_get(TableGet(shard_id, keys))).rows
        if version != (ABSENT if row is None else row.version.id):
            raise GroupChangedError
        return settings_of(None if settings is None else settings.value)

    async def written_ms(self, shard_id: int, group: str) -> int | None:
        """When the group's own row was written, which every change of the group does; None where there is none."""
        key = row_key(self._prefix, group, (Kind.GROUP, ""))
        (row,) = (await self._gateway.table_get(TableGet(shard_id, (key,)))).rows
        return None if row is None else row.version.modified_ms

    async def forget(
        self, shard_id: int, group: str, version: int, names: Iterable[RowName], *, with_settings: bool = True
    ) -> None:
        """Remove a group without members, and what is kept of it elsewhere. Raises GroupChangedError."""
        ops: list[TableOp] = [
            Delete(row_key(self._prefix, group, name)) for name in names if name[0] is not Kind.GROUP
        ]
        if with_settings:
            ops.append(DeleteRange(*settings_row(group)))
        if self._prefix == SHARE:
            ops.append(DeleteRange(*state_rows(group)))
        if version != ABSENT:
            ops.append(Delete(row_key(self._prefix, group, (Kind.GROUP, "")), expected_version=version))
        written = await self._gateway.table_write(
            TableWrite(shard_id, tuple(ops), atomic=True, timeout_ms=WRITE_MS)
        )
        if any(result.status not in {OpStatus.OK, OpStatus.KEY_NOT_FOUND} for result in written.results):
            raise GroupChangedError

    async def _write(self, shard_id: int, group: str, version: int, row: GroupRow, ops: list[TableOp]) -> int:
        put = Put(
            row_key(self._prefix, group, (Kind.GROUP, "")), _ENCODER.encode(row), expected_version=version
        )
        written = await self._gateway.table_write(
            TableWrite(shard_id, (put, *ops), atomic=True, timeout_ms=WRITE_MS)
        )
        found = written.results[0]
        if found.status != OpStatus.OK:
            raise GroupChangedError
        if found.version is None:
            raise UnavailableError(f"the row of group {group!r} was written without a version")
        return found.version.id

    async def _read(self, shard_id: int, start: bytes, end: bytes) -> dict[str, StoredGroup]:
        found: dict[str, StoredGroup] = {}
        async for row in rows_between(self._gateway, shard_id, start, end):
            self._take(row, found)
        return found

    def _take(self, row: Row, found: dict[str, StoredGroup]) -> None:
        try:
            group, name = _split(self._prefix, row.key)
            body = _decoded(name, row.value or b"")
        except (*UNDECODABLE, ValueError) as error:
            self._unreadable.log(row.key, str(error))
            return
        stored = found.setdefault(group, StoredGroup({}, ABSENT, {}))
        stored.rows[name] = body
        stored.sizes[name] = len(row.value or b"")
        if name[0] is Kind.GROUP:
            found[group] = stored._replace(version=row.version.id)

    def _op(self, group: str, name: RowName, body: RowBody | None) -> Put | Delete:
        key = row_key(self._prefix, group, name)
        return Delete(key) if body is None else Put(key, _encoded(body))


def row_key(prefix: str, group: str, name: RowName) -> bytes:
    """The key of a row of a group."""
    return f"{prefix}/{escaped(group)}/{name[0]}/{name[1]}".encode()


def rows_of(prefix: str, group: str) -> tuple[bytes, bytes]:
    """The range of keys that begin with this prefix and this group."""
    return f"{prefix}/{escaped(group)}/".encode(), f"{prefix}/{escaped(group)}0".encode()  # 0 comes after /


def size_of(group: str, changes: Changes) -> int:
    """About so many bytes these rows take."""
    return sum(
        2 * len(row_key(CONSUMER, group, name)) + (0 if body is None else len(_encoded(body)))
        for name, body in changes.items()
    )


def _split(prefix: str, key: bytes) -> tuple[str, RowName]:
    """Group and name of a row, exactly as `row_key` makes them; raises ValueError."""
    _, written, kind, name = key.decode().split("/", 3)
    group, found = written.replace("%2F", "/").replace("%25", "%"), (Kind(kind), name)
    if row_key(prefix, group, found) != key:
        raise ValueError("not as this node would write it")
    return group, found


def _encoded(body: RowBody) -> bytes:
    if isinstance(body, Member):
        bare = msgspec.structs.replace(body, assigned=frozenset(), revoking=frozenset())
        return _ENCODER.encode(_PackedMember(bare, packed(body.assigned), packed(body.revoking)))
    return _ENCODER.encode(packed(body) if isinstance(body, frozenset) else body)


def _decoded(name: RowName, value: bytes) -> RowBody:
    """A row's value, within what answers can carry; raises ValueError and what msgspec raises."""
    found = _DECODERS[name[0]].decode(value)
    if isinstance(found, _PackedMember):
        member = msgspec.structs.replace(
            found.member, assigned=_unpacked(found.assigned), revoking=_unpacked(found.revoking)
        )
        if member.member_id != name[1] or not -2 <= member.epoch < _INT32_MAX:
            raise ValueError("not the member that its key names, or an epoch that is too large")
        if member.classic is not None and not (
            member.classic.protocols and 0 < member.classic.session_ms <= _INT32_MAX
        ):
            raise ValueError(
                "a member of the classic protocol without protocols, or with a session out of range"
            )
        return member
    if isinstance(found, GroupRow):
        if not 0 <= found.target_epoch <= found.epoch < _INT32_MAX:
            raise ValueError(f"epochs {found.epoch} and {found.target_epoch} do not fit together")
        return found
    if isinstance(found, dict):
        return _unpacked(found)
    topics: tuple[str, ...] = found
    return topics


def packed(places: Places) -> _Packed:
    """Partitions by topic id, both in order."""
    by_topic: dict[bytes, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return {topic: tuple(partitions) for topic, partitions in by_topic.items()}


def _unpacked(by_topic: _Packed) -> Places:
    places: set[Place] = set()
    for topic, partitions in by_topic.items():
        if len(topic) != 16 or any(not 0 <= partition <= _INT32_MAX for partition in partitions):
            raise ValueError("not partitions of a topic")
        places.update((topic, partition) for partition in partitions)
    return frozenset(places)
