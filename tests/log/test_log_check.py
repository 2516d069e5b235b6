"""What the scrub reads of a log: everything that is durable, and each bit of it, in data and index."""

from random import Random

import pytest

from antiphon.log import log_check
from antiphon.log.config import LogConfig
from antiphon.log.log_check import Checked, LogCheck
from antiphon.log.segment import without_padding
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from tests.log.helpers import Runner, batch_at

PATH = "/shard"
BATCHES = 9


def filled(disk: SimulatedDisk) -> tuple[ShardLog, Runner]:
    """A log of several segments, with nothing of it in memory."""
    log = ShardLog.open(disk, PATH, LogConfig(segment_bytes=700))
    runner = Runner(disk)
    for number in range(BATCHES):
        runner.run(log.stage_append([batch_at(log.log_end, count=2, term=1 + number // 4, size=90)]))
    log.release_memory()
    return log, runner


def read_all(log: ShardLog, check: LogCheck | None = None) -> Checked:
    """All pieces together."""
    check = check or LogCheck(log)
    size = batches = 0
    while (piece := check.plan()) is not None:
        found = piece()
        if found.damage is not None:
            return found
        check.offset = max(check.offset, found.next_offset)
        size, batches = size + found.size_bytes, batches + found.batches
    return Checked(check.offset, size, batches)


@pytest.mark.parametrize("batches_max", [1, 2, 512])
def test_all_of_a_log_is_read(monkeypatch: pytest.MonkeyPatch, batches_max: int) -> None:
    monkeypatch.setattr(log_check, "BATCHES_MAX", batches_max)
    log, _ = filled(SimulatedDisk(Random(1)))
    assert log.segment_count > 2
    found = read_all(log)
    assert found == Checked(log.log_end, log.size_bytes + BATCHES * 40, BATCHES)


def test_each_flipped_bit_of_data_and_index_is_found_where_it_is() -> None:
    disk = SimulatedDisk(Random(1))
    log, _ = filled(disk)
    draw = Random(2)
    for name in disk.listdir(PATH):
        size = len(without_padding(bytes(disk.durable(f"{PATH}/{name}") or b"")))
        if not name.endswith((".log", ".index")):
            continue
        bits = range(size * 8) if name.endswith(".index") else draw.sample(range(size * 8), 300)
        for bit in bits:
            disk.flip_bit(f"{PATH}/{name}", bit)
            found = read_all(log)
            assert found.damage is not None, (name, bit)
            assert name.split(".")[0] in found.damage.path
            disk.flip_bit(f"{PATH}/{name}", bit)
    assert read_all(log).damage is None


def test_what_was_trimmed_and_is_still_there_is_read_too() -> None:
    """A recovery that reads everything begins there, and would take all that follows for damaged."""
    disk = SimulatedDisk(Random(1))
    log = ShardLog.open(disk, PATH, LogConfig(segment_bytes=1700))
    runner = Runner(disk)
    for _ in range(4 * BATCHES):
        runner.run(log.stage_append([batch_at(log.log_end, count=2, size=90)]))
    log.release_memory()
    second = log.reader.views()[1]
    runner.run(log.trim(second.base_offset + 6))
    assert log.reader.views()[0] == second
    assert read_all(log).damage is None
    disk.flip_bit(second.data_path, 8 * 100)
    found = read_all(log).damage
    assert found is not None
    assert (found.offset, found.path) == (second.base_offset, second.data_path)


@pytest.mark.parametrize("suffix", [".log", ".index"])
@pytest.mark.parametrize("harm", ["cut", "extended", "gone", "emptied", "another"])
def test_files_of_other_sizes_are_found(suffix: str, harm: str) -> None:
    disk = SimulatedDisk(Random(1))
    log, _ = filled(disk)
    first, second = [f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(suffix)][:2]
    content = bytes(disk.durable(first) or b"")
    if harm == "gone":
        disk.lose(first)
    else:
        other = bytes(disk.durable(second) or b"")
        harmed = {"cut": content[:-1], "extended": content + b"\0", "emptied": b"", "another": other}[harm]
        disk.restore(first, harmed)
    found = read_all(log)
    assert found.damage is not None
    assert found.damage.offset <= log.reader.views()[0].next_offset


def test_a_log_that_is_cut_trimmed_and_written_meanwhile_is_read_on_without_an_accusation() -> None:
    disk = SimulatedDisk(Random(1))
    log, runner = filled(disk)
    draw = Random(3)
    check = LogCheck(log)
    for number in range(400):
        piece = check.plan()
        match draw.randrange(6):
            case 0:
                start = log.reader.batch_start(draw.randrange(log.log_start, log.log_end + 1))
                runner.run(log.truncate(max(start, log.log_start)))
            case 1 if log.log_end > log.log_start + 8:
                op = log.trim(log.reader.batch_start(log.log_start + 4))
                if op is not None:
                    runner.run(op)
            case _:
                runner.run(log.stage_append([batch_at(log.log_end, count=1 + number % 3, term=3, size=90)]))
        if piece is None:
            check = LogCheck(log)
            continue
        found = piece()
        assert found.damage is None, (number, found)
        check.offset = max(check.offset, found.next_offset)


def test_what_is_not_durable_yet_is_left_alone() -> None:
    disk = SimulatedDisk(Random(1))
    log, _ = filled(disk)
    log.stage_append([batch_at(log.log_end, count=2, term=3)])  # nobody writes it
    assert read_all(log).next_offset == log.durable_end < log.log_end
