"""A failing run made small: fewer faults, clients and nodes, a better network, until nothing more can be left out.

Delta debugging (ddmin) over the list of faults that happened: halves, then quarters and so on are taken out as long as the
same promise is still broken. Between two rounds of it the world itself is made plainer, one option at a time. A run is its
own judge: the same invariant has to fail. Every attempt is a whole run, so the time is bounded and said at the end.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from antiphon.simulation.faults import Fault
from antiphon.simulation.options import SimulationOptions
from antiphon.simulation.plants import Plant
from antiphon.simulation.runner import RunResult, run_seed
from antiphon.simulation.scheduler import MILLISECOND

SECONDS_MAX = 20.0
RUNS_MAX = 2_000

_PLAINER: tuple[dict[str, object], ...] = (
    {"loss_ppm": 0},
    {"duplicate_ppm": 0},
    {"in_order": True},
    {"clock_skew_ppm": 0},
    {"sync_stall_ppm": 0},
    {"delay_us_mean": 100},
    {"sync_us_mean": 100},
    {"shards": 1},
    {"warm_up": True},
)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What is left: a run that still fails in the same way, after so many attempts."""

    result: RunResult
    faults_before: int
    runs: int
    seconds: float
    complete: bool  # nothing that was tried can be left out any more; False: time was up


class _Shrinker:
    """One failing run that gets smaller."""

    def __init__(
        self,
        failed: RunResult,
        plant: Plant | None,
        seconds_max: float,
        progress: Callable[[str], None],
    ) -> None:
        self.best = failed
        self._invariant = failed.failure.invariant if failed.failure is not None else ""
        self._plant = plant
        self._progress = progress
        self._ends = time.monotonic() + seconds_max
        self.runs = 0

    @property
    def out_of_time(self) -> bool:
        """Has the bound been reached?"""
        return self.runs >= RUNS_MAX or time.monotonic() >= self._ends

    def attempt(self, options: SimulationOptions, schedule: tuple[Fault, ...]) -> bool:
        """Run it; where it fails in the same way it is the best so far."""
        if self.out_of_time:
            return False
        self.runs += 1
        result = run_seed(options, self._plant, schedule=schedule)
        if result.failure is None or result.failure.invariant != self._invariant:
            return False
        self.best = result  # whose schedule ends where it failed
        self._progress(
            f"{self.runs} runs: {len(result.schedule)} faults, {options.clients} clients, {options.nodes} nodes, "
            f"{result.steps} steps"
        )
        return True

    def without_faults(self) -> None:
        """Take out as many faults as can be."""
        parts = 2
        while self.best.schedule and not self.out_of_time:
            faults = self.best.schedule
            parts = min(parts, len(faults))
            for piece in _pieces(len(faults), parts):
                kept = tuple(fault for at, fault in enumerate(faults) if at not in piece)
                if self.attempt(self.best.options, kept):
                    parts = max(parts - 1, 2)
                    break
            else:
                if parts >= len(faults):
                    return
                parts = min(2 * parts, len(faults))

    def plainer(self) -> bool:
        """Make the world plainer where that keeps the failure; did it?"""
        found = False
        for changes in self._changes():
            options = replace(self.best.options, **changes)  # type: ignore[arg-type]  # names and types are options'
            if options != self.best.options and self.attempt(options, self.best.schedule):
                found = True
        return found

    def _changes(self) -> Iterator[dict[str, object]]:
        if self._invariant != "liveness":
            yield {"safety_ms": self._failed_after_ms(), "liveness_ms": 0}
        for clients in range(1, self.best.options.clients):
            yield {"clients": clients}
            if self.best.options.clients == clients:
                break
        options = self.best.options
        if options.nodes > 3 and all(
            max((*f.nodes, *(n for link in f.links for n in link), 0)) < 3 for f in self.best.schedule
        ):
            yield {"nodes": 3, "replicas": min(3, options.replicas)}
        yield from _PLAINER

    def _failed_after_ms(self) -> int:
        """The safety phase began at the latest when its first fault happened, and failed where the run ended."""
        failure = self.best.failure
        if failure is None:
            return self.best.options.safety_ms
        return min(self.best.options.safety_ms, failure.time_ns // MILLISECOND + 1)


def _pieces(count: int, parts: int) -> Iterator[range]:
    """Cut range(count) into `parts` pieces; late ones first, since what is early often sets the scene."""
    bounds = [count * part // parts for part in range(parts + 1)]
    for at in range(parts - 1, -1, -1):
        yield range(bounds[at], bounds[at + 1])


def shrink(
    failed: RunResult,
    plant: Plant | None = None,
    *,
    seconds_max: float = SECONDS_MAX,
    progress: Callable[[str], None] = lambda _: None,
) -> Shrunk:
    """Make a failing run small. The plant, if any, is the one it failed with; `progress` gets a line per success."""
    began = time.monotonic()
    before = len(failed.schedule)
    shrinker = _Shrinker(failed, plant, seconds_max, progress)
    while not shrinker.out_of_time:
        faults = len(shrinker.best.schedule)
        shrinker.without_faults()
        if not shrinker.plainer() and len(shrinker.best.schedule) == faults:
            break
    return Shrunk(
        shrinker.best, before, shrinker.runs, time.monotonic() - began, complete=not shrinker.out_of_time
    )
