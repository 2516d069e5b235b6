"""Subscriptions to clients' metrics in the world of whole nodes: clean seeds, and a judge that sees mutants."""

import pytest

from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.options import draw_options
from tests.simulation.told import same_twice, sound_after_caught, sound_until

WORLD = {
    "principals": 0,
    "tenants": 0,
    "subscribers": 2,
    "fault_ms": 4_000,
    "fault_every_ms": 500,
    "operations_per_s": 200,
    "appenders": 1,
    "putters": 1,
    "bulk_writers": 0,
}
REACHED = ("subscribed", "unsubscribed", "subscription-in-doubt", "subscription-told", "metrics-pushed")


@pytest.mark.parametrize("profile", ["raft", "kip27"])
def test_every_node_knows_them_and_clients_push(profile: str) -> None:
    sound_until(REACHED, profile, 100, **WORLD)


def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(3, "oxia", **{**WORLD, "fault_ms": 2_000}))


@pytest.mark.parametrize("name", [name for name in CLUSTER_MUTANTS if name.startswith("subscriptions-")])
def test_a_mutant_is_seen(name: str) -> None:
    sound_after_caught(name)
