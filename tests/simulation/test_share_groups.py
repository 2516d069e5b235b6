"""Members of a share group in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS, RESETS
from tests.simulation.told import each_mutant_is_seen, each_once, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "share_members": 3}


@pytest.mark.parametrize(("profile", "world"), each_once(crashes=CRASHES, cuts=CUTS, resets=RESETS))
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    done = sound_until(("shares-joined", "shares-accepted"), profile, 3, **{**world, **WORK})
    assert done["shares-joined"] >= 4


test_a_mutant_is_seen = each_mutant_is_seen(
    "shares-", quick=("shares-confirmed-before-stored", "shares-locked-for-ever")
)
