"""Disks of simulated machines fail, lose files and rot: promises are kept, and a node that hides its loss is found."""

import dataclasses
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from antiphon.log import held_check
from antiphon.log.inventory import Holding, Inventory
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.entry_id import EntryId
from antiphon.simulation.cluster.disk_faults import is_known_to_be_older
from antiphon.simulation.cluster.disk_view import DIRECTORY, shard_path
from antiphon.simulation.cluster.faults import KINDS
from antiphon.simulation.cluster.options import ClusterOptions, draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.truth import ShardTruth
from tests.simulation.told import FOUND_BEFORE, words

if TYPE_CHECKING:
    from antiphon.log.simulated_tree import Copy

FEW_CLIENTS = {
    **dict.fromkeys(
        ("kafka_producers", "kafka_consumers", "kafka_members", "http_clients", "bulk_writers"), 0
    ),
    **dict.fromkeys(("scans", "transactions", "watches", "followers", "multi_tables"), False),
}


def _world(seed: int, profile: str, **weights: int) -> ClusterOptions:
    """A short world in which only these things go wrong."""
    others: dict[str, Any] = {kind.option: 0 for kind in KINDS.values()}
    wanted = {KINDS[kind].option: weight for kind, weight in weights.items()}
    return draw_options(
        seed,
        profile,
        **{**others, **wanted, **FEW_CLIENTS},
        fault_ms=1_500,
        fault_every_ms=200,
        fault_lasts_ms=300,
        operations_per_s=100,
    )


@pytest.mark.parametrize("profile", ["oxia", pytest.param("raft", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["disk_full", "disk_error", "descriptors", "slow_calls", "trim"])
def test_what_a_disk_refuses_or_delays_loses_nothing(kind: str, profile: str) -> None:
    result = run_cluster(_world(2, profile, **{kind: 1}))
    assert result.failure is None, words(result)
    assert {fault.kind for fault in result.schedule} == {kind}


@pytest.mark.parametrize("profile", ["oxia", "raft", "tarantool"])
@pytest.mark.parametrize("kind", ["lost_files", "bit_flip", "old_shard"])
def test_what_a_disk_loses_is_got_back_before_the_replica_counts_again(kind: str, profile: str) -> None:
    for seed in range(1, 7):  # it has to find something to lose
        result = run_cluster(_world(seed, profile, **{kind: 1}))
        assert result.failure is None, words(result)
        assert result.events.get("hurt", 0) == result.events.get("sound", 0)
        if result.events.get("hurt"):
            return
    raise AssertionError("six seeds hurt nothing")


@pytest.mark.parametrize("profile", ["oxia", "raft", "multi"])
def test_a_term_that_rots_before_its_index_entry_is_durable_is_mended(profile: str) -> None:
    """multi 401530: the replica kept the term, contradicted its leader and stopped."""
    result = run_cluster(_world(1, profile, term_rot=1, kill=1))
    assert result.failure is None, words(result)
    assert result.events["hurt"] == result.events["sound"] > 0


def test_a_replica_that_hides_what_it_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_check, "_loss", lambda *_args, **_facts: None)
    failures = (run_cluster(_world(seed, "raft", lost_files=2, kill=1)).failure for seed in range(1, 9))
    found = next((failure.invariant for failure in failures if failure is not None), None)
    assert found in {"loss-noticed", "no-false-evidence", "no-crash"}, (
        "at its start, by its words, or by who counted on it"
    )


@pytest.mark.slow
def test_a_replica_that_got_everything_by_a_snapshot_is_sound_again_though_nobody_writes() -> None:
    result = run_cluster(draw_options(9048, None, **FOUND_BEFORE))
    assert result.failure is None, words(result)


@pytest.mark.parametrize(("profile", "seed"), [("oxia", 8), ("raft", 47)])
def test_a_watch_that_is_behind_what_was_trimmed_goes_on_behind_it(profile: str, seed: int) -> None:
    changes: dict[str, Any] = {
        "watches": True,
        "slow_watchers": True,
        "fault_every_ms": 50,
        "operations_per_s": 200,
    }
    for each in range(seed, seed + 12):  # the watcher has to be behind at the moment of a trim
        result = run_cluster(dataclasses.replace(_world(each, profile, trim=2), **changes))
        assert result.failure is None, words(result)
        if result.events.get("watch-passes-over"):
            return
    raise AssertionError(f"no watcher was behind what was trimmed, in 12 seeds from {seed} on")


def test_only_a_copy_that_the_inventory_says_is_older_is_put_back() -> None:
    disk = SimulatedDisk(Random(1))
    batch = bytearray(build_batch([(b"k", b"v", [], 1)]))
    batch[12:16] = (3).to_bytes(4, "big")  # the term
    copy: Copy = {f"{0:020d}.log": bytes(batch)}
    disk.makedirs(DIRECTORY)
    Inventory.create(disk, DIRECTORY, {1: Holding(0, EntryId(3, 1)), 2: Holding(0, EntryId(3, 2))})
    assert not is_known_to_be_older(disk, shard_path(1), copy)
    assert is_known_to_be_older(disk, shard_path(2), copy)
    assert not is_known_to_be_older(disk, shard_path(3), copy), "nobody wrote down what was there"


def test_a_leader_of_an_older_term_need_not_have_what_was_committed_later() -> None:
    truth = ShardTruth(1)
    batch = build_batch([(b"k", b"v", [], 1)])
    header = read_header(batch)._replace(base_offset=0, leader_epoch=3)
    truth.take(header, batch, "node 0", 3)
    truth.take(header._replace(base_offset=1, leader_epoch=5), batch, "node 0", 5)
    assert [truth.before_term(term).offset for term in (3, 4, 5, 6)] == [0, 1, 1, 2]
