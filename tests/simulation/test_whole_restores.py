"""Whole clusters that are restored from backups of simulated ones, and are judged as these were."""

import pytest

from antiphon.simulation.cluster.backup_mutants import WHOLE
from antiphon.simulation.runtime.escapes import no_escapes
from tests.simulation.told import sound_until

REACHED = ("whole-restores", "repeats-known", "groups-known")


@pytest.mark.parametrize(
    ("profile", "seed"), [("oxia", 1), pytest.param("raft", 2, marks=pytest.mark.slow), ("multi", 1)]
)
def test_a_restored_cluster_has_what_was_committed_at_the_cut(profile: str, seed: int) -> None:
    with no_escapes() as escaped:
        done = sound_until(REACHED, profile, seed, whole_restores=1, fault_ms=3_000)
    assert not escaped
    assert done["whole-restores"] >= 1


@pytest.mark.slow
def test_decided_transactions_end_in_the_restored_cluster() -> None:
    sound_until(("decided-at-the-cut",), "oxia", 12, seeds=20, **{**WHOLE, "delay_us": (500, 6_000)})
