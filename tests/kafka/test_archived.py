"""What a node keeps of the archive in memory, and where it takes the archive to begin."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, Final, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from antiphon.archive import batches, places
from antiphon.archive.files import RowGroup
from antiphon.archive.format import ArchivedFile, in_order, reaching
from antiphon.gateway.interface import Gateway
from antiphon.kafka.archived import reader
from antiphon.kafka.archived.catalog import ArchiveRows
from antiphon.kafka.archived.memory import KEEP_S, RowGroups
from antiphon.kafka.archived.reader import CLIENT_LOOKING_MAX, ArchiveReader
from antiphon.kafka.one_thread import OneThread
from tests.coroutines import on_a_loop

ROWS: Final = pa.table({"offset": pa.array(range(8), pa.int64())})
SIZE: Final = ROWS.nbytes
TOPIC: Final[Any] = None


def file(start: int, end: int, checksum: str = "") -> ArchivedFile:
    return ArchivedFile(
        format=1, topic="t", topic_id="00" * 16, shard=0, start=start, end=end, rows=end - start, controls=0, uri="",
        size_bytes=0, checksum=checksum, digest="", earliest_ms=-1, latest_ms=-1, archived_ms=0,
    )  # fmt: skip


def group(start: int) -> RowGroup:
    return RowGroup(start, start + 8, ROWS)


def test_the_least_recently_used_group_is_the_first_to_go() -> None:
    groups, one = RowGroups(2 * SIZE), file(0, 100)
    for start in (0, 8):
        groups.add(one, group(start), 0.0)
        assert groups.find(one, start) == group(start)
    assert groups.find(one, 7) == group(0)
    groups.add(one, group(16), 0.0)
    assert groups.held_bytes == 2 * SIZE
    assert [groups.find(one, at) is not None for at in (0, 8, 15, 23)] == [True, False, False, True]


def test_what_nobody_has_read_keeps_its_place_for_a_while() -> None:
    groups, one = RowGroups(SIZE), file(0, 100)
    groups.add(one, group(0), 0.0)
    assert not groups.has_room(1.0)
    groups.add(one, group(8), 1.0)
    assert groups.held_bytes == 2 * SIZE
    assert groups.find(one, 0) is not None
    assert not groups.has_room(2.0)
    assert groups.has_room(1.0 + KEEP_S)
    groups.add(one, group(16), 1.0 + KEEP_S)
    assert [groups.find(one, at) is not None for at in (0, 8, 16)] == [False, False, True]
    assert groups.held_bytes == SIZE


def test_a_file_that_was_replaced_is_another_one() -> None:
    groups = RowGroups(4 * SIZE)
    groups.add(file(0, 100, "a"), group(0), 0.0)
    assert groups.find(file(0, 100, "b"), 0) is None
    groups.add(file(0, 100, "a"), group(0), 0.0)
    assert groups.held_bytes == SIZE


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=8), st.integers(0, 40))
def test_the_archive_begins_where_its_files_reach_the_log(
    spans: list[tuple[int, int]], log_start: int
) -> None:
    files = in_order([file(start, start + size) for start, size in spans])

    class Rows(ArchiveRows):
        async def files(self, topic: Any, shard: int) -> AsyncIterator[ArchivedFile]:
            for one in files:
                yield one

    start, end = asyncio.run(Rows(cast(Gateway, None)).run(TOPIC, 0, log_start))
    assert start == reaching(files, log_start)
    assert start <= log_start <= end
    held = {offset for one in files for offset in range(one.start, one.end)}
    assert set(range(start, end)) <= held
    assert start == end or end not in held


def test_where_clients_log_in_nothing_is_opened_that_the_operator_has_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who may write a topic may write its rows of the catalog, and a row says what is opened."""
    monkeypatch.setattr(places, "simulated", {})
    monkeypatch.delenv(places.LOCATIONS_VARIABLE, raising=False)
    gateway = cast("Gateway", Mock())  # whose catalog is there
    assert ArchiveReader(gateway, 1 << 20, OneThread()).serves()
    with capture_logs() as lines:
        assert not ArchiveReader(gateway, 1 << 20, OneThread(), guarded=True).serves()
    assert [one["reason"] for one in lines] == [
        "clients log in, and ANTIPHON_ARCHIVE_LOCATIONS names no directories of archives"
    ]
    monkeypatch.setenv(places.LOCATIONS_VARIABLE, "/archive")
    assert ArchiveReader(gateway, 1 << 20, OneThread(), guarded=True).serves()


class Files:
    """Rows of a catalog in which every hundred offsets are a file, and a reader that counts what is read of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory_bytes: int = 64 * SIZE) -> None:
        self.read: list[int] = []
        self.let_on = threading.Event()
        self.archive = ArchiveReader(cast("Gateway", Mock()), memory_bytes, OneThread())
        monkeypatch.setattr(reader, "_group_at", self._group_at)
        monkeypatch.setattr(ArchiveRows, "holder", staticmethod(self._holder))
        made = Mock(batches=[b"batch"], size_bytes=5)
        monkeypatch.setattr(batches, "batches_of", lambda *_args, **_how: made)

    async def _holder(self, _topic: Any, _shard: int, offset: int) -> ArchivedFile:
        return file(offset - offset % 100, offset - offset % 100 + 100)

    def _group_at(self, _file: ArchivedFile, offset: int) -> RowGroup:
        self.let_on.wait(10.0)
        self.read.append(offset)
        return group(offset)

    def look(self, client: str, offset: int) -> "asyncio.Task[Any]":
        topic: Any = Mock(topic_id=b"t")
        reading = self.archive.read(topic, 0, offset, 1 << 20, at_least_one=True, wait_s=10.0, client=client)
        return asyncio.ensure_future(reading)


@on_a_loop
async def test_a_client_with_many_archived_fetches_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch)
    asked = [files.look("greedy", 100 * n) for n in range(100)]
    await asyncio.sleep(0)
    refused = sum(task.done() for task in await _settled(asked))
    assert refused == 100 - CLIENT_LOOKING_MAX
    other = files.look("other", 50_000)
    await asyncio.sleep(0.01)
    files.let_on.set()
    assert (await other).batches
    assert files.read.index(50_000) <= 2, "after the one that was being read, and one more"
    await asyncio.gather(*asked)


@on_a_loop
async def test_what_two_clients_look_for_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch)
    asked = [files.look(client, 700) for client in ("a", "b", "a")]
    await asyncio.sleep(0.01)
    files.let_on.set()
    assert all(piece.batches for piece in await asyncio.gather(*asked))
    assert files.read == [700]


@on_a_loop
async def test_what_a_client_fetches_not_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch, memory_bytes=4 * SIZE)
    asked = [files.look("greedy", 100 * n) for n in range(8)]
    await asyncio.sleep(0.01)
    for task in asked:
        task.cancel()  # who asked is gone, what was asked for is read
    files.let_on.set()
    await asyncio.sleep(0.1)
    assert files.read == [0, 100], "half of it: no more is read for who takes nothing"
    assert (await files.look("other", 50_000)).batches


async def _settled(tasks: "list[asyncio.Task[Any]]") -> "list[asyncio.Task[Any]]":
    await asyncio.wait(tasks, timeout=0.05)
    return tasks
