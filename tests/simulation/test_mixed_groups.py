"""Members of both of Kafka's protocols in one group, in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS
from tests.simulation.told import each_mutant_is_seen, each_once, sound_until

WORK = {
    "appenders": 0,
    "putters": 0,
    "operations_per_s": 200,
    "mixed_members": 4,
    "fault_ms": 6_000,
    "fault_every_ms": 600,  # seldom enough for a group to go over in between
}
REACHED = ("consumers-joined", "classics-joined", "consumers-committed", "became-consumer", "became-classic")


@pytest.mark.parametrize(("profile", "world"), each_once(crashes=CRASHES, cuts=CUTS))
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    sound_until(REACHED, profile, 5, **{**world, **WORK})


test_a_mutant_is_seen = each_mutant_is_seen(
    "migrated-", quick=("migrated-without-what-members-have", "migrated-and-both-kept")
)
