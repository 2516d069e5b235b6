"""Worlds with leases: sound as far as clocks run apart as leases allow for, and beyond that the judge sees an old row."""

import pytest

from antiphon.simulation.cluster.lease_mutants import LEASED
from antiphon.simulation.cluster.mutant import mutated
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.world_options import LEASE_SKEW_PPM

BEYOND = CLUSTER_MUTANTS["lease-clocks-beyond-the-bound"]


def test_clocks_of_worlds_with_leases_keep_to_what_leases_allow_for() -> None:
    fast, slow = 1_000_000 + LEASE_SKEW_PPM, 1_000_000 - LEASE_SKEW_PPM
    assert 0.9 * fast < slow, "a leader that is slow stops before a follower that is fast answers"
    for seed in range(9_461_000, 9_461_400):
        world = draw_options(seed)
        if world.read_lease_ms or world.leased_clients:
            assert world.node_skew_ppm <= LEASE_SKEW_PPM
        else:
            assert world.node_skew_ppm == world.clock_skew_ppm


def test_leases_are_sound_within_the_bound() -> None:
    world = draw_options(BEYOND.first_seed, **{**LEASED, "clock_skew_ppm": LEASE_SKEW_PPM, "fault_ms": 5_000})
    assert run_cluster(world).failure is None


@pytest.mark.slow
def test_beyond_it_an_old_row_is_seen() -> None:
    failure = run_cluster(BEYOND.world(BEYOND.first_seed), mutated=mutated(BEYOND)).failure
    assert failure is not None
    assert failure.invariant == "linearizable"
