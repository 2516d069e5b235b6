"""Backups and prunes in simulated clusters: what is kept, and that nothing of it is real."""

import pytest

from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.runtime.escapes import no_escapes
from tests.simulation.told import words

MAKES = {"backup_makers": 2, "principals": 0, "fault_ms": 3_000}


@pytest.mark.parametrize(("profile", "seed"), [("oxia", 6), ("fluvio", 8)])
def test_backups_are_whole_and_what_was_committed(profile: str, seed: int) -> None:
    with no_escapes() as escaped:
        result = run_cluster(draw_options(seed, profile, **MAKES))
    assert not escaped
    assert result.failure is None, words(result)
    assert result.operations["backups-on-others"] > 0
    assert result.operations["backups-pruned"] > 0
