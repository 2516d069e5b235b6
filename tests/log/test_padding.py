"""Room behind the last batch of a segment: made before it is needed, taken away when the segment is closed, never damage."""

from random import Random

import pytest

from antiphon.log import group_commit
from antiphon.log.config import LogConfig
from antiphon.log.group_commit import PADDED_FROM_FREE_BYTES, PADDED_WRITE_MAX, PADDING_MAX, padding
from antiphon.log.log_check import LogCheck
from antiphon.log.operations import OpQueue
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from tests.log.helpers import Runner, batch_at, data_bytes

DIRECTORY = "/shard"
FIRST = f"{DIRECTORY}/{0:020d}.log"
CONFIG = LogConfig(segment_bytes=100_000)


def new_log(config: LogConfig = CONFIG) -> tuple[SimulatedDisk, ShardLog, Runner]:
    disk = SimulatedDisk(Random(1))
    return disk, ShardLog.open(disk, DIRECTORY, config), Runner(disk)


def test_a_file_grows_in_steps_that_double_and_only_then() -> None:
    disk, log, runner = new_log()
    sizes = []
    for at in range(60):
        runner.run(log.stage_append([batch_at(at, size=900)]))
        sizes.append(disk.open(FIRST).size())
    assert data_bytes(disk, FIRST) == log.size_bytes
    steps = sorted(set(sizes))
    assert sizes == sorted(sizes)
    assert all(size % 4096 == 0 for size in steps)
    assert len(steps) <= 6, "a file that grows with each append syncs the file system's journal with each"
    assert sizes[-1] <= 2 * log.size_bytes + 4096


@pytest.mark.parametrize(
    ("size", "end", "expected"),
    [
        (100, 100, 4096),
        (100, 6000, 12_288),
        (100, 50 * PADDING_MAX, 51 * PADDING_MAX),
        (PADDED_WRITE_MAX, PADDED_WRITE_MAX, 2 * PADDED_WRITE_MAX),
        (PADDED_WRITE_MAX + 1, PADDED_WRITE_MAX + 1, PADDED_WRITE_MAX + 1),
    ],
)
def test_how_much_room_is_made(size: int, end: int, expected: int) -> None:
    assert end + len(padding(OpQueue("q"), size, end)) == expected


@pytest.mark.parametrize("flush", ["interval", "os"])
def test_what_is_not_synced_each_time_needs_no_room(flush: str) -> None:
    assert not len(padding(OpQueue("q", flush), 100, 100))


def test_a_closed_segment_holds_batches_and_nothing_else_also_after_a_crash() -> None:
    disk, log, runner = new_log(LogConfig(segment_bytes=3000))
    for at in range(10):
        runner.run(log.stage_append([batch_at(at, size=900)]))
    for _ in range(2):
        names = sorted(name for name in disk.listdir(DIRECTORY) if name.endswith(".log"))
        assert len(names) > 2
        *closed, last = [f"{DIRECTORY}/{name}" for name in names]
        assert [disk.open(path).size() for path in closed] == [data_bytes(disk, path) for path in closed]
        assert disk.open(last).size() > data_bytes(disk, last)
        disk = disk.crash()
        found = ShardLog.open(disk, DIRECTORY, LogConfig(segment_bytes=3000))
        assert (found.log_end, found.damaged, found.recovery.torn_reason) == (10, None, None)
    check = LogCheck(found)
    while (piece := check.plan()) is not None:
        checked = piece()
        assert checked.damage is None
        check.offset = checked.next_offset
    assert check.offset == 10


def test_an_opened_log_keeps_its_room_and_writes_into_it() -> None:
    disk, log, runner = new_log()
    for at in range(3):
        runner.run(log.stage_append([batch_at(at, size=900)]))
    size = disk.open(FIRST).size()
    disk = disk.crash()
    log, runner = ShardLog.open(disk, DIRECTORY, CONFIG), Runner(disk)
    assert disk.open(FIRST).size() == size
    runner.run(log.stage_append([batch_at(3, size=900)]))
    found = ShardLog.open(disk.crash(), DIRECTORY, CONFIG)
    assert (found.log_end, found.reader.verify()) == (4, 4)


def test_a_cut_takes_the_room_away_and_the_next_write_makes_some() -> None:
    disk, log, runner = new_log()
    for at in range(4):
        runner.run(log.stage_append([batch_at(at, size=900)]))
    runner.run(log.truncate(2))
    assert disk.open(FIRST).size() == log.size_bytes
    runner.run(log.stage_append([batch_at(2, size=300, term=2)]))
    assert disk.open(FIRST).size() > log.size_bytes
    found = ShardLog.open(disk.crash(), DIRECTORY, CONFIG)
    assert (found.log_end, found.end.term, found.damaged) == (3, 2, None)


def test_zeros_where_the_index_knows_a_batch_are_damage() -> None:
    disk, log, runner = new_log()
    ends = []
    for at in range(3):
        runner.run(log.stage_append([batch_at(at, size=900)]))
        ends.append(log.size_bytes)
    disk.open(FIRST).pwritev([bytes(ends[2] - ends[1])], ends[1])
    found = ShardLog.open(disk, DIRECTORY, CONFIG)
    assert found.damaged is not None
    assert (found.damaged.offset, found.log_end) == (2, 2)


@pytest.mark.parametrize("least", [0, PADDED_FROM_FREE_BYTES])
def test_without_room_on_the_disk_none_is_made(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "PADDED_FROM_FREE_BYTES", least)
    disk, log, runner = new_log()
    runner.run(log.stage_append([batch_at(0, size=3800)]))
    disk.capacity_bytes = disk.used_bytes() + (2000 if least == 0 else least - 1)
    runner.run(log.stage_append([batch_at(1, size=6000)]))
    assert log.durable_end == 2
    assert disk.open(FIRST).size() == log.size_bytes


def test_a_clean_stop_leaves_no_room() -> None:
    disk, log, runner = new_log()
    runner.run(log.stage_append([batch_at(0)]))
    runner.run(log.checkpoint())
    assert disk.open(FIRST).size() == log.size_bytes
    assert ShardLog.open(disk.crash(), DIRECTORY, CONFIG).recovery.scanned_bytes == 0
