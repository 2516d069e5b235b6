"""A failed run of the multi-writer world is made small, breaks the same promise, and reads as a story."""

import pytest

from antiphon.simulation.multi_shrink import shrink_multi, tell_multi
from antiphon.simulation.multi_world import derive_multi, run_multi


def first_failure(plant: str) -> int:
    """The first seed that finds the bug."""
    return next(seed for seed in range(1, 60) if run_multi(seed, plant).failure is not None)


@pytest.mark.parametrize("plant", ["multi-ack-before-sync", "multi-duplicates-taken"])
def test_a_failing_run_is_made_small_and_told(plant: str) -> None:
    failed = run_multi(first_failure(plant), plant)
    assert failed.failure is not None
    small = shrink_multi(failed, plant, seconds_max=5)
    assert small.result.failure is not None
    assert small.result.failure.invariant == failed.failure.invariant
    assert small.faults <= small.faults_before
    story = tell_multi(small.result)
    assert failed.failure.invariant in story[-1]
    assert all(line.endswith(".") for line in story)


def test_faults_that_are_spared_do_not_happen() -> None:
    options = derive_multi(3)
    calm = run_multi(3, options=options, spared=frozenset(range(10_000)))
    assert calm.failure is None
    assert "crash" not in calm.events
    assert run_multi(3).events["crash"] > 0
    assert run_multi(3).digest == run_multi(3, options=options).digest
