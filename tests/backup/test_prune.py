"""Old backups go with what only they need; whatever stops a prune, what is left can be restored."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from antiphon.backup import create, manifest
from antiphon.backup.create import create_backup
from antiphon.backup.manifest import Backup, load, manifest_path, names_in
from antiphon.backup.place import Place
from antiphon.backup.prune import REMOVED, Pruned, old_ones, prune
from antiphon.backup.verify import verify_backup
from antiphon.client.aio import AsyncClient
from antiphon.errors import BackupError
from antiphon.node.trimming import trim_replica
from tests.node.in_process import cluster_of, in_virtual_time


@contextlib.asynccontextmanager
async def three(place: Place) -> AsyncIterator[tuple[AsyncClient, list[Backup]]]:
    """A cluster with three backups, each of which has new records and rows; logs are trimmed after each."""
    async with cluster_of(1) as nodes, AsyncClient("node-0:7400") as db:
        node = nodes.nodes[0]
        for name in ("t", "kept"):
            await db.create_topic(name)
        await db.create_table("rows", shards=1)
        made = []
        for n in range(3):
            await db.topic("t").append(b"%d" % n, shard=0)
            await db.table("rows").put(b"k", b"%d" % n)
            made.append(await create_backup(db, place))
            for name in ("t", "rows") if n < 2 else ():
                (shard,) = node.gateway.topic(name).shards
                await trim_replica(node.replicas, shard.shard_id, node.hosts[shard.shard_id].log.log_end)
            await db.topic("kept").append(b"%d" % n, shard=0)
        yield db, made


def files_of(backup: Backup) -> set[str]:
    states = [shard.state for shard in backup.shards if shard.state is not None]
    pieces = {piece.path for shard in backup.shards for piece in shard.pieces}
    return pieces | {file.path for state in states for file in state.files}


def files_in(place: Place) -> set[str]:
    root = Path(place.uri)
    found = (str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())
    return {name for name in found if not name.startswith(("manifests/", f"{REMOVED}/"))}


@in_virtual_time
async def test_what_only_old_backups_need_goes_with_them(place: Place) -> None:
    async with three(place) as (_, made):
        needed = [files_of(backup) for backup in made]
        assert needed[0] & needed[2], "backups share files"
        assert needed[0] - needed[1], "and not all"
        everything = needed[0] | needed[1] | needed[2]
        assert files_in(place) == everything
        going = old_ones(place, 1, None)
        assert [one.name for one in going] == [one.name for one in made[:2]]
        done = prune(place, going)
        assert done == Pruned(
            [one.name for one in made[:2]], len(everything - needed[2]), done.size_bytes, [made[2].name]
        )
        assert names_in(place) == [made[2].name]
        assert files_in(place) == needed[2]
        assert place.names(REMOVED) == []
        assert verify_backup(place, load(place)).problems == ()


@in_virtual_time
async def test_the_newest_of_each_cluster_stay_and_what_is_not_old_enough(place: Place) -> None:
    async with three(place) as (_, made):
        theirs = msgspec.structs.replace(made[0], name="20200101T000000Z-00000000", cluster_id="another")
        manifest.save(place, theirs)
        assert old_ones(place, 3, None) == []
        assert [one.name for one in old_ones(place, 2, None)] == [made[0].name]
        assert theirs.name not in {one.name for one in old_ones(place, 1, None)}, (
            "the only one of its cluster"
        )
        before_ms = made[1].created_ms
        assert [one.name for one in old_ones(place, 1, before_ms)] == [
            one.name for one in made[:2] if one.created_ms < before_ms
        ]
        with pytest.raises(BackupError, match="never pruned"):
            old_ones(place, 0, None)


@in_virtual_time
@pytest.mark.parametrize("fails_at", range(6))
async def test_a_prune_that_was_stopped_is_completed_by_the_next(place: Place, fails_at: int) -> None:
    async with three(place) as (_, made):
        remove, count = Place.remove, 0

        def stopped(self: Place, path: str) -> bool:
            nonlocal count
            count += 1
            if count > fails_at:
                raise BackupError("the network is gone")
            return remove(self, path)

        with patch.object(Place, "remove", stopped), pytest.raises(BackupError, match="network"):
            prune(place, old_ones(place, 1, None))
        assert verify_backup(place, load(place)).problems == (), "what is left is whole at any moment"
        prune(place, old_ones(place, 1, None))
        assert files_in(place) == files_of(made[2])
        assert names_in(place) == [made[2].name]
        assert place.names(REMOVED) == []


@in_virtual_time
async def test_nothing_goes_while_a_manifest_cannot_be_read(place: Place) -> None:
    async with three(place) as (_, made):
        (Path(place.uri) / manifest_path(made[1].name)).write_bytes(b"{}")
        before = files_in(place)
        with pytest.raises(BackupError, match=f"out of {place.uri}"):
            old_ones(place, 1, None)
        assert files_in(place) == before


@in_virtual_time
async def test_a_backup_whose_base_goes_meanwhile_is_whole_or_is_none(place: Place) -> None:
    """Its manifest is there before files are looked at: they stay. Or it is written later: the base is seen to be gone."""
    async with three(place) as (db, made):
        late = made[2]

        def pruned_before(where: Place, backup: Backup) -> None:
            where.remove(
                manifest_path(late.name)
            )  # the first step of a prune of the base, whose files go next
            manifest.save(where, backup)

        with patch.object(create, "save", pruned_before), pytest.raises(BackupError, match="begin again"):
            await create_backup(db, place)
        assert names_in(place) == [made[0].name, made[1].name]

    async with three(Place(f"{place.uri}-2")) as (db, made):
        second = Place(f"{place.uri}-2")
        remove, newest = Place.remove, []

        def made_between(self: Place, path: str) -> bool:
            found = remove(self, path)
            if path == manifest_path(made[1].name):
                again = manifest.load(second, made[2].name)
                name = manifest.new_name()
                manifest.save(second, msgspec.structs.replace(again, name=name, base=made[1].name))
                newest.append(name)
            return found

        with patch.object(Place, "remove", made_between):
            prune(second, old_ones(second, 1, None))
        assert verify_backup(second, load(second, newest[0])).problems == ()
