"""Whose directory it is: what is damaged comes back from the copy, and nobody takes another's identity."""

import contextlib
import errno
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from antiphon.errors import ForeignDirectoryError, NewerFormatError, StorageFailedError
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import read_whole, replace_file
from antiphon.log.identity import IDENTITY_COPY_NAME, IDENTITY_NAME, Identity, find_identity
from antiphon.log.inventory import INVENTORY_COPY_NAME, INVENTORY_NAME, Holding
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault
from antiphon.records.entry_id import EntryId

MAIN = f"/node/{IDENTITY_NAME}"
COPY = f"/node/{IDENTITY_COPY_NAME}"
Harm = Callable[[SimulatedDisk, str], None]


def made(node_id: int = 1) -> tuple[SimulatedDisk, Identity]:
    """A node's directory that holds a replica."""
    disk = SimulatedDisk(Random(node_id))
    directory = NodeDirectory.open("/node", "c", node_id, disk=disk)
    disk.makedirs(directory.shard_path(3))
    directory.inventory.put(3, Holding(2, EntryId(1, 5)), durable=True)
    directory.close()
    return disk, directory.identity


def opened(disk: SimulatedDisk, node_id: int = 1) -> NodeDirectory:
    directory = NodeDirectory.open("/node", "c", node_id, disk=disk)
    directory.close()
    return directory


def flip(disk: SimulatedDisk, path: str) -> None:
    disk.flip_bit(path, 8 * 60 + 1)


def cut(disk: SimulatedDisk, path: str) -> None:
    disk.restore(path, bytes(disk.durable(path) or b"")[:40])


def extend(disk: SimulatedDisk, path: str) -> None:
    disk.restore(path, bytes(disk.durable(path) or b"") + b"and more")


def zero(disk: SimulatedDisk, path: str) -> None:
    disk.restore(path, bytes(100))


def empty(disk: SimulatedDisk, path: str) -> None:
    disk.restore(path, b"")


def delete(disk: SimulatedDisk, path: str) -> None:
    disk.lose(path)


def forbid(disk: SimulatedDisk, path: str) -> None:
    disk.faults.append(Fault(("open", "read"), errno.EACCES, path))


@pytest.mark.parametrize("path", [MAIN, COPY])
@pytest.mark.parametrize("harm", [flip, cut, extend, zero, empty, delete, forbid])
def test_a_damaged_identity_comes_back_from_the_other_file(harm: Harm, path: str) -> None:
    disk, identity = made()
    harm(disk, path)
    directory = opened(disk)
    assert directory.identity == identity
    assert directory.shard_ids() == [3]
    assert bool(directory.mended) == (path == MAIN)
    disk.faults.clear()
    again = opened(disk)
    assert (again.identity, again.mended) == (identity, "")
    assert find_identity(disk, "/node").is_kept


def test_every_flipped_bit_is_noticed() -> None:
    disk, identity = made()
    good = read_whole(disk, MAIN) or b""
    for bit in range(8 * len(good)):
        replace_file(disk, MAIN, good)
        disk.flip_bit(MAIN, bit)
        assert find_identity(disk, "/node").identity == identity, bit


@pytest.mark.parametrize("lost", [False, True])
def test_nobody_takes_anothers_identity(lost: bool) -> None:
    """Node 1 is started where the directory of node 2 is, whole or without its `identity.json`."""
    disk, _ = made(2)
    if lost:
        disk.lose(MAIN)
    with pytest.raises(ForeignDirectoryError, match="belongs to node 2"):
        opened(disk, 1)
    assert disk.exists(MAIN) is not lost, "nothing was written"
    assert opened(disk, 2).identity.node_id == 2


def test_a_whole_file_of_another_node_is_refused_though_the_copy_is_right() -> None:
    disk, _ = made(1)
    other, _ = made(2)
    replace_file(disk, MAIN, read_whole(other, MAIN) or b"")
    with pytest.raises(ForeignDirectoryError, match="belongs to node 2"):
        opened(disk, 1)


def test_both_lost_and_both_forbidden_are_refused_with_a_word_on_it() -> None:
    disk, _ = made()
    forbid(disk, MAIN)
    forbid(disk, COPY)
    with pytest.raises(StorageFailedError, match="give the node's user the right"):
        opened(disk)
    disk.faults.clear()
    disk.lose(MAIN)
    disk.lose(COPY)
    with pytest.raises(ForeignDirectoryError, match=r"no identity\.json"):
        opened(disk)


def test_no_disk_id_that_was_given_up_comes_back() -> None:
    """The inventory is lost, so the directory counts as another disk. Wherever the node dies in that, it stays so."""
    disk, identity = made()
    disk.lose(f"/node/{INVENTORY_NAME}")
    disk.lose(f"/node/{INVENTORY_COPY_NAME}")
    for calls in range(60):
        trial = SimulatedDisk(Random(calls))
        trial.restore("/node", disk.copy("/node"))
        trial.faults.append(Fault(("write", "rename", "fdatasync", "fsync_dir"), errno.EIO, after=calls))
        with contextlib.suppress(OSError):
            NodeDirectory.open("/node", "c", 1, disk=trial)
        trial = trial.crash()
        trial.lose(MAIN)
        directory = opened(trial)
        assert directory.is_remade or directory.identity.disk_id != identity.disk_id
        assert directory.identity.disk_id != identity.disk_id


def test_an_identity_of_an_earlier_version_gets_its_copy_and_stays_the_same() -> None:
    disk, identity = made()
    disk.lose(COPY)
    replace_file(disk, MAIN, msgspec.json.encode(identity))
    assert opened(disk).identity == identity
    assert find_identity(disk, "/node").is_kept
    disk.lose(MAIN)
    assert opened(disk).identity == identity


def test_an_earlier_version_that_gave_up_the_disk_id_is_not_overruled_by_the_copy() -> None:
    disk, identity = made()
    replace_file(disk, MAIN, msgspec.json.encode(msgspec.structs.replace(identity, disk_id="another")))
    with pytest.raises(ForeignDirectoryError, match="restore both from one backup"):
        opened(disk)


def test_a_full_disk_does_not_keep_a_whole_identity_from_being_used() -> None:
    disk, identity = made()
    disk.lose(MAIN)
    disk.faults.append(Fault(("write", "create"), errno.ENOSPC, f"{MAIN}.tmp"))
    disk.faults.append(Fault(("write", "create"), errno.ENOSPC, f"{COPY}.tmp"))
    assert opened(disk).identity == identity


def test_a_newer_format_is_refused_and_a_flipped_format_is_not_taken_for_one() -> None:
    disk, identity = made()
    good = read_whole(disk, MAIN) or b""
    replace_file(disk, MAIN, good.replace(b'"format":1', b'"format":3'))
    assert opened(disk).identity == identity
    replace_file(disk, MAIN, msgspec.json.encode({"format": 3, "other": 1}))
    with pytest.raises(NewerFormatError):
        opened(disk)


@pytest.mark.parametrize("harm", [forbid, delete, zero])
def test_an_inventory_that_may_not_be_read_comes_back_from_its_copy(harm: Harm) -> None:
    disk, identity = made()
    harm(disk, f"/node/{INVENTORY_NAME}")
    directory = opened(disk)
    assert directory.identity == identity
    assert directory.inventory.get(3) == Holding(2, EntryId(1, 5))


def test_an_inventory_is_not_given_up_because_it_may_not_be_read() -> None:
    disk, identity = made()
    forbid(disk, f"/node/{INVENTORY_NAME}")
    disk.lose(f"/node/{INVENTORY_COPY_NAME}")
    with pytest.raises(StorageFailedError, match="give the node's user the right"):
        opened(disk)
    disk.faults.clear()
    assert opened(disk).identity == identity
