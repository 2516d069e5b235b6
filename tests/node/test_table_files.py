"""A snapshot takes the place of a table's store and of its log, whole or not at all, whenever the process ends."""

import contextlib
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.errors import StorageFailedError
from antiphon.log.disk import make_directory, read_whole, replace_file, write_whole
from antiphon.log.producer_state import ProducerState
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.log.simulated_faults import Fault
from antiphon.node.received_snapshots import MANIFEST_FILE, PRODUCERS_FILE, install_snapshot
from antiphon.partition.table_files import (
    INSTALL_SUFFIX,
    destroy_state,
    recover_install,
    restore_aside,
    store_path,
    watermark_at_start,
)
from antiphon.records.batch import read_header
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import LostTail, ResetLog
from tests.log.helpers import Runner, batch_at

if TYPE_CHECKING:
    from antiphon.partition.single_writer import SingleWriterPartition
    from antiphon.partition.snapshots import InstallingSnapshot

TABLES, LOG, COPY = "/node/tables", "/node/shards/7", "/node/snapshots/receive-7"
STORE = store_path(TABLES, 7)
AT = EntryId(5, 40)
PRODUCER = 9


class Follower:
    """A host with an old store of offset 30 and an old log of 60 entries, those from 30 on of another leader."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk, self.shard_id = disk, 7
        self.takes_it = True
        self.installing: InstallingSnapshot | None = None
        self.driver = self.snapshots = self  # each with its own events
        make_directory(disk, "/node/shards")
        self.log = ShardLog.open(disk, LOG)
        self.runner = Runner(disk)
        self.runner.run(self.log.hard_state.stage(5, None))
        for offset in range(60):
            self.runner.run(self.log.stage_append([batch_at(offset)]))
        for path, said in ((STORE, b"30"), (COPY, b"40")):
            disk.makedirs(path)
            disk.fsync_dir(path.rpartition("/")[0])
            replace_file(disk, f"{path}/rows", said)
        producers = ProducerState()
        producers.update(read_header(batch_at(39, producer_id=PRODUCER, sequence=0)))
        write_whole(disk, f"{COPY}/{PRODUCERS_FILE}", producers.encode())
        write_whole(disk, f"{COPY}/{MANIFEST_FILE}", b"")
        disk.fsync_dir(COPY)
        state = SimpleNamespace(close=lambda: None)
        # Stores are directories with one file here.
        self.table = SimpleNamespace(path=STORE, state=state, stores=None, opened=SimpleNamespace)

    def installed(self, at: EntryId, _members: None) -> Sequence[Any]:
        return [LostTail(30, 60), ResetLog(1, at)] if self.takes_it else []

    def call(self, event: Callable[[], Sequence[Any]]) -> None:
        for action in event():
            if isinstance(action, ResetLog):
                assert self.installing is not None
                producers, then = self.installing
                self.runner.run(self.log.reset(action.at, producers, None, then))

    def install(self) -> None:
        install_snapshot(cast("SingleWriterPartition", self), AT, COPY)


def new_disk(seed: int) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed))
    make_directory(disk, TABLES)
    return disk


def found_after_start(disk: SimulatedDisk) -> tuple[bytes | None, EntryId, EntryId]:
    """The store, the log's start and the log's end, as a node finds them."""
    recover_install(disk, STORE, LOG)
    log = ShardLog.open(disk, LOG)
    assert disk.listdir(TABLES) == ["7"]
    if log.end == AT:
        assert log.producers.last_batch(PRODUCER) is not None, "what is known of producers is there too"
    return read_whole(disk, f"{STORE}/rows"), log.terms.start, log.end


OLD = (b"30", EntryId(0, 0), EntryId(1, 60))
NEW = (b"40", AT, AT)


def test_a_snapshot_takes_the_place_of_store_and_log() -> None:
    follower = Follower(new_disk(0))
    follower.install()
    assert follower.disk.listdir(TABLES) == ["7"]
    assert not follower.disk.exists(COPY)
    for disk in (follower.disk.crash(), follower.disk.kill()):
        assert found_after_start(disk) == NEW


@pytest.mark.parametrize("killed", [True, False])
def test_every_crash_leaves_all_of_the_old_or_all_of_the_new(killed: bool) -> None:
    outcomes = []
    for crash_after in range(80):
        disk = new_disk(crash_after)
        follower = Follower(disk)
        disk.crash_after = disk.calls + crash_after
        with contextlib.suppress(SimulatedCrash):
            follower.install()
        disk = disk.kill() if killed else disk.crash()
        # The start may be cut as well.
        disk.crash_after = disk.calls + disk.rng.randint(0, 25)
        with contextlib.suppress(SimulatedCrash):
            recover_install(disk, STORE, LOG)
            disk.crash_after = None
        disk = disk.kill() if killed else disk.crash()
        outcomes.append(found_after_start(disk))
    assert set(outcomes) == {OLD, NEW}
    assert outcomes[0] == OLD
    assert outcomes[-1] == NEW


def test_what_is_written_after_an_installation_stays() -> None:
    """The file that says what to finish is gone, durably, before anything is written to the new log."""
    for seed in range(10):
        follower = Follower(new_disk(seed))
        follower.install()
        follower.runner.run(follower.log.stage_append([batch_at(40, term=5)]))
        assert found_after_start(follower.disk.crash())[2] == EntryId(5, 41)


def test_a_snapshot_that_is_not_taken_changes_nothing() -> None:
    follower = Follower(new_disk(0))
    follower.takes_it = False
    follower.install()
    assert follower.installing is None
    assert follower.disk.listdir(TABLES) == ["7"]
    assert found_after_start(follower.disk.crash()) == OLD


def test_no_room_to_begin_changes_nothing() -> None:
    follower = Follower(new_disk(0))
    follower.disk.capacity_bytes = follower.disk.used_bytes()
    with pytest.raises(OSError, match="space"):
        follower.install()
    assert follower.disk.exists(f"{COPY}/{PRODUCERS_FILE}"), "what was received is used the next time"
    assert found_after_start(follower.disk.crash()) == OLD


def begun(disk: SimulatedDisk) -> None:
    """Break off as soon as the installation must be finished."""
    disk.faults.append(Fault(("remove",), path=STORE + "/"))
    with pytest.raises(OSError, match="put"):
        Follower(disk).install()
    disk.faults.clear()
    assert disk.exists(STORE + INSTALL_SUFFIX)


def test_a_replica_that_was_removed_is_not_brought_back() -> None:
    disk = new_disk(0)
    begun(disk)
    disk.remove_tree(LOG)
    assert recover_install(disk, STORE, LOG) is None
    assert (disk.listdir(TABLES), disk.exists(LOG)) == ([], False)


def test_removal_of_the_store_removes_what_was_to_take_its_place() -> None:
    disk = new_disk(0)
    begun(disk)
    destroy_state(disk, STORE)
    destroy_state(disk, STORE)
    assert disk.listdir(TABLES) == []
    assert not disk.crash().exists(STORE + INSTALL_SUFFIX)


def test_a_damaged_note_is_an_error() -> None:
    disk = new_disk(0)
    begun(disk)
    disk.flip_bit(STORE + INSTALL_SUFFIX, 200)
    with pytest.raises(StorageFailedError, match="damaged"):
        recover_install(disk, STORE, LOG)


def test_the_old_store_of_a_former_versions_crash_is_taken_back() -> None:
    disk = new_disk(0)
    disk.makedirs(STORE + ".old")
    restore_aside(disk, STORE)
    assert disk.listdir(TABLES) == ["7"]
    disk.makedirs(STORE + ".old")
    restore_aside(disk, STORE)
    assert disk.listdir(TABLES) == ["7"]


def test_a_store_that_is_ahead_of_its_log_settles_nothing() -> None:
    assert watermark_at_start(10, 30, 60, unclean=False) == 30
    assert watermark_at_start(10, 60, 60, unclean=False) == 60
    assert watermark_at_start(10, 61, 60, unclean=False) == 10
    assert watermark_at_start(50, 30, 60, unclean=False) == 50
    assert watermark_at_start(10, 61, 60, unclean=True) == 61
