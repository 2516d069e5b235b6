"""Members of a share group in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS, RESETS
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from tests.simulation.told import sound_after_caught, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "share_members": 3}
QUICK = [name for name, mutant in CLUSTER_MUTANTS.items() if name.startswith("shares-") and not mutant.rare]


@pytest.mark.parametrize("world", [CRASHES, CUTS, RESETS], ids=["crashes", "cuts", "resets"])
@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    done = sound_until(("shares-joined", "shares-accepted"), profile, 3, **{**world, **WORK})
    assert done["shares-joined"] >= 4


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_seen(name: str) -> None:
    sound_after_caught(name)
