"""What operators set and take back in the world of whole nodes: clean seeds, and a judge that sees mutants."""

import pytest

from antiphon.simulation.cluster.options import draw_options
from tests.simulation.told import each_mutant_is_seen, same_twice, sound_until

WORLD = {
    "principals": 0,
    "tenants": 0,
    "fault_ms": 4_000,
    "fault_every_ms": 500,
    "operations_per_s": 200,
    "appenders": 1,
    "putters": 1,
    "bulk_writers": 0,
}
SETTINGS = (
    "settings_operators",
    ("settings-set", "settings-reset", "settings-in-doubt", "settings-looked-at", "settings-in-effect"),
)
SUBSCRIPTIONS = (
    "subscribers",
    (
        "subscribed",
        "unsubscribed",
        "subscription-in-doubt",
        "metrics-offered",
        "metrics-not-offered",
        "subscription-told",
        "metrics-pushed",
    ),
)


@pytest.mark.parametrize(("option", "reached"), [SETTINGS, SUBSCRIPTIONS])
@pytest.mark.parametrize("profile", [pytest.param("raft", marks=pytest.mark.slow), "kip27"])
def test_nodes_go_by_what_was_set(option: str, reached: tuple[str, ...], profile: str) -> None:
    sound_until(reached, profile, 100, **{**WORLD, option: 2})


@pytest.mark.slow
@pytest.mark.parametrize("option", [SETTINGS[0], SUBSCRIPTIONS[0]])
def test_nothing_escapes_and_a_seed_stays_what_it_is(option: str) -> None:
    same_twice(draw_options(3, "oxia", **{**WORLD, option: 2, "fault_ms": 2_000}))


test_a_mutant_is_seen = each_mutant_is_seen(
    "settings-",
    "subscriptions-",
    "metrics-",
    quick=(
        "settings-are-not-followed",
        "subscriptions-are-not-followed",
        "metrics-always-offered",
        "metrics-never-offered",
    ),
)


def test_some_drawn_worlds_have_settings_that_change_where_nobody_logs_in() -> None:
    drawn = [draw_options(seed) for seed in range(200)]
    having = [one for one in drawn if one.settings_operators]
    assert 20 < len(having) < 80
    assert not any(one.has_logins for one in having)
