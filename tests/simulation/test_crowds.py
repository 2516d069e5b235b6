"""More connections than there are places, and more topics than are made on demand, in the world of whole nodes."""

from random import Random

import pytest

from antiphon.server.file_limits import connection_shares
from antiphon.simulation.cluster.machine import DESCRIPTORS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.workloads.cluster_log import TopicHistory
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process
from tests.simulation.told import LITTLE, each_mutant_is_seen, same_twice, sound_until

WORLD = {**LITTLE, "tenants": 0, "crowds": 1}
REACHED = (
    *("crowd-in", "crowd-refused", "crowd-told", "crowd-again", "strangers-in", "peers-in"),
    *("demand-made", "demand-refused", "demand-again", "demand-owned"),
)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["oxia", "tarantool"])
def test_crowds_leave_room_for_others(profile: str) -> None:
    sound_until(REACHED, profile, 2, **WORLD)


@pytest.mark.slow
def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(6, "oxia", **{**WORLD, "fault_ms": 2_000}))


test_a_mutant_is_seen = each_mutant_is_seen(
    "crowd-", "demand-", quick=("crowd-beyond-http", "demand-is-never-over")
)


def test_a_simulated_process_goes_by_the_descriptors_of_its_world() -> None:
    loop = VirtualLoop(Random(1))
    Network(loop, Random(1))
    process = Process(loop, "a", "a", 1)
    assert process.call(connection_shares) == connection_shares(1 << 20)
    process.descriptors = DESCRIPTORS
    assert process.call(connection_shares) == connection_shares(DESCRIPTORS)
    assert 30 < connection_shares(DESCRIPTORS).kafka < 100, "small worlds fill it"


def test_the_smallest_number_of_topics_in_a_time() -> None:
    history = TopicHistory.__new__(TopicHistory)
    history._versions, history._counts = [-1, 10, 20, 30], [0, 5, 7, 6]
    history.follow = lambda: None  # type: ignore[method-assign]  # the rule alone, without a cluster's log
    assert history.least(25, 31) == 6
    assert history.least(25, 30) == 7, "not what came of it"
    assert history.least(10, 30) == 5
    assert history.least(-1, 100) == 0
    assert history.least(40, 50) == 6
    assert history.least(40, 35) == 6, "the node knew more than was recorded by then"
