"""Conditional appends over Kafka's protocol in the world of whole nodes: clean seeds, and a judge that sees mutants."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CALM
from antiphon.simulation.cluster.options import draw_options
from tests.simulation.told import each_mutant_is_seen, same_twice, sound_until

WORLD = {
    **CALM,
    "kafka_conditions": 4,
    "fault_ms": 5_000,
    "fault_every_ms": 400,
    "kill_weight": 2,
    "power_weight": 1,
    "cut_weight": 1,
    "operations_per_s": 300,
    "appenders": 1,
    "putters": 1,
}
REACHED = ("claimed", "claim_refused", "claim_retried", "unclaimed")


@pytest.mark.parametrize("profile", ["raft", pytest.param("oxia", marks=pytest.mark.slow), "fluvio"])
def test_one_of_several_writers_gets_each_offset(profile: str) -> None:
    sound_until(REACHED, profile, 200, **WORLD)


def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(3, "oxia", **{**WORLD, "fault_ms": 2_000}))


test_a_mutant_is_seen = each_mutant_is_seen(
    "condition-", quick=("condition-of-a-base-offset-forgotten", "condition-packed-is-not-seen")
)
