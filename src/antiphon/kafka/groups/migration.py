"""Groups that have members, on their way from one of Kafka's protocols to the other, and members of both in one group.

A classic group of type `consumer` becomes one of the consumer protocol with the first heartbeat of a member of that: in one
write the classic row goes and the new rows come, so a successor finds one of the two. When the last member of the consumer
protocol has gone, one write makes it a classic group again, whose members join again. Whether groups go over in either
direction is up to the policy. With any policy but `disabled`, members of the classic protocol join a group of the other one.

None of that is done while a node of the cluster is of a version that does not know members of both protocols in one group.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from antiphon import system
from antiphon.coordination.cluster_records import MIXED_FORMAT
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Beaten, Member, Places, Refused
from antiphon.coordination.mixed_group import ClassicBeat, MixedGroup, is_all_classic, protocol_of
from antiphon.errors import UNDECODABLE, AntiphonError, NotReadyError, ProtocolViolationError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups import mixed
from antiphon.kafka.groups.catalogs import Catalogs
from antiphon.kafka.groups.classic_groups import ClassicGroups
from antiphon.kafka.groups.classic_row import decoded, encoded
from antiphon.kafka.groups.classic_rows import ROW_BYTES_MAX, row_key
from antiphon.kafka.groups.consumer_groups import ConsumerGroups
from antiphon.kafka.groups.consumer_rows import WRITE_BYTES_MAX, size_of
from antiphon.kafka.groups.conversions import Adoption
from antiphon.kafka.groups.group_memory import MEMBER_BYTES
from antiphon.kafka.groups.refusals import code_of_refused
from antiphon.kafka.groups.subscription import CONSUMER
from antiphon.kafka.groups.types import GroupConfig, Join, Joined, Sync, Synced, protocols_bytes
from antiphon.model.requests import Delete, Put

LOOK_S: Final = 0.1  # between two looks at what became of a group
ID_BYTES_MAX: Final = 2_048  # of a member's id, which a client may choose


class Migration:
    """See the module's text. It is the `Converter` of the groups of the consumer protocol."""

    def __init__(
        self, gateway: Gateway, classic: ClassicGroups, consumers: ConsumerGroups, config: GroupConfig
    ) -> None:
        self.config = config
        self._gateway = gateway
        self._classic = classic
        self._consumers = consumers
        self._catalogs = Catalogs(gateway)
        self._told: set[str] = set()  # groups that stay what they are, as the log tells
        consumers.converter = self

    @property
    def all_know(self) -> bool:
        """Does every node of the cluster know members of both protocols in one group?"""
        nodes = self._gateway.metadata.nodes
        return bool(nodes) and all(node.reads >= MIXED_FORMAT for node in nodes)

    @property
    def may_upgrade(self) -> bool:
        """May classic groups become groups of the consumer protocol?"""
        return self.config.migration.upgrades and self.all_know

    @property
    def may_mix(self) -> bool:
        """May members of the classic protocol join groups of the other one?"""
        return self.config.migration.is_on and self.all_know

    # -- to the consumer protocol -----------------------------------------------------------------------------------

    async def upgrade(
        self, group_id: str, beat: Callable[[Adoption], Awaitable[Beaten | Refused]]
    ) -> Beaten | Refused | None:
        """Have a classic group with members become one of the consumer protocol, for the heartbeat of a member that joins.

        None where there is none, or it stays what it is. Raises NotReadyError while it rebalances.
        """
        if not self.may_upgrade or self._classic.find(group_id) is None:
            return None
        group, version = self._classic.freeze(group_id)
        is_other = False
        try:
            adoption = self._adoption(group_id, version)
            if adoption is None:
                return None
            structlog.get_logger().info(
                "classic_group_upgraded",
                group=group_id,
                generation=group.generation,
                members=len(group.members),
            )
            try:
                return await beat(adoption)
            finally:
                is_other = await self._became(group_id)
        finally:
            self._classic.thaw(group_id, is_other=is_other)

    def _adoption(self, group_id: str, version: int) -> Adoption | None:
        group = self._classic.find(group_id)
        if group is None or group.protocol_type != CONSUMER:
            return None
        reason = ""
        if len(group.members) >= self._consumers.bounds.max_size:
            reason = "it has as many members as a group of the consumer protocol may have"
        try:
            members = mixed.adopted(group, self._catalogs.now())
        except ProtocolViolationError as error:
            members, reason = (), f"what its members say cannot be read: {error.message}"
        trial = MixedGroup()
        trial.adopt(0, group.generation, members)
        if size_of(group_id, trial.take_changes()) > WRITE_BYTES_MAX:
            reason = "its members are too large"
        if reason:
            self._tell(group_id, reason)
            return None
        gone = Delete(row_key(group_id), expected_version=version)
        return Adoption(group.generation, members, (gone,))

    async def _became(self, group_id: str) -> bool:
        """Is it a group of the consumer protocol by now?"""
        while True:
            try:
                return self._consumers.find(group_id) is not None
            except NotReadyError:
                await asyncio.sleep(LOOK_S)
            except AntiphonError:
                return True  # another coordinator knows: this one has nothing to go on with

    # -- to the classic protocol ------------------------------------------------------------------------------------

    def becomes(self, group_id: str, group: ConsumerGroup) -> Put | None:
        """See `Converter`."""
        if (
            not self.config.migration.downgrades
            or not isinstance(group, MixedGroup)
            or not is_all_classic(group)
        ):
            return None
        if not self.all_know or len(group.members) > self.config.members_max:
            return None
        row = mixed.row_of(group, self._gateway, system.wall_ms())
        value = b"" if row is None else encoded(row)
        if not value or len(value) > ROW_BYTES_MAX or not _can_be_read(value):
            self._tell(group_id, "its members are too large, or have no protocol in common")
            return None
        return Put(row_key(group_id), value)

    def became(self, group_id: str, row: Put, version: int) -> None:
        """See `Converter`."""
        kept = decoded(row.value)
        structlog.get_logger().info(
            "consumer_group_downgraded", group=group_id, generation=kept.generation, members=len(kept.members)
        )
        self._classic.take_over(group_id, kept, version)

    async def look(self, group_id: str) -> None:
        """See `Converter`."""
        await self._classic.look(group_id)

    # -- requests of the classic protocol ---------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        """Is there a group of the consumer protocol, with members, that answers the classic one?"""
        found = self._consumers.find(group_id)
        return isinstance(found, MixedGroup) and bool(found.members)

    async def join(self, group_id: str, request: Join, may_see: Callable[[str], bool]) -> Joined:
        """JoinGroup."""
        problem = self._problem(request)
        if problem:
            return Joined(problem, request.member_id)
        if not request.member_id and request.instance_id is None and request.id_first:
            return Joined(code.MEMBER_ID_REQUIRED, request.new_member_id)
        group = self._consumers.find(group_id)
        if group is None or request.member_id not in group.members:  # whoever is in it may stay
            self._consumers.memory.check(MEMBER_BYTES + protocols_bytes(request.protocols))
        catalog = self._catalogs.now()
        try:
            asked = mixed.join_of(request, catalog, may_see)
        except ProtocolViolationError:
            return Joined(code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)

        def step(group: ConsumerGroup, now_ms: int) -> Member | Refused:
            if isinstance(group, MixedGroup) and group.members:
                return group.join(now_ms, asked, catalog)
            return Refused.UNKNOWN_MEMBER

        member_id = request.member_id or request.new_member_id
        found: Member | Refused = await self._consumers.ask(group_id, step, member_id)
        if isinstance(found, Refused):
            return Joined(code_of_refused(found), request.member_id)
        return Joined(code.NONE, found.member_id, found.epoch, CONSUMER, protocol_of(found))

    def _problem(self, request: Join) -> int:
        if not self.config.session_ms_min <= request.session_ms <= self.config.session_ms_max:
            return code.INVALID_SESSION_TIMEOUT
        if request.protocol_type != CONSUMER or not request.protocols:
            return code.INCONSISTENT_GROUP_PROTOCOL
        ids = (request.member_id, request.new_member_id, request.instance_id or "")
        if protocols_bytes(request.protocols) > self.config.metadata_bytes_max or any(
            len(each.encode()) > ID_BYTES_MAX for each in ids
        ):
            return code.INVALID_REQUEST
        return code.NONE

    async def sync(self, group_id: str, request: Sync) -> Synced:
        """SyncGroup."""
        asked = ClassicBeat(request.member_id, request.instance_id, request.generation)

        def step(group: ConsumerGroup, now_ms: int) -> tuple[Member, Places] | Refused:
            if not isinstance(group, MixedGroup):
                return Refused.UNKNOWN_MEMBER
            places = group.sync(now_ms, asked, request.protocol_type, request.protocol_name)
            return places if isinstance(places, Refused) else (group.members[asked.member_id], places)

        found: tuple[Member, Places] | Refused = await self._consumers.ask(group_id, step)
        if isinstance(found, Refused):
            return Synced(code_of_refused(found))
        member, places = found
        return Synced(
            code.NONE, CONSUMER, protocol_of(member), mixed.assignment_of(member, places, self._gateway)
        )

    async def heartbeat(self, group_id: str, asked: ClassicBeat) -> int:
        """Heartbeat; the error code."""
        catalog = self._catalogs.now()

        def step(group: ConsumerGroup, now_ms: int) -> Refused | None:
            if isinstance(group, MixedGroup):
                return group.beat(now_ms, asked, catalog)
            return Refused.UNKNOWN_MEMBER

        found: Refused | None = await self._consumers.ask(group_id, step)
        return code_of_refused(found)

    def _tell(self, group_id: str, reason: str) -> None:
        if group_id not in self._told and len(self._told) < 1_000:
            self._told.add(group_id)
            structlog.get_logger().warning("group_not_migrated", group=group_id, reason=reason)


def _can_be_read(row: bytes) -> bool:
    try:
        decoded(row)
    except (*UNDECODABLE, ValueError):
        return False
    return True
