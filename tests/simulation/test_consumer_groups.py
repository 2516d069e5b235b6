"""Members of a group of Kafka's consumer protocol in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from tests.simulation.told import sound_after_caught, words

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "consumer_members": 3}
QUICK_SEEDS = 8
QUICK = [
    name for name, mutant in CLUSTER_MUTANTS.items() if name.startswith("consumers-") and not mutant.rare
]


@pytest.mark.parametrize("world", [CRASHES, CUTS], ids=["crashes", "cuts"])
@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    result = run_cluster(draw_options(5, profile, **{**world, **WORK}))
    assert result.failure is None, words(result)
    assert result.operations["consumers-joined"] >= 4
    assert result.operations["consumers-committed"] > 0


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_seen(name: str) -> None:
    sound_after_caught(name, QUICK_SEEDS)
