"""Worlds in which shards lose most replicas, and an operator has them go on from one that is left, are sound."""

import pytest

from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from tests.simulation.told import same_twice, sound_until


@pytest.mark.parametrize(
    ("world", "profile", "seed"),
    [
        ("lone-voter-keeps-members", "oxia", 2),
        pytest.param("lone-voter-keeps-members", "raft", 10, marks=pytest.mark.slow),
        ("old-replica-stays", "oxia", 3),
        ("lone-voter-keeps-members", "fluvio", 5),
    ],
)
def test_the_worlds_of_recovered_shards_are_sound(world: str, profile: str, seed: int) -> None:
    """Acknowledged records are lost with the disks that had them, and nothing else is."""
    result = run_cluster(draw_options(seed, profile, **CLUSTER_MUTANTS[world].options))
    assert result.failure is None, result.failure.message
    assert result.events.get("recovered", 0) > 0, "what the world is about happened"
    assert result.operations["lost"] > 0, "and it was worth a judge"


def test_where_nothing_is_lost_the_operator_is_refused() -> None:
    result = run_cluster(CLUSTER_MUTANTS["recovers-with-a-majority"].world(2))
    assert result.failure is None, result.failure.message
    assert result.events.get("refused", 0) > 0


@pytest.mark.parametrize("profile", ["raft", pytest.param("oxia", marks=pytest.mark.slow)])
def test_a_table_is_what_the_log_that_is_left_comes_to(profile: str) -> None:
    """Rows that were acknowledged are lost, and no others; who had a session goes on with it, or is told."""
    world = CLUSTER_MUTANTS["versions-of-the-last-change"].options
    sound_until(("rows-lost", "rows-scanned-after", "leases-lost"), profile, 1, **world)


def test_a_table_is_split_and_loses_most_replicas() -> None:
    """What was acknowledged is in the log of the shard that has the key since; both parts may be lost, and go on."""
    world = {
        **CLUSTER_MUTANTS["versions-of-the-last-change"].options,
        "operator_weight": 1,
        "commands": "split",
    }
    sound_until(("rows-lost", "rows-scanned-after", "rows-scanned-in-parts"), "tarantool", 7, **world)


@pytest.mark.parametrize(
    ("profile", "seed"), [("oxia", 9_463_000), pytest.param("raft", 9_463_001, marks=pytest.mark.slow)]
)
def test_a_table_is_split_while_the_replica_is_away_that_is_left(profile: str, seed: int) -> None:
    """The parent holds nothing of what the metadata says that it gave away, and the other part has all that is left."""
    world = CLUSTER_MUTANTS["recovered-parent-keeps-moved-keys"].options
    sound_until(("rows-beside-a-split", "rows-scanned-in-parts"), profile, seed, **world)


def test_topic_and_table_lose_their_replicas_together_and_a_seed_stays_what_it_is() -> None:
    world = {**CLUSTER_MUTANTS["removed-store-is-used"].options, "recovered_writers": 2, "fault_ms": 5_000}
    same_twice(draw_options(1, "oxia", **world))


def test_some_drawn_worlds_have_tables_that_lose_most_replicas() -> None:
    drawn = [draw_options(seed) for seed in range(400)]
    lossy = [one for one in drawn if one.most_replicas_gone_weight]
    assert all(one.recovered_writers for one in lossy)
    assert 0 < sum(one.recovered_putters > 0 for one in lossy) < len(lossy)
    assert not any(one.recovered_putters or one.removal_weight for one in drawn if one not in lossy)
    split = [one for one in drawn if one.split_loss_weight]
    assert split
    assert all(one.recovered_putters and one.nodes == one.replicas == 5 for one in split)
