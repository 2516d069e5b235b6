"""Compaction of one log: what stays, what the files are at any crash, and what those who read meanwhile get."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from antiphon import system
from antiphon.log import compaction
from antiphon.log.cleaner import ENTRY_BYTES
from antiphon.log.compaction import CompactionPass, extent_of, is_due
from antiphon.log.config import Compaction, LogConfig
from antiphon.log.disk import RealDisk
from antiphon.log.log_check import LogCheck
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch, build_end_marker, build_term_start
from antiphon.records.decode import decode_records
from antiphon.records.entry_id import EntryId
from antiphon.tools.bench import compaction as bench
from tests.log.helpers import Runner

RULES = Compaction(delete_retention_ms=1 << 40)
CONFIG = LogConfig(segment_bytes=600, compaction=RULES, tail_bytes_max=0)
MAP_BYTES = 1 << 20
PATH = "/data/shards/1"
Record = tuple[bytes | None, bytes | None]


class Fixture:
    """A log on a disk, and what was written to it: offset, key and value of each record."""

    def __init__(self, disk: Any = None, config: LogConfig = CONFIG) -> None:
        self.disk = disk or SimulatedDisk(Random(1))
        self.now_ms = 1_000_000
        self.runner = Runner(self.disk)
        self.log = ShardLog.open(self.disk, PATH, config, clock_ms=lambda: self.now_ms)
        self.written: list[tuple[int, bytes | None, bytes | None]] = []

    def append(self, *records: Record, term: int = 1, **fields: Any) -> int:
        at = self.log.log_end
        batch = build_batch(
            [(key, value, (), 1000 + at + i) for i, (key, value) in enumerate(records)],
            base_offset=at,
            leader_epoch=term,
            **fields,
        )
        self.runner.run(self.log.stage_append([batch]))
        self.written += [(at + i, key, value) for i, (key, value) in enumerate(records)]
        return at

    def marker(self, producer: int, number: int, *, commit: bool) -> None:
        marker = build_end_marker(
            commit=commit,
            number=number,
            producer=(producer, 0),
            term=1,
            base_offset=self.log.log_end,
            timestamp_ms=0,
        )
        self.runner.run(self.log.stage_append([marker]))

    def roll(self) -> None:
        """Close the newest segment."""
        self.runner.run(self.log.stage_append([build_term_start(1, self.log.log_end, 0)]))
        self.now_ms += CONFIG.segment_ms
        self.runner.run(self.log.stage_append([build_term_start(1, self.log.log_end, 0)]))

    def compact(
        self, rules: Compaction = RULES, map_bytes: int = MAP_BYTES, limit: int | None = None
    ) -> CompactionPass:
        extent = extent_of(self.log, rules, self.log.log_end if limit is None else limit, 1 << 50)
        work = CompactionPass(self.log, rules, extent, map_bytes)
        self.carry_out(work)
        self.runner.run(work.ended())
        return work

    def carry_out(self, work: CompactionPass) -> None:
        while (piece := work.plan()) is not None:
            piece()
            self.runner.run(work.staged())

    def batches(self) -> Iterator[memoryview]:
        at = self.log.log_start
        while at < self.log.log_end:
            found = self.log.plan_read(at, 1 << 20, self.log.log_end, from_disk=True)()
            assert found
            yield from found
            at = read_header(found[-1]).next_offset

    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(one.offset, one.key, one.value) for one in decode_records(b"".join(self.batches()))]

    def newest(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """What compaction of all of it leaves, tombstones among it."""
        last = {key: offset for offset, key, _ in self.written}
        return [one for one in self.written if last[one[1]] == one[0]]

    def reopen(self, disk: Any = None) -> "Fixture":
        found = Fixture(disk or self.disk, self.log.config)
        found.written, found.now_ms = self.written, self.now_ms
        return found


def fill(made: Fixture, count: int = 40, keys: int = 5, seed: int = 3, **fields: Any) -> None:
    draw = Random(seed)
    for _ in range(count):
        made.append(
            *(
                (b"k%d" % draw.randrange(keys), b"v" * draw.randrange(1, 30))
                for _ in range(draw.randint(1, 4))
            ),
            **fields,
        )
    made.roll()


def assert_contiguous(batches: Sequence[memoryview], start: int, end: int) -> None:
    at = start
    for batch in batches:
        header = read_header(batch)
        assert header.base_offset == at
        at = header.next_offset
    assert at == end


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_newest_record_of_each_key_stays_at_its_offset(codec: str) -> None:
    made = Fixture()
    fill(made, compression=codec)
    before, end = made.log.size_bytes, made.log.log_end
    work = made.compact()
    assert made.records() == made.newest()
    assert made.log.size_bytes < before / 2
    assert work.bytes_in > work.bytes_out > 0
    assert_contiguous(list(made.batches()), 0, end)
    again = made.reopen()
    assert again.log.damaged is None
    assert again.log.log_end == end
    assert again.records() == made.newest()
    assert again.log.recovery.scanned_bytes < 600  # a snapshot tells of the new segments


def test_terms_stay_and_fillers_do_not_cross_them() -> None:
    made = Fixture(config=CONFIG._replace(segment_bytes=100_000))
    for term in (1, 2, 3):
        for _ in range(20):
            made.append((b"a", b"x" * 20), term=term)
    made.now_ms += CONFIG.segment_ms
    made.append((b"a", b"last"), term=3)
    terms = made.log.terms
    made.compact()
    headers = [read_header(batch) for batch in made.batches()]
    assert [one.leader_epoch for one in headers if not one.record_count] == [1, 2, 3]
    for one in headers:
        assert (
            terms.term_before(one.base_offset + 1) == terms.term_before(one.next_offset) == one.leader_epoch
        )
    assert made.reopen().log.terms.items() == terms.items()


def test_a_tombstone_stays_for_its_time_and_goes_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10_000]
    monkeypatch.setattr("antiphon.system.wall_ms", lambda: now[0])
    rules = Compaction(delete_retention_ms=500)
    made = Fixture()
    made.append((b"a", b"1"), (b"b", b"1"))
    made.append((b"a", None))
    made.roll()
    made.compact(rules)
    assert made.records() == [(1, b"b", b"1"), (2, b"a", None)]
    assert made.log.compacting.clean.tombstones == 1
    now[0] += 499
    made = made.reopen()
    made.compact(rules)
    assert (2, b"a", None) in made.records()
    now[0] += 1
    assert is_due(made.log.compacting.clean, rules, extent_of(made.log, rules, 1 << 40, 1 << 50), now[0])
    made.compact(rules)
    assert made.records() == [(1, b"b", b"1")]
    assert made.log.compacting.clean.tombstones == 0


def test_nothing_goes_at_or_above_the_limit() -> None:
    made = Fixture()
    fill(made)
    limit = made.log.compacting.closed(1 << 40)[3].next_offset + 1
    made.compact(limit=limit)
    kept = [one for one in made.written if one[0] >= limit]
    assert [one for one in made.records() if one[0] >= limit] == kept


def test_a_small_map_takes_several_passes() -> None:
    made = Fixture()
    fill(made, count=60, keys=12)
    passes = 0
    while made.log.compacting.clean.end < made.log.compacting.closed(1 << 40)[-1].next_offset:
        made.compact(map_bytes=4 * ENTRY_BYTES)
        passes += 1
        assert passes < 100
    assert passes > 2
    assert made.records() == made.newest()


def test_producers_are_known_to_who_learns_from_what_is_left() -> None:
    made = Fixture()
    for number in range(30):
        made.append((b"a", b"%d" % number), producer_id=7, producer_epoch=0, base_sequence=number)
        made.append((b"b", b"%d" % number), producer_id=8, producer_epoch=2, base_sequence=number)
    made.append((b"a", b""), (b"b", b""))
    made.roll()
    made.compact()
    learned = Fixture()
    for batch in made.batches():
        learned.runner.run(learned.log.stage_append([batch]))
    for producer in (7, 8):
        known, wanted = (one.log.producers.last_batch(producer) for one in (learned, made))
        assert known is not None
        assert wanted is not None
        assert known[:5] == wanted[:5]
    repeated = read_header(
        build_batch([(b"a", b"27", (), 0)], producer_id=7, producer_epoch=0, base_sequence=27)
    )
    assert learned.log.producers.check(repeated) == (54, 55, 1054)


def test_batches_of_a_job_stay_whole_and_nothing_behind_them_is_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "JOB_RESENDS_MS", system.wall_ms())  # the records are of 1970
    made, job = Fixture(), (1 << 62) + 5
    first = made.append((b"a", b"1"), (b"b", b"1"), producer_id=job, producer_epoch=1, base_sequence=0)
    before = next(made.batches()).tobytes()
    made.append((b"a", None))
    made.roll()
    made.compact(Compaction(delete_retention_ms=0))
    assert next(made.batches()).tobytes() == before
    assert made.log.compacting.clean.end == first
    made.compact(Compaction(delete_retention_ms=0))
    assert (2, b"a", None) in made.records()
    monkeypatch.undo()  # now the job has been silent for long enough
    made.compact(Compaction(delete_retention_ms=0))
    assert made.records() == [(1, b"b", b"1"), (2, b"a", None)]


def test_a_job_is_silent_by_the_replicas_clock_and_not_by_what_its_rows_say() -> None:
    """Rows of a job may be of any time, as they are when a table of last year is written."""
    made, job = Fixture(), (1 << 62) + 5
    made.now_ms = system.wall_ms() - compaction.JOB_RESENDS_MS // 2
    made.append((b"a", b"1"), (b"b", b"1"), producer_id=job, producer_epoch=1, base_sequence=0)
    before = next(made.batches()).tobytes()
    made.append((b"a", b"2"))
    made.roll()
    made.compact()
    assert next(made.batches()).tobytes() == before, "it came half a day ago"
    made.now_ms = system.wall_ms() - 2 * compaction.JOB_RESENDS_MS
    again = made.reopen()
    again.compact()
    assert again.records()[0] == (1, b"b", b"1")


def test_aborted_records_go_and_markers_stay() -> None:
    made = Fixture()
    made.append((b"a", b"0"))
    for number, commit in enumerate((False, True, False)):
        made.append(
            (b"a", b"t%d" % number),
            is_transactional=True,
            producer_id=9,
            producer_epoch=0,
            base_sequence=number,
        )
        made.marker(9, number + 1, commit=commit)
    made.roll()
    markers = dict(made.log.producers.transactions.markers)
    made.compact()
    assert made.records() == [(3, b"a", b"t1")]
    assert made.log.aborted(0, made.log.log_end) == []
    again = made.reopen()
    assert again.log.producers.transactions.markers == markers
    assert again.log.aborted(0, made.log.log_end) == []


def test_an_aborted_transaction_that_began_in_a_trimmed_segment_stays_aborted() -> None:
    """What a trim has left of a segment is not compacted: readers must still be told what was aborted there."""
    made = Fixture()
    gone = made.append((b"x", b"0"))
    part = {"is_transactional": True, "producer_id": 9, "producer_epoch": 0}
    first = made.append((b"a", b"aborted"), base_sequence=0, **part)
    made.roll()
    marker = made.log.log_end
    made.marker(9, 1, commit=False)
    inner = made.append((b"a", b"aborted, too"), base_sequence=1, **part)
    made.marker(9, 2, commit=False)
    made.append((b"b", b"1"))
    made.append((b"b", b"2"))
    made.roll()
    made.runner.run(made.log.trim(gone + 1))
    assert [one[1] for one in made.log.aborted(0, made.log.log_end)] == [first, inner]
    made.compact()
    assert made.records() == [(first, b"a", b"aborted"), (inner + 3, b"b", b"2")]
    kept = [(9, first, marker)]
    assert [tuple(one[:3]) for one in made.log.aborted(0, made.log.log_end)] == kept
    made.runner.run(made.log.checkpoint())
    again = made.reopen()
    assert again.log.recovery.snapshot_offset == again.log.log_end, "nothing was read but files beside it"
    assert [tuple(one[:3]) for one in again.log.aborted(0, made.log.log_end)] == kept
    made.runner.run(made.log.trim(marker - 1))
    made.append((b"b", b"3"))
    made.roll()
    made.compact()
    assert made.log.aborted(0, made.log.log_end) == [], "the segment that it began in has gone"


def test_who_reads_while_segments_are_swapped_reads_no_damage() -> None:
    """The second pass makes one segment of several small ones, whose files go."""
    made = Fixture()
    fill(made, count=60)
    made.compact()
    fill(made, seed=4)
    bases = [one.base_offset for one in made.log.compacting.closed(1 << 40)]
    work = CompactionPass(made.log, RULES, extent_of(made.log, RULES, made.log.log_end, 1 << 50), MAP_BYTES)
    end, joined = made.log.log_end, 0
    while (piece := work.plan()) is not None:
        planned = [made.log.plan_read(base, 1 << 20, end, from_disk=True) for base in bases]
        check = LogCheck(made.log)
        looked = check.plan()
        piece()
        before = made.log.segment_count
        op = work.staged()
        joined += before - made.log.segment_count
        during = [made.log.plan_read(base, 1 << 20, end, from_disk=True) for base in bases]
        assert all(read() for read in during), "the new one is read by its open files"
        made.runner.run(op)
        assert all(read() for read in during)
        for read in planned:
            read()
        assert looked is not None
        assert looked().damage is None
        assert made.log.damaged is None
    assert joined > 2
    made.runner.run(work.ended())
    assert made.records() == made.newest()


def test_a_trim_in_between_ends_the_pass() -> None:
    made = Fixture()
    fill(made)
    work = CompactionPass(made.log, RULES, extent_of(made.log, RULES, made.log.log_end, 1 << 50), MAP_BYTES)
    for _ in range(6):
        piece = work.plan()
        assert piece is not None
        piece()
        made.runner.run(work.staged())
    made.runner.run(made.log.trim(made.log.compacting.closed(1 << 40)[-2].next_offset))
    assert work.plan() is None
    assert work.given_up
    assert work.ended() is None
    assert made.reopen().log.damaged is None


def test_a_full_disk_gets_back_what_a_pass_has_taken() -> None:
    made = Fixture()
    fill(made)
    work = CompactionPass(made.log, RULES, extent_of(made.log, RULES, made.log.log_end, 1 << 50), MAP_BYTES)
    made.disk.capacity_bytes = made.disk.used_bytes() + 100
    with pytest.raises(OSError, match="No space left"):
        made.carry_out(work)
    assert [name for name in made.disk.listdir(PATH) if name.endswith(".compacted")]
    work.give_up()
    work.tidy_up()
    assert not [name for name in made.disk.listdir(PATH) if name.endswith(".compacted")]
    assert work.plan() is None
    assert work.ended() is None
    assert made.records() == made.reopen().records() == made.written


def test_a_cut_or_reset_below_what_is_clean_forgets_it() -> None:
    made = Fixture()
    fill(made)
    made.compact()
    assert made.log.compacting.clean.end > 0
    assert made.reopen().log.compacting.clean == made.log.compacting.clean
    made.runner.run(made.log.reset(EntryId(1, 500)))
    assert made.log.compacting.clean.end == 0
    assert made.reopen().log.compacting.clean.end == 0


@pytest.mark.parametrize("tear", [False, True])
def test_at_any_crash_the_log_is_whole_and_nothing_newest_is_lost(tear: bool) -> None:
    crashes = 0
    for call in range(10_000):
        made = Fixture(SimulatedDisk(Random(call)))
        fill(made, count=14, keys=3)
        for number in range(3):
            made.append((b"t", b"%d" % number), producer_id=7, producer_epoch=0, base_sequence=number)
        made.roll()
        end, producers = made.log.log_end, made.log.producers.last_batch(7)
        made.disk.crash_after = made.disk.calls + call
        try:
            made.compact()
        except SimulatedCrash:
            pass
        else:
            break
        crashes += 1
        disk = made.disk.crash(tear=tear) if call % 3 else made.disk.kill()
        again = made.reopen(disk)
        assert again.log.damaged is None, call
        assert again.log.log_end == end
        assert_contiguous(list(again.batches()), 0, end)
        found = again.records()
        assert set(found) >= set(made.newest()), call
        assert set(found) <= set(made.written)
        assert again.log.producers.last_batch(7) == producers
        assert not [name for name in disk.listdir(PATH) if "compacted." in name or name == "swap"]
        again.compact()
        assert again.records() == made.newest()
    assert crashes > 40


def test_a_real_disk_does_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.log.test_compaction.PATH", str(tmp_path / "log"))
    made = Fixture(RealDisk())
    fill(made)
    made.compact()
    assert made.records() == made.newest()
    assert made.reopen(RealDisk()).records() == made.newest()


def test_the_bench_compacts_what_it_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SHAPES", (bench.Shape(10, 1_000, 5),))
    (row,) = bench.measure_compaction(0.05)
    assert row["read_mb"] > 1
    assert row["left_mb"] < row["read_mb"] / 2
    assert min(row["mb_per_cpu_s"], row["records_per_s"]) > 0
