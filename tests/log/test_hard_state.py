"""Term, vote and the hint of the high watermark."""

from random import Random

import pytest

from antiphon.errors import NewerFormatError
from antiphon.invariants import InvariantError
from antiphon.log.disk import replace_file
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.log.snapshot import seal
from tests.log.helpers import Runner

DIRECTORY = "/shard"


def test_the_promise_survives_a_power_failure_s1_38() -> None:
    for seed in range(10):
        disk = SimulatedDisk(Random(seed))
        log, runner = ShardLog.open(disk, DIRECTORY), Runner(disk)
        assert (log.hard_state.term, log.hard_state.voted_for) == (0, None)
        runner.run(log.hard_state.stage(4, None), log.hard_state.stage(4, 2), log.hard_state.stage(5, 0))
        found = ShardLog.open(disk.crash(), DIRECTORY).hard_state
        assert (found.term, found.voted_for) == (5, 0)


def test_a_crash_at_any_call_leaves_the_old_promise_or_the_new_one() -> None:
    for crash_after in range(12):
        disk = SimulatedDisk(Random(crash_after))
        log, runner = ShardLog.open(disk, DIRECTORY), Runner(disk)
        runner.run(log.hard_state.stage(1, 1))
        disk.crash_after = disk.calls + crash_after
        promised = 1
        try:
            runner.run(log.hard_state.stage(2, 2))
            promised = 2
            runner.run(log.hard_state.stage(3, 3))
            promised = 3
        except SimulatedCrash:
            pass
        found = ShardLog.open(disk.crash(), DIRECTORY).hard_state
        assert found.term in {promised, promised + 1}
        assert found.voted_for == found.term


def test_terms_never_fall_and_votes_never_change() -> None:
    disk = SimulatedDisk(Random(0))
    state = ShardLog.open(disk, DIRECTORY).hard_state
    state.stage(4, 1)
    for term, vote in ((3, None), (4, 2), (4, None)):
        with pytest.raises(InvariantError):
            state.stage(term, vote)
    state.stage(5, 2)


def test_a_promise_that_cannot_be_read_is_not_forgotten() -> None:
    disk = SimulatedDisk(Random(0))
    log, runner = ShardLog.open(disk, DIRECTORY), Runner(disk)
    runner.run(log.hard_state.stage(4, 1))
    path = f"{DIRECTORY}/hard-state"
    for bit in (
        0,
        8 * 8,
        100,
        130,
        200,
    ):  # 8 * 8: a version of 2^24 + 1, which the checksum does not bear out
        disk.flip_bit(path, bit)
        found = ShardLog.open(disk, DIRECTORY)
        assert found.damaged is not None, bit
        assert found.damaged.forgot
        assert not found.hard_state.readable
        disk.flip_bit(path, bit)
        disk.remove(f"{DIRECTORY}/damaged")
    assert ShardLog.open(disk, DIRECTORY).damaged is None


def test_a_promise_of_a_later_format_is_refused() -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs(DIRECTORY)
    replace_file(disk, f"{DIRECTORY}/hard-state", seal(b"ANTIPHHS", 2, bytes(16)))
    with pytest.raises(NewerFormatError):
        ShardLog.open(disk, DIRECTORY)


def test_the_high_watermark_hint_may_be_lost_but_never_wrong() -> None:
    disk = SimulatedDisk(Random(0))
    log, runner = ShardLog.open(disk, DIRECTORY), Runner(disk)
    runner.run(log.hard_state.stage_high_watermark(77))
    assert ShardLog.open(disk.kill(), DIRECTORY).hard_state.high_watermark == 77
    for _ in range(10):
        assert ShardLog.open(disk.crash(), DIRECTORY).hard_state.high_watermark in {0, 77}


def test_the_last_term_that_was_led_survives_a_power_failure_also_where_the_hint_is_torn_s4_28() -> None:
    for seed in range(10):
        disk = SimulatedDisk(Random(seed))
        log, runner = ShardLog.open(disk, DIRECTORY), Runner(disk)
        runner.run(log.hard_state.stage_led_term(4), log.hard_state.stage_high_watermark(77))
        assert ShardLog.open(disk.crash(), DIRECTORY).hard_state.led_term == 4
