"""Archived records for Kafka's consumers in the world of whole nodes: clean seeds, and a judge that sees mutants."""

import pytest

from antiphon.simulation.cluster.mutant_worlds import CALM
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.workloads.archived_offsets import OUTCOMES
from tests.simulation.told import each_mutant_is_seen, same_twice, sound_until

WORLD = {
    **CALM,
    "archive_readers": 4,
    "fault_ms": 6_000,
    "fault_every_ms": 500,
    "kill_weight": 2,
    "power_weight": 1,
    "cut_weight": 1,
    "operations_per_s": 300,
    "appenders": 1,
    "putters": 1,
}
REACHED = ("archived", "trimmed", "read-archived", "archive-waits", "archive-gone", *OUTCOMES)


@pytest.mark.parametrize("profile", ["oxia", pytest.param("raft", marks=pytest.mark.slow)])
def test_consumers_read_the_archive_and_then_the_log(profile: str) -> None:
    sound_until(REACHED, profile, 100, **WORLD)


def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(3, "oxia", **{**WORLD, "fault_ms": 2_000}))


test_a_mutant_is_seen = each_mutant_is_seen(
    "archive-", quick=("archive-passes-over-a-record", "archive-not-asked")
)
