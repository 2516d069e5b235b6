"""What every disk promises, asked of the real one and of the simulated one; then what only crashes show."""

import os
from pathlib import Path
from random import Random

import pytest

from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import (
    COPY_BYTES,
    Disk,
    LockHeldError,
    RealDisk,
    copy_tree,
    make_directory,
    read_whole,
    replace_file,
    write_whole,
)
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk, and a directory that is there."""
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = SimulatedDisk(Random(0))
    disk.makedirs(str(tmp_path))
    return disk, str(tmp_path)


def test_directories_are_made_listed_and_removed(place: tuple[Disk, str]) -> None:
    disk, root = place
    assert disk.makedirs(f"{root}/a/b")
    assert not disk.makedirs(f"{root}/a/b")
    write_whole(disk, f"{root}/a/file", b"1")
    assert disk.listdir(f"{root}/a") == ["b", "file"]
    assert [disk.is_dir(f"{root}/a/{name}") for name in ("b", "file", "none")] == [True, False, False]
    assert [disk.exists(f"{root}/a/{name}") for name in ("b", "file", "none")] == [True, True, False]
    disk.remove_tree(f"{root}/a")
    disk.remove_tree(f"{root}/a")
    assert disk.listdir(root) == []


def test_a_copied_directory_has_all_that_is_in_it(place: tuple[Disk, str]) -> None:
    disk, root = place
    large = bytes(range(256)) * (COPY_BYTES // 256) + b"rest"
    for path, data in (("large", large), ("in/small", b"1"), ("in/in/empty", b"")):
        disk.makedirs(os.path.dirname(f"{root}/a/{path}"))
        write_whole(disk, f"{root}/a/{path}", data)
    copy_tree(disk, f"{root}/a", f"{root}/b/c")
    assert disk.listdir(f"{root}/b/c") == ["in", "large"]
    assert disk.listdir(f"{root}/b/c/in/in") == ["empty"]
    assert [read_whole(disk, f"{root}/b/c/{path}") for path in ("large", "in/small")] == [large, b"1"]
    disk.sync_all()


def test_what_is_not_there_is_said_so(place: tuple[Disk, str]) -> None:
    disk, root = place
    for call in (
        lambda: disk.listdir(f"{root}/none"),
        lambda: disk.open(f"{root}/none"),
        lambda: disk.open(f"{root}/none/file", create=True),
        lambda: disk.rename(f"{root}/none", f"{root}/other"),
        lambda: disk.rename(f"{root}/file", f"{root}/none/file"),
        lambda: disk.modified_s(f"{root}/none"),
        lambda: disk.fsync_dir(f"{root}/none"),
    ):
        write_whole(disk, f"{root}/file", b"")
        with pytest.raises(FileNotFoundError):
            call()
    for wrong in (lambda: disk.listdir(f"{root}/file"), lambda: disk.open(f"{root}/file/x", create=True)):
        with pytest.raises(NotADirectoryError):
            wrong()
    with pytest.raises(IsADirectoryError):
        disk.open(root)
    with pytest.raises(OSError, match="directory"):
        disk.remove(root)


def test_a_renamed_directory_takes_its_files_along(place: tuple[Disk, str]) -> None:
    disk, root = place
    for name in ("old", "new"):
        disk.makedirs(f"{root}/{name}")
        write_whole(disk, f"{root}/{name}/file", name.encode())
    with pytest.raises(OSError, match="not empty"):
        disk.rename(f"{root}/new", f"{root}/old")
    disk.remove_tree(f"{root}/old")
    disk.rename(f"{root}/new", f"{root}/old")
    assert read_whole(disk, f"{root}/old/file") == b"new"
    assert read_whole(disk, f"{root}/new/file") is None


def test_an_open_file_outlives_its_name(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.makedirs(f"{root}/a")
    write_whole(disk, f"{root}/a/file", b"content")
    file = disk.open(f"{root}/a/file")
    disk.remove_tree(f"{root}/a")
    assert file.pread(100, 0) == b"content"


def test_a_lock_is_held_once_and_says_by_whom(place: tuple[Disk, str]) -> None:
    disk, root = place
    lock = disk.lock(f"{root}/lock", b"holder 1 of many")
    with pytest.raises(LockHeldError) as held:
        disk.lock(f"{root}/lock", b"2")
    assert held.value.note == b"holder 1 of many"
    lock.release()
    lock.release()
    disk.lock(f"{root}/lock", b"3").release()
    assert read_whole(disk, f"{root}/lock") == b"3"


def test_room_and_times_are_told(place: tuple[Disk, str]) -> None:
    disk, root = place
    assert disk.free_bytes(root) > 0
    write_whole(disk, f"{root}/a", b"1")
    before = disk.modified_s(f"{root}/a")
    write_whole(disk, f"{root}/a", b"2")
    assert disk.modified_s(f"{root}/a") >= before > 1_600_000_000


def test_simulated_times_and_room_are_those_of_the_simulation() -> None:
    now = [5.0]
    disk = SimulatedDisk(Random(0), lambda: now[0])
    disk.capacity_bytes = 100
    write_whole(disk, "/a", b"x" * 30)
    now[0] = 6.0
    write_whole(disk, "/b", b"y" * 30)
    assert (disk.modified_s("/a"), disk.modified_s("/b"), disk.free_bytes("/")) == (5.0, 6.0, 40)
    disk.rename("/a", "/b")
    assert (disk.modified_s("/b"), disk.free_bytes("/")) == (5.0, 70)
    disk.remove("/b")
    assert disk.free_bytes("/") == 100


def test_names_are_lost_in_a_crash_unless_they_were_synced() -> None:
    outcomes = set()
    for seed in range(40):
        disk = SimulatedDisk(Random(seed))
        make_directory(disk, "/a/synced")
        disk.makedirs("/a/unsynced")
        replace_file(disk, "/a/unsynced/file", b"1")
        disk.makedirs("/b/c/d")
        after = disk.crash()
        assert after.listdir("/b") == ["c"], "parents of a new directory are durable"
        outcomes.add(
            (*after.listdir("/a"), *(after.listdir("/a/unsynced") if after.exists("/a/unsynced") else ()))
        )
    assert outcomes == {("synced",), ("synced", "unsynced", "file")}


def test_everything_outlives_a_crash_after_all_was_synced() -> None:
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        disk.makedirs("/a/b")
        write_whole(disk, "/a/b/file", b"1" * 10_000)
        write_whole(disk, "/a/other", b"2")
        disk.rename("/a/other", "/a/b/other")
        disk.sync_all()
        write_whole(disk, "/a/later", b"3")
        after = disk.crash()
        assert [read_whole(after, f"/a/b/{name}") for name in ("file", "other")] == [b"1" * 10_000, b"2"]
        assert not after.exists("/a/other")


def test_a_rename_is_lost_or_kept_whole() -> None:
    outcomes = set()
    for seed in range(40):
        disk = SimulatedDisk(Random(seed))
        for name in ("/a", "/b"):
            make_directory(disk, name)
        make_directory(disk, "/a/tree")
        replace_file(disk, "/a/tree/file", b"1")
        disk.rename("/a/tree", "/b/tree")
        after = disk.crash()
        outcomes.add((*after.listdir("/a"), len(after.listdir("/b"))))
        assert read_whole(after, "/a/tree/file") == b"1" or read_whole(after, "/b/tree/file") == b"1"
        disk.fsync_dir("/b")
        assert disk.crash().listdir("/a") == []
    assert outcomes == {("tree", 0), (1,)}


def test_what_an_earlier_change_gave_does_not_come_back() -> None:
    """The sync of one directory takes along the changes of others that its own build on."""
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        for name in ("/a", "/b"):
            make_directory(disk, name)
        write_whole(disk, "/a/x", b"1")
        disk.rename("/a/x", "/b/y")
        disk.fsync_dir("/b")
        after = disk.crash()
        assert (after.listdir("/a"), after.listdir("/b")) == ([], ["y"])


def test_a_crash_in_the_middle_of_a_removal_leaves_a_part() -> None:
    left = set()
    for crash_after in range(5):
        disk = SimulatedDisk(Random(0))
        disk.makedirs("/a")
        for name in "xyz":
            write_whole(disk, f"/a/{name}", b"")
        disk.crash_after = disk.calls + crash_after
        try:
            disk.remove_tree("/a")
        except SimulatedCrash:
            left.add(len(disk.kill().listdir("/a")))
    assert left == {0, 1, 2, 3}


def test_a_killed_process_changes_nothing_any_more_and_its_locks_are_free() -> None:
    disk = SimulatedDisk(Random(0))
    disk.lock("/lock", b"1")
    file = disk.open("/file", create=True)
    after = disk.kill()
    for call in (
        lambda: file.pwritev([b"late"], 0),
        lambda: disk.makedirs("/a"),
        lambda: disk.remove("/file"),
    ):
        with pytest.raises(SimulatedCrash):
            call()
    assert (after.listdir("/"), read_whole(after, "/file")) == (["file", "lock"], b"")
    after.lock("/lock", b"2")
    after.crash().lock("/lock", b"3")


def test_a_nodes_directory_lives_on_a_simulated_disk() -> None:
    disk = SimulatedDisk(Random(3))
    first = NodeDirectory.open("/data/node-1", "c1", 1, disk=disk)
    disk.makedirs(first.shard_path(7))
    disk.makedirs(first.shard_path(8))
    first.remove_shard(7)
    first.note_joined()
    after = disk.crash()
    second = NodeDirectory.open("/data/node-1", "c1", 1, disk=after)
    assert second.identity == first.identity
    assert (second.may_replace, second.shard_ids()) == (False, [8])
    assert not os.path.exists("/data/node-1")
