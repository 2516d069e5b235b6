"""What a simulated disk does wrong when it is told to, as real ones do."""

import errno
from random import Random

import pytest

from antiphon.log.disk import File, read_whole, replace_file, write_whole
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault, descriptors_used_up
from antiphon.log.simulated_tree import SimulatedContent

PAGE = 512


def new_file(seed: int, size: int = 0) -> tuple[SimulatedDisk, File]:
    """A file of zeros that is durable."""
    disk = SimulatedDisk(Random(seed))
    file = disk.open("/file", create=True)
    file.pwritev([bytes(size)], 0)
    file.fdatasync()
    disk.fsync_dir("/")
    return disk, file


def fail_one_sync(disk: SimulatedDisk, file: File) -> None:
    disk.faults.append(Fault(("fdatasync",), calls=1))
    with pytest.raises(OSError, match="put"):
        file.fdatasync()


def test_a_failed_sync_loses_pages_that_are_still_read_until_the_crash() -> None:
    lost = kept = 0
    for seed in range(30):
        disk, file = new_file(seed, PAGE * 4)
        file.pwritev([b"x" * PAGE * 4], 0)
        fail_one_sync(disk, file)
        file.fdatasync()  # the kernel says that all is well
        assert file.pread(PAGE * 4, 0) == b"x" * PAGE * 4
        assert read_whole(disk.kill(), "/file") == b"x" * PAGE * 4
        found = read_whole(disk.crash(), "/file")
        assert found is not None
        pages = [found[at : at + PAGE] for at in range(0, len(found), PAGE)]
        assert all(page in {bytes(PAGE), b"x" * PAGE} for page in pages)
        lost += pages.count(bytes(PAGE))
        kept += pages.count(b"x" * PAGE)
    assert lost > kept > 0


def test_the_end_of_a_file_may_stay_where_it_was_or_be_zeros() -> None:
    found = set()
    for seed in range(60):
        disk, file = new_file(seed)
        file.pwritev([b"x" * PAGE], 0)
        fail_one_sync(disk, file)
        file.fdatasync()
        found.add(read_whole(disk.crash(), "/file"))
    assert found == {b"", bytes(PAGE), b"x" * PAGE}


def test_a_page_that_is_written_again_is_durable_with_all_that_is_in_it() -> None:
    for seed in range(20):
        disk, file = new_file(seed)
        file.pwritev([b"a" * 100], 0)
        fail_one_sync(disk, file)
        file.pwritev([b"b" * 100], 100)
        file.fdatasync()
        assert read_whole(disk.crash(), "/file") == b"a" * 100 + b"b" * 100


def test_writes_after_a_lost_page_leave_a_hole() -> None:
    holes = 0
    for seed in range(20):
        disk, file = new_file(seed)
        file.pwritev([b"a" * PAGE], 0)
        fail_one_sync(disk, file)
        file.pwritev([b"b" * PAGE], PAGE)
        file.fdatasync()
        holes += read_whole(disk.crash(), "/file") == bytes(PAGE) + b"b" * PAGE
    assert holes > 0


def test_syncs_leave_what_was_written_in_any_order() -> None:
    for seed in range(300):
        rng = Random(seed)
        disk, file = new_file(seed)
        expected = bytearray()
        for _ in range(rng.randint(1, 12)):
            at, size = rng.randint(0, 1500), rng.randint(0, 1500)
            if rng.random() < 0.3:
                file.truncate(at)
                expected = (expected + bytes(at))[:at]
            elif size:
                data = rng.randbytes(size)
                file.pwritev([data[: size // 2], data[size // 2 :]], at)
                expected.extend(bytes(max(0, at + size - len(expected))))
                expected[at : at + size] = data
            if rng.random() < 0.3:
                file.fdatasync()
        file.fdatasync()
        assert read_whole(disk.crash(), "/file") == read_whole(disk, "/file") == bytes(expected)


def test_a_sync_costs_what_was_written_not_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, file = new_file(0)
    content = disk._tree.content("/file")
    file.pwritev([bytes(PAGE * 1000)], 0)
    file.fdatasync()
    durable = content.durable
    copied: list[int] = []
    monkeypatch.setattr(SimulatedContent, "_keep_pages", lambda _, _at, size: copied.append(size))
    file.pwritev([b"x"], PAGE * 1000)
    file.fdatasync()
    assert copied == [1]
    assert content.durable is durable, "and not a copy of it"


def test_faults_hit_their_kinds_and_paths() -> None:
    disk = SimulatedDisk(Random(0))
    for path in ("/a", "/ab"):
        disk.makedirs(path)
        write_whole(disk, f"{path}/file", b"1")
    disk.faults.append(Fault(("read",), path="/a"))
    with pytest.raises(OSError, match="put") as failed:
        read_whole(disk, "/a/file")
    assert failed.value.errno == errno.EIO
    assert read_whole(disk, "/ab/file") == b"1"
    write_whole(disk, "/a/file", b"2")
    disk.faults.clear()
    assert read_whole(disk, "/a/file") == b"2"


def test_faults_come_and_pass() -> None:
    disk = SimulatedDisk(Random(0))
    disk.faults.append(Fault(("mkdir",), errno.EROFS, after=1, calls=2))
    outcomes = []
    for name in "abcd":
        try:
            disk.makedirs(f"/{name}")
        except OSError as error:
            outcomes.append(error.errno)
        else:
            outcomes.append(0)
    assert outcomes == [0, errno.EROFS, errno.EROFS, 0]


def test_chance_is_the_callers() -> None:
    def failures(seed: int) -> list[bool]:
        disk = SimulatedDisk(Random(seed))
        write_whole(disk, "/file", b"1")
        disk.faults.append(Fault(("read",), chance=0.5))
        found = []
        for _ in range(40):
            try:
                read_whole(disk, "/file")
            except OSError:
                found.append(True)
            else:
                found.append(False)
        return found

    assert failures(1) == failures(1) != failures(2)
    assert 5 < sum(failures(1)) < 35


def test_no_such_call() -> None:
    with pytest.raises(ValueError, match="fsync"):
        Fault(("fsync",))


def test_descriptors_are_used_up_while_the_fault_is_there() -> None:
    disk = SimulatedDisk(Random(0))
    file = disk.open("/file", create=True)
    disk.faults.append(descriptors_used_up())
    for path, create in (("/file", False), ("/new", True)):
        with pytest.raises(OSError, match="open files") as failed:
            disk.open(path, create=create)
        assert failed.value.errno == errno.EMFILE
    file.pwritev([b"1"], 0)
    disk.faults.clear()
    assert read_whole(disk, "/file") == b"1"
    assert not disk.exists("/new")


def test_calls_take_the_time_that_the_caller_says() -> None:
    disk = SimulatedDisk(Random(0))
    disk.duration_s = lambda kind, path, size: {"write": size / 100, "fdatasync": 2.0}.get(kind, 0.0)
    file = disk.open("/file", create=True)
    file.pwritev([b"x" * 50], 0)
    file.fdatasync()
    assert disk.take_spent_s() == 2.5
    assert disk.take_spent_s() == 0.0


def test_files_and_folders_get_lost() -> None:
    disk = SimulatedDisk(Random(0))
    for shard in "12":
        disk.makedirs(f"/shards/{shard}")
        replace_file(disk, f"/shards/{shard}/file", b"x" * 10)
    disk.lose("/shards/1/file")
    disk.lose("/shards/2")
    after = disk.kill()
    assert (after.listdir("/shards"), after.listdir("/shards/1"), after.used_bytes()) == (["1"], [], 0)
    with pytest.raises(FileNotFoundError):
        after.lose("/shards/2")
    assert not after.crash().exists("/shards/2")


def test_an_old_copy_comes_back() -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs("/shards/1")
    disk.fsync_dir("/shards")
    write_whole(disk, "/shards/1/old", b"of old")
    copy = disk.copy("/shards/1")
    write_whole(disk, "/shards/1/old", b"newer, longer")
    write_whole(disk, "/shards/1/new", b"new")
    disk.restore("/shards/1", copy)
    write_whole(disk, "/shards/1/old", b"not synced")
    after = disk.crash()
    assert after.listdir("/shards/1") == ["old"]
    assert after.used_bytes() == len(read_whole(after, "/shards/1/old") or b"")
    after.restore("/shards/1", copy)
    assert read_whole(after.crash(), "/shards/1/old") == b"of old"
    assert after.used_bytes() == 6
    after.restore("/elsewhere", copy)
    assert after.used_bytes() == 12
