"""What disks do when they are full, torn, flipped or replaced, and that seeds really bring every fault about."""

from dataclasses import replace
from random import Random

from antiphon.replication.actions import AppendLog, PersistTerm, TruncateLog
from antiphon.replication.messages import Entry
from antiphon.simulation.disk import NodeDisk, ReplicaFiles, Write
from antiphon.simulation.options import derive
from antiphon.simulation.runner import run_seed
from antiphon.simulation.scheduler import Scheduler

OPTIONS = replace(derive(1, "raft"), sync_us_min=100, sync_us_mean=100, sync_stall_ppm=0, unsynced_kept_ppm=0)


def entry(base: int, term: int = 1) -> Entry:
    return Entry(term, base, base + 1, (term, base))


class Bench:
    """One disk and what it reported."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.synced: list[int] = []
        self.disk = NodeDisk(OPTIONS, self.scheduler, Random(seed), self._synced)
        self.files = [ReplicaFiles(), ReplicaFiles()]

    def _synced(self, group: list[Write]) -> None:
        self.synced += [write.action.write_id for write in group]

    def submit(self, shard: int, action: AppendLog | PersistTerm | TruncateLog) -> None:
        self.disk.submit(Write(shard, self.files[shard], action, 0))

    def run(self) -> None:
        while self.scheduler.step():
            pass


def test_full_disk_keeps_appends_waiting_and_what_stands_behind_them() -> None:
    bench = Bench()
    bench.disk.full = True
    bench.submit(0, AppendLog(1, (entry(0),)))
    bench.submit(0, PersistTerm(2, 5, None))
    bench.submit(1, PersistTerm(3, 7, None))
    bench.run()
    assert bench.synced == [3]
    assert bench.files[0].log.end_offset == 0
    assert bench.files[0].term == 0
    bench.disk.room_again()
    bench.run()
    assert bench.synced == [3, 1, 2]
    assert bench.files[0].log.end_offset == 1


def test_crash_on_a_full_disk_loses_what_waited() -> None:
    bench = Bench()
    bench.disk.full = True
    bench.submit(0, AppendLog(1, (entry(0), entry(1))))
    assert bench.disk.crash() == (2, 0)
    bench.disk.room_again()
    bench.run()
    assert bench.files[0].log.end_offset == 0


def test_torn_append_keeps_a_beginning_and_recovery_cuts_the_rest() -> None:
    torn = 0
    for seed in range(30):
        bench = Bench(seed)
        bench.submit(0, AppendLog(1, tuple(entry(base) for base in range(4))))
        lost, pieces = bench.disk.crash()
        files = bench.files[0]
        assert lost == 4 - files.log.end_offset
        assert (files.torn is not None) == bool(pieces)
        if files.torn is not None:
            assert files.torn.base_offset == files.log.end_offset
            torn += 1
        files.recover()
        assert files.torn is None
    assert torn > 5


def test_flipped_bit_is_found_at_the_next_start() -> None:
    files = ReplicaFiles()
    files.log.append([entry(0), entry(1), entry(2)])
    files.rotten = 1
    assert files.unsound
    files.recover()
    assert files.damaged
    assert files.log.end_offset == 1


def test_flipped_bit_goes_with_the_entry() -> None:
    files = ReplicaFiles()
    files.log.append([entry(0), entry(1), entry(2)])
    files.rotten = 2
    files.carry_out(TruncateLog(1, 2))
    files.recover()
    assert not files.damaged


def test_replaced_disk_has_forgotten_everything() -> None:
    for votes in (True, False):
        files = ReplicaFiles()
        files.log.append([entry(0)])
        files.term = 3
        files.lose_everything(votes)
        assert (files.term, files.log.end_offset) == (0, 0)
        assert (files.damaged, files.forgot, files.replaced) == (votes, votes, not votes)


def test_seeds_bring_every_fault_about() -> None:
    seen: dict[str, int] = {}
    changes = {
        "disk_full_weight": 2,
        "bit_flip_weight": 2,
        "wipe_ppm": 200_000,
        "damage_ppm": 100_000,
        "crash_weight": 6,
    }
    for seed in range(4):
        for profile in ("raft", "oxia"):
            result = run_seed(derive(seed, profile, fault_every_ms=60, safety_ms=2_500, **changes))
            assert result.failure is None
            for kind, count in result.events.items():
                seen[kind] = seen.get(kind, 0) + count
    expected = {
        "crash", "pause", "partition", "one-way", "clog", "disk-full", "disk-room", "disk-failure", "bit-flip", "wipe",
        "damage", "trim", "repaired", "snapshot",
    }  # fmt: skip
    assert expected <= set(seen)
