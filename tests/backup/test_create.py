"""Backups of nodes in this process: what is copied, what is not written again, and what is noticed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from antiphon.backup import create, manifest, shard_copy
from antiphon.backup.create import create_backup
from antiphon.backup.cut import Cut
from antiphon.backup.manifest import Backup, ShardBackup
from antiphon.backup.place import Place
from antiphon.backup.verify import log_of, metadata_of, verify_backup
from antiphon.client.aio import AsyncClient
from antiphon.errors import BackupError, InvalidRequestError, NotHeldError, OverloadedError
from antiphon.model.backup import CopyState, DropState, ReadState
from antiphon.node import local_backups
from antiphon.node.trimming import trim_replica
from antiphon.records.decode import decode_records
from tests.node.in_process import Nodes, cluster_of, in_virtual_time


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[Nodes, AsyncClient]]:
    async with cluster_of(1) as nodes, AsyncClient("node-0:7400") as db:
        await db.create_topic("t", shards=2)
        yield nodes, db


def shard_of(backup: Backup, name: str, index: int = 0) -> ShardBackup:
    return next(shard for shard in backup.topic(name).shards if shard.index == index)


def values_in(place: Place, shard: ShardBackup) -> list[bytes | None]:
    return [record.value for _, batch in log_of(place, shard) for record in decode_records(batch)]


async def trim(nodes: Nodes, shard_id: int, before: int) -> None:
    assert await trim_replica(nodes.nodes[0].replicas, shard_id, before) == before


@in_virtual_time
async def test_later_backups_go_on_from_the_one_before(place: Place) -> None:
    async with running() as (_, db):
        topic = db.topic("t")
        for n in range(3):
            await topic.append(b"%d" % n, shard=0)
        first = await create_backup(db, place)
        await topic.append(b"3", shard=0)
        second = await create_backup(db, place)
        third = await create_backup(db, place)
        assert [made.base for made in (first, second, third)] == ["", first.name, second.name]
        assert len(shard_of(second, "t").pieces) == 2
        assert shard_of(second, "t").pieces[0] == shard_of(first, "t").pieces[0]
        assert (second.written_files, third.written_files) == (1, 0)
        assert third.topics == second.topics
        assert values_in(place, shard_of(third, "t")) == [b"0", b"1", b"2", b"3"]
        for name in manifest.names_in(place):
            assert verify_backup(place, manifest.load(place, name)).problems == ()


@in_virtual_time
async def test_large_logs_come_in_several_pieces(place: Place) -> None:
    async with running() as (_, db):
        for n in range(20):
            await db.topic("t").append(b"%02d" % n * 50, shard=0)
        with patch.object(shard_copy, "PIECE_BYTES", 1), patch("antiphon.backup.log_copy.FETCH_BYTES", 500):
            made = await create_backup(db, place)
        pieces = shard_of(made, "t").pieces
        assert len(pieces) > 4
        assert len(values_in(place, shard_of(made, "t"))) == 20
        assert verify_backup(place, made).problems == ()


@in_virtual_time
async def test_a_trimmed_topic_has_the_producers_of_before_and_keeps_no_old_pieces(place: Place) -> None:
    async with running() as (nodes, db):
        topic = db.topic("t")
        for n in range(4):
            await topic.append(b"%d" % n, shard=0)
        first = await create_backup(db, place)
        shard_id = shard_of(first, "t").shard_id
        assert shard_of(first, "t").state is None
        await trim(nodes, shard_id, 4)
        await topic.append(b"4", shard=0)
        shard = shard_of(await create_backup(db, place), "t")
        assert (shard.start, shard.end) == (4, 5)
        assert shard.state is not None
        assert shard.state.offset == 4
        assert [file.name for file in shard.state.files] == ["producers.antiphon"]
        assert values_in(place, shard) == [b"4"]
        await topic.append(b"5", shard=0)
        assert shard_of(await create_backup(db, place), "t").state == shard.state, "nothing was trimmed since"
        await trim(nodes, shard_id, 5)
        later = shard_of(await create_backup(db, place), "t")
        assert later.state is not None
        assert (later.start, later.state.offset) == (5, 5)
        assert values_in(place, later) == [b"5"]
        assert later.pieces[0].start == 5, "what was trimmed since is not kept"


@in_virtual_time
async def test_what_is_trimmed_while_it_is_copied_is_copied_from_the_new_start(place: Place) -> None:
    async with running() as (nodes, db):
        for n in range(6):
            await db.topic("t").append(b"%d" % n, shard=0)
        shard_id = next(s.shard_id for s in (await db.metadata()).topics[-1].shards if s.index == 0)
        piece = shard_copy.ShardCopy._piece
        done: list[int] = []

        async def trimmed_first(self: shard_copy.ShardCopy, start: int, end: int) -> manifest.Piece:
            if not done and self._shard_id == shard_id:
                await trim(nodes, shard_id, 4)
                done.append(4)
            return await piece(self, start, end)

        with patch.object(shard_copy.ShardCopy, "_piece", trimmed_first):
            made = await create_backup(db, place)
        assert done
        assert values_in(place, shard_of(made, "t")) == [b"4", b"5"]


@in_virtual_time
async def test_pieces_of_another_history_are_not_used(place: Place) -> None:
    """A rule of commits that loses writes can give other entries the same offsets, of another term."""
    async with running() as (_, db):
        await db.topic("t").append(b"0", shard=0)
        made = await create_backup(db, place)
        topics = msgspec.to_builtins(made.topics)
        for topic in topics:
            for shard in topic["shards"]:
                for piece in shard["pieces"]:
                    piece["term"] += 1
        manifest.save(
            place,
            msgspec.structs.replace(made, topics=msgspec.convert(topics, tuple[manifest.TopicBackup, ...])),
        )
        again = await create_backup(db, place)
        assert again.base == made.name
        assert shard_of(again, "t").pieces[0].path != shard_of(made, "t").pieces[0].path
        assert values_in(place, shard_of(again, "t")) == [b"0"]


@in_virtual_time
async def test_a_topic_that_is_deleted_before_it_is_copied_makes_another_cut(place: Place) -> None:
    async with running() as (_, db):
        await db.create_topic("gone")
        await db.topic("gone").append(b"x")
        rest = create._Run.copy_rest
        tries: list[list[str]] = []

        async def deleted_first(self: create._Run, cut: Cut) -> dict[int, shard_copy.Copied]:
            tries.append(sorted(topic.name for topic in cut.topics))
            if len(tries) == 1:
                self._copies.clear()
                await db.delete_topic("gone")
            return await rest(self, cut)

        with patch.object(create._Run, "copy_rest", deleted_first):
            made = await create_backup(db, place)
        assert [("gone" in names) for names in tries] == [True, False]
        assert "gone" not in {topic.name for topic in made.topics}
        assert metadata_of(place, made).state.topics.keys() == {topic.name for topic in made.topics}


@in_virtual_time
async def test_a_backup_that_did_not_end_does_not_exist(place: Place) -> None:
    async with running() as (_, db):
        await db.topic("t").append(b"0", shard=0)
        with patch.object(create, "save", side_effect=BackupError("no room")), pytest.raises(BackupError):
            await create_backup(db, place)
        assert manifest.names_in(place) == []
        made = await create_backup(db, place, without=["default"])
        assert (made.base, made.without) == ("", ("default",))
        assert "default" not in {topic.name for topic in made.topics}
        assert verify_backup(place, made).problems == ()


@pytest.mark.parametrize("kind", ["flip", "cut", "grow", "lose", "swap"])
def test_verify_names_what_is_damaged(place: Place, kind: str) -> None:
    @in_virtual_time
    async def made() -> None:
        async with running() as (_, db):
            for shard in (0, 1):
                await db.topic("t").append(b"value", shard=shard)
            await create_backup(db, place)

    made()
    backup = manifest.load(place)
    (piece,), (other,) = (shard_of(backup, "t", index).pieces for index in (0, 1))
    file = Path(place.uri) / piece.path
    data = bytearray(file.read_bytes())
    if kind == "flip":
        data[30] ^= 4
    elif kind == "cut":
        del data[-1:]
    elif kind == "grow":
        data += b"\0"
    elif kind == "swap":
        data = bytearray((Path(place.uri) / other.path).read_bytes()[::-1])
    file.write_bytes(data)
    if kind == "lose":
        file.unlink()
    found = verify_backup(place, backup)
    assert [(one.shard, one.path) for one in found.problems] == [(shard_of(backup, "t").shard_id, piece.path)]


@patch.object(local_backups, "KEEP_S", 10.0)
@in_virtual_time
async def test_copies_of_states_are_bounded_and_go_by_themselves() -> None:
    async with running() as (nodes, db):
        node = nodes.nodes[0]
        shard_id = (await db.metadata()).topics[0].shards[0].shard_id
        backups = node.gateway.backups
        copies = [await backups.copy(CopyState(shard_id)) for _ in range(local_backups.COPIES_MAX)]
        assert len({copy.copy_id for copy in copies}) == local_backups.COPIES_MAX
        with pytest.raises(OverloadedError, match="copies for backups already"):
            await backups.copy(CopyState(shard_id))
        first, second = copies[:2]
        data = await backups.read(ReadState(shard_id, first.copy_id, 0, 0))
        assert len(data) == first.files[0].size_bytes
        with pytest.raises(InvalidRequestError, match="no number"):
            await backups.read(ReadState(shard_id, first.copy_id, 99, 0))
        backups.drop(DropState(shard_id, first.copy_id))
        with pytest.raises(NotHeldError, match="no copy"):
            await backups.read(ReadState(shard_id, first.copy_id, 0, 0))
        copies.append(await backups.copy(CopyState(shard_id)))
        await asyncio.sleep(2.5 * local_backups.KEEP_S)
        with pytest.raises(NotHeldError, match="no copy"):
            await backups.read(ReadState(shard_id, second.copy_id, 0, 0))
        left = node.disk.listdir("/data/snapshots")
        assert left == [], "nothing is left on the disk"
