"""Members of a share group in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS, RESETS
from tests.simulation.told import mutants_of, sound_after_caught, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "share_members": 3}
MUTANTS = mutants_of("shares-", quick=("shares-confirmed-before-stored", "shares-locked-for-ever"))


@pytest.mark.parametrize("world", [CRASHES, CUTS, RESETS], ids=["crashes", "cuts", "resets"])
@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    done = sound_until(("shares-joined", "shares-accepted"), profile, 3, **{**world, **WORK})
    assert done["shares-joined"] >= 4


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(name: str) -> None:
    sound_after_caught(name)
