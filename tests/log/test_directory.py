"""Whose directory it is."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from antiphon.errors import DirectoryInUseError, ForeignDirectoryError, NewerFormatError
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import RealDisk, replace_file
from antiphon.log.identity import IDENTITY_COPY_NAME, find_identity
from antiphon.log.layout import DAMAGE_NAME
from antiphon.log.recovery import DAMAGE_MAGIC, DAMAGE_VERSION, load_damage
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.log.snapshot import START_MAGIC, START_VERSION, LogStart, decode_start, encode_start, frame
from antiphon.records.members import Members


def test_a_directory_is_made_once_and_known_again(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "node-1")
    assert find_identity(RealDisk(), path).identity is None
    first = NodeDirectory.open(path, "c1", 1)
    assert first.shard_ids() == []
    first.close()
    first.close()
    second = NodeDirectory.open(path, "c1", 1)
    assert second.identity == first.identity
    assert len(second.identity.disk_id) == 32
    assert find_identity(RealDisk(), path).identity == second.identity
    second.close()


def test_an_emptied_disk_has_another_identity(tmp_path: Path) -> None:
    ids = set()
    for name in ("x", "y"):
        directory = NodeDirectory.open(str(tmp_path / name), "c1", 1)
        ids.add(directory.identity.disk_id)
        directory.close()
    assert len(ids) == 2


def test_foreign_directories_are_refused_and_unlocked_again(tmp_path: Path) -> None:
    path = str(tmp_path)
    NodeDirectory.open(path, "c1", 1).close()
    for cluster, node in (("c2", 1), ("c1", 2)):
        with pytest.raises(ForeignDirectoryError, match="c1"):
            NodeDirectory.open(path, cluster, node)
    NodeDirectory.open(path, "c1", 1).close()
    (tmp_path / "identity.json").write_text("{not json")
    (tmp_path / IDENTITY_COPY_NAME).write_text("not whole either")
    with pytest.raises(ForeignDirectoryError):
        NodeDirectory.open(path, "c1", 1)


def test_shards_without_an_identity_are_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "shards" / "1").mkdir(parents=True)
    with pytest.raises(ForeignDirectoryError):
        NodeDirectory.open(str(tmp_path), "c1", 1)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    NodeDirectory.open(str(tmp_path), "c1", 1).close()
    (tmp_path / "identity.json").write_text(json.dumps({"format": 2, "new": True}))
    with pytest.raises(NewerFormatError):
        NodeDirectory.open(str(tmp_path), "c1", 1)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from antiphon.log.directory import NodeDirectory; "
        "d = NodeDirectory.open(sys.argv[1], 'c1', 1); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(DirectoryInUseError, match=str(other.pid)):
            NodeDirectory.open(str(tmp_path), "c1", 1)
        other.kill()
    NodeDirectory.open(str(tmp_path), "c1", 1).close()


def test_shards_are_listed_and_removed(tmp_path: Path) -> None:
    directory = NodeDirectory.open(str(tmp_path), "c1", 1)
    for shard_id in (10, 2):
        Path(directory.shard_path(shard_id)).mkdir()
        (Path(directory.shard_path(shard_id)) / "file").write_text("x")
    assert directory.shard_ids() == [2, 10]
    directory.remove_shard(10)
    directory.remove_shard(10)
    assert directory.shard_ids() == [2]
    assert not Path(directory.shard_path(10)).exists()
    (tmp_path / "shards" / "3.removed").mkdir()  # a crash came in between
    directory.close()
    directory = NodeDirectory.open(str(tmp_path), "c1", 1)
    assert not (tmp_path / "shards" / "3.removed").exists()
    directory.close()


@pytest.mark.parametrize("path", ["/node", "/var/lib/node"])
def test_a_directory_that_a_killed_process_began_is_there_after_a_power_failure(path: str) -> None:
    """A start that finds a directory cannot know that its name, or that of a parent, ever got to the disk."""
    calls = 0
    while True:
        disk = SimulatedDisk(Random(calls))
        disk.crash_after = calls
        try:
            NodeDirectory.open(path, "c1", 1, disk=disk)
            break
        except SimulatedCrash:
            calls += 1
        disk = disk.kill()
        made = NodeDirectory.open(path, "c1", 1, disk=disk)
        found = NodeDirectory.open(path, "c1", 1, disk=disk.crash())
        assert found.identity.disk_id == made.identity.disk_id, f"killed at call {calls}"
    assert calls > 10


@pytest.mark.parametrize("mark", [ShardLog.mark_forgotten, ShardLog.mark_joining])
def test_a_new_replica_that_may_not_vote_yet_is_still_known_after_a_power_failure(
    mark: Callable[[ShardLog], None],
) -> None:
    """`joined` says that all such replicas are marked: then none of the marks may get lost."""
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        directory = NodeDirectory.open("/node", "c1", 1, disk=disk)
        mark(ShardLog.open(disk, directory.shard_path(5)))
        directory.note_joined()
        after = disk.crash()
        assert not NodeDirectory.open("/node", "c1", 1, disk=after).may_replace
        assert ShardLog.open(after, directory.shard_path(5)).damaged is not None


@pytest.mark.parametrize("bad", [b"\xff\xfe", b'{"format":1,"cluster_id":"\xc3("}', b"[" * 5000])
def test_an_identity_that_is_no_text_is_refused_with_a_word_on_it(bad: bytes) -> None:
    """The fuzzer of a node's files found that the node died of an exception that nobody had meant."""
    disk = SimulatedDisk(Random(1))
    NodeDirectory.open("/node", "c", 0, disk=disk).close()
    replace_file(disk, "/node/identity.json", bad)
    disk.remove(f"/node/{IDENTITY_COPY_NAME}")
    with pytest.raises(ForeignDirectoryError, match="is not a node's identity"):
        NodeDirectory.open("/node", "c", 0, disk=disk)


def test_a_damage_marker_that_is_no_text_still_says_damaged() -> None:
    disk = SimulatedDisk(Random(1))
    disk.makedirs("/shard")
    payload = msgspec.msgpack.encode((0, "path", 0, "reason")).replace(b"reason", b"rea\xff\xfen")
    replace_file(disk, f"/shard/{DAMAGE_NAME}", frame(DAMAGE_MAGIC, DAMAGE_VERSION, payload))
    found = load_damage(disk, "/shard")
    assert found is not None
    assert "cannot be read" in found.reason


def test_a_start_file_with_members_that_are_none_is_not_whole() -> None:
    good = encode_start(LogStart(5, 1, False, Members((1, 2, 3))))
    assert decode_start(good, "start") is not None
    payload = good[16:-1]
    assert decode_start(frame(START_MAGIC, START_VERSION, payload), "start") is None
