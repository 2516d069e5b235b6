"""The bytes on disk, pinned. A change here is a change of format: a new version number, and a way to read the old one."""

from random import Random

from antiphon.log.config import LogConfig
from antiphon.log.recovery import DamageReport, save_damage
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.snapshot import LogStart, decode_start
from antiphon.records.builder import (
    build_batch,
    build_committed,
    build_members,
    build_term_start,
    committed_of,
    members_of,
)
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members
from tests.log.helpers import Runner

DIRECTORY = "/shard"


def content(disk: SimulatedDisk, name: str) -> bytes:
    file = disk.open(f"{DIRECTORY}/{name}")
    return file.pread(file.size(), 0)


def written() -> tuple[SimulatedDisk, ShardLog, Runner]:
    disk = SimulatedDisk(Random(0))
    log, runner = ShardLog.open(disk, DIRECTORY, LogConfig(), clock_ms=lambda: 0), Runner(disk)
    data = build_batch(
        [(b"key", b"value", [("h", b"x")], 1_700_000_000_000), (None, None, (), 1_700_000_000_001)],
        base_offset=1,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
    )
    runner.run(
        log.stage_append([build_term_start(3, 0, 1_700_000_000_000), data]),
        log.hard_state.stage(3, 2),
        log.hard_state.stage_high_watermark(3),
        log.checkpoint(),
    )
    return disk, log, runner


TERM_START = (
    "0000000000000000 00000042 00000003 02 633ade7a 0020 00000000 "
    "0000018bcfe56800 0000018bcfe56800 ffffffffffffffff ffff ffffffff 00000001 "
    "20 00 00 00 08 00000064 0c 000000000003 00 "
)

DATA = (
    "0000000000000001 0000004b 00000003 02 69588966 0000 00000001 0000018bcfe56800 "
    "0000018bcfe56801 0000000000000009 0000 00000000 00000002 24 00 00 00 06 "
    "6b6579 0a 76616c7565 02 02 68 02 78 0c 000202010100 "
)

INDEX = (
    "414e544950484958 00000001 0000000000000000 00000000000000000000000000000000 28ee045a "
    "0000000000000000 0000018bcfe56800 00000000 0000004e 00000003 00000001 09424bfa "
    "3e6231c8 0000000000000001 0000018bcfe56801 0000004e 00000057 00000003 00000002 "
    "170611cf 4e4a5231 "
)

HARD_STATE = "414e544950484853 00000001 bae4e634 0000000000000003 0000000000000002 "

HIGH_WATERMARK = "414e544950484857 00000001 9f78417e 0000000000000003 "

HIGH_WATERMARK_AND_LED = "414e544950484857 00000001 bae4e634 0000000000000003 0000000000000002 "

LED_TERM = "414e544950484c54 00000001 9c2e5579 0000000000000003 "

SNAPSHOT = (
    "414e544950485353 00000001 c87d5901 "
    "970300009192030091950003cca502cf0000018bcfe56801c41a920091920991 "
    "970000010103ce69588966cf0000018bcfe56801c42800000000000000010000 "
    "018bcfe568010000004e000000570000000300000002170611cf4e4a5231 "
)

START = "414e544950485354 00000001 43f2b62c 0000000000000064 0000000000000004 00 00000000000000 "

DAMAGED = "414e54495048444d 00000001 7f42ede1 9405a5612e6c6f6742a3776879 "


JOINT = Members((1, 2, 4), (1, 2, 3), (5,))

MEMBERS = (
    "0000000000000001000000600000000302e3be73dc0020000000000000018bcfe568000000018bcfe56800ffff"
    "ffffffffffffffffffffffff000000015c00000008000000654800000003000000010000000200000004000300"
    "000001000000020000000300010000000500"
)

COMMITTED = (
    "00000000000000090000004600000003022995984a0020000000000000018bcfe568000000018bcfe56800ffff"
    "ffffffffffffffffffffffff00000001280000000800000067140000000000000000000700"
)

SNAPSHOT_WITH_MEMBERS = (
    "414e54495048535300000002e529b887980200009192030091950002ccba02cf0000018bcfe56800c403920090"
    "c42800000000000000010000018bcfe568000000004e0000006c000000030000000157452e0ecc7de76f919202"
    "949301020493010203910500"
)

START_WITH_MEMBERS = (
    "414e544950485354000000023c4623a3000000000000000200000000000000030000000000000000949301020493010203910500"
)
START_OF_EARLIER_VERSIONS = (
    "414e5449504853540000000221643b6b0000000000000002000000000000000300000000000000009393010204930102039105"
)


def with_members() -> tuple[SimulatedDisk, ShardLog, Runner]:
    disk = SimulatedDisk(Random(0))
    log, runner = ShardLog.open(disk, DIRECTORY, LogConfig(), clock_ms=lambda: 0), Runner(disk)
    start = build_term_start(3, 0, 1_700_000_000_000)
    runner.run(
        log.stage_append([start, build_members(JOINT, 3, 1, 1_700_000_000_000)]),
        log.checkpoint(),
    )
    return disk, log, runner


def test_term_start_batch() -> None:
    assert build_term_start(3, 0, 1_700_000_000_000) == bytes.fromhex(TERM_START)


def test_segment_file_is_the_batches_and_nothing_else() -> None:
    disk, _, _ = written()
    assert content(disk, f"{0:020d}.log") == bytes.fromhex(TERM_START + DATA)


def test_index_file() -> None:
    disk, _, _ = written()
    assert content(disk, f"{0:020d}.index") == bytes.fromhex(INDEX)


def test_hard_state_and_high_watermark() -> None:
    disk, _, _ = written()
    assert content(disk, "hard-state") == bytes.fromhex(HARD_STATE)
    assert content(disk, "high-watermark") == bytes.fromhex(HIGH_WATERMARK)


def test_led_term() -> None:
    disk, log, runner = written()
    runner.run(log.hard_state.stage_led_term(3))
    assert content(disk, "led-term") == bytes.fromhex(LED_TERM)


def test_a_led_term_that_the_hint_alone_tells_of_is_known_and_kept() -> None:
    """Earlier versions wrote it there."""
    disk, _, runner = written()
    disk.open(f"{DIRECTORY}/high-watermark").pwritev([bytes.fromhex(HIGH_WATERMARK_AND_LED)], 0)
    log = ShardLog.open(disk, DIRECTORY)
    assert (log.hard_state.high_watermark, log.hard_state.led_term) == (3, 2)
    runner.run(log.hard_state.stage_high_watermark(2))
    assert ShardLog.open(disk, DIRECTORY).hard_state.led_term == 2


def test_snapshot() -> None:
    disk, _, _ = written()
    assert content(disk, f"{3:020d}.snapshot") == bytes.fromhex(SNAPSHOT)


def test_start_and_damage() -> None:
    disk, log, runner = written()
    runner.run(log.reset(EntryId(4, 100)))
    assert content(disk, "start") == bytes.fromhex(START)
    save_damage(disk, DIRECTORY, DamageReport(5, "a.log", 66, "why"))
    assert content(disk, "damaged") == bytes.fromhex(DAMAGED)


def test_files_of_this_format_are_read() -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs(DIRECTORY)
    for name, data in (
        (f"{0:020d}.log", TERM_START + DATA),
        (f"{0:020d}.index", INDEX),
        (f"{3:020d}.snapshot", SNAPSHOT),
        ("hard-state", HARD_STATE),
        ("high-watermark", HIGH_WATERMARK),
        ("led-term", LED_TERM),
    ):
        disk.open(f"{DIRECTORY}/{name}", create=True).pwritev([bytes.fromhex(data)], 0)
    log = ShardLog.open(disk, DIRECTORY)
    assert (log.end, log.damaged, log.recovery.scanned_bytes) == (EntryId(3, 3), None, 0)
    assert (log.hard_state.term, log.hard_state.voted_for, log.hard_state.high_watermark) == (3, 2, 3)
    assert log.hard_state.led_term == 3
    last = log.producers.last_batch(9)
    assert last is not None
    assert (last.last_sequence, last.base_offset) == (1, 1)


def test_committed_batch() -> None:
    batch = build_committed(7, 3, 9, 1_700_000_000_000)
    assert batch == bytes.fromhex(COMMITTED)
    assert committed_of(batch) == 7
    assert (committed_of(build_term_start(3, 0, 0)), members_of(batch)) == (None, None)


def test_members_batch() -> None:
    batch = build_members(JOINT, 3, 1, 1_700_000_000_000)
    assert batch == bytes.fromhex(MEMBERS)
    assert members_of(batch) == JOINT


def test_snapshot_and_start_of_a_log_that_says_who_its_members_are() -> None:
    disk, log, runner = with_members()
    assert content(disk, f"{2:020d}.snapshot") == bytes.fromhex(SNAPSHOT_WITH_MEMBERS)
    runner.run(log.trim(2))
    assert content(disk, "start") == bytes.fromhex(START_WITH_MEMBERS)


def test_files_with_members_are_read() -> None:
    disk, log, runner = with_members()
    again = ShardLog.open(disk, DIRECTORY)
    assert (again.members.base, again.members.items()) == (None, [(2, JOINT)])
    assert again.recovery.scanned_bytes == 0
    runner.run(log.trim(2))
    again = ShardLog.open(disk, DIRECTORY)
    assert (again.members.base, again.members.items()) == (JOINT, [])
    old = decode_start(bytes.fromhex(START_OF_EARLIER_VERSIONS), "start")
    assert old == LogStart(2, 3, False, JOINT), "they knew no deletions"
