"""Backups of shards whose records were deleted up to an offset inside of a batch: no restore brings one of them back."""

from pathlib import Path

import pytest

from antiphon.backup.create import create_backup
from antiphon.backup.place import Place
from antiphon.backup.restore_topic import restore_topic
from antiphon.backup.shard_files import ShardFiles
from antiphon.client.aio import AsyncClient
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import RealDisk
from antiphon.log.shard_log import ShardLog
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch
from antiphon.records.members import Members
from tests.backup.test_create import shard_of
from tests.node.in_process import cluster_of, in_virtual_time


@pytest.mark.parametrize("profile", ["oxia", "raft"])
@in_virtual_time
async def test_no_restore_brings_a_deleted_record_back(profile: str, tmp_path: Path) -> None:
    """A backup that goes on from an earlier one, too; what is left has its times and keys."""
    place = Place(str(tmp_path / "place"))
    async with cluster_of(1) as nodes, AsyncClient("node-0:7400") as db:
        await db.create_topic("t", profile=profile, replicas=1)
        for first in (0, 3, 6):
            batch = build_batch([(b"k", b"%d" % (first + n), (), 1_000 + first + n) for n in range(3)])
            (shard,) = next(topic for topic in (await db.metadata()).topics if topic.name == "t").shards
            await db.append_raw(shard.shard_id, batch)
        await create_backup(db, place)
        assert await nodes.nodes[0].gateway.trim(shard.shard_id, 4, 10.0) == 4
        made = await create_backup(db, place)
        saved = shard_of(made, "t")
        assert (saved.start, saved.deleted_before) == (3, 4)
        again = shard_of(await create_backup(db, place), "t")
        assert again.state == saved.state, "nothing was trimmed since"
        await restore_topic(db, place, made, "t", "back")
        found = [(one.key, one.value, one.timestamp_ms) async for one in db.topic("back").read(0, 0)]
        assert found == [(b"k", b"%d" % n, 1_000 + n) for n in range(4, 9)]
        await db.topic("t").append(b"9")
        assert [one.offset async for one in db.topic("t").read(0, 4)] == [
            4,
            5,
            6,
            7,
            8,
            9 + (profile == "raft"),
        ]
    folder = tmp_path / "node"
    disk, members = RealDisk(), Members((0, 1))
    directory = NodeDirectory.open(str(folder), "c", 0, disk=disk, bootstrap=True)
    ShardFiles(place, disk).make(directory, folder, saved, 99, members)
    log = ShardLog.open(disk, directory.shard_path(saved.shard_id))
    kept = [header.base_offset for header, _ in iter_batches(b"".join(log.read(3, 1 << 20, log.log_end)))]
    directory.close()
    assert kept[:2] == [3, 6]
    assert log.members.current == (Members((0, 1), deleted_before=4) if profile == "raft" else None)
