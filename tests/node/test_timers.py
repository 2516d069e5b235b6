"""What a node does by the clock, and when it reads no more, without a node."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from antiphon.errors import OverloadedError
from antiphon.node.back_pressure import BackPressure
from antiphon.node.config import Limits, Timings
from antiphon.node.raft_shards import first_ticks
from antiphon.node.timers import EXPIRE_EVERY_S, Chore, Timers
from tests.node.in_process import in_virtual_time

TICK_S, BEAT_S = 0.01, 0.1


class Shard:
    """Wants `ticks` ticks, and waits for an answer until it was told so often that it is late."""

    def __init__(self, shard_id: int, ticks: int) -> None:
        self.shard_id = shard_id
        self.ticks = ticks
        self.ticked: list[float] = []
        self.expired: list[float] = []
        self.waiting = True
        self.is_looked_after = False

    def tick(self) -> bool:
        self.ticked.append(asyncio.get_running_loop().time())
        return len(self.ticked) < self.ticks

    def expire(self, now_s: float) -> None:
        self.expired.append(now_s)
        self.waiting = len(self.expired) < 3


def timers(
    *chores: Chore, failures: list[Exception] | None = None, founding: int = 0
) -> tuple[Timers, list[float]]:
    loop = asyncio.get_running_loop()
    heartbeats: list[float] = []
    timings = Timings(tick=round(TICK_S * 1000), heartbeat=round(BEAT_S * 1000), founding=founding)
    failed: list[Exception] = [] if failures is None else failures
    return Timers(loop, timings, lambda: heartbeats.append(loop.time()), chores, failed.append), heartbeats


@in_virtual_time
async def test_only_shards_that_want_ticks_get_them_and_a_closed_one_none() -> None:
    clock, _ = timers()
    some, closed = Shard(1, 3), Shard(2, 100)
    clock.needs_ticks(some)
    clock.needs_ticks(closed)
    await asyncio.sleep(1.5 * TICK_S)
    clock.forget(2)
    await asyncio.sleep(1)
    assert (len(some.ticked), len(closed.ticked)) == (3, 1)
    clock.needs_ticks(some)
    await asyncio.sleep(1)
    assert len(some.ticked) == 4, "the timer rests, and starts again"
    clock.end_ticks()
    clock.needs_ticks(some)
    await asyncio.sleep(1)
    assert len(some.ticked) == 4


@in_virtual_time
async def test_chores_are_done_at_once_or_later_and_in_their_order() -> None:
    done: list[str] = []
    clock, heartbeats = timers(
        Chore(lambda: done.append("often"), 0.35),
        Chore(lambda: done.append("seldom"), 0.5, later=True),
    )
    clock.start()
    assert (len(heartbeats), done) == (1, ["often"])
    await asyncio.sleep(0.65)
    assert done == ["often", "often", "seldom"], "at the first heartbeat that is late enough"
    assert len(heartbeats) == 7
    clock.stop()
    await asyncio.sleep(5)
    assert len(heartbeats) == 7


@in_virtual_time
async def test_a_chore_that_fails_is_told_and_the_clock_goes_on() -> None:
    def fail() -> None:
        raise OverloadedError("no room")

    failures: list[Exception] = []
    done: list[int] = []
    clock, heartbeats = timers(
        Chore(fail, 0.5), Chore(lambda: done.append(len(heartbeats)), 10.0), failures=failures
    )
    clock.start()
    assert (len(failures), done) == (1, [])
    await asyncio.sleep(0.15)
    assert (len(failures), done) == (1, [2]), "what stood behind it is done at the next heartbeat"
    clock.stop()


@in_virtual_time
async def test_who_waits_is_looked_at_until_nobody_waits() -> None:
    clock, _ = timers()
    clock.start()
    shard = Shard(1, 0)
    clock.someone_waits(shard)
    await asyncio.sleep(10 * EXPIRE_EVERY_S)
    assert (len(shard.expired), shard.is_looked_after) == (3, False)
    clock.stop()


def test_reading_stops_at_a_bound_and_goes_on_at_its_half() -> None:
    told: list[str] = []
    named = {name: (lambda name=name: told.append(name)) for name in HOLDS}
    wal = SimpleNamespace(overloaded=False, backlog_bytes=0, progressed=None)
    pressure = BackPressure(
        Limits(append_in_flight=100, wal_backlog=1000),
        cast("Any", wal),
        cast("Any", SimpleNamespace(**named)),
    )
    pressure.intakes.append(cast("Any", SimpleNamespace(**named)))
    for change in (100, 1, 50, -100):
        pressure.in_flight(change)
    assert told == ["hold_clients"]
    pressure.in_flight(-2)
    assert told == ["hold_clients", "release_clients"]
    assert pressure.in_flight_bytes == 49
    told.clear()
    pressure.entries_came()
    wal.overloaded, wal.backlog_bytes = True, 1001
    pressure.entries_came()
    pressure.entries_came()
    assert wal.progressed == pressure.disk_progressed
    wal.backlog_bytes = 500
    pressure.disk_progressed()
    assert told == ["hold_disk"] * 2, "of the listener and of the other nodes, once"
    wal.backlog_bytes = 499
    pressure.disk_progressed()
    pressure.disk_progressed()
    assert told == ["hold_disk"] * 2 + ["release_disk"] * 2
    assert wal.progressed is None, "nobody waits for the disk any more"
    told.clear()
    wal.backlog_bytes = 1001
    pressure.in_flight(-10)
    assert not told
    pressure.in_flight(10)
    assert told == ["hold_disk"] * 2, "other disks are faster: less is in flight than waits for this one"


HOLDS = ("hold_clients", "release_clients", "hold_disk", "release_disk")


@in_virtual_time
async def test_before_a_node_has_joined_it_beats_faster() -> None:
    clock, beats = timers(founding=20)
    clock.start()
    await asyncio.sleep(0.09)
    assert [round(beat - beats[0], 3) for beat in beats] == [0.0, 0.02, 0.04, 0.06, 0.08]
    clock.joined()
    await asyncio.sleep(0.22)
    assert [round(beat - beats[5], 3) for beat in beats[5:]] == [0.0, 0.1, 0.2]
    clock.stop()


def test_founders_stand_one_after_the_other() -> None:
    timings = Timings(tick=25, founding=50)
    assert [first_ticks(timings, [3, 5, 9], node) for node in (3, 5, 9, 11)] == [2, 6, 10, 0]
    assert first_ticks(Timings(founding=0), [3, 5, 9], 3) == 0
