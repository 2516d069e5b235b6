"""Lone small writes are carried out by the event loop itself, where its rule says so; nothing else is."""

import asyncio
import errno
import subprocess
import sys
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from antiphon.errors import AntiphonError
from antiphon.log.disk import RealDisk
from antiphon.log.lone_writes import AVERAGED, CALM, QUICK_S, LoneWrites
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault
from antiphon.log.wal_thread import WalThread
from tests.coroutines import on_a_loop
from tests.log.helpers import batch_at

STEP_S, TOOK_S = 0.001, 0.0001


class Clock:
    """Writes one after the other: each begins so long after the one before, and takes so long."""

    def __init__(self) -> None:
        self.rule = LoneWrites()
        self.now_s, self.used_s = 1.0, 0.0

    def write(self, took_s: float = TOOK_S, pause_s: float = STEP_S, used_s: float = 0.0) -> bool:
        self.now_s += pause_s
        self.used_s += used_s
        by_loop = self.rule.begins(self.now_s, self.used_s)
        began_s = self.now_s
        self.now_s += took_s
        self.rule.ended(began_s, self.now_s)
        return by_loop


def test_the_loop_writes_after_so_many_lone_writes() -> None:
    clock = Clock()
    assert [clock.write() for _ in range(CALM + 5)] == [False] * CALM + [True] * 5
    clock.rule.crowded()
    assert [clock.write() for _ in range(CALM + 1)] == [False] * CALM + [True]


def test_a_slow_disk_leaves_them_to_the_worker_until_it_is_quick_again() -> None:
    clock = Clock()
    while not clock.write():
        pass
    assert clock.write(took_s=1.0)
    waits = 0
    while not clock.write():
        waits += 1
    assert 4 * AVERAGED < waits < 10 * AVERAGED
    assert not any([clock.write(took_s=2 * QUICK_S) for _ in range(3 * AVERAGED)][2 * AVERAGED :])


@pytest.mark.parametrize("how", [{"used_s": 0.8 * STEP_S}, {"pause_s": TOOK_S / 2}])
def test_a_loop_that_has_other_work_leaves_them_to_the_worker(how: dict[str, float]) -> None:
    clock = Clock()
    while not clock.write():
        pass
    assert not clock.write(**how)
    assert not clock.write()


def always(self: LoneWrites, now_s: float, used_s: float) -> bool:
    return True


async def written(
    wal: WalThread, log: ShardLog, count: int = 1, size: int = 50
) -> list[AntiphonError | None]:
    """The outcomes of so many appends, submitted in one turn of the loop."""
    outcomes: list[AntiphonError | None] = []
    all_done = asyncio.Event()

    def note(error: AntiphonError | None) -> None:
        outcomes.append(error)
        if len(outcomes) == count:
            all_done.set()

    for _ in range(count):
        wal.submit(log.stage_append([batch_at(log.log_end, size=size)]), note)
    await all_done.wait()
    return outcomes


@on_a_loop
async def test_only_lone_small_writes_into_blocks_that_are_there(tmp_path: Path) -> None:
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, str(tmp_path / "s"))
    with patch.object(LoneWrites, "begins", always):
        assert await written(wal, log) == [None]  # which makes the blocks
        assert wal.done_by_loop == 0
        for number in range(1, 4):
            assert await written(wal, log) == [None]
            assert (wal.done_by_loop, log.durable_end) == (number, number + 1)
        assert await written(wal, log, 3) == [None] * 3
        assert wal.done_by_loop == 3
        for by_loop in (3, 4, 4, 5):  # the first and the third make more blocks, as many as there were
            assert await written(wal, log, size=30_000) == [None]
            assert wal.done_by_loop == by_loop
        assert await written(wal, log, size=40_000) == [None]
        assert (wal.done_by_loop, log.durable_end) == (5, 12)
    await wal.stop()
    assert ShardLog.open(RealDisk(), str(tmp_path / "s")).log_end == 12


@on_a_loop
async def test_what_the_loop_could_not_write_is_tried_again_by_the_worker() -> None:
    disk = SimulatedDisk(Random(1))
    wal = WalThread(disk, retry_full_ms=5)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, "/shard")
    with patch.object(LoneWrites, "begins", always):
        await written(wal, log)
        disk.faults.append(Fault(("write",), errno.ENOSPC, calls=1))
        assert await written(wal, log) == [None]
        assert (wal.done_by_loop, wal.disk_full, log.durable_end) == (1, False, 2)
        assert await written(wal, log) == [None]
        assert wal.done_by_loop == 2
    await wal.stop()
    assert ShardLog.open(disk.crash(), "/shard").log_end == 3


@on_a_loop
async def test_a_failed_sync_of_the_loop_is_final() -> None:
    disk = SimulatedDisk(Random(1))
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, "/shard")
    with patch.object(LoneWrites, "begins", always):
        await written(wal, log)
        disk.faults.append(Fault(("fdatasync",), errno.EIO, calls=1))
        for _ in range(2):
            (error,) = await written(wal, log)
            assert error is not None
            assert error.code == "storage_failed"
    assert wal.done_by_loop == 1
    await wal.stop()


@on_a_loop
async def test_a_stop_does_what_was_left_for_the_end_of_the_turn(tmp_path: Path) -> None:
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, str(tmp_path / "s"))
    seen: list[AntiphonError | None] = []
    with patch.object(LoneWrites, "begins", always):
        await written(wal, log)
        wal.submit(log.stage_append([batch_at(1)]), seen.append)
        await wal.stop()
        wal.submit(log.stage_append([batch_at(2)]), seen.append)
        await asyncio.sleep(0)
    assert (seen, wal.done_by_loop) == ([None], 1)


WRITER = """
import asyncio, sys
from antiphon.log.disk import RealDisk
from antiphon.log.lone_writes import LoneWrites
from antiphon.log.shard_log import ShardLog
from antiphon.log.wal_thread import WalThread
from tests.log.helpers import batch_at

LoneWrites.begins = lambda *_: True

async def main():
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, sys.argv[1])
    while True:
        durable = asyncio.Event()
        wal.submit(log.stage_append([batch_at(log.log_end, size=50)]), lambda error: durable.set())
        await durable.wait()
        print(log.durable_end, wal.done_by_loop, flush=True)

asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_the_loop_wrote(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        assert writer.stdout is not None
        acknowledged = by_loop = 0
        for line in writer.stdout:
            acknowledged, by_loop = map(int, line.split())
            if acknowledged > 100:
                break
        writer.kill()
    assert by_loop > 50
    log = ShardLog.open(RealDisk(), str(tmp_path / "s"))
    assert log.damaged is None
    assert log.log_end >= acknowledged
    assert log.reader.verify() == log.log_end
