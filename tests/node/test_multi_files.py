"""Origin and LSN in batches, and the marks file: bytes, recovery, and what is done without the file."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from antiphon.errors import ProtocolViolationError
from antiphon.log.config import LogConfig
from antiphon.log.disk import RealDisk
from antiphon.log.operations import CallStep, LogOp
from antiphon.log.shard_log import ShardLog
from antiphon.log.snapshot import frame
from antiphon.log.wal_thread import WalThread
from antiphon.node.peer_wire import decode_peer, encode_replica_message, with_payload
from antiphon.partition.multi_batches import checked_entries, entry_of, identity, number_batch
from antiphon.partition.multi_files import (
    ORIGINS_FILE,
    ORIGINS_MAGIC,
    ORIGINS_VERSION,
    load_marks,
    recover_origins,
    save_marks,
)
from antiphon.partition.multi_salvage import SALVAGE_FILE, salvage
from antiphon.records.batch import read_header, stamp, validate_batch
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.replication.messages import Message
from antiphon.replication.multi_messages import Relay, RelayBase, Subscribe
from antiphon.replication.origin_history import History, Mark
from antiphon.wire.frames import FrameDecoder

DISK = RealDisk()


def batch(origin: int, lsn: int, base: int = 0) -> bytearray:
    made = build_batch([(b"k", b"v%d" % lsn, [], 1_700_000_000_000)], base_offset=base, leader_epoch=1)
    number_batch(made, origin, lsn)
    return made


def carry_out(op: LogOp) -> None:
    for step in op.steps:
        assert isinstance(step, CallStep)
        step.run()


def filled(path: Path, entries: int) -> ShardLog:
    """A log on the disk with that many entries of two origins in turn."""
    log = ShardLog.open(DISK, str(path), LogConfig())

    async def run() -> None:
        wal = WalThread(DISK)
        wal.start(asyncio.get_running_loop())
        for number in range(entries):
            wal.submit(log.stage_append([batch(1 + number % 2, number // 2 + 1, number)]))
        await wal.stop()

    asyncio.run(run())
    return log


def test_origin_and_lsn_stand_in_the_producers_fields_under_the_crc() -> None:
    made = batch(31, 5)
    header = validate_batch(made)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-6, 31, -1)
    assert made[43:57].hex() == "fffffffffffffffa" + "001f" + "ffffffff"
    assert identity(header) == (31, 5)
    assert decode_records(made)[0].value == b"v5"
    stamp(made, 77, 1)
    assert identity(validate_batch(made)) == (31, 5)  # wherever it stands
    assert identity(read_header(build_batch([(None, b"x", [], 1)]))) == (0, 0)


def test_a_relay_travels_with_its_batches_behind_it() -> None:
    entries = tuple(entry_of(batch(2, lsn)) for lsn in (4, 5))
    message = Relay(9, 1, 7, 3, (0, 0, 5), (11, 12), entries)
    decoder = FrameDecoder()
    (frame,) = decoder.feed(b"".join(bytes(part) for part in encode_replica_message(message)))
    _, header = decode_peer(frame.header)
    assert header == Relay(9, 1, 7, 3, (0, 0, 5), (11, 12))
    found = with_payload(header, frame.payload)
    assert [(e.origin, e.lsn, e.crc, bytes(e.data)) for e in found.entries] == [
        (e.origin, e.lsn, e.crc, bytes(e.data)) for e in entries
    ]


def test_a_relay_whose_batches_do_not_fit_is_refused() -> None:
    with pytest.raises(ProtocolViolationError, match="1 batches and 2 chains"):
        checked_entries(Relay(9, 1, 7, 3, (), (11, 12)), bytes(batch(1, 1)))


def test_clocks_are_recovered_from_headers_alone(tmp_path: Path) -> None:
    filled(tmp_path / "log", 301)
    log = ShardLog.open(DISK, str(tmp_path / "log"), LogConfig())
    found = recover_origins(DISK, log)
    assert found is not None
    index, end = found
    assert end.clock == (0, 151, 150)
    assert end.offset == 301
    assert len(index.marks) == 1 + 301 // 64
    carry_out(save_marks(DISK, log, [*index.marks, end]))
    again = recover_origins(DISK, ShardLog.open(DISK, str(tmp_path / "log"), LogConfig()))
    assert again is not None
    assert again[1] == end
    assert again[0].marks[:-1] == index.marks


def test_a_file_that_is_not_whole_counts_for_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 10)
    carry_out(save_marks(DISK, log, [History().mark()]))
    file = tmp_path / "log" / ORIGINS_FILE
    assert load_marks(DISK, log.path) == (Mark(0, (), ()),)
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    assert load_marks(DISK, log.path) == ()
    found = recover_origins(DISK, log)
    assert found is not None
    assert found[1].clock == (0, 5, 5)


@pytest.mark.parametrize(
    "marks",
    [
        [(0, [0, 1], [0, 1 << 32])],  # no CRC-32C
        [(0, [0, 1], [0, -1])],
        [(0, [0, -1], [0, 5])],
        [(0, [0, 1], [0])],  # a chain for each component
        [(0, [0] * 33, [0] * 33)],  # more origins than there can be
        [(5, [], []), (0, [], [])],  # backwards
    ],
)
def test_a_file_of_what_no_log_can_have_counts_for_nothing(tmp_path: Path, marks: list[object]) -> None:
    log = filled(tmp_path / "log", 10)
    payload = frame(ORIGINS_MAGIC, ORIGINS_VERSION, msgspec.msgpack.encode(marks))
    (tmp_path / "log" / ORIGINS_FILE).write_bytes(payload)
    assert load_marks(DISK, log.path) == ()
    found = recover_origins(DISK, log)
    assert found is not None
    assert found[1].clock == (0, 5, 5)


@pytest.mark.parametrize(
    "sent",
    [
        ("RelayBase", 0, 1, 1, (0, 3), (0,)),
        ("RelayBase", 0, 1, 1, (0, 3), (0, 1 << 32)),
        ("RelayBase", 0, 1, 1, (0,) * 33, (0,) * 33),
        ("RelayBase", 0, 1, 1, (0, -3), (0, 5)),
        ("Subscribe", 0, 1, 1, (0, 3), (0, -1)),
        ("Relay", 0, 1, 1, 1, (0, 3), (1 << 32,)),
    ],
)
def test_a_peer_cannot_say_what_no_log_can_have(sent: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolViolationError):
        decode_peer(msgspec.msgpack.encode((7, sent)))


@pytest.mark.parametrize(
    "sent",
    [RelayBase(0, 1, 1, (0, 3), (0, 5)), Subscribe(0, 1, 1, (0, 3), (0, 5)), Relay(0, 1, 1, 1, (0, 3), (5,))],
)
def test_a_peer_can_say_what_a_log_has(sent: Message) -> None:
    names = (type(sent).__name__, *msgspec.structs.astuple(sent))
    assert decode_peer(msgspec.msgpack.encode((7, names))) == (7, sent)


def test_a_trimmed_log_without_the_file_cannot_be_placed(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 10)
    log.durable_end = 10
    assert log.trim(4) is not None
    assert recover_origins(DISK, log) is None
    history = History()
    for number in range(4):
        history.take(entry_of(batch(1 + number % 2, number // 2 + 1, number)))
    carry_out(save_marks(DISK, log, [history.mark()]))
    found = recover_origins(DISK, log)
    assert found is not None
    assert found[1].clock == (0, 5, 5)
    assert found[0].base.clock == (0, 2, 2)


def test_marks_beyond_the_log_are_left_out(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 10)
    carry_out(save_marks(DISK, log, [Mark(0, (), ()), Mark(50, (0, 30, 20), (0, 1, 2))]))
    found = recover_origins(DISK, log)
    assert found is not None
    assert found[1].clock == (0, 5, 5)


def test_entries_that_do_not_follow_the_file_cannot_be_placed(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 10)
    carry_out(save_marks(DISK, log, [Mark(0, (0, 3), (0, 99))]))
    assert recover_origins(DISK, log) is None


def test_entries_behind_damage_outlive_the_cut(tmp_path: Path) -> None:
    """A bit flips in the fourth of ten entries; all that are whole behind it are kept until the log is whole again."""
    path = tmp_path / "log"
    log = filled(path, 10)
    size_bytes = len(batch(1, 1))
    (segment,) = path.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[4 * size_bytes - 1] ^= 1
    segment.write_bytes(data)
    for file in path.glob("*.snapshot"):
        file.unlink()

    def opened() -> tuple[ShardLog, list[tuple[int, int]]]:
        log = ShardLog.open(DISK, str(path), LogConfig())
        found = recover_origins(DISK, log)
        assert found is not None
        kept = salvage(DISK, log, found[1].clock)
        assert all(entry.crc == read_header(batch(entry.origin, entry.lsn)).crc for entry in kept)
        return log, [(entry.origin, entry.lsn) for entry in kept]

    behind = [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    log, kept = opened()
    assert log.damaged is not None
    assert log.log_end == 3
    assert kept == behind

    async def write_on() -> None:
        wal = WalThread(DISK)
        wal.start(asyncio.get_running_loop())
        wal.submit(log.stage_append([batch(2, 2, 3)]))  # from another replica; this cuts the rest
        await wal.stop()

    asyncio.run(write_on())
    assert segment.read_bytes().rstrip(b"\0").count(b"v5") == 0
    log, kept = opened()
    assert log.log_end == 4
    assert kept == behind
    carry_out(log.clear_damage())
    assert opened()[1] == []
    assert not (path / SALVAGE_FILE).exists()
