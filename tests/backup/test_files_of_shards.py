"""The files of a restored replica, and what is copied of a log that compaction changes meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from antiphon.backup import log_copy, shard_copy
from antiphon.backup.log_copy import TrimmedError
from antiphon.backup.manifest import Piece, ShardBackup, State, StoredFile
from antiphon.backup.place import Place
from antiphon.backup.shard_copy import ShardCopy, Written
from antiphon.backup.shard_files import ShardFiles
from antiphon.client.aio import AsyncClient
from antiphon.errors import BackupError, CorruptBatchError
from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import RealDisk
from antiphon.log.producer_state import ProducerState
from antiphon.log.shard_log import ShardLog
from antiphon.model.backup import ShardHeld
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import iter_batches, read_header
from antiphon.records.builder import build_batch, build_end_marker, build_members
from antiphon.records.compacted import emptied, filler
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members

SHARD = 7
OLD, NEW = Members((4, 5, 6)), Members((0,))


def batch(base: int, count: int = 1, sequence: int = -1, *, is_part: bool = False) -> bytes:
    made = build_batch(
        [(b"k", b"v%d" % base, [], 1)] * count,
        base_offset=base,
        leader_epoch=3,
        producer_id=9 if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1,
        base_sequence=sequence,
        is_transactional=is_part,
    )
    return bytes(made)


def marker(base: int) -> bytes:
    return bytes(
        build_end_marker(commit=False, number=1, producer=(9, 0), term=3, base_offset=base, timestamp_ms=1)
    )


def saved(place: Place, *logs: bytes, start: int = 0, state: State | None = None) -> ShardBackup:
    """A shard of these pieces."""
    pieces = []
    for number, log in enumerate(logs):
        with place.writing(f"logs/7/{number}.log") as file:
            file.add(log)
        headers = [header for header, _ in iter_batches(log)]
        bounds = headers[0].base_offset, headers[-1].next_offset
        pieces.append(Piece(f"logs/7/{number}.log", *bounds, file.size_bytes, file.checksum, 3))
    return ShardBackup(SHARD, 0, 3, start, pieces[-1].end, tuple(pieces), state)


def restored(place: Place, shard: ShardBackup, folder: Path) -> ShardLog:
    """What a node finds in the files."""
    disk = RealDisk()
    node = NodeDirectory.open(str(folder), "c", 0, disk=disk, bootstrap=True)
    end = ShardFiles(place, disk).make(node, folder, shard, 9, NEW)
    node.close()
    node = NodeDirectory.open(str(folder), "c", 0, disk=disk)
    log = ShardLog.open(disk, node.shard_path(SHARD), LogConfig(), held=node.held(SHARD), promises=True)
    node.close()
    assert log.damaged is None
    assert log.end == end
    assert (log.hard_state.term, log.hard_state.high_watermark) == (9, log.log_end)
    return log


def test_a_replica_is_whole_and_knows_producers_and_aborted_transactions(
    place: Place, tmp_path: Path
) -> None:
    first = batch(0, 2, 0) + batch(2, 1, 2, is_part=True)
    second = marker(3) + batch(4, 1, 3)
    log = restored(place, saved(place, first, second), tmp_path / "node")
    assert (log.log_start, log.log_end) == (0, 5)
    found = b"".join(bytes(one) for one in log.read(0, 1 << 20, 5))
    assert found == first + second, "byte for byte"
    assert [(one.first_offset, one.marker_offset) for one in log.aborted(0, 5)] == [(2, 3)]
    assert log.producers.check(read_header(batch(5, 1, 3)), full=False) is not None, "a repeat is known"
    assert log.producers.check(read_header(batch(5, 1, 4)), full=False) is None


def test_compacted_batches_stay_as_they_are(place: Place, tmp_path: Path) -> None:
    whole = batch(2, 3, 0)
    data = filler(0, 2, 3) + emptied(read_header(whole)) + batch(5)
    log = restored(place, saved(place, data), tmp_path / "node")
    assert b"".join(bytes(one) for one in log.read(0, 1 << 20, 6)) == data


def test_members_of_the_old_cluster_are_followed_by_those_of_the_new(place: Place, tmp_path: Path) -> None:
    data = batch(0) + bytes(build_members(OLD, 3, 1, 1)) + batch(2)
    log = restored(place, saved(place, data), tmp_path / "node")
    assert log.log_end == 4
    assert log.members.items()[-1] == (4, NEW)


def test_a_log_goes_on_from_its_state_and_starts_where_it_did(place: Place, tmp_path: Path) -> None:
    producers = ProducerState()
    producers.update(read_header(batch(2, 1, 5)))
    with place.writing("states/7/p") as file:
        file.add(producers.encode())
    state = State(2, 3, (StoredFile("producers.antiphon", "states/7/p", file.size_bytes, file.checksum, 0),))
    data = batch(2, 1, 5) + batch(3) + batch(4) + batch(5)
    log = restored(place, saved(place, data, start=5, state=state), tmp_path / "node")
    assert (log.log_start, log.log_end) == (5, 6)
    assert log.producers.check(read_header(batch(9, 1, 5)), full=False) is not None
    assert log.terms.start == EntryId(3, 5)


def test_gaps_are_refused(place: Place, tmp_path: Path) -> None:
    shard = saved(place, batch(0) + batch(2))
    with pytest.raises(BackupError, match="after 1, is damaged"):
        restored(place, shard, tmp_path / "node")


def test_parts_of_fillers_are_taken_where_compaction_has_joined_them() -> None:
    payload = memoryview(filler(4, 12, 3) + batch(12) + filler(13, 30, 3))
    chunk, at = log_copy._up_to(SHARD, payload, 8, 20)
    assert at == 20
    assert [(h.base_offset, h.next_offset) for h, _ in iter_batches(chunk)] == [(8, 12), (12, 13), (13, 20)]
    chunk, at = log_copy._up_to(SHARD, payload, 4, 13)
    assert (bytes(chunk), at) == (bytes(payload[: len(chunk)]), 13)
    chunk, at = log_copy._up_to(SHARD, memoryview(filler(4, 30, 3)), 8, 10)
    assert [(h.base_offset, h.next_offset) for h, _ in iter_batches(chunk)] == [(8, 10)]
    for bad in (batch(4, 6), batch(8, 6), batch(9), filler(9, 10, 3)):
        with pytest.raises(CorruptBatchError, match="was to go on at 8"):
            log_copy._up_to(SHARD, memoryview(bad), 8, 10)
    flipped = bytearray(batch(8))
    flipped[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        log_copy._up_to(SHARD, memoryview(flipped), 8, 10)


@pytest.mark.parametrize(("log_start", "is_taken"), [(2, True), (6, False)])
def test_metadata_that_were_trimmed_after_the_cut_are_not_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch, log_start: int, is_taken: bool
) -> None:
    """The checkpoint that `__cluster` begins with by now was begun before the cut, and may have ended behind it."""

    async def read(_client: AsyncClient, _shard: int, start: int, end: int) -> AsyncGenerator[memoryview]:
        if start < log_start:
            raise TrimmedError(f"begins at {log_start}", log_start=log_start)
        yield memoryview(batch(start, end - start))

    monkeypatch.setattr(shard_copy, "read_batches", read)
    copy = ShardCopy(AsyncClient("127.0.0.1:1"), place, CLUSTER_SHARD_ID, Written(), None, is_table=False)
    up_to = copy.up_to(ShardHeld(end=8, term=1, log_start=2))
    if is_taken:
        assert asyncio.run(up_to).start == 2
    else:
        with pytest.raises(BackupError, match="trimmed beyond the cut"):
            asyncio.run(up_to)
