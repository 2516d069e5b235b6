"""A shard's log on a real directory."""

import errno
import random
import tracemalloc
from pathlib import Path

import pytest

from antiphon.errors import OffsetOutOfRangeError
from antiphon.invariants import InvariantError
from antiphon.log.config import LogConfig
from antiphon.log.disk import RealDisk
from antiphon.log.producer_state import Duplicate, ProducerState
from antiphon.log.recovery import DamageReport, save_damage
from antiphon.log.segment import SNAPSHOT_SUFFIX, offsets_of
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault
from antiphon.log.tail import MemoryTail
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.entry_id import EntryId
from tests.log.helpers import Runner, batch_at, joined
from tests.memory import allocated_at_most

TIME = 1000  # ms, of all batches here
SMALL = LogConfig(segment_bytes=1000, tail_bytes_max=1300)


class Log:
    """A log, its disk and what should be in it."""

    def __init__(self, path: Path, config: LogConfig = SMALL) -> None:
        self.path = str(path / "shard")
        self.config = config
        self.disk = RealDisk(open_files_max=4)
        self.runner = Runner(self.disk)
        self.log = ShardLog.open(self.disk, self.path, config)
        self.expected: list[bytes] = []

    def append(self, *counts: int, term: int = 1, size: int = 10) -> None:
        batches: list[tuple[int, int]] = []
        for count in counts:
            end = self.log.log_end if not batches else batches[-1][0] + batches[-1][1]
            batches.append((end, count))
        built = [bytes(batch_at(at, count=n, term=term, size=size, timestamp=at * 10)) for at, n in batches]
        self.expected += built
        self.runner.run(self.log.stage_append(built))

    def reopen(self) -> None:
        self.log = ShardLog.open(RealDisk(), self.path, self.config)

    def content(self) -> bytes:
        found = []
        at = self.log.log_start
        while at < self.log.log_end:
            batches = self.log.read(at, 500, self.log.log_end)
            assert batches
            found += batches
            at = int.from_bytes(batches[-1][:8], "big") + int.from_bytes(batches[-1][23:27], "big") + 1
        return joined(found)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.log.log_start, log.log.log_end, log.log.durable_end, log.log.size_bytes) == (0, 0, 0, 0)
    assert log.log.end == EntryId(0, 0)
    assert log.log.read(0, 100, 0) == []
    assert log.log.damaged is None
    assert log.log.reader.offset_for_timestamp(0) is None
    assert log.log.reader.offset_of_max_timestamp() is None


def test_staged_batches_are_readable_before_they_are_durable(log: Log) -> None:
    batch = batch_at(0, count=3)
    op = log.log.stage_append([batch])
    assert (log.log.log_end, log.log.durable_end) == (3, 0)
    assert joined(log.log.read(1, 1000, 3)) == batch
    log.runner.run(op)
    assert log.log.durable_end == 3


def test_what_is_read_is_what_was_written_through_many_segments_and_reopenings(log: Log) -> None:
    rng = random.Random(1)
    for _ in range(40):
        log.append(*[rng.randint(1, 4) for _ in range(rng.randint(1, 4))], size=rng.choice((5, 50, 1500)))
        if rng.random() < 0.2:
            log.reopen()
    assert log.content() == b"".join(log.expected)
    log.reopen()
    assert log.log.segment_count > 5
    assert log.content() == b"".join(log.expected)
    assert log.log.size_bytes == len(log.content())
    assert log.log.durable_end == log.log.log_end
    assert log.log.reader.verify() == len(log.expected)


def test_reads_respect_their_bounds(tmp_path: Path) -> None:
    log = Log(tmp_path, LogConfig())
    log.append(2, 2, 2, 2)
    size = len(log.expected[0])
    for reopened in (False, True):
        read = log.log.read
        assert joined(read(3, 1, 8)) == log.expected[1]  # at least one, though larger than one byte
        assert read(3, 1, 8, at_least_one=False) == []
        assert joined(read(2, size * 2, 8)) == b"".join(log.expected[1:3])
        assert joined(read(2, size * 2 - 1, 8)) == log.expected[1]
        assert joined(read(0, 10**6, 5)) == b"".join(log.expected[:2])  # 4..5 would reach beyond the end
        assert read(4, 10**6, 5) == []
        assert read(8, 10, 8) == []
        with pytest.raises(OffsetOutOfRangeError):
            read(9, 10, 9)
        assert log.log.is_in_memory(0) != reopened
        log.reopen()


def test_the_bound_of_the_tail_counts_what_small_batches_cost() -> None:
    """A view, an offset and a place each: half a thousand bytes, where the batch itself has a hundred and seventy."""
    tail, bound_bytes = MemoryTail(0), 256 * 1024
    batch = bytes(build_batch([(None, bytes(100), (), 1)]))
    with allocated_at_most(2 * bound_bytes):  # what went is let go of in lots
        for offset in range(5_000):
            view = memoryview(bytes(bytearray(batch)))[:]
            tail.append(10**6 + offset, 10**6 + offset + 1, view, (10**6 + offset, 10**6 + offset))
            tail.evict(bound_bytes, 1 << 60)
    assert 200 < len(tail) < 1000


def test_the_tail_is_bounded_and_can_be_released(log: Log) -> None:
    for _ in range(50):
        log.append(1, size=40)
    assert log.log.memory_bytes <= 1300
    assert not log.log.is_in_memory(0)
    assert log.log.is_in_memory(49)
    log.log.release_memory()
    assert log.log.memory_bytes == 0
    assert log.content() == b"".join(log.expected)
    staged = log.log.stage_append([batch_at(50, size=2000)])
    log.log.release_memory()
    assert log.log.memory_bytes > 2000  # not durable yet
    log.runner.run(staged)


def test_appends_that_do_not_fit_are_a_bug(log: Log) -> None:
    log.append(2, term=3)
    for wrong in (batch_at(3, term=3), batch_at(1, term=3), batch_at(2, term=2), batch_at(2, term=3) + b"x"):
        with pytest.raises(InvariantError):
            log.log.stage_append([wrong])
    with pytest.raises(InvariantError):
        log.log.stage_append([])


@pytest.mark.parametrize("reopen_first", [False, True])
def test_truncate_at_batches_of_every_segment(tmp_path: Path, reopen_first: bool) -> None:
    for cut in (0, 1, 9, 10, 15, 29, 30):
        log = Log(tmp_path / f"{cut}{reopen_first}")
        for at in range(0, 30, 5):
            log.append(1, 1, 1, 1, 1, term=1 + at // 10, size=60)
        if reopen_first:
            log.reopen()
        log.runner.run(log.log.truncate(cut))
        del log.expected[cut:]
        assert log.log.log_end == cut
        assert log.log.durable_end == cut
        assert log.content() == b"".join(log.expected)
        log.append(1, 2, term=7)
        log.reopen()
        assert log.content() == b"".join(log.expected)
        assert log.log.end == EntryId(7, cut + 3)
        assert log.log.recovery.torn_bytes == 0


def test_truncate_inside_a_batch_or_outside_the_log_is_a_bug(log: Log) -> None:
    log.append(3, 3)
    for to in (1, 4, 5, 7, -1):
        with pytest.raises(InvariantError):
            log.log.truncate(to)
    log.reopen()
    with pytest.raises(InvariantError):
        log.log.truncate(4)


def test_a_cut_outdates_completions_of_what_it_cut(log: Log) -> None:
    first = log.log.stage_append([batch_at(0), batch_at(1), batch_at(2)])
    cut = log.log.truncate(1)
    again = log.log.stage_append([batch_at(1, term=2)])
    log.runner.submit(first, cut, again)
    assert log.log.durable_end == 0
    log.runner.commit()
    assert log.log.durable_end == 2
    log.reopen()
    assert log.log.end == EntryId(2, 2)


def test_reset_empties_and_goes_on_elsewhere(log: Log) -> None:
    log.append(1, 2, 3)
    log.runner.run(log.log.reset(EntryId(4, 100)))
    assert (log.log.log_start, log.log.log_end, log.log.durable_end, log.log.size_bytes) == (100, 100, 100, 0)
    log.expected.clear()
    log.reopen()
    assert log.log.end == EntryId(4, 100)
    log.append(2, term=5)
    log.reopen()
    assert (log.log.log_start, log.log.end) == (100, EntryId(5, 102))
    assert log.log.terms.term_before(100) == 4
    assert log.content() == log.expected[0]
    log.runner.run(log.log.reset(EntryId(1, 3)))  # also backwards
    log.reopen()
    assert log.log.end == EntryId(1, 3)


def test_reset_takes_over_the_producers_of_before(log: Log) -> None:
    """They stay known over restarts, rolled segments, damage, and until retention has passed them by."""
    theirs = ProducerState()
    theirs.update(read_header(batch_at(90, producer_id=9, sequence=4)))
    log.runner.run(log.log.reset(EntryId(4, 100), theirs))
    for _ in range(2):
        log.reopen()
        retry = log.log.producers.check(read_header(batch_at(0, producer_id=9, sequence=4)))
        assert retry == Duplicate(90, 91, TIME)
        for _ in range(40):  # several segments, each of which leaves a snapshot
            log.append(1, term=5, size=60)
    save_damage(log.disk, log.path, DamageReport(log.log.log_end, "", 0, "everything is read again"))
    log.reopen()
    assert log.log.producers.last_batch(9) is not None
    log.runner.run(log.log.clear_damage(), log.log.trim(log.log.log_end))
    log.reopen()
    assert log.log.log_start == log.log.log_end == 180


def test_producers_outlive_the_segments_that_hold_their_batches(log: Log) -> None:
    log.runner.run(log.log.stage_append([batch_at(0, producer_id=9, sequence=0, size=900)]))
    log.runner.run(log.log.stage_append([batch_at(1, size=900)]))
    log.runner.run(log.log.trim(1))
    log.reopen()
    assert (log.log.log_start, log.log.damaged) == (1, None)
    assert log.log.producers.check(read_header(batch_at(1, producer_id=9, sequence=0))) == Duplicate(
        0, 1, TIME
    )


@pytest.mark.parametrize("was_reset", [False, True], ids=["a segment before", "a snapshot"])
@pytest.mark.parametrize("is_damaged", [False, True], ids=["sound", "damaged"])
def test_producers_outlive_a_trim_within_the_first_segment_that_is_left(
    log: Log, was_reset: bool, is_damaged: bool
) -> None:
    if was_reset:
        theirs = ProducerState()
        theirs.update(read_header(batch_at(0, producer_id=9, sequence=0)))
        log.runner.run(log.log.reset(EntryId(1, 1), theirs))
    else:
        log.runner.run(log.log.stage_append([batch_at(0, producer_id=9, sequence=0, size=900)]))
    for at in (1, 2, 3):
        log.runner.run(log.log.stage_append([batch_at(at, size=60)]))
    log.runner.run(log.log.trim(2))
    if is_damaged:
        save_damage(log.disk, log.path, DamageReport(4, "", 0, "everything is read again"))
    log.reopen()
    assert (log.log.log_start, log.log.log_end, log.log.segment_count) == (2, 4, 1)
    assert log.log.producers.check(read_header(batch_at(4, producer_id=9, sequence=0))) == Duplicate(
        0, 1, TIME
    )


@pytest.mark.parametrize("trimmed", [0, 4], ids=["between segments", "within one"])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "rotten"])
def test_producers_outlive_damage_of_a_log_that_was_trimmed(log: Log, trimmed: int, is_lost: bool) -> None:
    """The snapshots that are left are of later offsets than the damage; they still know who wrote what was trimmed."""
    log.runner.run(log.log.stage_append([batch_at(0, producer_id=9, sequence=0)]))
    for _ in range(60):
        log.append(2)
    log.runner.run(log.log.stage_append([batch_at(log.log.log_end, producer_id=8, sequence=0)]))
    _, _, first, bad, *_ = log.log.reader.views()
    start = first.base_offset + trimmed
    log.runner.run(log.log.trim(start))
    assert min(offsets_of(log.disk.listdir(log.path), SNAPSHOT_SUFFIX)) > bad.base_offset
    if is_lost:
        Path(bad.data_path).unlink()
    else:
        content = bytearray(Path(bad.data_path).read_bytes())
        content[50] ^= 1
        Path(bad.data_path).write_bytes(content)
        save_damage(log.disk, log.path, DamageReport(bad.base_offset, bad.data_path, 0, "a read has met it"))
    theirs = read_header(batch_at(200, producer_id=9, sequence=0))
    for _ in range(2):
        log.reopen()
        assert (log.log.log_start, log.log.log_end, log.log.damaged is None) == (
            start,
            bad.base_offset,
            False,
        )
        assert log.log.producers.check(theirs) == Duplicate(0, 1, TIME)
        assert not log.log.producers.knows(8), "what comes next may be another batch"
    log.runner.run(log.log.truncate(log.log.log_end))  # as its leader has it done before it sends the rest
    for _ in range(2):
        log.reopen()
        assert log.log.producers.check(theirs) == Duplicate(0, 1, TIME)
        log.append(2)


def test_producers_outlive_a_deep_cut_of_a_log_that_was_trimmed(log: Log) -> None:
    """Deeper than what is remembered to be undone, and than the snapshots that are left."""
    log.runner.run(log.log.stage_append([batch_at(0, producer_id=9, sequence=0, timestamp=9000)]))
    for _ in range(60):
        log.append(2)
    log.runner.run(log.log.stage_append([batch_at(log.log.log_end, producer_id=8, sequence=0)]))
    start = log.log.reader.views()[2].base_offset + 4
    log.runner.run(log.log.trim(start))
    assert log.log.producers.expire(5000) == 1
    assert min(offsets_of(log.disk.listdir(log.path), SNAPSHOT_SUFFIX)) > start + 8
    log.runner.run(log.log.truncate(start + 8))
    theirs = read_header(batch_at(200, producer_id=9, sequence=0))
    for _ in range(2):
        assert log.log.producers.check(theirs) == Duplicate(0, 1, 9000)
        assert not log.log.producers.knows(8)
        log.reopen()
        assert (log.log.log_start, log.log.log_end, log.log.damaged) == (start, start + 8, None)


@pytest.mark.parametrize("is_cut", [False, True], ids=["at first", "again"])
def test_damage_before_the_start_of_a_log_has_it_begin_earlier_with_its_producers(
    log: Log, is_cut: bool
) -> None:
    """What is missing between the damage and the start told of producers too: its leader sends it, or a snapshot."""
    log.runner.run(log.log.stage_append([batch_at(0, producer_id=9, sequence=0)]))
    for _ in range(60):
        log.append(2)
    _, _, first, second, *_ = log.log.reader.views()
    log.runner.run(log.log.trim(first.base_offset + 8))
    if is_cut:
        Path(second.data_path).unlink()
        log.reopen()
        log.runner.run(log.log.truncate(log.log.log_end))
    content = bytearray(Path(first.data_path).read_bytes())
    content[150] ^= 1
    Path(first.data_path).write_bytes(content)
    save_damage(
        log.disk, log.path, DamageReport(first.base_offset + 2, first.data_path, 95, "a scrub met it")
    )
    for _ in range(2):
        log.reopen()
        assert (log.log.log_start, log.log.log_end) == (first.base_offset, first.base_offset + 2)
        assert log.log.damaged is not None
        theirs = read_header(batch_at(200, producer_id=9, sequence=0))
        assert log.log.producers.check(theirs) == Duplicate(0, 1, TIME)


def test_trim_removes_whole_segments_and_moves_the_start(log: Log) -> None:
    for at in range(30):
        log.append(1, term=1 + at // 10, size=60)
    before = log.log.segment_count
    log.runner.run(log.log.trim(15))
    assert log.log.log_start == 15
    assert log.log.segment_count < before
    assert log.log.terms.start == EntryId(2, 15)
    assert log.log.trim(15) is None
    with pytest.raises(OffsetOutOfRangeError):
        log.log.read(14, 100, 30)
    log.reopen()
    assert (log.log.log_start, log.log.log_end, log.log.terms.start) == (15, 30, EntryId(2, 15))
    assert log.content() == b"".join(log.expected[15:])
    log.runner.run(log.log.trim(30))
    assert (log.log.log_start, log.log.log_end, log.log.size_bytes) == (30, 30, 0)
    log.reopen()
    assert log.log.end == EntryId(3, 30)
    log.append(1, term=3)
    assert log.content() == log.expected[-1]


def test_what_is_known_of_producers_outlives_a_trim_of_everything(log: Log) -> None:
    log.runner.run(log.log.stage_append([batch_at(0, producer_id=9, sequence=0)]))
    log.runner.run(log.log.trim(1))
    for _ in range(2):
        log.reopen()
        assert (log.log.log_start, log.log.log_end, log.log.damaged) == (1, 1, None)
        assert log.log.producers.check(read_header(batch_at(1, producer_id=9, sequence=0))) == Duplicate(
            0, 1, TIME
        )


def test_the_batch_that_holds_an_offset(log: Log) -> None:
    for _ in range(30):
        log.append(3, size=60)
    for in_memory in (True, False):
        starts = [log.log.reader.batch_start(offset) for offset in (0, 1, 44, 45, 89, 90)]
        assert starts == [0, 0, 42, 45, 87, 90], in_memory
        log.log.release_memory()
    log.runner.run(log.log.trim(45))
    assert [log.log.reader.batch_start(offset) for offset in (45, 47, 48)] == [45, 45, 48]


def test_what_was_trimmed_is_not_read_from_memory_either(log: Log) -> None:
    for _ in range(4):
        log.append(1)
    log.runner.run(log.log.trim(2))
    with pytest.raises(OffsetOutOfRangeError):
        log.log.read(1, 100, 4)


def test_trim_inside_a_batch_keeps_the_batch(log: Log) -> None:
    log.append(5, 5)
    log.runner.run(log.log.trim(3))
    log.reopen()
    assert log.log.log_start == 3
    assert log.content() == b"".join(log.expected)


def test_retention_by_age_and_size_stops_at_the_high_watermark(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_ms=100)
    log = Log(tmp_path, config)
    for _ in range(30):
        log.append(1)  # timestamps 0, 10, 20, ...
    assert log.log.apply_retention(now_ms=50, high_watermark=30) is None
    assert log.log.apply_retention(now_ms=10_000, high_watermark=0) is None
    log.runner.run(log.log.apply_retention(now_ms=200, high_watermark=30))
    assert 0 < log.log.log_start <= 10
    log.runner.run(log.log.apply_retention(now_ms=10**6, high_watermark=21))
    assert 10 < log.log.log_start <= 21
    log.runner.run(log.log.apply_retention(now_ms=10**6, high_watermark=30))
    assert log.log.log_start == 30
    log.log.configure(config._replace(retention_ms=-1, retention_bytes=400))
    for _ in range(30):
        log.append(1)
    log.runner.run(log.log.apply_retention(now_ms=10**6, high_watermark=60))
    assert 400 <= log.log.size_bytes < 700
    assert log.content() == b"".join(log.expected[log.log.log_start :])


def test_segments_roll_by_age(tmp_path: Path) -> None:
    now = [0]
    disk = RealDisk()
    log = ShardLog.open(disk, str(tmp_path / "s"), LogConfig(segment_ms=1000), clock_ms=lambda: now[0])
    runner = Runner(disk)
    for at, now_ms in enumerate((0, 999, 1000, 1500, 2000)):
        now[0] = now_ms
        runner.run(log.stage_append([batch_at(at)]))
    assert log.segment_count == 3


def test_offsets_by_timestamp_on_disk_and_in_memory(log: Log) -> None:
    for _ in range(30):
        log.append(2)  # records at 20 * n and one ms later
    for reopened in (False, True):
        assert log.log.reader.offset_for_timestamp(0) == (0, 0)
        assert log.log.reader.offset_for_timestamp(1) == (1, 1)
        assert log.log.reader.offset_for_timestamp(2) == (2, 20)
        assert log.log.reader.offset_for_timestamp(581) == (59, 581)
        assert log.log.reader.offset_for_timestamp(582) is None
        assert log.log.reader.offset_of_max_timestamp() == (59, 581)
        if not reopened:
            log.reopen()
    log.runner.run(log.log.truncate(40))
    assert log.log.reader.offset_of_max_timestamp() == (39, 381)
    log.runner.run(log.log.trim(10))
    assert log.log.reader.offset_for_timestamp(0) == (10, 100)


def test_a_clean_stop_leaves_nothing_to_scan(log: Log) -> None:
    log.append(1, 1, 1)
    log.reopen()
    assert log.log.recovery.scanned_bytes == log.log.size_bytes
    log.runner.run(log.log.checkpoint())
    log.reopen()
    assert log.log.recovery.scanned_bytes == 0
    assert log.log.recovery.snapshot_offset == 3
    assert log.content() == b"".join(log.expected)
    log.append(1)
    log.reopen()
    assert log.log.recovery.scanned_bytes == len(log.expected[-1])


def test_snapshots_bound_what_a_crash_costs(tmp_path: Path) -> None:
    log = Log(tmp_path, LogConfig(snapshot_bytes=1000))
    for _ in range(100):
        log.append(1, size=50)
    log.reopen()
    assert log.log.recovery.scanned_bytes <= 1200
    assert len(list(Path(log.path).glob("*.snapshot"))) == 2


def test_a_snapshot_of_what_was_cut_off_is_never_used(log: Log) -> None:
    log.append(1, 1, 1)
    log.runner.run(log.log.checkpoint())
    log.runner.run(log.log.truncate(1))
    del log.expected[1:]
    log.append(1, 1, 1, term=2)
    log.reopen()
    assert log.log.terms.items() == [(1, 0), (2, 1)]
    assert log.content() == b"".join(log.expected)


def test_a_planned_read_survives_cuts_without_blame(log: Log) -> None:
    for _ in range(20):
        log.append(1, size=60)
    log.log.release_memory()
    reads = [log.log.plan_read(at, 10**6, 20) for at in range(20)]
    log.runner.run(log.log.trim(10))
    log.runner.run(log.log.truncate(15), log.log.stage_append([batch_at(15, term=2, size=90)]))
    for at, read in enumerate(reads):
        found = joined(read())
        assert b"".join(log.expected[at:]).startswith(
            found[: len(log.expected[0]) * (15 - at)] if at < 15 else b""
        )
    assert log.log.damaged is None


def test_producers_survive_reopening_and_cuts(log: Log) -> None:
    for n in range(20):
        batch = batch_at(log.log.log_end, producer_id=7, sequence=n, size=60)
        log.runner.run(log.log.stage_append([batch]))
    for _ in range(2):
        last = log.log.producers.last_batch(7)
        assert last is not None
        assert (last.last_sequence, last.base_offset) == (19, 19)
        log.reopen()
    log.runner.run(log.log.truncate(12))
    last = log.log.producers.last_batch(7)
    assert last is not None
    assert last.last_sequence == 11


def test_a_cut_deeper_than_the_memory_of_producers_reads_the_log_again(log: Log) -> None:
    for n in range(200):
        log.runner.submit(log.log.stage_append([batch_at(n, producer_id=7, sequence=n, size=60)]))
    log.runner.commit()
    log.runner.run(log.log.truncate(30))
    last = log.log.producers.last_batch(7)
    assert last is not None
    assert last.last_sequence == 29
    log.reopen()
    assert log.log.producers.last_batch(7) == last


def test_config_changes_take_effect(log: Log) -> None:
    log.log.configure(SMALL._replace(flush="os"))
    log.append(1)
    assert log.runner.committer.syncs == 0
    log.reopen()
    assert log.content() == log.expected[0]


def test_idle_shards_cost_almost_nothing(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=16)
    runner = Runner(disk)
    logs = [ShardLog.open(disk, str(tmp_path / str(n)), LogConfig(flush="os")) for n in range(60)]
    assert disk.open_files() == 0
    runner.run(*[log.stage_append([batch_at(0, size=10_000)]) for log in logs])
    for log in logs:
        log.release_memory()
    assert disk.open_files() <= 16
    assert sum(log.memory_bytes for log in logs) == 0
    disk.close()
    tracemalloc.start()
    again = [ShardLog.open(disk, str(tmp_path / str(n))) for n in range(60)]
    bytes_each = tracemalloc.get_traced_memory()[0] // len(again)
    tracemalloc.stop()
    assert bytes_each < 10_000
    disk.close()


def test_the_name_of_a_directory_is_durable_before_what_is_in_it_also_where_an_opening_failed() -> None:
    disk = SimulatedDisk(random.Random(1))
    fault = Fault(("listdir",), errno.EMFILE)
    disk.faults.append(fault)
    with pytest.raises(OSError, match="open files"):
        ShardLog.open(disk, "/shard")
    disk.faults.remove(fault)
    log, runner = ShardLog.open(disk, "/shard"), Runner(disk)
    runner.submit(log.hard_state.stage(7, 2))
    runner.commit()
    assert ShardLog.open(disk.crash(), "/shard").hard_state.term == 7
