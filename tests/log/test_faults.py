"""Full disks, failing disks and rotten bits."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from random import Random

import pytest

from antiphon.errors import AntiphonError, DamagedLogError, DiskFullError, StorageFailedError
from antiphon.log.config import LogConfig
from antiphon.log.index import entry_position
from antiphon.log.recovery import DamageReport, load_damage, save_damage
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import descriptors_used_up
from antiphon.log.wal_thread import WalThread
from antiphon.records.builder import build_members
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members
from tests.coroutines import on_a_loop
from tests.log.helpers import Runner, batch_at, data_bytes, joined

DIRECTORY = "/shard"
SMALL = LogConfig(segment_bytes=1000, tail_bytes_max=1200)


def new_log(config: LogConfig = SMALL) -> tuple[SimulatedDisk, ShardLog, Runner]:
    disk = SimulatedDisk(Random(1))
    return disk, ShardLog.open(disk, DIRECTORY, config), Runner(disk)


def test_a_full_disk_holds_appends_and_resumes_them_in_order() -> None:
    disk, log, runner = new_log(LogConfig())
    runner.run(log.stage_append([batch_at(0)]))
    disk.capacity_bytes = disk.used_bytes() + 150  # which is more than the padding of the first batch leaves
    used = disk.used_bytes() - (4096 - log.size_bytes)  # without the padding
    runner.submit(log.stage_append([batch_at(1, size=5000)]), log.stage_append([batch_at(2)]))
    for _ in range(3):
        assert runner.commit() == []
        assert runner.committer.disk_full
        assert disk.used_bytes() == used  # cut back to the last good size
    assert log.durable_end == 1
    assert joined(log.read(0, 10**6, 3)).startswith(batch_at(0))  # reads go on
    disk.capacity_bytes = None
    assert runner.commit() == [None, None]
    assert not runner.committer.disk_full
    assert log.durable_end == 3
    assert ShardLog.open(disk.crash(), DIRECTORY, LogConfig()).log_end == 3


def test_trims_make_room_on_a_full_disk() -> None:
    disk, log, runner = new_log()
    for at in range(20):
        runner.run(log.stage_append([batch_at(at, size=100)]))
    disk.capacity_bytes = disk.used_bytes()
    runner.submit(log.stage_append([batch_at(20, size=5000)]))
    assert runner.commit() == []
    runner.submit(log.trim(15))
    assert runner.commit() == [None, None]
    assert (log.log_start, log.durable_end) == (15, 21)


def test_a_trim_of_everything_makes_room_without_the_snapshot_that_it_would_leave() -> None:
    disk, log, runner = new_log()
    for at in range(20):
        runner.run(log.stage_append([batch_at(at, size=100)]))
    disk.capacity_bytes = disk.used_bytes()
    runner.submit(log.trim(20))
    assert runner.commit() == [None]
    reopened = ShardLog.open(disk.crash(), DIRECTORY, SMALL)
    assert (reopened.log_start, reopened.log_end, reopened.damaged) == (20, 20, None)


def test_a_trim_that_waited_alone_leaves_nothing_to_wait_for() -> None:
    disk, log, runner = new_log()
    for at in range(20):
        runner.run(log.stage_append([batch_at(at, size=100)]))
    fault = descriptors_used_up()
    disk.faults.append(fault)
    runner.submit(log.trim(15))
    assert runner.commit() == []
    disk.faults.remove(fault)
    assert runner.commit() == [None]
    runner.submit(log.stage_append([batch_at(20)]))
    assert runner.commit() == [None]
    assert (log.log_start, log.durable_end) == (15, 21)


def test_other_shards_are_not_held_up_by_one_that_waits_for_room() -> None:
    disk, log, runner = new_log()
    other = ShardLog.open(disk, "/other", SMALL)
    runner.run(log.stage_append([batch_at(0)]), other.stage_append([batch_at(0)]))
    disk.capacity_bytes = disk.used_bytes() + 200
    runner.submit(log.stage_append([batch_at(1, size=5000)]), other.stage_append([batch_at(1)]))
    assert runner.commit() == [None]
    assert (log.durable_end, other.durable_end) == (1, 2)


@pytest.mark.parametrize("kind", ["write", "fdatasync"])
def test_a_failed_write_or_fsync_is_final(kind: str) -> None:
    disk, log, runner = new_log()
    runner.run(log.stage_append([batch_at(0)]))
    disk.fail_kind, disk.fail_after, disk.fail_calls = kind, disk.calls, 2
    first, second = log.stage_append([batch_at(1)]), log.stage_append([batch_at(2)])
    runner.submit(first, second)
    errors = runner.commit()
    assert [type(error) for error in errors] == [StorageFailedError] * 2
    assert log.queue.failed is errors[0]
    disk.fail_after = None
    syncs = runner.committer.syncs
    runner.submit(log.stage_append([batch_at(3)]), log.hard_state.stage(9, None))
    assert [type(error) for error in runner.commit()] == [StorageFailedError] * 2
    assert runner.committer.syncs == syncs  # never tried again
    assert log.durable_end == 1


def test_enospc_from_fsync_is_final_too() -> None:
    disk, log, runner = new_log()
    runner.run(log.stage_append([batch_at(0)]))
    disk.fail_kind, disk.fail_after, disk.fail_errno = "fdatasync", disk.calls, errno.ENOSPC
    runner.submit(log.stage_append([batch_at(1)]))
    assert [type(error) for error in runner.commit()] == [StorageFailedError]


def test_a_failing_shard_leaves_the_others_alone() -> None:
    disk, log, runner = new_log()
    other = ShardLog.open(disk, "/other", SMALL)
    runner.run(log.stage_append([batch_at(0)]), other.stage_append([batch_at(0)]))
    disk.fail_kind, disk.fail_after, disk.fail_calls = "fdatasync", disk.calls, 3
    runner.submit(log.stage_append([batch_at(1)]), other.stage_append([batch_at(1)]))
    assert [type(error) for error in runner.commit()] == [StorageFailedError, type(None)]
    assert (log.durable_end, other.durable_end) == (1, 2)


@on_a_loop
async def test_disk_full_is_signalled_on_the_loop_and_passes() -> None:
    disk, log, _ = new_log()
    wal = WalThread(disk, retry_full_ms=5)
    loop = asyncio.get_running_loop()
    wal.start(loop)
    disk.capacity_bytes = 300
    done: list[AntiphonError | None] = []
    wal.submit(log.stage_append([batch_at(0, size=500)]), done.append)
    async with asyncio.timeout(20):
        await until(lambda: wal.disk_full)
        assert done == []
        disk.capacity_bytes = None
        await until(lambda: bool(done))
    assert done == [None]
    full_after: bool = wal.disk_full
    assert not full_after
    await wal.stop()


@on_a_loop
async def test_stopping_while_the_disk_is_full_says_so() -> None:
    disk, log, _ = new_log()
    wal = WalThread(disk, retry_full_ms=5)
    wal.start(asyncio.get_running_loop())
    disk.capacity_bytes = 0
    done: list[AntiphonError | None] = []
    wal.submit(log.stage_append([batch_at(0)]), done.append)
    await wal.stop()
    assert [type(error) for error in done] == [DiskFullError]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is a plain attribute, as the node reads it
        await asyncio.sleep(0.001)


def filled(batches: int = 12, config: LogConfig = SMALL) -> SimulatedDisk:
    disk, log, runner = new_log(config)
    for at in range(batches):
        runner.run(log.stage_append([batch_at(at, size=100, term=1 + at // 4)]))
    return disk


def test_every_flipped_bit_is_found_at_recovery_or_when_read() -> None:
    config = LogConfig()
    clean = filled(3, config)
    path = f"{DIRECTORY}/{0:020d}.log"
    size = data_bytes(clean, path)
    for bit in range(0, size * 8, 5):
        disk = filled(3, config)
        disk.flip_bit(path, bit)
        log = ShardLog.open(disk, DIRECTORY, config)
        at = bit // 8 // (size // 3)
        assert log.damaged is not None, bit
        assert (log.damaged.offset, log.log_end) == (at, at)
        assert log.end.term == (1 if at else 0)


def test_flips_in_closed_segments_are_found_when_read() -> None:
    disk = filled()
    log = ShardLog.open(disk, DIRECTORY, SMALL)
    assert log.reader.verify() == 12
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 8 * 13)  # the leader epoch, which no CRC of the batch covers
    log = ShardLog.open(disk, DIRECTORY, SMALL)
    before = log.damaged
    with pytest.raises(DamagedLogError):
        log.read(0, 1000, 12)
    assert before is None  # a snapshot stands for closed segments: they are not read at the start
    assert log.damaged
    log, runner = ShardLog.open(disk, DIRECTORY, SMALL), Runner(disk)
    assert log.damaged is not None  # remembered, and now everything was read
    assert (log.log_end, log.reader.verify()) == (0, 0)
    runner.run(log.stage_append([batch_at(at, term=9) for at in range(20)]))
    log = ShardLog.open(disk.crash(), DIRECTORY, SMALL)
    assert log.damaged is not None
    assert (log.log_end, log.reader.verify()) == (20, 20)  # what was fetched again is kept


def test_flips_in_the_index_are_mended_or_found() -> None:
    config = LogConfig()
    path = f"{DIRECTORY}/{0:020d}.index"
    for bit in range(0, 40 * 4 * 8, 7):
        disk = filled(3, config)
        disk.flip_bit(path, bit)
        log = ShardLog.open(disk, DIRECTORY, config)
        assert log.damaged is None, bit
        assert joined(log.read(0, 10**6, 3)) == b"".join(batch_at(at, size=100) for at in range(3))
        assert log.recovery.torn_bytes == 0


def test_what_comes_before_damage_is_read_also_where_a_crash_tore_its_index() -> None:
    disk = filled(3, LogConfig())
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.index", 8 * 60)  # the first entry
    data = f"{DIRECTORY}/{0:020d}.log"
    disk.flip_bit(data, 8 * (data_bytes(disk, data) - 10))
    for _ in range(2):
        log = ShardLog.open(disk, DIRECTORY, LogConfig())
        assert log.damaged is not None
        assert log.log_end == 2
        assert joined(log.read(0, 10**6, 2)) == b"".join(batch_at(at, size=100) for at in range(2))


def test_a_torn_tail_is_cut_and_said() -> None:
    disk = filled(3, LogConfig())
    path = f"{DIRECTORY}/{0:020d}.log"
    file = disk.open(path)
    size = data_bytes(disk, path)
    file.pwritev([batch_at(3, size=100)[:70]], size)
    log = ShardLog.open(disk, DIRECTORY, LogConfig())
    assert log.damaged is None
    assert (log.log_end, log.recovery.torn_bytes) == (3, 70)
    assert log.recovery.torn_reason is not None
    assert file.size() == size


def test_a_file_that_lost_its_end_is_damage() -> None:
    disk = filled(3, LogConfig())
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.open(path).truncate(data_bytes(disk, path) * 2 // 3)
    log = ShardLog.open(disk, DIRECTORY, LogConfig())
    assert log.damaged is not None
    assert log.log_end == 2


@pytest.mark.parametrize("name", ["log", "index"])
def test_a_missing_file_in_the_middle(name: str) -> None:
    disk = filled()
    bases = sorted(int(n.split(".")[0]) for n in disk.listdir(DIRECTORY) if n.endswith(".log"))
    disk.remove(f"{DIRECTORY}/{bases[1]:020d}.{name}")
    log = ShardLog.open(disk, DIRECTORY, SMALL)
    if name == "index":
        assert log.damaged is None  # made again from the data
        assert log.reader.verify() == 12
    else:
        assert log.damaged is not None
        assert log.log_end == bases[1]


def test_a_damaged_log_is_refetched_and_says_damaged_until_told() -> None:
    for how in ("reset", "truncate", "append"):
        disk = filled()
        last = max(name for name in disk.listdir(DIRECTORY) if name.endswith(".log"))
        disk.flip_bit(f"{DIRECTORY}/{last}", 8 * 90)
        log, runner = ShardLog.open(disk, DIRECTORY, SMALL), Runner(disk)
        assert log.damaged is not None
        end = log.log_end
        assert 0 < end < 12
        if how == "reset":
            runner.run(log.reset(EntryId(0, 0)))
            end = 0
        elif how == "truncate":
            end -= 1
            runner.run(log.truncate(end))
        runner.run(log.stage_append([batch_at(end, term=9)]))
        log = ShardLog.open(disk.crash(), DIRECTORY, SMALL)
        assert log.end == EntryId(9, end + 1)
        assert log.damaged is not None  # it may still lack what it once acknowledged
        runner.run(log.clear_damage())
        assert log.damaged is None


def test_an_unreadable_snapshot_only_costs_time() -> None:
    disk = filled()
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.flip_bit(f"{DIRECTORY}/{name}", 200)
    log = ShardLog.open(disk, DIRECTORY, SMALL)
    assert log.recovery.snapshot_offset is None
    assert log.recovery.scanned_bytes == log.size_bytes
    assert (log.log_end, log.damaged) == (12, None)
    assert log.terms.items() == [(1, 0), (2, 4), (3, 8)]


@pytest.mark.parametrize("members", [False, True])
def test_a_flipped_version_of_a_snapshot_only_costs_time(members: bool) -> None:
    """The log can do without, and a flip makes no newer format."""
    for bit in range(8 * 8, 12 * 8):
        disk, log, runner = new_log(LogConfig())
        if members:
            runner.run(log.stage_append([build_members(Members((1, 2, 3)), 1, 0, 1000)]))
        runner.run(log.stage_append([batch_at(log.log_end)]), log.checkpoint())
        (name,) = (name for name in disk.listdir(DIRECTORY) if name.endswith(".snapshot"))
        disk.flip_bit(f"{DIRECTORY}/{name}", bit)
        found = ShardLog.open(disk, DIRECTORY, LogConfig())
        assert (found.log_end, found.damaged) == (log.log_end, None)
        assert found.members.current == log.members.current


@pytest.mark.parametrize("flush", ["always", "interval"])
def test_what_a_failed_fsync_left_in_the_page_cache_counts_only_once_it_was_written_again(flush: str) -> None:
    """After a failed fsync the kernel takes the pages for clean: the next one succeeds and writes nothing."""
    config = SMALL._replace(flush=flush)
    for seed in range(40):
        disk = SimulatedDisk(Random(seed))
        log, runner = ShardLog.open(disk, DIRECTORY, config), Runner(disk)
        runner.run(log.hard_state.stage(1, None), log.stage_append([batch_at(0)]))
        runner.committer.sync_dirty()
        disk.fail_kind, disk.fail_after = "fdatasync", disk.calls
        runner.submit(log.stage_append([batch_at(1, size=300), batch_at(2, size=300)]))
        runner.commit()
        runner.committer.sync_dirty()
        assert log.queue.failed is not None
        disk = disk.kill()
        found = ShardLog.open(disk, DIRECTORY, config)
        assert found.damaged is None
        after = ShardLog.open(disk.crash(), DIRECTORY, config)
        assert after.damaged is None, seed
        assert after.log_end >= found.log_end, seed
        assert after.log_end >= 1


# -- a bit in the term of a batch, under no checksum but the index entry's ----------------------------------------------

_TERM_BYTES = range(12, 16)


def unproven(terms: Sequence[int], *, promised: int) -> SimulatedDisk:
    """A log of batches of these terms, as a power failure leaves it that took the index entries of all but the first."""
    config = LogConfig()
    disk, log, runner = new_log(config)
    for at, term in enumerate(terms):
        if log.hard_state.term < term:
            runner.run(log.hard_state.stage(term, None))
        runner.run(log.stage_append([batch_at(at, size=100, term=term)]))
    if log.hard_state.term < promised:
        runner.run(log.hard_state.stage(promised, None))
    index = disk.open(f"{DIRECTORY}/{0:020d}.index")
    index.truncate(entry_position(1))
    index.fdatasync()
    return disk


def test_a_batch_of_a_term_that_was_never_promised_ends_the_log_before_it() -> None:
    """multi 401530: it was kept with the flipped term, all behind it was cut off as torn, and its leader contradicted it."""
    data = f"{DIRECTORY}/{0:020d}.log"
    size = data_bytes(unproven((1, 1, 1, 1), promised=3), data) // 4
    found = 0
    for at in (1, 2, 3):
        for bit in (8 * (at * size + byte) + bit for byte in _TERM_BYTES for bit in range(8)):
            disk = unproven((1, 1, 1, 1), promised=3)
            disk.flip_bit(data, bit)
            term = int.from_bytes(disk.open(data).pread(4, at * size + _TERM_BYTES.start), "big", signed=True)
            if term <= 3:
                continue  # nothing tells it from one that was written
            found += 1
            for _ in range(2):
                log = ShardLog.open(disk, DIRECTORY, LogConfig(), promises=True)
                assert log.damaged is not None, (at, term)
                assert log.damaged.forgot, "the promise may as well be what was lost"
                assert (log.damaged.offset, log.end, log.recovery.torn_bytes) == (at, EntryId(1, at), 0)
                assert log.hard_state.term == 3, "a flipped bit says nothing of terms"
            runner = Runner(disk)
            runner.run(log.hard_state.stage(4, None), log.stage_append([batch_at(at, term=4)]))
            runner.run(log.clear_damage())
            log = ShardLog.open(disk.crash(), DIRECTORY, LogConfig(), promises=True)
            assert (log.damaged, log.end) == (None, EntryId(4, at + 1))
    assert found == 3 * 29  # 30 bits make the term a later one; with one of them it is 3, which was promised


def test_a_promise_older_than_what_is_proven_does_not_end_the_log() -> None:
    disk = unproven((2, 2, 2), promised=2)
    disk.remove(f"{DIRECTORY}/hard-state")
    log = ShardLog.open(disk, "/old", LogConfig())
    Runner(disk).run(log.hard_state.stage(1, None))
    disk.rename("/old/hard-state", f"{DIRECTORY}/hard-state")
    log = ShardLog.open(disk, DIRECTORY, LogConfig(), promises=True)
    assert log.damaged is not None
    assert log.damaged.forgot
    assert (log.end, log.hard_state.term) == (EntryId(2, 3), 2)


def test_a_term_beyond_the_only_one_is_damage_that_forgets_nothing() -> None:
    disk = unproven((1, 1, 1), promised=0)
    data = f"{DIRECTORY}/{0:020d}.log"
    disk.flip_bit(data, 8 * (data_bytes(disk, data) // 3 + _TERM_BYTES.start))
    log = ShardLog.open(disk, DIRECTORY, LogConfig(), only_term=1)
    assert log.damaged is not None
    assert (log.damaged.offset, log.damaged.forgot, log.end) == (1, False, EntryId(1, 1))


def test_a_known_damage_becomes_a_lost_promise_where_a_term_is_beyond_it() -> None:
    disk = unproven((1, 1, 1), promised=1)
    save_damage(disk, DIRECTORY, DamageReport(2, DIRECTORY, 0, "of before"))
    data = f"{DIRECTORY}/{0:020d}.log"
    disk.flip_bit(data, 8 * (data_bytes(disk, data) // 3 + _TERM_BYTES.start))
    ShardLog.open(disk, DIRECTORY, LogConfig(), promises=True)
    marker = load_damage(disk, DIRECTORY)
    assert marker is not None
    assert marker.forgot


@pytest.mark.parametrize("byte", [7, 12])
def test_a_whole_batch_with_another_offset_or_a_lower_term_is_no_torn_write(byte: int) -> None:
    """What a write leaves that a crash cut short has no right CRC. So something that was durable is bad now."""
    disk = unproven((1, 1, 1), promised=1)
    data = f"{DIRECTORY}/{0:020d}.log"
    disk.flip_bit(data, 8 * (data_bytes(disk, data) // 3 + byte) + 7)  # the term becomes negative
    log = ShardLog.open(disk, DIRECTORY, LogConfig(), promises=True)
    assert log.damaged is not None
    assert (log.damaged.offset, log.damaged.forgot, log.end) == (1, False, EntryId(1, 1))
    assert log.recovery.torn_bytes == 0
