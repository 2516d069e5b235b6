"""Members of a group of Kafka's consumer protocol in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS
from tests.simulation.told import each_mutant_is_seen, each_once, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "consumer_members": 3}


@pytest.mark.parametrize(("profile", "world"), each_once(crashes=CRASHES, cuts=CUTS))
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    done = sound_until(("consumers-joined", "consumers-committed"), profile, 5, **{**world, **WORK})
    assert done["consumers-joined"] >= 4


test_a_mutant_is_seen = each_mutant_is_seen(
    "consumers-", quick=("consumers-given-what-others-have", "consumers-commit-in-any-epoch")
)
