"""Directories of a whole cluster: what is in them, and what is refused before there are any."""

import shutil
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from antiphon.backup import manifest, restore_cluster
from antiphon.backup.create import create_backup
from antiphon.backup.manifest import Backup
from antiphon.backup.metadata import Metadata
from antiphon.backup.place import Place
from antiphon.backup.shard_files import ShardFiles
from antiphon.backup.verify import verify_backup
from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError, BackupError, InvalidRequestError
from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import RealDisk
from antiphon.log.shard_log import ShardLog
from antiphon.model.access import User
from antiphon.model.client_metrics import AlterSubscription, Subscription
from antiphon.model.metadata import ABSENT_NODE, ShardStatus
from antiphon.security.passwords import credentials
from tests.node.in_process import cluster_of, eventually, in_virtual_time
from tests.node.test_checkpoints import SMALL, come_and_go, state, voter

SLOW = Subscription("slow", {"interval.ms": "5000", "metrics": "*"})


@pytest.fixture
def backup(tmp_path: Path) -> tuple[Place, Backup]:
    place = Place(str(tmp_path / "place"))

    @in_virtual_time
    async def made() -> None:
        async with cluster_of(3) as nodes, AsyncClient("node-0:7400") as db:
            await db.create_topic("t", shards=4)
            await db.create_topic("strict", config={"commit": "at_least(3)"})
            await db.topic("t").append(b"1", shard=0)
            await db.administer(AlterSubscription(SLOW.name, dict(SLOW.values)))
            assert nodes.nodes
            await create_backup(db, place)

    made()
    return place, manifest.load(place)


def metadata_in(folder: Path, cluster_id: str) -> Metadata:
    node = NodeDirectory.open(str(folder), cluster_id, int(folder.name[5:]), disk=RealDisk())
    log = ShardLog.open(RealDisk(), node.shard_path(0), LogConfig(), held=node.held(0), promises=True)
    node.close()
    assert log.damaged is None
    found = Metadata()
    found.fold(log.read(0, 1 << 24, log.log_end))
    return found


def test_a_new_cluster_with_the_metadata_of_the_old(backup: tuple[Place, Backup], tmp_path: Path) -> None:
    place, saved = backup
    user = User("admin", credentials("a password"))
    done = restore_cluster.restore_cluster(place, saved, tmp_path / "new", 4, user=user)
    assert [folder.name for folder in done.directories] == ["node-0", "node-1", "node-2", "node-3"]
    for folder in done.directories[:3]:
        state = metadata_in(folder, done.cluster_id).state
        assert state.cluster is not None
        assert (state.cluster.cluster_id, state.cluster.bootstrapped) == (done.cluster_id, True)
        assert set(state.access.users) == {"admin"}
        assert state.subscriptions == {"slow": SLOW}
        assert {name: topic.topic_id.hex() for name, topic in state.topics.items()} == {
            topic.name: topic.topic_id for topic in saved.topics
        }
        assert not any(node.alive for node in state.nodes.values())
        for shard in (one for topic in saved.topics for one in topic.shards):
            meta = state.shards[shard.shard_id].meta
            assert meta.term > shard.term, "nothing of the old cluster is newer"
            assert (meta.leader, meta.status) == (ABSENT_NODE, ShardStatus.OFFLINE)
            for node in meta.ensemble:
                assert (tmp_path / "new" / f"node-{node}" / "shards" / str(shard.shard_id)).is_dir()
    assert not (done.directories[3] / "shards" / "0").exists(), "three vote"
    preferred = [record.meta.ensemble[0] for record in state.shards.values()]
    assert max(map(preferred.count, range(4))) - min(map(preferred.count, range(4))) <= 1, "spread evenly"


def test_two_nodes_have_one_voter(backup: tuple[Place, Backup], tmp_path: Path) -> None:
    place, saved = backup
    without = msgspec.structs.replace(
        saved, without=("strict",), topics=tuple(t for t in saved.topics if t.name != "strict")
    )
    done = restore_cluster.restore_cluster(place, without, tmp_path / "new", 2)
    assert [(folder / "shards" / "0").exists() for folder in done.directories] == [True, False]
    assert "strict" not in metadata_in(done.directories[0], done.cluster_id).state.topics


def test_nothing_is_left_of_a_restore_that_fails(backup: tuple[Place, Backup], tmp_path: Path) -> None:
    place, saved = backup
    with (
        patch.object(ShardFiles, "copy", side_effect=OSError("no room")),
        pytest.raises(OSError, match="no room"),
    ):
        restore_cluster.restore_cluster(place, saved, tmp_path / "new", 3)
    assert list((tmp_path / "new").iterdir()) == []
    restore_cluster.restore_cluster(place, saved, tmp_path / "new", 3)


@pytest.mark.parametrize("kind", ["nodes", "rules", "room", "files", "metadata"])
def test_refused_before_anything_is_written(backup: tuple[Place, Backup], tmp_path: Path, kind: str) -> None:
    place, saved = backup
    nodes, problem = 3, ""
    error: type[AntiphonError] = BackupError
    usage = shutil.disk_usage(tmp_path)
    if kind == "nodes":
        nodes, problem, error = 65, "1 to 64 nodes", InvalidRequestError
    elif kind == "rules":
        nodes, problem = 2, r"strict has 3 replicas and cannot have 2.*--nodes 3"
    elif kind == "room":
        usage, problem = usage._replace(free=1), "do not fit on the disk"
    elif kind == "files":
        (Path(place.uri) / saved.topic("t").shards[0].pieces[0].path).unlink()
        problem = "nothing was changed"
    else:
        topics = tuple(msgspec.structs.replace(topic, name=topic.name + "x") for topic in saved.topics)
        saved, problem = msgspec.structs.replace(saved, topics=topics), "other topics than its metadata"
    with patch.object(shutil, "disk_usage", lambda _: usage), pytest.raises(error, match=problem):
        restore_cluster.restore_cluster(place, saved, tmp_path / "new", nodes)
    assert not (tmp_path / "new").exists()


def test_metadata_whose_log_begins_at_a_checkpoint(tmp_path: Path) -> None:
    """A first backup when it begins above 0, and one that goes on from it when it begins later still."""
    place = Place(str(tmp_path / "place"))

    @in_virtual_time
    async def made() -> None:
        async with cluster_of(1, metadata=SMALL) as nodes, AsyncClient("node-0:7400") as db:
            starts = [0]
            for first in (0, 40):
                await come_and_go(nodes, 40, first)
                await eventually(lambda: voter(nodes.nodes[0]).log.log_start > starts[-1])
                await create_backup(db, place)
                starts.append(manifest.load(place).cluster.start)
            assert 0 < starts[1] < starts[2]
            known = set(state(nodes.nodes[0]).topics)
            assert {topic.name for topic in manifest.load(place).topics} == known

    made()
    first, second = (manifest.load(place, name) for name in manifest.names_in(place))
    assert second.base == first.name
    assert second.cluster.pieces[0].end > second.cluster.start, "what came before the checkpoint is not kept"
    for saved in (first, second):
        assert verify_backup(place, saved).problems == ()
    done = restore_cluster.restore_cluster(place, second, tmp_path / "new", 1)
    found = metadata_in(done.directories[0], done.cluster_id).state
    assert set(found.topics) == {topic.name for topic in second.topics}
    with patch.object(Metadata, "is_whole", property(lambda _: False)):
        (problem,) = verify_backup(place, second).problems
    assert "no checkpoint" in problem.what
