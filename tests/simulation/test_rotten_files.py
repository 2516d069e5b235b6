"""What the simulator takes for rotten: what a node may still read, by the bytes that a power failure would leave."""

from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest

from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.simulation.cluster.faults import Fault
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.rotten_files import is_rotten
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.cluster.shrink import _ClusterShrinker
from antiphon.simulation.memory_store import MANIFEST, RUNS_MAX, MemoryEngine, MemoryStore
from tests.simulation.told import FOUND_BEFORE, words

STORE = "/data/tables/6"
FIRST = f"{STORE}/000001.run"


def store_with_a_run() -> tuple[SimulatedDisk, MemoryStore]:
    disk = SimulatedDisk(Random(1))
    store = MemoryEngine(disk, Random(2)).open(STORE)
    put(store, 0)
    return disk, store


def put(store: MemoryStore, number: int) -> None:
    """One more run."""
    batch = store.batch()
    batch.put(b"key", b"%d" % number)
    store.write(batch)
    store.flush()


def test_a_run_that_a_manifest_names_is_rotten_until_the_store_is_made_of_others() -> None:
    """fluvio 960396, tarantool 960642: the removal of a run whose rows were written anew was never durable."""
    disk, store = store_with_a_run()
    assert not is_rotten(disk, FIRST)
    disk.flip_bit(FIRST, 50)
    assert is_rotten(disk, FIRST)
    for number in range(1, RUNS_MAX - 1):
        put(store, number)
        assert is_rotten(disk, FIRST), "later runs do not stand for it"
    put(store, RUNS_MAX)
    assert not disk.exists(FIRST)
    assert disk.durable(FIRST) is not None, "this test needs a removal that a power failure may undo"
    assert not is_rotten(disk, FIRST)
    for seed in range(20):
        disk.rng = Random(seed)
        found = MemoryEngine(disk.crash(), Random(seed)).open(STORE)
        assert found.damaged == []
        assert found.get(b"key") == b"%d" % RUNS_MAX


def test_a_rotten_run_whose_removal_came_before_the_new_manifest_is_rotten() -> None:
    disk, _ = store_with_a_run()
    disk.flip_bit(FIRST, 50)
    disk.remove(FIRST)
    assert is_rotten(disk, FIRST), "a power failure brings it back"
    disk.fsync_dir(STORE)
    assert not is_rotten(disk, FIRST)


def test_a_rotten_run_beside_a_rotten_manifest_is_rotten() -> None:
    disk, _ = store_with_a_run()
    disk.flip_bit(FIRST, 50)
    disk.flip_bit(f"{STORE}/{MANIFEST}", 50)
    assert is_rotten(disk, FIRST)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        ("oxia", 404_356),  # the replica with the rot is moved away, and its removal never becomes durable
        ("fluvio", 403_491),  # rot in what a power failure leaves without an index
        # The flipped bit makes the term in a file that nobody believes a lower one.
        pytest.param("fluvio", 501_526, marks=pytest.mark.slow),
    ],
)
def test_rot_that_cannot_matter_or_cannot_be_told_breaks_nothing(profile: str, seed: int) -> None:
    result = run_cluster(draw_options(seed, profile, **FOUND_BEFORE))
    assert result.failure is None, words(result)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        ("raft", 500_236),  # a leader with rot in its store sent that to a follower, as a snapshot
        # So there were two, and the shard could do without neither of them.
        pytest.param("kip27", 500_330, marks=pytest.mark.slow),
        # Of two replicas one waited for ever, though its own log could make the store anew.
        ("kip27", 501_130),
    ],
)
def test_rot_is_not_passed_on_and_is_mended(profile: str, seed: int) -> None:
    result = run_cluster(draw_options(seed, profile, **FOUND_BEFORE))
    assert result.failure is None, words(result)


def test_a_failing_run_with_rot_is_made_small_with_its_scrub() -> None:
    rot = Fault(100, "rot", (0,), 50)
    failed = ClusterResult(draw_options(1, "oxia", scrub=True), "", 1, 1.0, schedule=(rot,))
    for run, goes in ((failed, False), (replace(failed, schedule=()), True)):
        changes = list(_ClusterShrinker(run, nullcontext, 1.0, lambda _: None).changes())
        assert ({"scrub": False} in changes) is goes
