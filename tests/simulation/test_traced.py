"""Worlds that trace into memory: clean seeds, ids that follow from the seed, and a judge that sees mutants."""

import pytest

from antiphon import tracing
from antiphon.simulation.cluster.mutant_worlds import TROUBLE
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from tests.simulation.told import caught, mutants_of, same_twice, words

WORLD = {**TROUBLE, "traced": True, "fault_ms": 3_000, "operations_per_s": 100}


@pytest.mark.parametrize("profile", ["oxia", "raft", "fluvio"])
def test_each_span_ends_and_belongs_to_what_it_is_begun_under(profile: str) -> None:
    result = run_cluster(draw_options(1, profile, **WORLD))
    assert result.failure is None, words(result)
    assert result.events["traced"] == 1, "they were judged"
    assert tracing.tracer is None


def test_ids_follow_from_the_seed_and_no_package_is_loaded_for_them() -> None:
    same_twice(draw_options(2, "oxia", **WORLD))


def test_some_drawn_worlds_trace() -> None:
    drawn = [draw_options(seed) for seed in range(300)]
    assert 15 < sum(one.traced for one in drawn) < 60


@pytest.mark.parametrize(
    "name",
    mutants_of("traces-", quick=("traces-sent-with-other-entries", "traces-of-deposed-leaders-stay-open")),
)
def test_a_mutant_is_seen(name: str) -> None:
    caught(name)
