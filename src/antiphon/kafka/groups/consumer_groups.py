"""Groups of the consumer protocol, and share groups, that this node coordinates: those whose shard of `__groups` it leads.

All groups of a shard are read when this node begins to lead it in a term. So members whose clients are gone time out, and
those whose clients are there go on with the epochs that they have.

Each group takes requests in order. A step changes the group in memory; the rows that it changed are written, and only then
it is answered, together with all that was asked until the write began. While a write is under way, requests wait for the
next one. When nothing changed, a read of the group's row stands in for the write: it says that nobody else coordinates
by now, and what an operator has set of the group. When a write fails, nobody knows whether it took effect: all that waits
is refused, and the group is read again.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog

from antiphon.coordination import share_settings
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import (
    JOIN_EPOCH,
    Beat,
    Beaten,
    Catalog,
    Changes,
    GroupBounds,
    Refused,
)
from antiphon.coordination.mixed_group import MixedGroup
from antiphon.coordination.share_group import ShareGroup
from antiphon.errors import AntiphonError, NotLeaderError, NotReadyError, OverloadedError, UnavailableError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.consumer_rows import (
    ABSENT,
    CONSUMER,
    SHARE,
    ConsumerRows,
    GroupChangedError,
    StoredGroup,
)
from antiphon.kafka.groups.conversions import Adoption, Converter, fail, tell
from antiphon.kafka.groups.group_memory import GroupMemory, KeptRows, more_bytes
from antiphon.model.requests import Put, TableOp
from antiphon.shares import Shares
from antiphon.transactions.internal_table import InternalTable
from antiphon.transactions.led_shards import LOOK_S, Holder, LedShard, LedShards

GROUPS_MAX: Final = 20_000
WAITING_MAX: Final = 4_000  # requests of one group
STEPS_MAX: Final = 64  # requests that one write answers

CONVERT_AGAIN_MS: Final = 1_000  # between two tries to make a group one of another kind

Step = Callable[[ConsumerGroup, int], Any]


class GroupKind(NamedTuple):
    """What kind of groups are hosted: how one is made, where its rows are, and what its settings begin with."""

    what: str  # "consumer groups": for errors
    group: type[ConsumerGroup]
    prefix: str
    settings: str


CONSUMERS: Final = GroupKind("consumer groups", MixedGroup, CONSUMER, share_settings.CONSUMER)
SHARES: Final = GroupKind("share groups", ShareGroup, SHARE, share_settings.SHARE)


class _Hosted:
    """One group: as it is in memory, and who waits for it."""

    def __init__(self, group_id: str, led: "_Led", group: ConsumerGroup) -> None:
        self.group_id = group_id
        self.shard_id = led.shard_id
        self.term = led.term
        self.group = group
        self.version = ABSENT
        self.rows = KeptRows()
        self.settings: dict[str, str] = {}
        self.queue: deque[tuple[Step, asyncio.Future[Any]]] = deque()
        self.work: asyncio.Task[None] | None = None  # a write, or a read of it all
        self.is_read = True
        self.also: tuple[TableOp, ...] = ()  # to be written with the next rows
        self.converts_ms = 0  # at the earliest
        self.was_converting = False  # a write that made it another kind of group may have taken effect
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_known(self) -> bool:
        """Is there such a group, other than one that somebody just asked for?"""
        return self.version != ABSENT or bool(self.group.members)


class _Led(LedShard):
    """A shard in one term."""

    def __init__(self, shard_id: int, term: int) -> None:
        super().__init__(shard_id, term)
        self.hosted: dict[str, _Hosted] = {}


class ConsumerGroups:
    """See the module's text. Methods raise NotLeaderError where another node coordinates, NotReadyError while it reads."""

    def __init__(
        self, gateway: Gateway, table: InternalTable, bounds: GroupBounds, kind: GroupKind = CONSUMERS
    ) -> None:
        self.bounds = bounds
        self._kind = kind
        self._gateway = gateway
        self._table = table
        self._rows = ConsumerRows(gateway, kind.prefix)
        holder = Holder(kind.what, _Led, self._rows.load, self._take_rows, self._drop)
        self._led = LedShards(gateway, table, holder)
        self.memory = GroupMemory()
        self.converter: Converter | None = None
        self._shares = Shares(GROUPS_MAX, "groups")

    def take(self, bounds: GroupBounds) -> None:
        """The bounds are these from now on, also of groups that are here and have none of their own."""
        self.bounds = bounds
        for led in self._led:
            for hosted in led.hosted.values():
                self._bind(hosted, hosted.settings)

    def start(self) -> None:
        """Begin to follow who leads."""
        self._led.start()

    async def stop(self) -> None:
        """Coordinate nothing any more."""
        await self._led.stop()

    # -- requests -------------------------------------------------------------------------------------------------

    async def ready(self, group_id: str) -> None:
        """Wait until the groups of the shard that has this one are read."""
        shard_id, _ = self._table.home(group_id)
        await self._led.wait_read(shard_id)

    def find(self, group_id: str) -> ConsumerGroup | None:
        """The group, with members or without; None where there is no such group of the consumer protocol."""
        hosted = self._led_of(group_id).hosted.get(group_id)
        if hosted is None:
            return None
        if not hosted.is_read:
            raise NotReadyError(f"group {group_id!r} is being read; ask again")
        return hosted.group if hosted.is_known else None

    def has(self, group_id: str) -> bool:
        """Is there such a group here, as far as is known now?"""
        try:
            led = self._led.get(self._table.home(group_id)[0])
        except AntiphonError:
            return False  # another node says what there is
        hosted = None if led is None else led.hosted.get(group_id)
        return hosted is not None and (hosted.is_known or not hosted.is_read)

    def found(self) -> dict[str, ConsumerGroup]:
        """All groups here, by name."""
        return {
            hosted.group_id: hosted.group
            for led in self._led
            if self._led.leads(led)
            for hosted in led.hosted.values()
            if hosted.is_read and hosted.is_known
        }

    async def heartbeat(
        self,
        group_id: str,
        asked: Beat,
        catalog: Catalog,
        is_other: Callable[[], bool],
        adoption: Adoption | None = None,
    ) -> Beaten | Refused:
        """A heartbeat. `is_other`: is there such a group of another kind, which would have to be gone first? `adoption`:
        there is one, and it becomes this one, in which its members go on.
        """
        led = self._led_of(group_id)
        hosted = led.hosted.get(group_id)
        if hosted is None:
            if asked.epoch != JOIN_EPOCH:
                return Refused.UNKNOWN_GROUP if is_other() else Refused.UNKNOWN_MEMBER
            settings = await self._rows.settings(led.shard_id, group_id)
            led = self._led_of(group_id)
            hosted = led.hosted.get(group_id) or self._host(led, group_id)
            self._bind(hosted, settings)
        self._check_room(hosted, asked)

        def step(group: ConsumerGroup, now_ms: int) -> Beaten | Refused:
            if not group.members and adoption is not None and isinstance(group, MixedGroup):
                group.adopt(now_ms, adoption.generation, adoption.members)
                hosted.also = adoption.ops
            elif not group.members and is_other():
                return Refused.UNKNOWN_GROUP
            return group.heartbeat(now_ms, asked, catalog)

        answer: Beaten | Refused = await self._take(hosted, step)
        if isinstance(answer, Refused):
            return answer
        return answer._replace(interval_ms=hosted.group.bounds.heartbeat_interval_ms)

    def _check_room(self, hosted: _Hosted, asked: Beat) -> None:
        """Raise OverloadedError where a member comes, or wants more than it did, and too much is kept already."""
        try:
            self.memory.check(more_bytes(hosted.group, asked))
        except OverloadedError:
            if not hosted.is_known and not hosted.queue and hosted.work is None:
                self._let_go(hosted)
            raise
        hosted.rows.ask(asked.member_id, asked.regex)

    async def ask(self, group_id: str, step: Step, member_id: str = "") -> Any:
        """What a step of the group answers, when what it changed is stored; Refused where there is no such group.

        `member_id`: whom it may make a member.
        """
        hosted = self._led_of(group_id).hosted.get(group_id)
        if hosted is None:
            return Refused.UNKNOWN_MEMBER
        hosted.rows.ask(member_id)
        return await self._take(hosted, step)

    async def changed_ms(self, group_id: str) -> int | None:
        """When the group's rows were last written, in ms since 1970: of one without members, since when it has none.

        None where it has members, there is no such group, or what it is by now has yet to be written.
        """
        group, hosted = self.find(group_id), self._led_of(group_id).hosted.get(group_id)
        if group is None or group.members or hosted is None or hosted.work is not None:
            return None
        return await self._rows.written_ms(self._table.home(group_id)[0], group_id)

    async def forget(self, group_id: str, *, with_settings: bool = True) -> bool:
        """Remove the group; False where it has members. `with_settings`: and what an operator set of it."""
        led = self._led_of(group_id)
        hosted = led.hosted.get(group_id)
        if hosted is None:
            return True
        await self._take(hosted, lambda _group, _: None)  # what was asked before is done, and stored
        if hosted.group.members:
            return False
        if hosted.work is not None or not self._holds(hosted):
            raise NotReadyError(f"group {group_id!r} is changing; ask again")
        hosted.is_read = False  # until it is known to be gone
        hosted.work = asyncio.get_running_loop().create_task(
            self._forget(hosted, with_settings), name="forget consumer group"
        )
        await asyncio.shield(hosted.work)
        if hosted.group.epoch:
            raise NotReadyError(f"group {group_id!r} is not known to be gone; ask again")
        return True

    async def _forget(self, hosted: _Hosted, with_settings: bool) -> None:
        failed: AntiphonError | None = None
        try:
            if hosted.version != ABSENT:
                names = list(hosted.rows.sizes)
                await self._rows.forget(
                    hosted.shard_id, hosted.group_id, hosted.version, names, with_settings=with_settings
                )
        except GroupChangedError:
            failed = NotReadyError(f"group {hosted.group_id!r} changed; ask again")
        except AntiphonError as error:
            failed = error
        hosted.work = None
        self._refuse(
            hosted, failed or NotReadyError(f"group {hosted.group_id!r} was removed just now; ask again")
        )
        if failed is not None:
            self._read_again(hosted)
            return
        hosted.group = self._kind.group(self.bounds)
        self._let_go(hosted)

    # -- steps ----------------------------------------------------------------------------------------------------

    async def _take(self, hosted: _Hosted, step: Step) -> Any:
        if len(hosted.queue) >= WAITING_MAX:
            raise OverloadedError(f"{WAITING_MAX} requests of group {hosted.group_id!r} wait already")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        hosted.queue.append((step, answer))
        self._go_on(hosted)
        return await answer

    def _go_on(self, hosted: _Hosted) -> None:
        """Take what waits, as much as one write answers."""
        self._convert(hosted)
        while hosted.queue and hosted.work is None:
            answers: list[tuple[asyncio.Future[Any], Any]] = []
            try:
                while hosted.queue and len(answers) < STEPS_MAX:
                    step, answer = hosted.queue[0]
                    answers.append((answer, step(hosted.group, _now_ms())))
                    hosted.queue.popleft()
            except BaseException:  # a fault of ours: what is in memory is worth nothing
                self._give_up(hosted, answers, UnavailableError("the group's coordinator failed; ask again"))
                raise
            every = (
                hosted.group.take_changes().items()
            )  # a row that came and went meanwhile was never written
            changes = {name: body for name, body in every if body is not None or name in hosted.rows.sizes}
            work = self._store(hosted, changes, answers)
            hosted.work = asyncio.get_running_loop().create_task(work, name="write consumer group")
        if hosted.work is None and not hosted.is_known:
            self._let_go(hosted)
        else:
            self._arm(hosted)

    def _give_up(
        self, hosted: _Hosted, answers: list[tuple[asyncio.Future[Any], Any]], error: AntiphonError
    ) -> None:
        for answer, _ in answers:
            fail(answer, error)
        self._refuse(hosted, error)
        self._read_again(hosted)

    async def _store(
        self, hosted: _Hosted, changes: Changes, answers: list[tuple[asyncio.Future[Any], Any]]
    ) -> None:
        failed: AntiphonError | None = None
        try:
            if changes:
                hosted.version, sizes = await self._rows.write(
                    hosted.shard_id, hosted.group_id, hosted.version, hosted.group.row, changes, hosted.also
                )
                hosted.also = ()
                self.memory.written(hosted.rows, sizes)
            else:  # a coordinator that was deposed and has not heard of it must not keep members to itself
                settings = await self._rows.confirm(hosted.shard_id, hosted.group_id, hosted.version)
                self._bind(hosted, settings)
        except GroupChangedError:
            failed = NotReadyError(f"group {hosted.group_id!r} changed; ask again")
        except AntiphonError as error:
            failed = error
        hosted.work = None
        if not self._holds(hosted):
            failed = NotLeaderError(f"another node coordinates group {hosted.group_id!r}", leader=None)
        if failed is None:
            tell(answers)
            self._go_on(hosted)
            return
        self._give_up(hosted, answers, failed)

    def _convert(self, hosted: _Hosted) -> None:
        """Make it a group of another kind, if it is to be one by now."""
        is_busy = hosted.work is not None or not hosted.is_read or _now_ms() < hosted.converts_ms
        row = (
            None
            if is_busy or self.converter is None
            else self.converter.becomes(hosted.group_id, hosted.group)
        )
        if row is not None:
            hosted.was_converting = True
            work = self._become(hosted, row)
            hosted.work = asyncio.get_running_loop().create_task(work, name="convert consumer group")

    async def _become(self, hosted: _Hosted, row: Put) -> None:
        failed: AntiphonError | None = None
        version = ABSENT
        try:
            version = await self._rows.replace(
                hosted.shard_id, hosted.group_id, hosted.version, list(hosted.rows.sizes), row
            )
        except GroupChangedError:
            failed = NotReadyError(f"group {hosted.group_id!r} changed; ask again")
        except AntiphonError as error:
            failed = error
        hosted.work = None
        if not self._holds(hosted):
            return  # whoever waited was told so
        if failed is not None:
            hosted.converts_ms = _now_ms() + CONVERT_AGAIN_MS
            self._give_up(hosted, [], failed)
            return
        self._refuse(hosted, NotReadyError(f"group {hosted.group_id!r} is a classic one by now; ask again"))
        self._let_go(hosted)
        if self.converter is not None:
            self.converter.became(hosted.group_id, row, version)

    def _refuse(self, hosted: _Hosted, error: AntiphonError) -> None:
        while hosted.queue:
            fail(hosted.queue.popleft()[1], error)

    def _read_again(self, hosted: _Hosted) -> None:
        """What stands in the table is not known: read it before anything else."""
        if self._holds(hosted):
            hosted.is_read = False
            hosted.work = asyncio.get_running_loop().create_task(
                self._read(hosted), name="read consumer group"
            )

    async def _read(self, hosted: _Hosted) -> None:
        while self._holds(hosted):
            try:
                await self._rows.settle(hosted.shard_id, hosted.group_id, hosted.version)
                stored = await self._rows.load_one(hosted.shard_id, hosted.group_id)
                if hosted.was_converting and not stored.rows and self.converter is not None:
                    await self.converter.look(hosted.group_id)
            except AntiphonError as error:
                structlog.get_logger().warning(
                    "consumer_group_not_read", group=hosted.group_id, reason=error.message
                )
                await asyncio.sleep(LOOK_S)
                continue
            self._restore(hosted, stored)
            hosted.work, hosted.also, hosted.was_converting = None, (), False
            self._go_on(hosted)
            return

    def _restore(self, hosted: _Hosted, stored: StoredGroup) -> None:
        hosted.settings = stored.settings
        bounds = share_settings.members_from(self._kind.settings, self.bounds, stored.settings)
        hosted.group = self._kind.group.restored(_now_ms(), bounds, stored.rows)
        hosted.version = stored.version
        self.memory.restored(hosted.rows, stored.sizes)
        hosted.is_read = True

    def _bind(self, hosted: _Hosted, settings: dict[str, str]) -> None:
        """This is what an operator set of the group."""
        hosted.settings = settings
        bounds = share_settings.members_from(self._kind.settings, self.bounds, settings)
        if bounds != hosted.group.bounds:
            hosted.group.bind(bounds)

    # -- time -----------------------------------------------------------------------------------------------------

    def _arm(self, hosted: _Hosted) -> None:
        """Wake up when the group wants to."""
        if hosted.timer is not None:
            hosted.timer.cancel()
            hosted.timer = None
        deadline_ms = hosted.group.deadline_ms()
        if deadline_ms is not None and self._holds(hosted):
            delay_s = max(0, deadline_ms - _now_ms()) / 1000
            hosted.timer = asyncio.get_running_loop().call_later(delay_s, self._tick, hosted)

    def _tick(self, hosted: _Hosted) -> None:
        hosted.timer = None
        if not self._holds(hosted) or hosted.work is not None:
            return  # the timer is set again when the work is done

        def step(group: ConsumerGroup, now_ms: int) -> None:
            for member_id in group.tick(now_ms):
                structlog.get_logger().info(
                    "consumer_group_member_timed_out", group=hosted.group_id, member=member_id
                )

        hosted.queue.append((step, asyncio.get_running_loop().create_future()))
        self._go_on(hosted)

    # -- who leads ------------------------------------------------------------------------------------------------

    def _host(self, led: _Led, group_id: str) -> _Hosted:
        self._shares.check(sum(len(each.hosted) for each in self._led))
        hosted = led.hosted[group_id] = _Hosted(group_id, led, self._kind.group(self.bounds))
        self._shares.add(hosted)
        return hosted

    def _let_go(self, hosted: _Hosted, led: _Led | None = None) -> None:
        led = led or self._led.get(hosted.shard_id)
        if led is not None and led.hosted.get(hosted.group_id) is hosted:
            del led.hosted[hosted.group_id]
            self._shares.drop(hosted)
            self.memory.drop(hosted.rows)
        if hosted.timer is not None:
            hosted.timer.cancel()

    def _holds(self, hosted: _Hosted) -> bool:
        led = self._led.get(hosted.shard_id)
        return led is not None and led.hosted.get(hosted.group_id) is hosted and self._led.leads(led)

    def _led_of(self, group_id: str) -> _Led:
        """The shard of a group, in the term in which this node leads it, once its groups are read."""
        shard_id, _ = self._table.home(group_id)
        return self._led.read_one(shard_id)

    def _take_rows(self, led: _Led, groups: dict[str, StoredGroup]) -> None:
        for group_id, stored in groups.items():
            hosted = led.hosted[group_id] = _Hosted(group_id, led, self._kind.group(self.bounds))
            self._restore(hosted, stored)
            self._arm(hosted)

    def _drop(self, led: _Led) -> None:
        for hosted in list(led.hosted.values()):
            self._refuse(hosted, self._led.gone(led.shard_id))
            self._let_go(hosted, led)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
