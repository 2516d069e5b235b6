"""The WAL thread with a real loop and a real disk."""

import asyncio
import functools
import subprocess
import sys
from pathlib import Path

from antiphon.errors import AntiphonError
from antiphon.log.config import LogConfig
from antiphon.log.disk import RealDisk
from antiphon.log.shard_log import ShardLog
from antiphon.log.wal_thread import WalThread
from tests.coroutines import on_a_loop
from tests.log.helpers import batch_at


@on_a_loop
async def test_completions_come_in_order_on_the_loop_and_in_groups(tmp_path: Path) -> None:
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    logs = [ShardLog.open(disk, str(tmp_path / str(n))) for n in range(3)]
    done: list[tuple[int, int]] = []
    finished = asyncio.Event()
    total = 3 * 200

    def note(shard: int, number: int, error: AntiphonError | None) -> None:
        assert error is None
        assert logs[shard].durable_end >= number + 1
        done.append((shard, number))
        if len(done) == total:
            finished.set()

    for number in range(200):
        for shard, log in enumerate(logs):
            op = log.stage_append([batch_at(number)])
            wal.submit(op, functools.partial(note, shard, number))
    assert wal.backlog_bytes > 0
    await finished.wait()
    assert wal.backlog_bytes == 0
    for shard in range(3):
        assert [n for s, n in done if s == shard] == list(range(200))
    assert wal.committer.syncs < 300
    await wal.stop()


def test_stop_finishes_what_was_submitted(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk()
        wal = WalThread(disk)
        wal.start(asyncio.get_running_loop())
        log = ShardLog.open(disk, str(tmp_path / "s"))
        seen: list[str] = []
        wal.submit(log.stage_append([batch_at(0)]), lambda error: seen.append(f"append {error}"))
        wal.submit(log.hard_state.stage(3, 1), lambda error: seen.append(f"term {error}"))
        wal.submit(log.checkpoint(), lambda error: seen.append(f"checkpoint {error}"))
        await wal.stop()
        assert seen == ["append None", "term None", "checkpoint None"]
        await wal.stop()

    asyncio.run(run())
    again = ShardLog.open(RealDisk(), str(tmp_path / "s"))
    assert (again.log_end, again.hard_state.term, again.hard_state.voted_for) == (1, 3, 1)
    assert again.recovery.scanned_bytes == 0


@on_a_loop
async def test_a_callback_that_raises_does_not_swallow_the_others(tmp_path: Path) -> None:
    problems: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(loop)
    log = ShardLog.open(disk, str(tmp_path / "s"))
    done = asyncio.Event()

    def broken(error: AntiphonError | None) -> None:
        raise ZeroDivisionError

    wal.submit(log.stage_append([batch_at(0)]), broken)
    wal.submit(log.stage_append([batch_at(1)]), lambda _: done.set())
    await done.wait()
    assert [type(problem) for problem in problems] == [ZeroDivisionError]
    await wal.stop()


@on_a_loop
async def test_back_pressure_is_signalled(tmp_path: Path) -> None:
    disk = RealDisk()
    wal = WalThread(disk, backlog_bytes_max=1000)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, str(tmp_path / "s"), LogConfig(flush="os"))
    before = wal.overloaded
    wal.submit(log.stage_append([batch_at(0, size=2000)]))
    during = wal.overloaded
    await wal.stop()
    assert (before, during, wal.overloaded) == (False, True, False)


@on_a_loop
async def test_interval_flush_syncs_in_the_background(tmp_path: Path) -> None:
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, str(tmp_path / "s"), LogConfig(flush="interval", flush_interval_ms=1))
    wal.submit(log.stage_append([batch_at(0)]))
    await wal.stop()
    assert wal.committer.syncs == 1
    assert not wal.committer.dirty


WRITER = """
import asyncio, sys
from antiphon.log.disk import RealDisk
from antiphon.log.shard_log import ShardLog
from antiphon.log.wal_thread import WalThread
from tests.log.helpers import batch_at

async def main():
    disk = RealDisk()
    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    log = ShardLog.open(disk, sys.argv[1])
    while True:
        wal.submit(log.stage_append([batch_at(log.log_end, size=50)]), lambda error: print(log.durable_end, flush=True))
        await asyncio.sleep(0)

asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) > 300:
                break
        writer.kill()
        rest = writer.stdout.read().splitlines()
    acknowledged = max([300, *(int(line) for line in rest[:-1])])
    log = ShardLog.open(RealDisk(), str(tmp_path / "s"))
    assert log.damaged is None
    assert log.log_end >= acknowledged
    assert log.reader.verify() == log.log_end
    log.release_memory()
    assert bytes(log.read(7, 1, 10)[0]) == batch_at(7, size=50)
