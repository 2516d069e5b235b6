"""Worlds in which shards lose most replicas, and an operator has them go on from one that is left, are sound."""

import pytest

from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster


@pytest.mark.parametrize(
    ("world", "profile", "seed"),
    [
        ("lone-voter-keeps-members", "oxia", 2),
        ("lone-voter-keeps-members", "raft", 10),
        ("old-replica-stays", "oxia", 3),
        ("lone-voter-keeps-members", "fluvio", 5),
    ],
)
def test_the_worlds_of_recovered_shards_are_sound(world: str, profile: str, seed: int) -> None:
    """Acknowledged records are lost with the disks that had them, and nothing else is."""
    result = run_cluster(draw_options(seed, profile, **CLUSTER_MUTANTS[world].options))
    assert result.failure is None, result.failure.message
    assert result.events.get("recovered", 0) > 0, "what the world is about happened"
    assert result.operations["lost"] > 0, "and it was worth a judge"


def test_where_nothing_is_lost_the_operator_is_refused() -> None:
    result = run_cluster(CLUSTER_MUTANTS["recovers-with-a-majority"].world(2))
    assert result.failure is None, result.failure.message
    assert result.events.get("refused", 0) > 0
