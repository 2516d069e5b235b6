"""Stores of tables on the disk: a snapshot put in the place of one."""

import contextlib
from random import Random

from antiphon.log.disk import read_whole, replace_file
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.node.table_files import destroy_state, finish_install, install_state, store_path

TABLES, COPY = "/node/tables", "/node/snapshots/receive-7"
STORE = store_path(TABLES, 7)


def disk_with_copy() -> SimulatedDisk:
    disk = SimulatedDisk(Random(0))
    for path, said in ((STORE, b"old"), (COPY, b"new")):
        disk.makedirs(path)
        replace_file(disk, f"{path}/rows", said)
    return disk


def test_a_snapshot_takes_the_place_of_a_store() -> None:
    disk = disk_with_copy()
    install_state(disk, COPY, STORE)
    assert read_whole(disk, f"{STORE}/rows") == b"new"
    assert (disk.listdir(TABLES), disk.listdir("/node/snapshots")) == (["7"], [])


def test_a_killed_process_leaves_the_old_store_or_the_new_one() -> None:
    found = set()
    for crash_after in range(6):
        disk = disk_with_copy()
        disk.crash_after = disk.calls + crash_after
        with contextlib.suppress(SimulatedCrash):
            install_state(disk, COPY, STORE)
        disk = disk.kill()
        finish_install(disk, STORE)
        found.add(read_whole(disk, f"{STORE}/rows"))
    assert found == {b"old", b"new"}


def test_destroy_is_total() -> None:
    disk = disk_with_copy()
    destroy_state(disk, STORE)
    destroy_state(disk, STORE)
    assert disk.listdir(TABLES) == []
