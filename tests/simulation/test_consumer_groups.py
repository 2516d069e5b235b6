"""Members of a group of Kafka's consumer protocol in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS
from tests.simulation.told import mutants_of, sound_after_caught, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 200, "consumer_members": 3}
MUTANTS = mutants_of(
    "consumers-", quick=("consumers-given-what-others-have", "consumers-commit-in-any-epoch")
)


@pytest.mark.parametrize("world", [CRASHES, CUTS], ids=["crashes", "cuts"])
@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    done = sound_until(("consumers-joined", "consumers-committed"), profile, 5, **{**world, **WORK})
    assert done["consumers-joined"] >= 4


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(name: str) -> None:
    sound_after_caught(name)
