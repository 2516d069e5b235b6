"""Whole nodes under simulation whose tables' stores are RocksDB: clean seeds, the same run twice, no other escapes."""

import gc
import os
from collections.abc import Iterator
from random import Random

import pytest

from antiphon.errors import StorageFailedError
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.rocks_on_disk import RealFiles, RocksOnDisk, RocksOnDiskEngine
from antiphon.simulation.runtime import escapes
from antiphon.simulation.runtime.escapes import no_escapes
from tests.simulation.told import caught, mutants_of

FAULTS = {
    "rocks": True,
    "fault_ms": 1_000,
    "fault_every_ms": 200,
    "store_flush_every": 20,
    "operations_per_s": 200,
}
CRASHES = {"power_weight": 4, "kill_weight": 2, "trim_weight": 2}


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_a_seed_with_rocksdb_keeps_all_promises_and_is_the_same_run_twice(profile: str) -> None:
    options = draw_options(3, profile, **FAULTS, **CRASHES)
    first = run_cluster(options)
    with no_escapes() as escaped:
        second = run_cluster(options)
    assert first.failure is None, (first.failure, options.words())
    assert {"power-off", "kill"} & first.events.keys()
    assert not escaped
    assert (first.digest, first.steps) == (second.digest, second.steps)
    assert not escapes.allowed_folders


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)
@pytest.mark.parametrize(
    "name", mutants_of("store-", quick=("store-iteration-ends-at-damage", "store-offset-before-rows"))
)
def test_a_mutant_of_the_store_is_caught(name: str) -> None:
    assert CLUSTER_MUTANTS[name].world(1).rocks
    caught(name)
    gc.collect()


class Machine:
    """Stores on a simulated disk that can lose power."""

    def __init__(self) -> None:
        self.files = RealFiles()
        self.disk = SimulatedDisk(Random(1))
        self.engine = self.new_process()

    def new_process(self) -> RocksOnDiskEngine:
        return RocksOnDiskEngine(self.disk, self.files, Random(2), (1_000, 1_000))

    def lose_power(self) -> None:
        self.disk = self.disk.crash()
        self.engine = self.new_process()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.files.close()
    assert not os.path.exists(made.files.path)


def put(store: RocksOnDisk, **rows: str) -> None:
    batch = store.batch()
    for key, value in rows.items():
        batch.put(key.encode(), value.encode())
    store.write(batch)


def test_what_was_flushed_is_found_after_a_power_failure_and_nothing_else(machine: Machine) -> None:
    store = machine.engine.open("/store")
    put(store, a="flushed")
    store.flush()
    put(store, a="lost", b="lost")
    assert store.get(b"b") == b"lost"
    machine.lose_power()
    again = machine.engine.open("/store")
    assert dict(again.items(b"")) == {b"a": b"flushed"}
    assert not again.damaged


def test_a_store_of_which_a_file_was_changed_on_the_disk_is_damaged(machine: Machine) -> None:
    store = machine.engine.open("/store")
    put(store, a="flushed")
    store.close()
    (name,) = [name for name in machine.disk.listdir("/store") if name.endswith(".sst")]
    machine.disk.flip_bit(f"/store/{name}", 8 * 20)
    with pytest.raises(StorageFailedError) as caught:
        machine.engine.open("/store").get(b"a")
    assert machine.files.path not in str(caught.value)
    machine.disk.flip_bit(f"/store/{name}", 8 * 20)
    machine.engine = machine.new_process()
    assert machine.engine.open("/store").get(b"a") == b"flushed"


def test_what_stands_on_the_disk_is_the_same_in_every_run() -> None:
    def stands() -> dict[str, bytes]:
        machine = Machine()
        store = machine.engine.open("/store")
        for number in range(20):
            put(store, **{f"key{number % 7}": "v" * number})
            store.flush()
        store.checkpoint("/copy")
        machine.files.close()
        places = [
            f"/{place}/{name}" for place in ("store", "copy") for name in machine.disk.listdir(f"/{place}")
        ]
        return {place: machine.disk.open(place).pread(1 << 20, 0) for place in places}

    assert stands() == stands()
