"""What a node does by the clock, with two timers however many shards it has.

One ticks those replicas that have something outstanding, and rests while none has. The other is the whole node's heartbeat:
the coordinator hears of it, and chores are done whose time has come.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.node.config import Timings
    from antiphon.partition.services import Ticking, Waiting

EXPIRE_EVERY_S: Final = 0.25


class Chore(NamedTuple):
    """What is done now and then: at the first heartbeat and then every so many seconds, or `later`, only after these."""

    work: Callable[[], object]
    every_s: float
    later: bool = False


class Timers:
    """See the module's text.

    Args:
        loop: the node's.
        timings: how long a tick and a heartbeat are.
        heartbeat: what is done at every heartbeat.
        chores: in the order in which they are done.
        failed: is told why a heartbeat was not carried out to its end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timings: "Timings",
        heartbeat: Callable[[], None],
        chores: Sequence[Chore],
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._tick_s = timings.tick / 1000
        self._heartbeat_s = timings.heartbeat / 1000
        self._founding_s = timings.founding / 1000
        self._at_heartbeat = heartbeat
        self._chores = (Chore(self._expire, EXPIRE_EVERY_S), *chores)
        self._due_s: dict[int, float] = {}  # by the chore's place
        self._failed = failed
        self._ticking: dict[int, Ticking] = {}
        self._waited_for: dict[Waiting, None] = {}  # in the order in which they asked
        self._tick_timer: asyncio.TimerHandle | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._ticks_end = False

    def start(self) -> None:
        """Beat now, and from now on."""
        self._heartbeat()

    def joined(self) -> None:
        """The coordinator counts on this node: from now on it beats as always."""
        self._founding_s = 0.0

    def end_ticks(self) -> None:
        """Plan no more ticks; heartbeats go on until `stop()`."""
        self._ticks_end = True

    def stop(self) -> None:
        """Do nothing by the clock any more."""
        self.end_ticks()
        for timer in (self._tick_timer, self._heartbeat_timer):
            if timer is not None:
                timer.cancel()

    def needs_ticks(self, driver: "Ticking") -> None:
        """See PartitionServices."""
        self._ticking[driver.shard_id] = driver
        self._arm_tick()

    def someone_waits(self, clients: "Waiting") -> None:
        """See PartitionServices."""
        self._waited_for[clients] = None
        clients.is_looked_after = True

    def forget(self, shard_id: int) -> None:
        """The replica is closed."""
        self._ticking.pop(shard_id, None)
        for clients in [one for one in self._waited_for if one.shard_id == shard_id]:
            del self._waited_for[clients]

    def _arm_tick(self) -> None:
        if self._ticking and self._tick_timer is None and not self._ticks_end:
            self._tick_timer = self._loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        for driver in list(self._ticking.values()):
            if not driver.tick():
                self._ticking.pop(driver.shard_id, None)
        self._arm_tick()

    def _heartbeat(self) -> None:
        every_s = min(self._founding_s or self._heartbeat_s, self._heartbeat_s)
        self._heartbeat_timer = self._loop.call_later(every_s, self._heartbeat)
        try:
            self._at_heartbeat()
            now_s = self._loop.time()
            for place, chore in enumerate(self._chores):
                due_s = self._due_s.setdefault(place, now_s + chore.every_s if chore.later else now_s)
                if now_s >= due_s:
                    self._due_s[place] = now_s + chore.every_s
                    chore.work()
        except AntiphonError as error:
            self._failed(error)

    def _expire(self) -> None:
        """Answer who waits for too long."""
        now_s = self._loop.time()
        for clients in list(self._waited_for):
            clients.expire(now_s)
            if not clients.waiting:
                clients.is_looked_after = False
                self._waited_for.pop(clients, None)
