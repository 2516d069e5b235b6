"""Committed offsets that expire, in the world of whole nodes: clean seeds, and mutants seen."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS
from antiphon.simulation.cluster.options import draw_options
from tests.simulation.told import each_mutant_is_seen, each_once, same_twice, sound_until

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 100, "expiring_groups": 3}


@pytest.mark.parametrize(("profile", "world"), each_once(crashes=CRASHES, cuts=CUTS))
def test_promises_are_kept(profile: str, world: dict[str, int]) -> None:
    sound_until(("offsets-kept", "offsets-expired"), profile, 9481200, **{**world, **WORK})


def test_a_run_repeats() -> None:
    same_twice(draw_options(9481210, "oxia", **{**CUTS, **WORK}))


def test_groups_whose_offsets_are_to_stay_are_in_no_world_where_they_expire() -> None:
    found = [draw_options(seed, "oxia") for seed in range(9481000, 9481400)]
    expiring = [one for one in found if one.expiring_groups]
    assert expiring
    assert any(one.kafka_members for one in found)
    assert not any(one.kafka_members or one.kafka_transactors or one.consumer_members for one in expiring)


test_a_mutant_is_seen = each_mutant_is_seen(
    "offsets-", quick=("offsets-expire-while-read", "offsets-expire-when-last-member-leaves")
)
