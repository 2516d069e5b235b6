"""Clients that end in the middle, stand still and do not read, and what judges make of that; what seeds draw of the rest."""

import pytest

from antiphon.simulation.cluster.cluster import SimulatedCluster
from antiphon.simulation.cluster.mutant_worlds import CALM, LONG_CUTS
from antiphon.simulation.cluster.options import NEEDS_NO_LOGIN, draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload
from tests.simulation.told import sound_until, words

FAULTS = {"client_kill_weight": 3, "client_pause_weight": 1, "client_stall_weight": 1}
CLIENTS = {
    **CALM,
    **FAULTS,
    "fault_ms": 3_000,
    "fault_every_ms": 60,
    "client_skew_ppm": 100_000,
    "kafka_producers": 1,
    "kafka_members": 2,
    "kafka_transactors": 2,
    "consumer_members": 2,
    "static_members": 3,
    "range_deletes": True,
    "ledger_keepers": 2,
    "operations_per_s": 300,
}
AGAIN = {
    **LONG_CUTS,
    "topic_shards": 2,
    "appenders": 4,
    "putters": 0,
    "followers": True,
    "whole_readers": True,
    "tries_again": True,
    "operations_per_s": 100,
}
READERS = {**CALM, "stalled_readers": 3, "operations_per_s": 100, "appenders": 0, "settle_ms": 60_000}


def test_clients_are_killed_paused_and_stalled_and_all_judges_know_it() -> None:
    result = run_cluster(draw_options(3, "oxia", **CLIENTS))
    assert result.failure is None, words(result)
    assert all(result.events[kind] for kind in ("client-killed", "client-paused", "client-stalled"))
    assert result.operations["committed"] > 0


def test_a_run_repeats_from_the_list_of_its_faults() -> None:
    options = draw_options(5, "raft", **{**CALM, **FAULTS, "fault_every_ms": 100, "operations_per_s": 100})
    first = run_cluster(options)
    assert first.failure is None, words(first)
    assert run_cluster(options, schedule=first.schedule).digest == first.digest


def test_a_killed_client_has_a_successor_with_a_number_of_its_own() -> None:
    cluster = SimulatedCluster(draw_options(1, "oxia", **{**CALM, "appenders": 2}))
    try:
        workload = TopicWorkload(cluster)
        workload.shard_ids = [1]
        workload.begin()
        workload.kill(workload.clients[0], silently=True)
        assert [client.number for client in workload.clients] == [1]
        workload.stop()
        assert [client.number for client in workload.clients] == [1, 2]
        assert workload.heirs == {2: 0}
    finally:
        cluster.close()


def test_what_a_killed_client_had_asked_for_has_an_unknown_outcome() -> None:
    cluster = SimulatedCluster(draw_options(1, "oxia", **CALM))
    try:
        table = TableWorkload(cluster)
        table._pending[4] = ("bell", "put", (None, b"x"), 17)
        table.died(4)
        table.died(5)
        (one,) = table.operations
        assert (one.process, one.key, one.invoked, one.returned) == (4, "bell", 17, None)
    finally:
        cluster.close()


@pytest.mark.parametrize("profile", ["oxia", "raft"])
def test_readers_that_do_not_read_are_bounded_and_hung_up_on(profile: str) -> None:
    sound_until(("late-fetches", "late-pages"), profile, 1, **READERS)


def test_seeds_draw_what_is_rare() -> None:
    worlds = [draw_options(seed) for seed in range(3_000)]
    share = sum(world.rocks for world in worlds) / len(worlds)
    assert 0.012 < share < 0.03
    rare = (
        "new_disk",
        "install",
        "store_flip",
        "internal_elect",
        "aborted_rot",
        "client_kill",
        "client_stall",
    )
    for name in rare:
        assert any(getattr(world, f"{name}_weight") for world in worlds), name
    assert not any(
        world.principals and any(getattr(world, one) for one in NEEDS_NO_LOGIN) for world in worlds
    )


def test_whole_topics_are_followed_and_lost_appends_are_tried_again() -> None:
    """Every record is there once, and readers of all shards are given all of each."""
    reached = 0
    for seed in range(8_170_100, 8_170_112):
        result = run_cluster(draw_options(seed, "oxia", **AGAIN))
        assert result.failure is None, words(result)
        reached += result.operations["again"]
        if reached:
            assert result.operations["read"] > 0
            return
    raise AssertionError("no append was tried again")
