"""Some of the trials of what a node reads beside its data; `make damage` runs all of them."""

import pytest

from tests.node.damage_outcomes import RUNNING, Trial
from tests.node.damage_settings import run_trials

CHOSEN = {
    ("node.toml", "cut", "stopped"): "refused",
    ("node.pem", "empty", "stopped"): "refused",
    ("node.key", "duplicate", "stopped"): "as before",
    ("keys.json", "zero", "stopped"): "told",
    ("node.log", "delete", RUNNING): "as before",
    ("peers-authority.pem", "cut", RUNNING): "as before",
    ("node.pem", "cut", RUNNING): "told",
}


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_damaged_settings_are_named_and_what_was_good_stays_in_use() -> None:
    def chosen(trials: list[Trial]) -> list[Trial]:
        return [one for one in trials if (one.kind, one.harm, one.before) in CHOSEN]

    outcomes = run_trials(chosen)
    assert {(one.kind, one.harm, one.before): one.word for one in outcomes} == CHOSEN
