"""Groups that this node coordinates, of every kind: those whose shard of `__groups` it leads."""

import asyncio
from collections.abc import Callable

from antiphon.coordination.consumer_terms import JOIN_EPOCH, Beat, Beaten, Catalog, Refused
from antiphon.coordination.mixed_group import ClassicBeat, MixedGroup
from antiphon.errors import NotReadyError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_groups import ClassicGroups
from antiphon.kafka.groups.consumer_groups import SHARES, ConsumerGroups
from antiphon.kafka.groups.conversions import Adoption
from antiphon.kafka.groups.migration import Migration
from antiphon.kafka.groups.refusals import code_of_refused
from antiphon.kafka.groups.types import GroupConfig, Join, Joined, Sync, Synced
from antiphon.kafka.topic_config import GROUPS_TABLE
from antiphon.model.metadata import ShardMeta
from antiphon.transactions.internal_table import InternalTable


class GroupCoordinator:
    """The groups of this node. Methods raise NotLeaderError where another node coordinates.

    Attributes:
        config: bounds and delays.
        classic, consumers, shares: groups of the classic and of the consumer protocol, and share groups.
    """

    def __init__(self, gateway: Gateway, config: GroupConfig, *, table_shards: int) -> None:
        self.config = config
        self._table = InternalTable(gateway, GROUPS_TABLE, table_shards, "group")
        self.classic = ClassicGroups(gateway, self._table, config)
        self.consumers = ConsumerGroups(gateway, self._table, config.consumer)
        self.shares = ConsumerGroups(gateway, self._table, config.share.members, SHARES)
        self._migration = Migration(gateway, self.classic, self.consumers, config)

    def take(self, config: GroupConfig) -> None:
        """The bounds are these from now on, also of groups that are here; what members were told holds until then."""
        self.config = self.classic.config = self._migration.config = config
        self.consumers.take(config.consumer)
        self.shares.take(config.share.members)

    def start(self) -> None:
        """Begin to watch who leads the shards of the table."""
        self.classic.start()
        self.consumers.start()
        self.shares.start()

    async def stop(self) -> None:
        """Stop all timers; whoever waits is told to look for another coordinator."""
        await self.consumers.stop()
        await self.shares.stop()
        await self._table.stop()
        await self.classic.stop()

    # -- where a group lives --------------------------------------------------------------------------------------

    async def locate(self, group_id: str) -> ShardMeta:
        """The shard of a group, whoever leads it; makes the table when it is asked for first."""
        return await self._table.locate(group_id)

    def home(self, group_id: str) -> tuple[int, int]:
        """The shard of a group that this node coordinates, and the term in which it does."""
        return self._table.home(group_id)

    def led_shards(self) -> list[ShardMeta]:
        """Shards of the table that this node leads; none while there is no table."""
        return self._table.led_shards()

    def find(self, group_id: str) -> ClassicGroup | None:
        """The classic group's state, if it has members here. Raises NotReadyError before the group is `ready`."""
        return self.classic.find(group_id)

    def hosted(self) -> list[ClassicGroup]:
        """All classic groups with members here, by name."""
        return self.classic.found()

    # -- requests -------------------------------------------------------------------------------------------------

    async def join(
        self, group_id: str, request: Join, may_see: Callable[[str], bool] = lambda _: True
    ) -> Joined:
        """JoinGroup. `may_see`: may the client know of a topic of this name?"""
        await self.ready(group_id)
        self.classic.check_frozen(group_id)
        if self.find(group_id) is None and self._migration.may_mix and self._migration.has(group_id):
            return await self._migration.join(group_id, request, may_see)
        if self.find(group_id) is None and not await self._may_be_classic(group_id):
            joined = Joined(code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        else:
            joined = await self.classic.join(
                group_id, request, lambda: self.is_share(group_id) or self.consumers.has(group_id)
            )
        is_refused = joined.error_code == code.INCONSISTENT_GROUP_PROTOCOL
        if is_refused and self._migration.may_mix and self.consumers.has(group_id):
            raise NotReadyError(f"a member of the consumer protocol joined {group_id!r} just now; ask again")
        return joined

    async def sync(self, group_id: str, request: Sync) -> Synced:
        """SyncGroup."""
        if not await self._is_read(
            group_id
        ):  # the rebalance is over: to join again is what all clients know to do
            return Synced(code.REBALANCE_IN_PROGRESS)
        if self.find(group_id) is not None:
            return await self.classic.sync(group_id, request)
        try:
            if self._migration.has(group_id):
                return await self._migration.sync(group_id, request)
            return await self.classic.sync(group_id, request)
        except NotReadyError:
            return Synced(code.REBALANCE_IN_PROGRESS)

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat."""
        if not await self._is_read(group_id):
            return code.NONE  # no session has begun here
        group = self.find(group_id)
        if group is not None:
            return group.heartbeat(_now_ms(), member_id, instance_id, generation)
        try:
            if not self._migration.has(group_id):
                return code.UNKNOWN_MEMBER_ID
            return await self._migration.heartbeat(group_id, ClassicBeat(member_id, instance_id, generation))
        except NotReadyError:
            return code.NONE

    async def heartbeat_consumer(self, group_id: str, asked: Beat, catalog: Catalog) -> Beaten | Refused:
        """ConsumerGroupHeartbeat; to join, it may make a classic group one of the consumer protocol."""
        await self.ready(group_id)

        async def beat(adoption: Adoption | None = None) -> Beaten | Refused:
            def is_other() -> bool:
                """A member whose group became a classic one meanwhile joins again, and makes it what it was."""
                joins_again = asked.epoch != JOIN_EPOCH and self._migration.may_upgrade
                return self.is_share(group_id) if joins_again else self.is_no_consumer(group_id)

            return await self.consumers.heartbeat(group_id, asked, catalog, is_other, adoption)

        if asked.epoch != JOIN_EPOCH or self.consumers.find(group_id) is not None:
            return await beat()
        upgrade = asyncio.ensure_future(self._migration.upgrade(group_id, beat))
        found = await asyncio.shield(upgrade)  # it goes on without the client that it began with
        if found is not None:
            return found
        stays = self.is_classic(group_id)
        await self.classic.forget(group_id)  # what was left by members of that protocol
        found = await beat()
        if (
            found is Refused.UNKNOWN_GROUP
            and not stays
            and self._migration.may_upgrade
            and self.is_classic(group_id)
        ):
            raise NotReadyError(f"somebody joined group {group_id!r} just now; ask again")
        return found

    async def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """LeaveGroup of one member, in a group of either protocol."""
        await self.ready(group_id)
        self.classic.check_frozen(group_id)
        if self.find(group_id) is None:
            refused = await self.consumers.ask(group_id, lambda group, _: group.leave(member_id, instance_id))
            return code_of_refused(refused)
        return self.classic.leave(group_id, member_id, instance_id)

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """May this member commit offsets? The group is one of either protocol, and read (`ready`)."""
        group = self.find(group_id)
        if group is None:
            if self.is_share(group_id):
                return code.GROUP_ID_NOT_FOUND
            consumers = self.consumers.find(group_id)
            if isinstance(consumers, MixedGroup):
                asked = ClassicBeat(member_id, instance_id, generation)
                return code_of_refused(consumers.check_classic(asked))
            return code.NONE if generation < 0 else code.ILLEGAL_GENERATION
        return group.check_commit(_now_ms(), member_id, instance_id, generation)

    async def ready(self, group_id: str) -> None:
        """Wait until it is known what the group is."""
        await self.classic.ready(group_id)
        await self.consumers.ready(group_id)
        await self.shares.ready(group_id)

    async def _is_read(self, group_id: str) -> bool:
        """Are the groups of a shard that this node leads, in which classic members can be, read by now, or soon?"""
        self.home(group_id)
        try:
            await self.classic.ready(group_id)
            await self.consumers.ready(group_id)
        except NotReadyError:
            return False
        return True

    async def _may_be_classic(self, group_id: str) -> bool:
        """Has the group no members of the consumer protocol? Then it is of the classic one from now on."""
        if self.is_share(group_id):
            return False
        found = self.consumers.find(group_id)
        return found is None or (not found.members and await self.consumers.forget(group_id))

    def is_classic(self, group_id: str) -> bool:
        """Has the group members of the classic protocol?"""
        return self.classic.has(group_id)

    def is_share(self, group_id: str) -> bool:
        """Is there a share group of this name, with members or without?"""
        return self.shares.has(group_id)

    def is_no_consumer(self, group_id: str) -> bool:
        """Has the group members of the classic protocol, or is it a share group?"""
        return self.is_classic(group_id) or self.is_share(group_id)

    def is_no_share(self, group_id: str) -> bool:
        """Is there a group of another kind of this name, with members or without?"""
        return self.is_classic(group_id) or self.consumers.has(group_id)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
