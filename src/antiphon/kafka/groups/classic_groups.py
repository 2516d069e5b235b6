"""Groups of the classic protocol that this node coordinates: those whose shard of `__groups` it leads.

Holds the groups' state machines, gives them the time, keeps their rows, and hands their answers to the requests that wait. A
group's state belongs to one term in which this node's replica of the shard leads. When the node begins to lead a shard, it
reads the rows of the groups with members there, and goes on with them. When the metadata shows another leader, or the
replica leads in another term or not at all, the state is dropped, and whoever waits is told to find the coordinator.

The term is the replica's own, not the metadata's, which may be behind it: a node that lost the lead and got it back before
its metadata showed either would let members of its old term commit behind those of the coordinator in between. A deposed
coordinator that has not heard of it still answers heartbeats. It commits nothing and forms no generation, as its replica's
term has lost the majority, and fetches no offsets, as those reads are confirmed by it.

A group without members is not held: its row is read when somebody joins.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from antiphon import system
from antiphon.errors import AntiphonError, NotLeaderError, NotReadyError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_row import ClassicRow
from antiphon.kafka.groups.classic_rows import ClassicRows, Kept
from antiphon.kafka.groups.consumer_rows import ABSENT, GroupChangedError
from antiphon.kafka.groups.emptied import EmptiedGroups
from antiphon.kafka.groups.types import (
    MEMBER_BYTES,
    GroupConfig,
    GroupState,
    Join,
    Joined,
    Sync,
    Synced,
    ids_bytes,
    protocols_bytes,
)
from antiphon.shares import Shares, asking
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.led_shards import Holder, LedShard, LedShards

GROUPS_MAX: Final = 20_000
RETRY_MS: Final = 1_000  # between two tries to write that a group is empty

_Answer = asyncio.Future[Joined | Synced]


class _Hosted:
    """One group: as it is in memory, and its row's version; None: that is not known."""

    def __init__(self, group: ClassicGroup, shard_id: int, version: int) -> None:
        self.group = group
        self.shard_id = shard_id
        self.version: int | None = version
        self.kept_bytes = 0
        self.clients: dict[str, object] = {}  # by the ids of members, who has let them join
        self.work: asyncio.Task[None] | None = None
        self.waits_ms = 0  # with the next try
        self.wakes_ms = 0
        self.is_frozen = False  # it is becoming a group of another kind
        self.timer: asyncio.TimerHandle | None = None


class _Led(LedShard):
    """A shard in one term."""

    def __init__(self, shard_id: int, term: int) -> None:
        super().__init__(shard_id, term)
        self.hosted: dict[str, _Hosted] = {}


class ClassicGroups:
    """See the module's text. Methods raise NotLeaderError where another node coordinates, NotReadyError while it reads.

    Attributes:
        config: bounds and delays.
        emptied: since when nobody is in groups whose members were seen here.
    """

    def __init__(self, gateway: Gateway, table: InternalTable, config: GroupConfig) -> None:
        self.config = config
        self.emptied = EmptiedGroups()
        self._table = table
        self._rows = ClassicRows(gateway)
        holder = Holder("classic groups", _Led, self._rows.load, self._take_rows, self._drop)
        self._led = LedShards(gateway, table, holder)
        self._shares = Shares(GROUPS_MAX, "groups")
        self._memory = Shares(config.kept_bytes_max, "bytes of members of groups")

    def start(self) -> None:
        """Begin to follow who leads."""
        self._led.start()

    async def stop(self) -> None:
        """Coordinate nothing any more; whoever waits is told to look for another coordinator."""
        await self._led.stop()

    # -- what there is --------------------------------------------------------------------------------------------

    async def ready(self, group_id: str) -> None:
        """Wait until the groups of the shard that has this one are read."""
        shard_id, _ = self._table.home(group_id)
        await self._led.wait_read(shard_id)

    def find(self, group_id: str) -> ClassicGroup | None:
        """The group's state, if it has members here, or who is about to be one."""
        hosted = self._led_of(group_id).hosted.get(group_id)
        return None if hosted is None or hosted.group.is_unused else hosted.group

    def is_emptying(self, group_id: str) -> bool:
        """Has the last member gone, and is that about to be kept?"""
        hosted = self._led_of(group_id).hosted.get(group_id)
        return hosted is not None and hosted.group.is_unused

    def has(self, group_id: str) -> bool:
        """Has the group members here, as far as is known now?"""
        try:
            return self.find(group_id) is not None
        except AntiphonError:
            return False

    def found(self) -> list[ClassicGroup]:
        """All groups with members here, by name."""
        every = {
            group_id: hosted.group
            for led in self._led
            if self._led.leads(led)
            for group_id, hosted in led.hosted.items()
            if not hosted.group.is_unused
        }
        return [every[group_id] for group_id in sorted(every)]

    @property
    def kept_bytes(self) -> int:
        """Bytes of all members here: their ids, metadata and assignments."""
        return sum(hosted.kept_bytes for led in self._led for hosted in led.hosted.values())

    async def kept(self, group_id: str) -> ClassicRow | None:
        """What is kept of a group, with members or without; None where nothing is."""
        await self.ready(group_id)
        return (await self._rows.load_one(self._led_of(group_id).shard_id, group_id)).row

    async def empty_since_ms(self, group_id: str) -> int | None:
        """By the wall clock, since when a group has no members; None where it has some, or nothing is kept of it."""
        row = None if self.has(group_id) else await self.kept(group_id)
        return None if row is None or self.has(group_id) else row.empty_since_ms

    async def forget(self, group_id: str) -> bool | None:
        """Keep nothing of the group any more; False where it has members, None where there was nothing."""
        await self.ready(group_id)
        led = self._led_of(group_id)
        hosted = led.hosted.get(group_id)
        while hosted is not None and hosted.work is not None and hosted.group.is_unused:
            await asyncio.shield(hosted.work)
            hosted = self._led_of(group_id).hosted.get(group_id)
        if hosted is not None:
            if hosted.group.is_unused:
                raise NotReadyError(f"group {group_id!r} is changing; ask again")
            return False
        kept = await self._rows.load_one(led.shard_id, group_id)
        if group_id in self._led_of(group_id).hosted:
            return False  # somebody came
        try:
            await self._rows.forget(led.shard_id, group_id, kept.version)
        except GroupChangedError:
            raise NotReadyError(f"group {group_id!r} changed; ask again") from None
        return None if kept.row is None else True

    # -- groups that become others --------------------------------------------------------------------------------

    def freeze(self, group_id: str) -> tuple[ClassicGroup, int]:
        """Let the group, which has members here, change no more until it is thawed or dropped; and its row's version.

        Raises NotReadyError while it is not settled.
        """
        hosted = self._led_of(group_id).hosted[group_id]
        is_settled = hosted.group.state is GroupState.STABLE and not hosted.group.writes.is_due
        is_busy = hosted.work is not None or hosted.is_frozen
        if not is_settled or is_busy or hosted.version is None or hosted.version == ABSENT:
            raise NotReadyError(f"group {group_id!r} is changing; ask again")
        hosted.is_frozen = True
        return hosted.group, hosted.version

    def check_frozen(self, group_id: str) -> None:
        """Raise NotReadyError while it is decided what the group is."""
        hosted = self._led_of(group_id).hosted.get(group_id)
        if hosted is not None and hosted.is_frozen:
            raise NotReadyError(f"group {group_id!r} is changing; ask again")

    def thaw(self, group_id: str, *, is_other: bool) -> None:
        """Go on with a group that was frozen, or without it where it is one of another kind by now."""
        try:
            hosted = self._led_of(group_id).hosted.get(group_id)
        except AntiphonError:
            return  # another coordinator goes on with it
        if hosted is None or not hosted.is_frozen:
            return
        if not is_other:
            hosted.is_frozen = False
            self._settle(hosted)
            return
        hosted.group.unload(code.REBALANCE_IN_PROGRESS)
        _deliver(hosted.group)
        self._let_go(hosted, is_empty=False)

    def take_over(self, group_id: str, row: ClassicRow, version: int) -> None:
        """Go on with a group that was one of another kind, and was written as this row."""
        led = self._led_of(group_id)
        if group_id not in led.hosted:
            self._settle(self._host(led, group_id, Kept(row, version)))

    async def look(self, group_id: str) -> None:
        """Go on with a group that may have become a classic one."""
        kept = await self._rows.load_one(self._led_of(group_id).shard_id, group_id)
        if kept.row is not None and kept.row.members:
            self.take_over(group_id, kept.row, kept.version)

    # -- requests -------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: Join, is_other: Callable[[], bool]) -> Joined:
        """JoinGroup. `is_other`: is there such a group of another kind by now?"""
        hosted = self._led_of(group_id).hosted.get(group_id)
        self._check_join(request, hosted)
        hosted = hosted or await self._read(group_id, request)
        if hosted.group.is_unused and (request.member_id or is_other()):
            self._settle(hosted)
            error = code.UNKNOWN_MEMBER_ID if request.member_id else code.INCONSISTENT_GROUP_PROTOCOL
            return Joined(error, request.member_id)
        token: _Answer = asyncio.get_running_loop().create_future()
        hosted.clients.setdefault(request.member_id or request.new_member_id, asking.get())
        hosted.group.join(_now_ms(), request, token)
        self._settle(hosted)
        joined = await self._answer(hosted, token)
        return joined if isinstance(joined, Joined) else Joined(code.UNKNOWN_SERVER_ERROR, request.member_id)

    async def sync(self, group_id: str, request: Sync) -> Synced:
        """SyncGroup."""
        hosted = self._led_of(group_id).hosted.get(group_id)
        if hosted is None:
            return Synced(code.UNKNOWN_MEMBER_ID)
        if request.member_id == hosted.group.leader:
            had = sum(len(member.assignment) for member in hosted.group.members.values())
            self._check_room(sum(len(data) for _, data in request.assignments) - had)
        token: _Answer = asyncio.get_running_loop().create_future()
        hosted.group.sync(_now_ms(), request, token)
        self._settle(hosted)
        synced = await self._answer(hosted, token)
        return synced if isinstance(synced, Synced) else Synced(code.UNKNOWN_SERVER_ERROR)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """LeaveGroup of one member of a group with members."""
        hosted = self._led_of(group_id).hosted.get(group_id)
        if hosted is None:
            return code.UNKNOWN_MEMBER_ID
        error = hosted.group.leave(_now_ms(), member_id, instance_id)
        self._settle(hosted)
        return error

    async def _read(self, group_id: str, request: Join) -> _Hosted:
        """Host a group that has no members here, as its row says."""
        led = self._led_of(group_id)
        self._shares.check(sum(len(each.hosted) for each in self._led))
        kept = await self._rows.load_one(led.shard_id, group_id)
        if self._led_of(group_id) is not led:
            raise NotReadyError(f"group {group_id!r} was being read; ask again")
        self._check_join(request, led.hosted.get(group_id))  # others may have come meanwhile
        hosted = led.hosted.get(group_id) or self._host(led, group_id, kept)
        self._shares.add(hosted)
        return hosted

    def _host(self, led: _Led, group_id: str, kept: Kept) -> _Hosted:
        row = kept.row or ClassicRow(0, None, None, None, 0)
        group = ClassicGroup.restored(group_id, self.config, _now_ms(), row)
        hosted = led.hosted[group_id] = _Hosted(group, led.shard_id, kept.version)
        return hosted

    def _check_join(self, request: Join, hosted: _Hosted | None) -> None:
        """Whoever is in the group may stay with what he has: what is more is checked."""
        ids = ids_bytes(request.new_member_id, request.instance_id, request.client_id)
        member = None if hosted is None else hosted.group.members.get(request.member_id)
        had = 0 if member is None else member.kept_bytes - len(member.assignment)
        self._check_room(MEMBER_BYTES + protocols_bytes(request.protocols) + ids - had)

    def _check_room(self, more_bytes: int) -> None:
        """Raise OverloadedError, which a client takes for "try again", where that is too much beside what is kept."""
        if more_bytes > 0:
            self._memory.check(self.kept_bytes, more_bytes)

    async def _answer(self, hosted: _Hosted, token: _Answer) -> Joined | Synced:
        """Wait for an answer; a member whose connection ends meanwhile is forgotten soon."""
        try:
            return await token
        except asyncio.CancelledError:
            hosted.group.abandoned(_now_ms(), token)
            if self._holds(hosted):
                self._settle(hosted)
            raise

    # -- what is kept ---------------------------------------------------------------------------------------------

    def _store(self, hosted: _Hosted) -> None:
        """Write what is to be written, unless something is being written."""
        if hosted.work is not None or (hosted.group.is_unused and _now_ms() < hosted.waits_ms):
            return
        row = hosted.group.take_row(system.wall_ms())
        if row is not None:
            work = self._write(hosted, row)
            hosted.work = asyncio.get_running_loop().create_task(work, name="write classic group")

    async def _write(self, hosted: _Hosted, row: ClassicRow) -> None:
        group_id, failed = hosted.group.group_id, ""
        error_code = code.COORDINATOR_NOT_AVAILABLE
        try:
            if hosted.version is None:
                hosted.version = (await self._rows.load_one(hosted.shard_id, group_id)).version
            hosted.version = await self._rows.write(hosted.shard_id, group_id, hosted.version, row)
        except GroupChangedError:
            failed = "it was changed by another write"
        except AntiphonError as error:
            failed = error.message
            if isinstance(error, NotLeaderError):
                error_code = code.NOT_COORDINATOR
        hosted.work = None
        if not self._holds(hosted):
            return  # whoever waited was told so
        if failed:
            structlog.get_logger().warning("classic_group_not_written", group=group_id, reason=failed)
            hosted.version = None
            hosted.waits_ms = _now_ms() + RETRY_MS
            hosted.group.not_stored(_now_ms(), error_code)
        else:
            hosted.group.stored(_now_ms())
        self._settle(hosted)

    # -- time and answers -----------------------------------------------------------------------------------------

    def _settle(self, hosted: _Hosted) -> None:
        """After a group changed: answer whom it answers, write what changed, forget it when it is empty, wake up in time."""
        group = hosted.group
        _deliver(group)
        if hosted.is_frozen:
            return
        self._store(hosted)
        if group.is_unused and hosted.work is None and not group.writes.is_due:
            self._let_go(hosted)
            return
        self._count(hosted)
        deadline_ms = hosted.waits_ms if group.is_unused else group.deadline_ms()
        if deadline_ms is None or (group.is_unused and hosted.work is not None):
            return
        if hosted.timer is not None:
            if hosted.wakes_ms <= deadline_ms:
                return
            hosted.timer.cancel()
        hosted.wakes_ms = deadline_ms
        delay_s = max(0, deadline_ms - _now_ms()) / 1000
        hosted.timer = asyncio.get_running_loop().call_later(delay_s, self._tick, hosted)

    def _count(self, hosted: _Hosted) -> None:
        """Note what the group's members take, and whose it is."""
        kept = hosted.group.kept_of
        hosted.kept_bytes = sum(kept.values())
        hosted.clients = {one: hosted.clients[one] for one in kept if one in hosted.clients}
        parts: Counter[object] = Counter()
        for member_id, size in kept.items():
            parts[hosted.clients.get(member_id)] += size
        self._memory.divide(hosted, parts)

    def _tick(self, hosted: _Hosted) -> None:
        hosted.timer = None
        if self._holds(hosted) and not hosted.is_frozen:
            hosted.group.tick(_now_ms())
            self._settle(hosted)

    def _let_go(self, hosted: _Hosted, *, is_empty: bool = True) -> None:
        led = self._led.get(hosted.shard_id)
        if led is not None and led.hosted.get(hosted.group.group_id) is hosted:
            del led.hosted[hosted.group.group_id]
            self._shares.drop(hosted)
            self._memory.drop(hosted)
            if is_empty:
                self.emptied.note(hosted.group.group_id, _now_ms())
        if hosted.timer is not None:
            hosted.timer.cancel()

    # -- who leads ------------------------------------------------------------------------------------------------

    def _holds(self, hosted: _Hosted) -> bool:
        led = self._led.get(hosted.shard_id)
        return led is not None and led.hosted.get(hosted.group.group_id) is hosted and self._led.leads(led)

    def _led_of(self, group_id: str) -> _Led:
        """The shard of a group, in the term in which this node leads it, once its groups are read."""
        shard_id, _ = self._table.home(group_id)
        return self._led.read_one(shard_id)

    def _take_rows(self, led: _Led, groups: dict[str, Kept]) -> None:
        for group_id, kept in groups.items():
            self._settle(self._host(led, group_id, kept))

    def _drop(self, led: _Led) -> None:
        for hosted in list(led.hosted.values()):
            self._shares.drop(hosted)
            self._memory.drop(hosted)
            hosted.group.unload(code.NOT_COORDINATOR)
            _deliver(hosted.group)
            if hosted.timer is not None:
                hosted.timer.cancel()
        led.hosted.clear()


def _deliver(group: ClassicGroup) -> None:
    for answer in group.take_answers():
        token = answer.token
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(answer.result)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
