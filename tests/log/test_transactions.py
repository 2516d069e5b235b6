"""What a log knows of transactions is what a plain reading of its batches says, whatever happened to the log."""

import os
import random
from typing import Any, NamedTuple

import pytest

from antiphon.errors import NewerFormatError
from antiphon.log import producer_state, snapshot, transactions
from antiphon.log.aborted import ABORTED_SUFFIX
from antiphon.log.aborted_check import AbortedCheck, made_anew
from antiphon.log.config import LogConfig
from antiphon.log.producer_state import ProducerState
from antiphon.log.segment import SNAPSHOT_SUFFIX
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.records.batch import TRANSACTIONAL_BIT, iter_batches
from antiphon.records.builder import build_batch, build_end_marker, end_marker_of, seal
from antiphon.records.entry_id import EntryId
from tests.log.helpers import Runner

SMALL = LogConfig(segment_bytes=1200, tail_bytes_max=600, snapshot_bytes=1500)


class Told(NamedTuple):
    """What the batches of a log say."""

    open: dict[int, tuple[int, int]]
    markers: dict[int, tuple[int, int, int]]
    aborted: list[tuple[int, int, int]]


def reading(batches: list[bytes]) -> Told:
    """Written anew, without the product's code for it."""
    opened: dict[int, tuple[int, int]] = {}
    markers: dict[int, tuple[int, int, int]] = {}
    aborted = []
    for data in batches:
        for header, batch in iter_batches(data):
            if not header.is_transactional:
                continue
            pid, at = header.producer_id, header.base_offset
            if not header.is_control:
                opened.setdefault(pid, (header.producer_epoch, at))
                continue
            said = end_marker_of(batch)
            assert said is not None
            epoch = max(header.producer_epoch, markers.get(pid, (0, 0, 0))[0])
            markers[pid] = (epoch, said[1], at)
            if pid in opened:
                first = opened.pop(pid)[1]
                if not said[0]:
                    aborted.append((pid, first, at))
    return Told(opened, markers, aborted)


class World:
    """A log under random transactions, and its batches in the order of their offsets."""

    def __init__(self, disk: Any, draw: random.Random) -> None:
        self.disk, self.draw = disk, draw
        self.runner = Runner(disk)
        self.log = ShardLog.open(disk, "/shard", SMALL)
        self.batches: list[tuple[int, bytes]] = []
        self.numbers: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.harmed = ""  # a file that is bad until it is written again

    def step(self) -> None:
        state, pid = self.log.producers.transactions, self.draw.randrange(4)
        at = self.log.log_end
        if pid in state.open and self.draw.random() < 0.5:
            self.numbers[pid] = self.numbers.get(pid, 0) + 1
            batch = build_end_marker(
                commit=self.draw.random() < 0.5,
                number=self.numbers[pid],
                producer=(pid, 0),
                term=1,
                base_offset=at,
                timestamp_ms=1,
            )
        else:
            size = self.draw.randrange(1, 40)
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + 1
            batch = build_batch(
                [(None, b"x" * size, [], 1)],
                base_offset=at,
                leader_epoch=1,
                producer_id=pid,
                producer_epoch=0,
                base_sequence=sequence,
            )
            if self.draw.random() < 0.8:
                batch[22] |= TRANSACTIONAL_BIT
                seal(batch)
        self.batches.append((at, bytes(batch)))
        self.runner.run(self.log.stage_append([bytes(batch)]))

    def cut(self) -> None:
        # A producer's next transaction begins when the marker of the one before is committed: that is not cut off.
        ended: dict[int, list[int]] = {}
        for at, batch in self.batches:
            for header, _ in iter_batches(batch):
                if header.is_control:
                    ended.setdefault(header.producer_id, []).append(at)
        committed = max([at for found in ended.values() for at in found[:-1]], default=-1)
        low = max(self.log.log_start, committed + 1)
        starts = [at for at, _ in self.batches if at >= low]
        if not starts:
            return
        to = self.draw.choice(starts[-self.draw.choice((2, 8, len(starts))) :])
        self.batches = [(at, batch) for at, batch in self.batches if at < to]
        self.runner.run(self.log.truncate(to))

    def reopen(self) -> None:
        if self.draw.random() < 0.5:
            self.runner.run(self.log.checkpoint())
        self.log = ShardLog.open(self.disk, "/shard", SMALL)

    def trim(self) -> None:
        self.runner.run(self.log.trim(self.draw.randrange(self.log.log_start, self.log.log_end + 1)))

    def lose_an_index(self) -> None:
        names = [name for name in self.disk.listdir("/shard") if name.endswith(ABORTED_SUFFIX)]
        if names and self.log.log_start == 0:
            path = self.harmed = os.path.join("/shard", self.draw.choice(names))
            if self.draw.random() < 0.5:
                self.disk.remove(path)
            else:
                self.disk.open(path).pwritev([b"\xff"], 20)
            self.log = ShardLog.open(self.disk, "/shard", SMALL)

    def check_files(self) -> None:
        """What the scrub reads: nothing that was written by the log itself is found to be bad."""
        check = AbortedCheck(self.log)
        while (piece := check.plan()) is not None:
            if self.draw.random() < 0.1:
                self.step()
            found = piece()
            if found.damage is not None:
                assert found.damage.path == self.harmed
                self.runner.run(made_anew(self.log, found.damage.offset))
                self.harmed = ""
            check.offset = max(check.offset, found.next_offset)

    def check(self) -> None:
        self.check_files()
        told, state = reading([batch for _, batch in self.batches]), self.log.producers.transactions
        assert {pid: (one.epoch, one.first_offset) for pid, one in state.open.items()} == told.open
        assert [one.first_offset for one in state.open.values()] == sorted(at for _, at in told.open.values())
        start, end = self.log.log_start, self.log.log_end
        for pid, marker in told.markers.items():
            known = state.markers[pid]
            assert known[:3] == marker or (marker[2] < start and known.number == marker[1])
        assert start or state.markers.keys() == told.markers.keys()
        found = [
            (pid, max(first, start), marker)
            for pid, first, marker, _ in self.log.aborted(start, end)
            if marker >= start
        ]
        assert found == [(pid, max(first, start), at) for pid, first, at in told.aborted if at >= start]
        for high_watermark in (end, self.draw.randrange(start, end + 1)):
            first_open = min([at for _, at in told.open.values()], default=end)
            if high_watermark == end:
                assert state.last_stable(end) == first_open


@pytest.mark.parametrize("seed", range(30))
def test_what_is_known_of_transactions_is_what_the_log_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "UNDO_MAX", 6)
    draw = random.Random(seed)
    world = World(SimulatedDisk(random.Random(seed)), draw)
    for _ in range(150):
        kind = draw.random()
        if kind < 0.03:
            world.reopen()
        elif kind < 0.08:
            world.cut()
        elif kind < 0.09 and seed % 2:
            world.trim()
        elif kind < 0.1:
            world.lose_an_index()
        else:
            world.step()
        world.check()


@pytest.mark.parametrize("seed", range(10))
def test_a_state_as_of_an_offset_and_the_log_from_there_come_to_the_same(seed: int) -> None:
    world = World(SimulatedDisk(random.Random(seed)), random.Random(seed))
    for _ in range(80):
        world.step()
    whole = world.log.producers.transactions
    for before, _ in world.batches[::7]:
        state = ProducerState.decode(world.log.producers.encode(before=before))
        for at, batch in world.batches:
            if at >= before:
                for header, one in iter_batches(batch):
                    state.learn(header, one)
        assert state.transactions.open.keys() == whole.open.keys()
        assert state.transactions.markers.keys() == whole.markers.keys()
        for pid, marker in whole.markers.items():
            assert state.transactions.markers[pid][:3] == marker[:3]
        assert state.transactions.last_stable(world.log.log_end) == whole.last_stable(world.log.log_end)


@pytest.mark.parametrize("seed", range(10))
def test_what_took_over_a_state_as_of_an_offset_may_be_cut_to_any_later_one(seed: int) -> None:
    world = World(SimulatedDisk(random.Random(seed)), random.Random(seed))
    for _ in range(60):
        world.step()
    places = [at for at, _ in world.batches]
    for before in places[::5]:
        taken = world.log.producers.encode(before=before)
        for to in (at for at in places if at >= before):
            state = ProducerState.decode(taken)
            for at, batch in world.batches:
                if at >= before:
                    for header, one in iter_batches(batch):
                        state.learn(header, one)
            assert state.transactions.truncate(to)
            told, known = reading([batch for at, batch in world.batches if at < to]), state.transactions
            assert {pid: (one.epoch, one.first_offset) for pid, one in known.open.items()} == told.open
            assert {pid: one[:3] for pid, one in known.markers.items()} == told.markers


def test_the_last_stable_offset_waits_for_the_marker_to_be_committed() -> None:
    world = World(SimulatedDisk(random.Random(1)), random.Random(1))
    while len(world.log.producers.transactions.markers) < 2:
        world.step()
    for _ in range(60):
        world.step()
    state = world.log.producers.transactions
    for high_watermark in range(world.log.log_end + 1):
        told = reading([batch for at, batch in world.batches if at < high_watermark])
        wanted = min([at for _, at in told.open.values()], default=high_watermark)
        state.committed(high_watermark)
        assert state.last_stable(high_watermark) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_what_a_snapshot_says_to_have_ended_is_stable_when_its_marker_is_committed(seed: int) -> None:
    world = World(SimulatedDisk(random.Random(seed)), random.Random(seed))
    for _ in range(40):
        world.step()
    end, is_exact = world.log.log_end, 0
    for high_watermark in range(end + 1):
        state = ProducerState.decode(world.log.producers.encode()).transactions
        state.committed(high_watermark)
        told = reading([batch for at, batch in world.batches if at < high_watermark])
        wanted = min([at for _, at in told.open.values()], default=high_watermark)
        known = state.last_stable(high_watermark)
        assert known in {0, wanted}, "what is open there is never taken for ended"
        is_exact += known == wanted
    assert known == wanted, "at the end of the log all of it is known"
    assert is_exact > 1


def test_files_that_know_of_transactions_are_refused_by_older_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    world = World(disk, random.Random(1))
    world.runner.run(world.log.checkpoint())
    for _ in range(20):
        world.step()
    world.runner.run(world.log.checkpoint())
    monkeypatch.setattr(snapshot, "SNAPSHOT_VERSION", snapshot.MEMBERS_VERSION)
    with pytest.raises(NewerFormatError):
        ShardLog.open(disk, "/shard", SMALL)


def test_files_of_logs_without_transactions_are_as_they_were() -> None:
    disk = SimulatedDisk(random.Random(1))
    log = ShardLog.open(disk, "/shard", SMALL)
    runner = Runner(disk)
    batch = build_batch(
        [(None, b"x", [], 1)], leader_epoch=1, producer_id=1, producer_epoch=0, base_sequence=0
    )
    runner.run(log.stage_append([bytes(batch)]))
    runner.run(log.checkpoint())
    names = [name for name in disk.listdir("/shard") if name.endswith(SNAPSHOT_SUFFIX)]
    data = disk.open(os.path.join("/shard", names[0])).pread(16, 0)
    assert int.from_bytes(data[8:12], "big") == 1
    assert not any(name.endswith(ABORTED_SUFFIX) for name in disk.listdir("/shard"))


def test_a_producer_with_an_open_transaction_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    state = ProducerState()
    for pid in range(8):
        batch = build_batch(
            [(None, b"x", [], 1)], base_offset=pid, producer_id=pid, producer_epoch=0, base_sequence=0
        )
        if pid == 0:
            batch[22] |= TRANSACTIONAL_BIT
        for header, one in iter_batches(batch):
            state.learn(header, one)
    assert [pid for pid in range(8) if state.knows(pid)] == [0, 6, 7]
    assert state.expire(before_ms=100) == 2
    assert state.knows(0)


def test_a_reset_takes_over_open_transactions_and_keeps_them_across_restarts() -> None:
    theirs = World(SimulatedDisk(random.Random(3)), random.Random(3))
    while len(theirs.log.producers.transactions.open) < 3 or not theirs.log.producers.transactions.markers:
        theirs.step()
    disk = SimulatedDisk(random.Random(4))
    log, runner = ShardLog.open(disk, "/shard", SMALL), Runner(disk)
    at = EntryId(1, theirs.log.log_end)
    runner.run(log.reset(at, ProducerState.decode(theirs.log.producers.encode(before=at.offset))))
    wanted = theirs.log.producers.transactions
    for one in (log, ShardLog.open(disk, "/shard", SMALL)):
        assert one.producers.transactions.open == wanted.open
        assert one.producers.transactions.markers == wanted.markers
