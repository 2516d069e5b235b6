"""A net that catches nothing proves nothing: mistakes planted in whole nodes are found, and what is found is the mistake."""

import pytest

from antiphon.invariants import InvariantError
from antiphon.node.shard_host import ShardHost
from antiphon.simulation.cluster.plants import CLUSTER_PLANTS, ClusterPlant, Edit, planted, seeds_to_catch
from antiphon.simulation.cluster.run import run_cluster

QUICK_SEEDS = 3
QUICK = [
    "node-acknowledges-before-sync",
    "node-promises-unsynced",
    "node-writes-no-vote",
    "node-segment-without-name",
]


@pytest.mark.parametrize("plant", CLUSTER_PLANTS.values(), ids=CLUSTER_PLANTS)
def test_what_a_plant_replaces_is_there_and_comes_back(plant: ClusterPlant) -> None:
    before = [
        getattr(patch.patch()[0], patch.patch()[1]) for patch in plant.patches if isinstance(patch, Edit)
    ]
    with planted(plant):
        pass
    after = [getattr(patch.where, patch.name) for patch in plant.patches if isinstance(patch, Edit)]
    assert before == after
    assert plant.world(1).profile == plant.profile


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = seeds_to_catch(CLUSTER_PLANTS[name], range(1, QUICK_SEEDS + 1))
    assert caught is not None, f"{name} got through {QUICK_SEEDS} seeds"


def test_the_worlds_of_plants_are_sound_without_them() -> None:
    result = run_cluster(CLUSTER_PLANTS["node-promises-unsynced"].world(1))
    assert result.failure is None, result.failure


def test_an_edit_of_code_that_has_moved_on_is_an_error() -> None:
    with pytest.raises(InvariantError, match="0 times"):
        Edit(ShardHost, "_commit", "what is not there", "").patch()
