"""What judges of sessions make of clients whose clocks run fast or slow, and of sessions that are lost too early."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from antiphon.client.session import SILENT, AsyncSession
from antiphon.errors import SessionNotFoundError
from antiphon.simulation.cluster.cluster import SimulatedCluster
from antiphon.simulation.cluster.mutant_worlds import CALM, LONG_CUTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.workloads.recipes import Holder
from antiphon.simulation.cluster.workloads.sessions import Life, SessionWorkload
from antiphon.simulation.runtime.process import Process
from antiphon.simulation.violation import ViolationError
from tests.simulation.told import sound_until

BY_A_SHARD = SessionNotFoundError("session 7 is lost: session 7 is not open in shard 1", session_id=7)
BY_ITS_CLOCK = SessionNotFoundError(f"session 7 is lost: shard 1 {SILENT} 1.0 s", session_id=7)
FAST, SLOW = 1.1, 0.9
NODES_SKEW_PPM = 50_000  # no node's clock is faster than 1.05


@dataclass
class FakeSession:
    """What a judge sees of a session that was kept when its client began. `told`: who is told when it is lost."""

    kept_s: float
    id: int = 7
    timeout_s: float = 1.0
    told: Callable[[SessionNotFoundError], None] | None = None

    def when_lost(self, callback: Callable[[SessionNotFoundError], None]) -> None:
        self.told = callback


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    cluster = SimulatedCluster(draw_options(1, "oxia", **{**CALM, "clock_skew_ppm": NODES_SKEW_PPM}))
    yield cluster
    cluster.close()


def client(cluster: SimulatedCluster, rate: float) -> tuple[Process, AsyncSession]:
    process = Process(cluster.loop, "client", "client", 1, rate=rate)
    return process, cast("AsyncSession", FakeSession(process.monotonic_s()))


def after(cluster: SimulatedCluster, passed_s: float) -> None:
    cluster.loop.now += passed_s


@pytest.mark.parametrize(
    ("rate", "passed_s", "error", "is_early"),
    [
        pytest.param(
            FAST, 0.91, BY_ITS_CLOCK, False, id="its clock is fast, and says that the time-out is over"
        ),
        pytest.param(FAST, 0.90, BY_ITS_CLOCK, True, id="its clock is fast, and does not say so yet"),
        pytest.param(SLOW, 1.10, BY_ITS_CLOCK, True, id="its clock is slow, and does not say so yet"),
        pytest.param(SLOW, 1.12, BY_ITS_CLOCK, False, id="its clock is slow, and says so"),
        pytest.param(FAST, 0.95, BY_A_SHARD, True, id="no node's clock can say so, the client's own does"),
        pytest.param(FAST, 0.96, BY_A_SHARD, False, id="a node's clock may say so, and the client's"),
        pytest.param(SLOW, 0.96, BY_A_SHARD, False, id="a node's clock may say so"),
    ],
)
def test_a_session_is_lost_early_by_the_clock_of_who_says_so(
    cluster: SimulatedCluster, rate: float, passed_s: float, error: SessionNotFoundError, is_early: bool
) -> None:
    workload = SessionWorkload(cluster)
    workload.shard_ids = [1]
    process, session = client(cluster, rate)
    after(cluster, passed_s)
    workload._lost(Life(session, "0-1", process), error)
    if is_early:
        with pytest.raises(ViolationError, match="lost-early"):
            workload.check()
    else:
        workload.check()


@pytest.mark.parametrize(("error", "is_over"), [(BY_ITS_CLOCK, True), (BY_A_SHARD, False)])
def test_nobody_holds_by_a_session_that_it_takes_for_lost(
    cluster: SimulatedCluster, error: SessionNotFoundError, is_over: bool
) -> None:
    """It ends the session itself, before the slower clocks of the nodes would. A shard may not end it as early."""
    process, session = client(cluster, FAST)
    began_s = cluster.loop.now
    holder = Holder("0-1", session, process)
    fastest = 1 + NODES_SKEW_PPM / 1e6
    assert holder.kept_until_s(fastest) == pytest.approx(began_s + 1 / fastest)
    after(cluster, 0.92)
    told = cast("FakeSession", session).told
    assert told is not None
    told(error)
    assert (holder.kept_until_s(fastest) <= cluster.loop.now) is is_over


@pytest.mark.parametrize(("profile", "seed"), [("oxia", 4), ("raft", 2)])
def test_clients_with_fast_and_slow_clocks_lose_sessions_while_leaders_change(
    profile: str, seed: int
) -> None:
    options = {
        **LONG_CUTS,
        "appenders": 0,
        "putters": 0,
        "client_skew_ppm": 100_000,
        "session_clients": 3,
        "recipe_clients": 3,
        "operations_per_s": 200,
    }
    sound_until(("sessions-lost", "locks"), profile, seed, **options)
