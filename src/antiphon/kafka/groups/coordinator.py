"""Consumer groups that this node coordinates: those whose shard of `__groups` it leads.

Holds the groups' state machines, gives them the time, and hands their answers to the requests that wait. A group's state
belongs to one term in which this node's replica of the shard leads: when the metadata shows another leader, or the replica
leads in another term or not at all, the state is dropped, whoever waits is told to find the coordinator, and the members
join anew where it is now.

The term is the replica's own, not the metadata's, which may be behind it: a node that lost the lead and got it back before
its metadata showed either would let members of its old term commit behind those of the coordinator in between. A deposed
coordinator that has not heard of it still answers heartbeats. It commits nothing, as its replica's term has lost the
majority, and fetches no offsets, as those reads are confirmed by it.
"""

import asyncio
from typing import Final, NamedTuple

from antiphon.errors import AntiphonError, OverloadedError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.consumer_groups import SHARES, ConsumerGroups
from antiphon.kafka.groups.emptied import EmptiedGroups
from antiphon.kafka.groups.refusals import code_of_refused
from antiphon.kafka.groups.types import GroupConfig, Join, Joined, Sync, Synced, protocols_bytes
from antiphon.kafka.topic_config import GROUPS_TABLE
from antiphon.model.metadata import ShardMeta
from antiphon.transactions.internal_table import InternalTable

GROUPS_MAX: Final = 20_000
WATCH_S: Final = 60.0


class _Hosted(NamedTuple):
    group: ClassicGroup
    shard_id: int
    term: int


class GroupCoordinator:
    """The groups of this node. Methods raise NotLeaderError where another node coordinates.

    Attributes:
        config: bounds and delays.
        consumers, shares: groups of the consumer protocol, and share groups.
        emptied: since when nobody is in groups of the classic protocol.
    """

    def __init__(self, gateway: Gateway, config: GroupConfig, *, table_shards: int) -> None:
        self._gateway = gateway
        self.config = config
        self._table = InternalTable(gateway, GROUPS_TABLE, table_shards, "group")
        self.consumers = ConsumerGroups(gateway, self._table, config.consumer)
        self.shares = ConsumerGroups(gateway, self._table, config.share.members, SHARES)
        self.emptied = EmptiedGroups()
        self._hosted: dict[str, _Hosted] = {}
        self._kept_bytes: dict[str, int] = {}  # metadata and assignments, by group
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    def take(self, config: GroupConfig) -> None:
        """The bounds are these from now on, also of groups that are here; what members were told holds until then."""
        self.config = config
        self.consumers.take(config.consumer)
        self.shares.take(config.share.members)

    def start(self) -> None:
        """Begin to watch who leads the shards of the table."""
        self._watch = asyncio.get_running_loop().create_task(self._watch_leaders(), name="group leaders")
        self.consumers.start()
        self.shares.start()

    async def stop(self) -> None:
        """Stop all timers; whoever waits is told to look for another coordinator."""
        self._stopping = True  # before Python 3.12 a cancellation can get lost in asyncio.wait_for
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.consumers.stop()
        await self.shares.stop()
        await self._table.stop()
        for group_id in list(self._hosted):
            self._drop(group_id)

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
        """The group's state, if it has members here."""
        place = self.home(group_id)
        hosted = self._hosted.get(group_id)
        if hosted is not None and (hosted.shard_id, hosted.term) != place:
            self._drop(group_id)
            hosted = None
        return hosted.group if hosted else None

    def hosted(self) -> list[ClassicGroup]:
        """All groups with members here, by name."""
        return [found for group_id in sorted(self._hosted) if (found := self._found(group_id)) is not None]

    def _found(self, group_id: str) -> ClassicGroup | None:
        try:
            return self.find(group_id)
        except AntiphonError:
            return None

    # -- requests -------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: Join) -> Joined:
        """JoinGroup."""
        if self.find(group_id) is None and not await self._may_be_classic(group_id):
            return Joined(code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        group = self.find(group_id)
        if group is None:
            if request.member_id:
                return Joined(code.UNKNOWN_MEMBER_ID, request.member_id)
            self._check_room(request)
            group = self._host(group_id)
        else:
            self._check_room(request)
        token: asyncio.Future[Joined | Synced] = asyncio.get_running_loop().create_future()
        group.join(_now_ms(), request, token)
        self._settle(group)
        joined = await self._answer(group, token)
        return joined if isinstance(joined, Joined) else Joined(code.UNKNOWN_SERVER_ERROR, request.member_id)

    async def sync(self, group_id: str, request: Sync) -> Synced:
        """SyncGroup."""
        group = self.find(group_id)
        if group is None:
            return Synced(code.UNKNOWN_MEMBER_ID)
        token: asyncio.Future[Joined | Synced] = asyncio.get_running_loop().create_future()
        group.sync(_now_ms(), request, token)
        self._settle(group)
        synced = await self._answer(group, token)
        return synced if isinstance(synced, Synced) else Synced(code.UNKNOWN_SERVER_ERROR)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat."""
        group = self.find(group_id)
        if group is None:
            return code.UNKNOWN_MEMBER_ID
        return group.heartbeat(_now_ms(), member_id, instance_id, generation)

    async def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """LeaveGroup of one member, in a group of either protocol."""
        group = self.find(group_id)
        if group is None:
            await self.consumers.ready(group_id)
            return code_of_refused(await self.consumers.leave(group_id, member_id, instance_id))
        error = group.leave(_now_ms(), member_id, instance_id)
        self._settle(group)
        return error

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """May this member commit offsets? The group is one of either protocol, and read (`ready`)."""
        group = self.find(group_id)
        if group is None:
            if self.is_share(group_id):
                return code.GROUP_ID_NOT_FOUND
            consumers = self.consumers.find(group_id)
            if consumers is not None:
                return code_of_refused(consumers.check_offsets(member_id, generation))
            return code.NONE if generation < 0 else code.ILLEGAL_GENERATION
        return group.check_commit(_now_ms(), member_id, instance_id, generation)

    async def ready(self, group_id: str) -> None:
        """Wait until it is known whether the group is one of the consumer protocol, or a share group."""
        await self.consumers.ready(group_id)
        await self.shares.ready(group_id)

    async def _may_be_classic(self, group_id: str) -> bool:
        """Has the group no members of the consumer protocol? Then it is of the classic one from now on."""
        await self.ready(group_id)
        if self.is_share(group_id):
            return False
        found = self.consumers.find(group_id)
        return found is None or (not found.members and await self.consumers.forget(group_id))

    def is_classic(self, group_id: str) -> bool:
        """Has the group members of the classic protocol?"""
        return self._found(group_id) is not None

    def is_share(self, group_id: str) -> bool:
        """Is there a share group of this name, with members or without?"""
        return self.shares.has(group_id)

    def is_no_consumer(self, group_id: str) -> bool:
        """Has the group members of the classic protocol, or is it a share group?"""
        return self.is_classic(group_id) or self.is_share(group_id)

    def is_no_share(self, group_id: str) -> bool:
        """Is there a group of another kind of this name, with members or without?"""
        return self.is_classic(group_id) or self.consumers.has(group_id)

    def _check_room(self, request: Join) -> None:
        """Raise OverloadedError, which a client takes for "try again", where too much is kept already."""
        kept = sum(self._kept_bytes.values())
        if kept + protocols_bytes(request.protocols) > self.config.kept_bytes_max:
            raise OverloadedError(f"this node keeps {kept} bytes about the members of groups already")

    async def _answer(self, group: ClassicGroup, token: "asyncio.Future[Joined | Synced]") -> Joined | Synced:
        """Wait for an answer; a member whose connection ends meanwhile is forgotten soon."""
        try:
            return await token
        except asyncio.CancelledError:
            group.abandoned(_now_ms(), token)
            if not self._stopping and self._hosted.get(group.group_id, (None,))[0] is group:
                self._settle(group)
            raise

    # -- time and answers -----------------------------------------------------------------------------------------

    def _host(self, group_id: str) -> ClassicGroup:
        if len(self._hosted) >= GROUPS_MAX:
            raise OverloadedError(f"this node coordinates {GROUPS_MAX} groups already")
        place = self.home(group_id)
        group = ClassicGroup(group_id, self.config)
        self._hosted[group_id] = _Hosted(group, *place)
        return group

    def _settle(self, group: ClassicGroup) -> None:
        """After a group changed: answer whom it answers, forget it when it is empty, wake up when it wants to."""
        _deliver(group)
        if group.is_unused:
            self.emptied.note(group.group_id, _now_ms())
            self._drop(group.group_id)
            return
        self._kept_bytes[group.group_id] = group.kept_bytes
        deadline_ms = group.deadline_ms()
        if deadline_ms is None:
            return
        timer = self._timers.get(group.group_id)
        if timer is not None and timer[0] <= deadline_ms:
            return
        self._arm(group.group_id, deadline_ms)

    def _arm(self, group_id: str, deadline_ms: int) -> None:
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer[1].cancel()
        loop = asyncio.get_running_loop()
        delay_s = max(0, deadline_ms - _now_ms()) / 1000
        self._timers[group_id] = (deadline_ms, loop.call_later(delay_s, self._tick, group_id))

    def _tick(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = self._found(group_id)
        if group is not None:
            group.tick(_now_ms())
            self._settle(group)

    def _drop(self, group_id: str) -> None:
        hosted = self._hosted.pop(group_id, None)
        self._kept_bytes.pop(group_id, None)
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer[1].cancel()
        if hosted is not None:
            hosted.group.unload(code.NOT_COORDINATOR)
            _deliver(hosted.group)

    async def _watch_leaders(self) -> None:
        """Drop groups whose shard is led elsewhere now, so that whoever waits is answered."""
        version = self._gateway.metadata.version
        while not self._stopping:
            meta = await self._gateway.wait_metadata(version, WATCH_S)
            version = meta.version
            for group_id in list(self._hosted):
                if self._found(group_id) is None:
                    self._drop(group_id)


def _deliver(group: ClassicGroup) -> None:
    for answer in group.take_answers():
        token = answer.token
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(answer.result)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
