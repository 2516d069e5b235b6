"""What is missing is damage: files of a replica that are gone, wholly or in part, or were put back from an older copy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import RealDisk
from antiphon.log.identity import IDENTITY_COPY_NAME
from antiphon.log.inventory import INVENTORY_COPY_NAME, INVENTORY_NAME, Held, Holding, Inventory
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.records.entry_id import EntryId
from tests.log.helpers import Runner, batch_at

NODE = "/node"
SHARD = 7
DIRECTORY = f"{NODE}/shards/{SHARD}"
SMALL = LogConfig(segment_bytes=1000, tail_bytes_max=1200)
LAZY = SMALL._replace(flush="interval")


class Simulated:
    """One replica on a simulated disk, with the node's inventory."""

    def __init__(self, config: LogConfig = SMALL, seed: int = 1) -> None:
        self.config = config
        self.disk = SimulatedDisk(Random(seed))
        self.disk.makedirs(f"{NODE}/shards")
        self.disk.fsync_dir(NODE)
        self.inventory = Inventory.create(self.disk, NODE, {})
        self.log = self.open()

    def open(self) -> ShardLog:
        held = Held(self.inventory, SHARD)
        self.log = ShardLog.open(
            self.disk, DIRECTORY, self.config, held=held, promises=True, clock_ms=lambda: 0
        )
        self.runner = Runner(self.disk)
        return self.log

    def fill(self, batches: int = 12) -> "Simulated":
        for at in range(batches):
            term = 1 + at // 4
            if self.log.hard_state.term < term:
                self.runner.run(self.log.hard_state.stage(term, None))
            self.runner.run(self.log.stage_append([batch_at(at, size=100, term=term)]))
        return self

    def stop(self) -> "Simulated":
        """A clean stop."""
        self.runner.run(self.log.checkpoint())
        self.inventory.save()
        return self

    def after(self, disk: SimulatedDisk) -> ShardLog:
        """What is found on that disk at the next start."""
        self.disk = disk
        inventory = Inventory.load(disk, NODE)
        assert inventory is not None
        self.inventory = inventory
        return self.open()

    def remove(self, wanted: Callable[[str], bool]) -> None:
        for name in self.disk.listdir(DIRECTORY):
            if wanted(name):
                self.disk.remove(f"{DIRECTORY}/{name}")

    def newest(self, suffix: str) -> str:
        return max(name for name in self.disk.listdir(DIRECTORY) if name.endswith(suffix))


def segments(name: str) -> bool:
    return name.endswith((".log", ".index"))


LOSSES: dict[str, Callable[[str], bool]] = {
    "data": lambda name: name.endswith(".log"),
    "segments": segments,
    "segments and snapshots": lambda name: segments(name) or name.endswith(".snapshot"),
    "all but the promise": lambda name: name != "hard-state",
}


@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("stopped", [True, False])
def test_a_log_that_is_gone_is_damage(what: str, stopped: bool) -> None:
    world = Simulated().fill()
    if stopped:
        world.stop()
    else:  # a checkpoint of the node's, as every few seconds
        world.log.note_held()
        world.inventory.save()
    world.remove(LOSSES[what])
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert not log.damaged.forgot
    assert (log.log_end, log.hard_state.term) == (0, 3)
    assert world.after(world.disk.crash()).damaged is not None  # it is remembered


@pytest.mark.parametrize("what", [(".log",), (".index", ".log"), (".index", ".log", ".snapshot")])
def test_a_newest_segment_that_is_gone_is_damage(what: tuple[str, ...]) -> None:
    world = Simulated().fill().stop()
    base = int(world.newest(".log").split(".")[0])
    world.remove(lambda name: name.endswith(what) and int(name.split(".")[0]) >= base)
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert log.log_end == base
    world.runner.run(log.hard_state.stage(4, None))
    world.runner.run(log.stage_append([batch_at(base, term=4)]), log.clear_damage())
    log = world.after(world.disk.crash())
    assert (log.damaged, log.log_end) == (None, base + 1)


def test_data_of_the_newest_segment_is_missed_without_a_clean_stop() -> None:
    """The index that is left says that it was durable."""
    for seed in range(20):
        world = Simulated(seed=seed).fill()
        world.disk.remove(f"{DIRECTORY}/{world.newest('.log')}")
        assert world.after(world.disk.kill()).damaged is not None


def test_data_of_the_newest_segment_is_missed_after_a_power_failure() -> None:
    """Which may have taken every entry of its index."""
    for seed in range(20):
        world = Simulated(LogConfig(), seed=seed).fill(1)
        world.disk = world.disk.crash()
        world.remove(lambda name: name.endswith(".log"))
        assert world.after(world.disk.kill()).damaged is not None


def test_data_of_the_oldest_segment_is_missed() -> None:
    world = Simulated().fill().stop()
    world.disk.remove(f"{DIRECTORY}/{0:020d}.log")
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert log.log_end == 0


def _flip_a_bit(world: Simulated) -> None:
    name = f"{DIRECTORY}/{0:020d}.log"
    file = world.disk.open(name)
    at = 300  # in the second batch, which was trimmed
    file.pwritev([bytes([file.pread(1, at)[0] ^ 1])], at)
    file.fdatasync()


TRIMMED_LOSSES: dict[str, tuple[Callable[[Simulated], None], int]] = {
    "data": (lambda world: world.remove(lambda name: name.endswith(".log")), 0),
    "segments": (lambda world: world.remove(segments), 0),
    "a bit before the start": (_flip_a_bit, 1),
}


@pytest.mark.parametrize("what", TRIMMED_LOSSES)
def test_a_trimmed_log_that_is_gone_begins_at_0_again(what: str) -> None:
    """Fed from its old start on, it would never hear of the producers that wrote before."""
    lose, end = TRIMMED_LOSSES[what]
    world = Simulated(LogConfig()).fill()
    world.runner.run(world.log.trim(5))
    world.log.note_held()
    world.inventory.save()
    assert world.after(world.disk.kill()).log_start == 5
    lose(world)
    world.disk.fsync_dir(DIRECTORY)
    for _ in range(3):
        log = world.after(world.disk.crash())
        assert log.damaged is not None
        assert (log.log_start, log.log_end) == (0, end)
    world.runner.run(log.stage_append([batch_at(end, term=3)]))
    world.runner.run(log.clear_damage())
    log = world.after(world.disk.crash())
    assert (log.damaged, log.log_start, log.log_end) == (None, 0, end + 1)


def test_a_trimmed_log_whose_producers_are_known_keeps_its_start() -> None:
    world = Simulated(LogConfig()).fill(4)
    world.runner.run(world.log.trim(4))  # all of it, so a snapshot tells of the producers
    world.runner.run(world.log.stage_append([batch_at(4, term=1)]))
    world.log.note_held()
    world.inventory.save()
    world.remove(lambda name: name.endswith(".log"))
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert (log.log_start, log.log_end) == (4, 4)


def test_a_noted_high_watermark_speaks_against_a_shorter_log() -> None:
    world = Simulated(LogConfig()).fill()
    world.runner.run(world.log.hard_state.stage_high_watermark(12))
    world.remove(segments)
    disk = world.disk.kill()
    for config in (LogConfig(), LogConfig(flush="interval")):  # which may lose it without anybody's fault
        log = ShardLog.open(disk, DIRECTORY, config)
        assert (log.damaged is not None) == (config.flush == "always")
        disk.remove(f"{DIRECTORY}/damaged")


@pytest.mark.parametrize("stopped", [True, False])
def test_a_directory_that_is_gone_took_the_promises_with_it(stopped: bool) -> None:
    world = Simulated().fill()
    if stopped:
        world.stop()
    world.remove(lambda _name: True)
    disk = world.disk.kill()
    log = world.after(disk)
    assert log.damaged is not None
    assert log.damaged.forgot
    assert (log.log_end, log.hard_state.term, log.hard_state.voted_for) == (0, 0, None)


def test_a_promise_that_is_gone_is_forgotten_also_where_the_log_is_whole() -> None:
    world = Simulated().fill()
    world.disk.remove(f"{DIRECTORY}/hard-state")
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert log.damaged.forgot
    assert (log.log_end, log.hard_state.term, log.hard_state.voted_for) == (12, 3, None)


def test_an_older_copy_is_damage() -> None:
    world = Simulated().fill(6).stop()
    names = {name: world.disk.open(f"{DIRECTORY}/{name}") for name in world.disk.listdir(DIRECTORY)}
    copy = {name: file.pread(file.size(), 0) for name, file in names.items()}
    for at in range(6, 9):
        world.runner.run(world.log.stage_append([batch_at(at, term=2)]))
    world.stop()
    world.remove(lambda _name: True)
    for name, data in copy.items():
        world.disk.open(f"{DIRECTORY}/{name}", create=True).pwritev([data], 0)
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert not log.damaged.forgot
    assert log.log_end == 6


def test_an_older_copy_forgets_the_votes_since() -> None:
    world = Simulated().fill(3).stop()
    file = world.disk.open(f"{DIRECTORY}/hard-state")
    old = file.pread(file.size(), 0)
    world.runner.run(world.log.hard_state.stage(5, 1))
    world.stop()
    world.disk.open(f"{DIRECTORY}/hard-state").pwritev([old], 0)
    log = world.after(world.disk.kill())
    assert log.damaged is not None
    assert log.damaged.forgot


def test_a_log_that_is_cut_or_reset_on_purpose_is_not_damaged() -> None:
    world = Simulated().fill().stop()
    world.runner.run(world.log.truncate(5))
    log = world.after(world.disk.crash())
    assert (log.log_end, log.damaged) == (5, None)
    world.runner.run(log.reset(EntryId(1, 2)))
    log = world.after(world.disk.crash())
    assert (log.log_end, log.damaged) == (2, None)
    world.runner.run(log.stage_append([batch_at(2, term=1)]))
    log = world.after(world.disk.crash())
    assert (log.log_end, log.damaged) == (3, None)


@pytest.mark.parametrize("at", [EntryId(1, 2), EntryId(4, 100)])
def test_a_checkpoint_while_a_reset_is_under_way_notes_nothing(at: EntryId) -> None:
    world = Simulated().fill()
    world.log.note_held()
    underway = world.log.reset(at)
    world.log.note_held()
    assert world.inventory.get(SHARD) == Holding(3, EntryId(3, 12))
    world.runner.run(underway)
    world.log.note_held()
    assert world.inventory.get(SHARD) == Holding(3, at)


def test_no_crash_is_taken_for_a_loss() -> None:
    """At any call of a life with promises, appends, cuts, a reset, trims and stops."""
    for config in (SMALL, LAZY):
        for crash_after in range(400):
            world = Simulated(config, seed=crash_after)
            world.disk.crash_after = world.disk.calls + crash_after
            try:
                _live(world)
                break
            except SimulatedCrash:
                pass
            log = world.after(world.disk.crash())
            assert log.damaged is None, (config.flush, crash_after, log.damaged)
        else:
            raise AssertionError("more calls than were looked at")


def _live(world: Simulated) -> None:
    world.fill(8)
    run, log = world.runner.run, world.log
    run(log.hard_state.stage_high_watermark(4))
    log.note_held()
    world.inventory.save()
    world.stop()
    run(log.truncate(5), log.hard_state.stage(4, None))
    run(*(log.stage_append([batch_at(at, size=100, term=4)]) for at in range(5, 12)))
    run(log.hard_state.stage_high_watermark(6))
    log.note_held()
    world.inventory.save()
    run(log.trim(7))
    run(log.reset(EntryId(4, 9)))
    run(log.hard_state.stage(5, None), log.stage_append([batch_at(9, term=5)]))
    run(log.trim(10))
    world.stop()


def test_the_copy_stands_in_for_an_inventory_that_cannot_be_read() -> None:
    world = Simulated().fill().stop()
    world.disk.flip_bit(f"{NODE}/{INVENTORY_NAME}", 170)
    found = Inventory.load(world.disk, NODE)
    assert found is not None
    assert found.get(SHARD) == Holding(3, EntryId(3, 12))
    world.disk.remove(f"{NODE}/{INVENTORY_COPY_NAME}")
    assert Inventory.load(world.disk, NODE) is not None  # it was made anew
    world.disk.remove(f"{NODE}/{INVENTORY_NAME}")
    assert Inventory.load(world.disk, NODE) is None


def test_a_disk_too_full_for_the_inventory_holds_the_promise_back() -> None:
    world = Simulated()
    world.disk.capacity_bytes = world.disk.used_bytes() + 40  # for the promise itself
    world.runner.submit(world.log.hard_state.stage(1, None))
    assert world.runner.commit() == []
    assert world.runner.commit() == []  # noted in memory by now, and still not on the disk
    world.disk.capacity_bytes = None
    assert world.runner.commit() == [None]
    assert Inventory.load(world.disk.crash(), NODE).shard_ids() == [SHARD]  # type: ignore[union-attr]


# -- a whole node's directory, on real files -------------------------------------------------------------------------


def filled(path: Path) -> str:
    """A directory with a replica of shards 1 and 2, cleanly closed; its disk id."""
    directory = NodeDirectory.open(str(path), "c", 1, bootstrap=True)
    disk = RealDisk()
    for shard_id in (1, 2):
        log = ShardLog.open(
            disk, directory.shard_path(shard_id), SMALL, held=directory.held(shard_id), promises=True
        )
        runner = Runner(disk)
        runner.run(log.hard_state.stage(2, 1), log.stage_append([batch_at(0, term=2)]), log.checkpoint())
    directory.note_joined()
    directory.close()
    disk.close()
    return directory.identity.disk_id


def damaged(path: Path) -> tuple[NodeDirectory, list[bool | None]]:
    """The directory opened again, and of each shard: None as it should be, else whether its promises are forgotten."""
    directory = NodeDirectory.open(str(path), "c", 1)
    disk = RealDisk()
    found: list[bool | None] = []
    for shard_id in directory.shard_ids():
        log = ShardLog.open(
            disk, directory.shard_path(shard_id), SMALL, held=directory.held(shard_id), promises=True
        )
        found.append(None if log.damaged is None else log.damaged.forgot)
    directory.close()
    return directory, found


def test_a_directory_that_is_whole_is_not_suspected(tmp_path: Path) -> None:
    disk_id = filled(tmp_path)
    directory, found = damaged(tmp_path)
    assert found == [None, None]
    assert directory.identity.disk_id == disk_id


@pytest.mark.parametrize("what", ["shards/1", "shards"])
def test_shards_that_are_gone_are_known_to_be(tmp_path: Path, what: str) -> None:
    disk_id = filled(tmp_path)
    shutil.rmtree(tmp_path / what)
    directory, found = damaged(tmp_path)
    assert found == [True, None if what == "shards/1" else True]
    assert directory.identity.disk_id == disk_id
    assert damaged(tmp_path)[1] == found


@pytest.mark.parametrize("with_shards", [False, True])
def test_a_directory_without_its_inventory_is_another_disk(tmp_path: Path, with_shards: bool) -> None:
    disk_id = filled(tmp_path)
    for entry in tmp_path.iterdir():
        if entry.name not in ({"identity.json", "shards"} if with_shards else {"identity.json"}):
            entry.unlink() if entry.is_file() else shutil.rmtree(entry)
    if not with_shards:
        assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]
    directory, found = damaged(tmp_path)
    assert directory.is_remade
    assert directory.identity.disk_id != disk_id
    assert directory.may_replace
    assert not directory.identity.bootstrap
    assert found == ([True, True] if with_shards else [])
    second, found = damaged(tmp_path)
    assert not second.is_remade
    assert second.identity == directory.identity
    assert found == ([True, True] if with_shards else [])


def test_a_directory_of_an_older_version_gets_an_inventory(tmp_path: Path) -> None:
    disk_id = filled(tmp_path)
    identity = json.loads((tmp_path / "identity.json").read_text())
    del identity["inventory"], identity["crc"]
    (tmp_path / IDENTITY_COPY_NAME).unlink()
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    (tmp_path / INVENTORY_NAME).unlink()
    (tmp_path / INVENTORY_COPY_NAME).unlink()
    (tmp_path / "shards" / "3").mkdir()  # opened once, and nothing in it
    directory, found = damaged(tmp_path)
    assert found == [None, None, None]
    assert directory.identity.disk_id == disk_id
    assert directory.inventory.shard_ids() == [1, 2]
    shutil.rmtree(tmp_path / "shards")
    assert damaged(tmp_path)[1] == [True, True]


def test_a_removal_is_no_loss_wherever_it_stops(tmp_path: Path) -> None:
    filled(tmp_path)
    directory = NodeDirectory.open(str(tmp_path), "c", 1)
    directory.renounce_shard(1)  # and the process is killed
    directory.remove_shard(2)
    assert not (tmp_path / "shards" / "2").exists()
    directory.close()
    directory, found = damaged(tmp_path)
    assert directory.shard_ids() == [1]
    assert found == [None]
    shutil.rmtree(tmp_path / "shards" / "1")
    filled_again = ShardLog.open(
        RealDisk(), directory.shard_path(2), SMALL, held=Held(directory.inventory, 2)
    )
    assert filled_again.damaged is None


def producing(log: ShardLog, runner: Runner, sequence: int) -> None:
    runner.run(log.stage_append([batch_at(log.log_end, size=300, term=3, producer_id=7, sequence=sequence)]))


@pytest.mark.parametrize("rest", [0, 3])
def test_a_trimmed_log_whose_snapshot_cannot_be_read_is_fed_anew(rest: int) -> None:
    """Only the snapshot knows the producers of what was trimmed: without it a batch that comes again would be a new one."""
    one = Simulated()
    one.runner.run(one.log.hard_state.stage(3, None))
    for sequence in range(4):
        producing(one.log, one.runner, sequence)
    one.runner.run(one.log.trim(4))
    for _ in range(rest):
        one.runner.run(one.log.stage_append([batch_at(one.log.log_end, size=10, term=3)]))
    one.inventory.put(SHARD, Holding(3, one.log.end), durable=True)
    assert one.open().producers.last_batch(7) is not None
    for name in one.disk.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            one.disk.flip_bit(f"{DIRECTORY}/{name}", 200)
    for _ in range(2):  # also the next time
        log = one.open()
        assert log.damaged is not None
        assert "snapshot" in log.damaged.reason
        assert (log.log_start, log.log_end, log.hard_state.term) == (0, 0, 3)
    for sequence in range(4):  # as its leader feeds it
        producing(log, one.runner, sequence)
    one.runner.run(log.clear_damage())
    log = one.open()
    assert (log.damaged, log.log_start, log.log_end) == (None, 0, 4)
    assert log.producers.last_batch(7) is not None
