"""Removes committed offsets of consumer groups that have expired, and groups that have neither members nor offsets left.

The node that coordinates a group does so, now and then, beside its other work. By what rules, and by which clock, is said
in `coordination/offset_expiry.py`. A row is removed only as it was read: one that was committed again meanwhile stays.
What a coordinator does not know counts from when it took over, so a group has the whole retention with each coordinator.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from antiphon import system
from antiphon.coordination import offset_expiry as rules
from antiphon.coordination.offset_expiry import UNKNOWN, Aged, EvenClock, Readers
from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.subscription import CONSUMER, subscribed_topics
from antiphon.kafka.groups.types import GroupState
from antiphon.transactions.group_offsets import OPS_MAX, GroupOffsets, StoredOffset
from antiphon.transactions.pending_offsets import PendingOffsets

PAUSE_S: Final = 0.005  # between two groups: whoever asks goes first


class _Led(NamedTuple):
    """A shard in the term in which this node leads it. `now_ms`: what its clock says of the look that is under way."""

    shard_id: int
    term: int
    clock: EvenClock
    now_ms: int


class OffsetExpiry:
    """See the module's text.

    Attributes:
        expired: offsets that were removed since the node's start.
    """

    def __init__(
        self, gateway: Gateway, coordinator: GroupCoordinator, offsets: GroupOffsets, pending: PendingOffsets
    ) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._offsets = offsets
        self._pending = pending
        self._clocks: dict[int, tuple[int, EvenClock]] = {}  # term and clock, by shard
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.expired = 0

    @property
    def _retention_ms(self) -> int:
        return self._coordinator.config.offsets.retention_ms

    def start(self) -> None:
        """Begin to look now and then."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="offset expiry")

    def settings_changed(self) -> None:
        """The coordinator's bounds are others now; a pause begins anew."""
        self._wake.set()

    async def stop(self) -> None:
        """Look no more."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._coordinator.config.offsets.check_ms / 1000)
            except TimeoutError:
                await self.look()

    # -- one look -------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look at all groups that this node coordinates now."""
        try:
            shard_ids = [shard.shard_id for shard in self._coordinator.led_shards()]
        except AntiphonError:  # a node that was just started, and knows no metadata yet
            return
        self._clocks = {one: kept for one, kept in self._clocks.items() if one in shard_ids}
        self._coordinator.classic.emptied.forget_before(_steady_ms() - max(0, self._retention_ms))
        for shard_id in shard_ids:
            led = self._led(shard_id)
            if led is None:
                continue
            try:
                await self._look_at(led)
            except AntiphonError as error:  # the shard moves, or is read anew: the next look is soon enough
                structlog.get_logger().info(
                    "group_offsets_not_looked_at", shard=shard_id, reason=error.message
                )

    def _led(self, shard_id: int) -> _Led | None:
        """A shard that this node leads, where its clock can be believed. A term counts from when it is first seen here."""
        term = self._gateway.term_led(shard_id)
        if term is None:
            self._clocks.pop(shard_id, None)
            return None
        wall_ms, steady_ms = system.wall_ms(), _steady_ms()
        known_term, clock = self._clocks.get(shard_id, (-1, EvenClock(wall_ms, steady_ms)))
        if known_term != term:
            clock = EvenClock(wall_ms, steady_ms)
        self._clocks[shard_id] = (term, clock)
        now_ms = clock.read(wall_ms, steady_ms, self._retention_ms)
        return None if now_ms is None else _Led(shard_id, term, clock, now_ms)

    def _leads(self, led: _Led) -> bool:
        return self._gateway.term_led(led.shard_id) == led.term

    async def _look_at(self, led: _Led) -> None:
        with_offsets = await self._offsets.groups_of(led.shard_id)
        for group in sorted({*with_offsets, *self._consumers_of(led)}):
            if not self._leads(led) or self._stopping:
                return
            await self._look_at_group(led, group)
            await asyncio.sleep(PAUSE_S)
        await self._pending.sweep(led.shard_id, led.now_ms)

    def _consumers_of(self, led: _Led) -> list[str]:
        """Groups of the consumer protocol in a shard that have no members."""
        found = self._coordinator.consumers.found().items()
        empty = [name for name, group in found if not group.members]
        return [name for name in empty if self._coordinator.home(name)[0] == led.shard_id]

    async def _look_at_group(self, led: _Led, group: str) -> None:
        readers = await self._readers(led, group)
        if readers.topics is None:
            return
        removed = kept = 0
        old: list[StoredOffset] = []
        async for row in self._offsets.stored(led.shard_id, group):
            if not self._is_expired(led, row, readers, frozenset()):
                kept += 1
                continue
            old.append(row)
            if len(old) == OPS_MAX:
                removed += await self._remove(led, group, old)
                kept += len(old)
                old = []
        if old:
            removed += await self._remove(led, group, old)
            kept += len(old)
        kept -= removed
        is_gone = not kept and await self._forget(led, group, readers)
        if removed or is_gone:
            self.expired += removed
            structlog.get_logger().info(
                "group_offsets_expired", group=group, offsets=removed, group_gone=is_gone
            )

    async def _remove(self, led: _Led, group: str, old: Sequence[StoredOffset]) -> int:
        """Remove what is still expired, by who is in the group and what is pending now; says how many there were."""
        pending = frozenset(await self._pending.unstable(group))
        readers = await self._readers(led, group)
        gone = [row for row in old if self._is_expired(led, row, readers, pending)]
        return await self._offsets.remove(led.shard_id, gone) if gone and self._leads(led) else 0

    def _is_expired(
        self, led: _Led, row: StoredOffset, readers: Readers, pending: frozenset[tuple[str, int]]
    ) -> bool:
        topic, partition, committed = row.at
        aged = Aged(
            topic,
            # An offset of a transaction is the group's from when that is committed.
            max(committed.commit_ms, row.modified_ms),
            committed.retention_ms,
            is_of_topic=row.is_current,
            is_pending=(topic, partition) in pending,
        )
        return rules.is_expired(aged, readers, led.now_ms, self._retention_ms)

    async def _forget(self, led: _Led, group: str, readers: Readers) -> bool:
        """The group has no offset left: remove what else is kept of it, if it has been empty for so long, too."""
        retention_ms, consumers = self._retention_ms, self._coordinator.consumers
        is_old = (
            retention_ms >= 0
            and readers.empty_ms is not None
            and led.now_ms - readers.empty_ms >= retention_ms
        )
        if not is_old or await self._pending.unstable(group):
            return False
        if consumers.find(group) is not None:
            return await consumers.forget(group, with_settings=False)
        classic = self._coordinator.classic
        return await classic.kept(group) is not None and await classic.forget(group) is True

    # -- who is in a group ----------------------------------------------------------------------------------------

    async def _readers(self, led: _Led, group: str) -> Readers:
        """Who is in the group now, and what they read."""
        coordinator = self._coordinator
        await coordinator.ready(group)
        changed_ms = await coordinator.consumers.changed_ms(group)
        if coordinator.is_share(group):  # its state is another one
            return UNKNOWN
        classic, consumers = coordinator.find(group), coordinator.consumers.find(group)
        if classic is not None:
            is_told = classic.state is GroupState.STABLE and classic.protocol_type == CONSUMER
            return (
                Readers(subscribed_topics(classic.members.values(), classic.protocol_name))
                if is_told
                else UNKNOWN
            )
        if consumers is None:
            empty_ms = None
            if not coordinator.classic.is_emptying(group):  # no row says yet since when it is empty
                empty_ms = await self._empty_ms(led, group)
            is_known = empty_ms is not None and coordinator.find(group) is None
            return Readers(empty_ms=empty_ms) if is_known else UNKNOWN
        if consumers.members:
            return Readers(consumers.subscribed)
        return UNKNOWN if changed_ms is None else Readers(empty_ms=changed_ms)

    async def _empty_ms(self, led: _Led, group: str) -> int:
        """Since when no member of the classic protocol is in the group, by the clock of this look.

        The group's row says so, and outlives coordinators. Of a group without a row this is as long as this coordinator
        knows: it counts from when it took over, or saw the last member go.
        """
        classic = self._coordinator.classic
        kept_ms = await classic.empty_since_ms(group)
        if kept_ms is not None:
            return kept_ms
        emptied_ms = classic.emptied.since_ms(group)
        since_ms = led.clock.began_ms if emptied_ms is None else max(led.clock.began_ms, emptied_ms)
        return led.now_ms - (_steady_ms() - since_ms)


def _steady_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
