"""Share-partitions' states in `__groups`: kept by the group's coordinator, asked for by the partitions' leaders.

A leader writes a state only over the version of the row that it knows. So whoever led the partition before, or lost it and
has not heard of that, can store nothing once another leader has written; and what it reads tells it so.
"""

from typing import Final

from antiphon.coordination import share_settings
from antiphon.errors import InternalError, UnavailableError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.model.cluster import AskShareStates, PutShareState, SetShareSettings, ShareStates
from antiphon.model.internal import GROUPS_TABLE
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
from antiphon.transactions.internal_rows import rows_between
from antiphon.transactions.internal_table import TRY_S, InternalTable, shard_of_name, with_tries
from antiphon.transactions.share_rows import (
    encoded,
    group_key,
    place_of_key,
    settings_key,
    settings_of,
    state_key,
    state_of,
    state_rows,
)

ABSENT: Final = -1
WRITTEN_ROWS: Final = 500  # by one request
WRITE_MS: Final = 3_000
Place = tuple[bytes, int]  # topic id, partition


class ShareStateKeeper:
    """Answers for the groups that this node coordinates. Raises NotLeaderError for others."""

    def __init__(self, gateway: Gateway, groups: InternalTable) -> None:
        self._gateway = gateway
        self._groups = groups

    async def answer(self, asked: AskShareStates) -> ShareStates:
        """Store, then read."""
        shard_id, _ = self._groups.home(asked.group)
        versions = await self._put(shard_id, asked)
        if not asked.reads:
            return ShareStates(versions)
        keys = [state_key(asked.group, *place) for place in asked.reads]
        request = TableGet(shard_id, (group_key(asked.group), settings_key(asked.group), *keys))
        group, settings, *rows = (await self._gateway.table_get(request)).rows
        return ShareStates(
            versions,
            tuple((_version(row), b"" if row is None else row.value or b"") for row in rows),
            _version(group),
            settings_of(None if settings is None else settings.value),
        )

    async def _put(self, shard_id: int, asked: AskShareStates) -> tuple[int, ...]:
        known = [one for one in asked.puts if one.expected_version != ABSENT]
        found: dict[Place, int] = {}
        if known:
            ops = tuple(_put_of(asked.group, one) for one in known)
            written = await self._gateway.table_write(TableWrite(shard_id, ops, timeout_ms=WRITE_MS))
            for one, result in zip(known, written.results, strict=True):
                stored = result.status == OpStatus.OK and result.version is not None
                found[one.topic_id, one.partition] = (
                    result.version.id if stored and result.version else ABSENT
                )
        for one in asked.puts:
            if one.expected_version == ABSENT:
                found[one.topic_id, one.partition] = await self._begin(shard_id, asked.group, one)
        return tuple(found[one.topic_id, one.partition] for one in asked.puts)

    async def _begin(self, shard_id: int, group: str, one: PutShareState) -> int:
        """Make a new row, where the group is as the leader knows it; what topics left that are gone is removed."""
        if one.group_version == ABSENT:
            return ABSENT
        ops: tuple[TableOp, ...] = (Check(group_key(group), one.group_version), _put_of(group, one))
        request = TableWrite(shard_id, ops, atomic=True, timeout_ms=WRITE_MS)
        written = await self._gateway.table_write(request)
        result = written.results[-1]
        if any(each.status != OpStatus.OK for each in written.results) or result.version is None:
            return ABSENT
        await self._sweep(shard_id, group)
        return result.version.id

    async def _sweep(self, shard_id: int, group: str) -> None:
        meta = self._gateway.metadata
        there = {topic.topic_id for topic in meta.topics}
        gone: list[TableOp] = []
        for row in await self.rows(shard_id, group):
            try:
                topic_id, _ = place_of_key(row.key)
                made_at = state_of(row.value or b"").made_at
            except ValueError:
                continue
            if topic_id not in there and made_at <= meta.version:  # not one that this node has yet to hear of
                gone.append(Delete(row.key, expected_version=row.version.id))
        if gone:
            await self._gateway.table_write(
                TableWrite(shard_id, tuple(gone[:WRITTEN_ROWS]), timeout_ms=WRITE_MS)
            )

    async def rows(self, shard_id: int, group: str) -> list[Row]:
        """All share-partitions of a group."""
        start, end = state_rows(group)
        return [row async for row in rows_between(self._gateway, shard_id, start, end)]

    async def forget(self, shard_id: int, group: str, topic_id: bytes) -> None:
        """Remove what is stored of a topic's partitions."""
        ops = (DeleteRange(*state_rows(group, topic_id)),)
        await self._gateway.table_write(TableWrite(shard_id, ops, timeout_ms=WRITE_MS))

    async def set(self, asked: SetShareSettings) -> ShareStates:
        """Change the settings of a group, be there one of this name or not. Raises InvalidRequestError."""
        shard_id, _ = self._groups.home(asked.group)
        for name, value in asked.changes.items():
            share_settings.check(name, value)
        key = settings_key(asked.group)
        (row,) = (await self._gateway.table_get(TableGet(shard_id, (key,)))).rows
        settings = settings_of(None if row is None else row.value)
        changed = {**settings, **{name: value for name, value in asked.changes.items() if value is not None}}
        changed = {
            name: value for name, value in changed.items() if asked.changes.get(name, value) is not None
        }
        if changed != settings and not asked.validate_only:
            put = Put(key, encoded(changed), expected_version=_version(row))
            written = await self._gateway.table_write(TableWrite(shard_id, (put,), timeout_ms=WRITE_MS))
            if written.results[0].status != OpStatus.OK:
                raise UnavailableError(
                    "the group's settings were changed by somebody else just now; ask again"
                )
        return ShareStates(settings=changed)


class ShareStateAsker:
    """Asks a group's coordinator, wherever it is, for one node."""

    def __init__(self, gateway: Gateway, keeper: ShareStateKeeper) -> None:
        self._gateway = gateway
        self._keeper = keeper

    async def ask(self, asked: AskShareStates | SetShareSettings) -> ShareStates:
        """The answer; UnknownTopicError where there is nowhere to set it. After others nobody knows what was stored."""
        try:
            return await with_tries(lambda: self._ask(asked))
        except UnknownTopicError:
            if isinstance(asked, SetShareSettings):
                raise
            rows = ((ABSENT, b""),) * len(asked.reads)
            return ShareStates((ABSENT,) * len(asked.puts), rows)  # nobody ever asked for a group

    async def _ask(self, asked: AskShareStates | SetShareSettings) -> ShareStates:
        leader = shard_of_name(self._gateway, GROUPS_TABLE, asked.group).leader
        if leader == self._gateway.node_id:
            return await answer_of(self._keeper, asked)
        reply = await self._gateway.questions.ask(leader, asked, TRY_S)
        if not isinstance(reply, ShareStates):
            raise InternalError(
                f"node {leader} answered a share-partition's leader with {type(reply).__name__}"
            )
        return reply


async def answer_of(keeper: ShareStateKeeper, asked: AskShareStates | SetShareSettings) -> ShareStates:
    """What a leader of share-partitions is told."""
    return await (keeper.set(asked) if isinstance(asked, SetShareSettings) else keeper.answer(asked))


def _put_of(group: str, one: PutShareState) -> Put:
    return Put(
        state_key(group, one.topic_id, one.partition), one.value, expected_version=one.expected_version
    )


def _version(row: Row | None) -> int:
    return ABSENT if row is None else row.version.id
