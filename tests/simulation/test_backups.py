"""Backups and prunes in simulated clusters: what is kept, and that nothing of it is real."""

import pytest

from antiphon.simulation.runtime.escapes import no_escapes
from tests.simulation.told import sound_until

MAKES = {"backup_makers": 2, "principals": 0, "fault_ms": 3_000}


@pytest.mark.parametrize(
    ("profile", "seed"), [pytest.param("oxia", 6, marks=pytest.mark.slow), ("fluvio", 8)]
)
def test_backups_are_whole_and_what_was_committed(profile: str, seed: int) -> None:
    with no_escapes() as escaped:
        reached = ("backups-on-others", "backups-pruned", "restored-topics", "restored-tables")
        sound_until(reached, profile, seed, **MAKES)
    assert not escaped
