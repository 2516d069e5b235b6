"""Settings of groups: what the nodes' files say of all of them, and what operators set for one group."""

import asyncio
from typing import Final

import structlog

from antiphon.coordination import share_settings
from antiphon.coordination.topic_settings import INT, LIST, STRING
from antiphon.errors import AntiphonError, InvalidRequestError, NotLeaderError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.types import GroupConfig
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.setting_changes import RESET, SET
from antiphon.kafka.messages import admin as m
from antiphon.kafka.topic_config import (
    SOURCE_BROKER,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_ALL,
    SOURCE_DYNAMIC_BROKER,
)
from antiphon.model.cluster import AskShareStates, SetShareSettings
from antiphon.model.internal import GROUPS_TABLE
from antiphon.model.metadata import ABSENT_NODE
from antiphon.model.node_settings import NODE_SETTINGS, Source
from antiphon.model.requests import TableRows, TableScan
from antiphon.transactions.share_rows import group_of_settings, settings_of, settings_rows
from antiphon.transactions.share_states import ShareStateAsker

SOURCE_GROUP: Final = 8
MEMBER_SETTINGS: Final = (f".{share_settings.HEARTBEAT_INTERVAL}", f".{share_settings.SESSION_TIMEOUT}")
SOURCES: Final = {
    Source.NODE: SOURCE_DYNAMIC_BROKER,
    Source.ALL: SOURCE_DYNAMIC_ALL,
    Source.FILE: SOURCE_BROKER,
    Source.DEFAULT: SOURCE_DEFAULT,
}
ID_BYTES_MAX: Final = 1024
SET_S: Final = 10.0  # a first group waits for the table that is made for it
PAUSE_S: Final = 0.1
ASK_S: Final = 2.0
SCAN_ROWS: Final = 500
LISTED_MAX: Final = 10_000
RETENTION: Final = "consumer_groups.offsets_retention_ms"
MINUTE_MS: Final = 60_000
INT_MAX: Final = 2**31 - 1


class GroupSettings:
    """See the module's text."""

    def __init__(self, gateway: Gateway, coordinator: GroupCoordinator, asker: ShareStateAsker) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._asker = asker

    def of_nodes(self) -> list[m.DescribedSetting]:
        """Kafka's settings of groups that are no nodes' here, as they are on this node."""
        config, default = self._coordinator.config, GroupConfig()
        consumer, sessions = config.consumer, config.share.sessions_max
        changed = consumer.assignors != default.consumer.assignors
        assignors = SOURCE_BROKER if changed else SOURCE_DEFAULT
        protocols = "classic,consumer,share"
        return [
            of_broker("group.coordinator.rebalance.protocols", protocols, SOURCE_DEFAULT, LIST),
            of_broker("group.consumer.assignors", ",".join(consumer.assignors), assignors, LIST),
            of_broker("group.share.max.share.sessions", str(sessions), SOURCE_DEFAULT, INT),
            self._retention(),
        ]

    def _retention(self) -> m.DescribedSetting:
        """How long committed offsets are kept, as Kafka has it: in whole minutes, and never for ever."""
        value, place = self._gateway.settings.values(RETENTION)[0]
        minutes = INT_MAX if int(value) < 0 else -(-int(value) // MINUTE_MS)
        return of_broker("offsets.retention.minutes", str(minutes), SOURCES[place], INT)

    async def of_group(self, group: str) -> list[m.DescribedSetting]:
        """What holds for one group, be there one of this name or not."""
        found = []
        own = await self._own(group) if group else {}
        for setting in NODE_SETTINGS.values():
            name = setting.kafka.removeprefix("group.")
            if name.endswith(MEMBER_SETTINGS):
                value, place = self._gateway.settings.values(setting.name)[0]
                source = SOURCE_GROUP if name in own else SOURCES[place]
                found.append(
                    m.DescribedSetting(
                        name=name, value=own.get(name, value), config_source=source, config_type=INT
                    )
                )
        for name, value in share_settings.shown(self._coordinator.config.share.records, own).items():
            source = SOURCE_GROUP if name in own else SOURCE_DEFAULT
            kind = INT if value.isdigit() else STRING
            found.append(m.DescribedSetting(name=name, value=value, config_source=source, config_type=kind))
        return found

    async def _own(self, group: str) -> dict[str, str]:
        found = await self._asker.ask(AskShareStates(group, reads=((bytes(16), 0),)))
        return share_settings.valid(found.settings)

    async def with_settings(self) -> list[str]:
        """Groups that have settings of their own, by name; at most `LISTED_MAX`.

        Those are missing whose shard of `__groups` has no leader that answers.
        """
        try:
            shards = self._gateway.topic(GROUPS_TABLE).shards
        except UnknownTopicError:
            return []
        found: list[str] = []
        for shard in shards:
            start, end = settings_rows()
            while start and len(found) < LISTED_MAX:
                asked = TableScan(shard.shard_id, start, end, SCAN_ROWS)
                reply = await self._scanned(shard.leader, asked)
                rows = [row for row in reply.rows if row is not None]
                found += [group_of_settings(row.key) for row in rows if settings_of(row.value)]
                start = rows[-1].key + b"\x00" if reply.more and rows else b""
        return sorted(found)[:LISTED_MAX]

    async def _scanned(self, leader: int, asked: TableScan) -> TableRows:
        try:
            if leader == self._gateway.node_id:
                return await self._gateway.table_scan(asked)
            if leader != ABSENT_NODE:
                reply, _ = await self._gateway.questions.ask_bulk(leader, asked, ASK_S)
                return reply if isinstance(reply, TableRows) else TableRows(())
        except AntiphonError as error:
            structlog.get_logger().info(
                "group_settings_not_listed", shard=asked.shard_id, reason=error.message
            )
        return TableRows(())

    async def alter(self, group: str, changes: list[m.AlterableSetting], *, validate_only: bool) -> None:
        """Change what an operator set for a group. Raises RefusedError, and what is to be tried again."""
        if not 0 < len(group.encode()) <= ID_BYTES_MAX:
            raise RefusedError(code.INVALID_REQUEST, f"a group id has 1 to {ID_BYTES_MAX} bytes")
        wanted: dict[str, str | None] = {}
        for one in changes:
            if one.name in wanted:
                raise RefusedError(code.INVALID_REQUEST, f"{one.name} is changed twice by one request")
            if one.config_operation not in {SET, RESET}:
                raise RefusedError(code.INVALID_CONFIG, f"{one.name} is no list: set it or reset it")
            if one.config_operation == SET and one.value is None:
                raise RefusedError(code.INVALID_CONFIG, f"{one.name} is set to nothing")
            wanted[one.name] = one.value if one.config_operation == SET else None
        for name, value in wanted.items():
            try:
                share_settings.check(name, value)
            except InvalidRequestError as error:
                raise RefusedError(code.INVALID_CONFIG, error.message) from error
        if any(name.endswith(MEMBER_SETTINGS) for name in wanted):
            await self._check_members(group, wanted)
        await self._set(SetShareSettings(group, wanted, validate_only=validate_only))

    async def _check_members(self, group: str, wanted: dict[str, str | None]) -> None:
        """Members whose sessions ended before they are to come again would be gone each time."""
        try:
            own: dict[str, str | None] = {**await self._own(group), **wanted}
        except AntiphonError as error:
            raise RefusedError(code.coordinator_code_of(error), error.message) from error
        told = {name: value for name, value in own.items() if value is not None}
        config = self._coordinator.config
        for kind, bounds in (
            (share_settings.CONSUMER, config.consumer),
            (share_settings.SHARE, config.share.members),
        ):
            found = share_settings.members_from(kind, bounds, told)
            of_kind = tuple(f"{kind}{name}" for name in MEMBER_SETTINGS)
            is_asked = any(name in wanted for name in of_kind) and any(name in told for name in of_kind)
            if is_asked and found.session_timeout_ms <= found.heartbeat_interval_ms:
                raise RefusedError(
                    code.INVALID_CONFIG,
                    f"{kind}.session.timeout.ms would be {found.session_timeout_ms}, and has to be more than "
                    f"{kind}.heartbeat.interval.ms, which would be {found.heartbeat_interval_ms}",
                )

    async def _set(self, asked: SetShareSettings) -> None:
        """Have the group's coordinator do it; where there never was a group, the table of groups is made first."""
        ends_s = asyncio.get_running_loop().time() + SET_S
        while True:
            try:
                await self._coordinator.locate(asked.group)
                await self._asker.ask(asked)
            except AntiphonError as error:
                transient = error.retriable or isinstance(error, NotLeaderError | UnknownTopicError)
                if not transient or asyncio.get_running_loop().time() >= ends_s:
                    raise RefusedError(code.coordinator_code_of(error), error.message) from error
                await asyncio.sleep(PAUSE_S)
            else:
                return


def of_broker(name: str, value: str | None, source: int, kafka_type: int = STRING) -> m.DescribedSetting:
    """A setting that a node's file has, or nobody."""
    return m.DescribedSetting(
        name=name, value=value, read_only=True, config_source=source, config_type=kafka_type
    )
