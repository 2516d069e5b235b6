"""Clients of Kafka's protocol and of HTTP in the world of whole nodes: clean seeds, and judges that see mutants."""

import sys

import pytest

from antiphon.simulation.cluster.options import PROFILES, draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.runtime.escapes import no_escapes
from tests.simulation.told import each_mutant_is_seen, sound_until, words

SHORT = {
    "fault_ms": 1_500,
    "appenders": 1,
    "putters": 1,
    "bulk_writers": 0,
    "topic_shards": 1,
    "table_shards": 1,
    # Where clients log in, the Kafka and HTTP clients of these tests, which cannot, would be turned away.
    "principals": 0,
}
LISTENERS = {"kafka_producers": 1, "kafka_consumers": 1, "kafka_members": 2, "http_clients": 1}
PACE = {"fault_ms": 4_000, "fault_every_ms": 1_000, "operations_per_s": 200}


@pytest.mark.parametrize("profile", PROFILES)
def test_promises_are_kept(profile: str) -> None:
    reached = ("produced", "fetched", "committed", "pages")
    done = sound_until(reached, profile, 5, **{**SHORT, **LISTENERS, **PACE})
    assert done["produced"] > 20
    assert done["fetched"] >= done["produced"] // 2


@pytest.mark.slow
def test_an_installation_without_the_dashboard_is_no_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "antiphon.http.pages.app", None)  # as if its libraries were missing
    monkeypatch.setattr("antiphon.simulation.cluster.workloads.http.HAS_DASHBOARD", False)
    monkeypatch.setattr("antiphon.simulation.cluster.workloads.api.HAS_DASHBOARD", False)
    reached = ("pages", "api-plans", "api-made")
    sound_until(reached, "oxia", 5, **{**SHORT, **PACE, "http_clients": 1, "api_clients": 2})


@pytest.mark.slow
def test_an_installation_without_kernels_is_no_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.records.intake.find_spec", lambda _: None)  # as if numba were missing
    monkeypatch.setattr("antiphon.simulation.cluster.workloads.kafka_workload.HAS_KERNELS", False)
    reached = ("produced", "fetched")
    for seed in (5, 6):  # topics that look at all records, and such that do not
        sound_until(reached, "oxia", seed, **{**SHORT, **PACE, "kafka_producers": 2, "kafka_consumers": 1})


def test_topics_are_planned_and_made_by_the_forms_of_the_dashboard() -> None:
    reached = ("forms-planned", "forms-carried-out")
    sound_until(reached, "oxia", 5, seeds=6, **{**SHORT, **PACE, "http_clients": 1, "api_clients": 2})


@pytest.mark.parametrize(
    ("profile", "seed"), [("oxia", 1), ("raft", 4), pytest.param("multi", 4, marks=pytest.mark.slow)]
)
def test_deleted_records_stay_away_and_all_others_stay(profile: str, seed: int) -> None:
    deletes = {"record_deleters": 3, "operations_per_s": 900}
    sound_until(("records-deleted", "read-below"), profile, seed, **{**SHORT, **PACE, **deletes})


@pytest.mark.parametrize(("profile", "seed"), [pytest.param("kip27", 2, marks=pytest.mark.slow), ("raft", 1)])
def test_what_is_too_old_goes_and_nothing_else(profile: str, seed: int) -> None:
    ages = {"retention_writers": 2, "operations_per_s": 300, "fault_ms": 3_000}
    done = sound_until(("aged-out", "aging-read"), profile, seed, **{**SHORT, **PACE, **ages})
    assert done["aged-out"] > 10


test_a_mutant_is_seen = each_mutant_is_seen(
    "listener-",
    quick=(
        "listener-forgets-sequences",
        "listener-takes-garbage",
        "listener-one-id-for-all",
        "listener-wrong-offset",
    ),
)


def test_nothing_escapes() -> None:
    with no_escapes() as escaped:
        result = run_cluster(draw_options(2, "oxia", **{**SHORT, **LISTENERS, "fault_every_ms": 0}))
    assert not escaped
    assert result.failure is None, words(result)
    assert result.operations["pages"] > 0
