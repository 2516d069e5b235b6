"""Worlds in which the voters of `__cluster` change, lose their disks, or are nearly all lost, are sound."""

import pytest

from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.run import run_cluster


@pytest.mark.parametrize(
    ("world", "seed", "event"),
    [
        ("voters-not-noted", 1, "carried-out"),
        ("voter-counts-before-it-votes", 29, "hurt"),
        ("old-voter-stays", 5, "recovered"),
    ],
)
def test_the_worlds_of_voters_are_sound(world: str, seed: int, event: str) -> None:
    result = run_cluster(CLUSTER_MUTANTS[world].world(seed))
    assert result.failure is None, result.failure.message
    assert result.events.get(event, 0) > 0, "what the world is about happened"
