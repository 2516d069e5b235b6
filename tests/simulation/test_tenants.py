"""What bounds single users in the world of whole nodes: clean seeds, and judges that see mutants."""

from itertools import pairwise
from random import Random

import pytest

from antiphon import system
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.workloads.shown_logins import WAYS
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import LOOK_S, Process
from tests.simulation.told import WITH_LOGINS, each_mutant_is_seen, same_twice, sound_until

WORLD = {**WITH_LOGINS, "tenants": 1}
REACHED = (
    *("metered", "told-to-wait", "neighbourly", "places-again"),
    *(f"places-{what}-{way}" for what in ("taken", "refused") for way in WAYS),
    *("leaver-logins", "leaver-refused", "leaver-hung-up", "leaver-changes"),
)


@pytest.mark.parametrize(
    "profile", ["raft", *(pytest.param(one, marks=pytest.mark.slow) for one in ("kip27", "multi"))]
)
def test_users_are_bounded_each_for_himself(profile: str) -> None:
    sound_until(REACHED, profile, 100, **WORLD)


@pytest.mark.slow
def test_nothing_escapes_and_a_seed_stays_what_it_is() -> None:
    same_twice(draw_options(6, "oxia", **{**WORLD, "fault_ms": 2_000}))


test_a_mutant_is_seen = each_mutant_is_seen(
    "tenant-", quick=("tenant-takes-all-the-time", "tenant-is-only-told")
)


def test_drawn_worlds_have_tenants_only_where_clients_log_in() -> None:
    drawn = [draw_options(seed) for seed in range(300)]
    with_tenants = [one for one in drawn if one.tenants]
    assert 5 < len(with_tenants) < 30
    assert all(one.principals for one in with_tenants)
    assert not any(draw_options(one.seed, principals=0).tenants for one in with_tenants)


def _world() -> tuple[VirtualLoop, Process]:
    loop = VirtualLoop(Random(1))
    Network(loop, Random(1))
    return loop, Process(loop, "a", "a", 1)


def test_work_takes_time_and_what_is_due_meanwhile_waits_in_its_order() -> None:
    loop, process = _world()
    process.work_takes_time(1)
    seen: list[tuple[str, float]] = []

    def work(name: str) -> None:
        first = system.monotonic_s()
        assert LOOK_S[0] < system.monotonic_s() - first < LOOK_S[1]
        seen.append((name, loop.now))

    for name in "abc":
        process.call(loop.call_soon, work, name)
    loop.run_until(lambda: len(seen) == 3)
    assert [name for name, _ in seen] == ["a", "b", "c"]
    for (_, before_s), (_, after_s) in pairwise(seen):
        assert 2 * LOOK_S[0] < after_s - before_s < 2 * LOOK_S[1]


def test_a_process_that_is_stopped_while_it_is_busy_goes_on_when_it_is_told_to() -> None:
    loop, process = _world()
    process.work_takes_time(1)
    seen: list[float] = []
    process.call(loop.call_soon, system.monotonic_s)
    process.call(loop.call_soon, lambda: seen.append(loop.now))
    began_s = loop.now
    loop.call_later(LOOK_S[0] / 2, process.pause)
    loop.call_later(1.0, process.resume)
    loop.run_until(lambda: bool(seen))
    assert seen == [began_s + 1.0]


def test_elsewhere_work_takes_no_time() -> None:
    loop, process = _world()
    assert process.call(system.monotonic_s) == process.call(system.monotonic_s)
    assert process.call(loop.time) == process.call(system.monotonic_s)
