"""Members of a share group in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS, RESETS
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS, seeds_to_catch
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from tests.simulation.told import seeds_from, words

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "share_members": 3}
QUICK_SEEDS = 8
QUICK = [name for name, mutant in CLUSTER_MUTANTS.items() if name.startswith("shares-") and not mutant.rare]


@pytest.mark.parametrize("world", [CRASHES, CUTS, RESETS], ids=["crashes", "cuts", "resets"])
@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    result = run_cluster(draw_options(3, profile, **{**world, **WORK}))
    assert result.failure is None, words(result)
    assert result.operations["shares-joined"] >= 4
    assert result.operations["shares-accepted"] > 0


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_seen(name: str) -> None:
    mutant = CLUSTER_MUTANTS[name]
    caught = seeds_to_catch(mutant, seeds_from(mutant.first_seed, QUICK_SEEDS))
    assert caught is not None, f"{name} got through {QUICK_SEEDS} seeds"
    sound = run_cluster(mutant.world(caught[1].options.seed))
    assert sound.failure is None, words(sound)
