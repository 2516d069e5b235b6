"""A failed run of the multi-writer world made small: faults left out one by one, the world made plainer, and then told.

A fault that is left out changes what is drawn after it, so the smaller run is another run; what counts is that it breaks the
same promise. The world's faults are numbered in the order in which they strike.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from antiphon.simulation.delta import Shrunk, fewer
from antiphon.simulation.multi_world import run_multi
from antiphon.simulation.options import SimulationOptions
from antiphon.simulation.runner import RunResult
from antiphon.simulation.story import elided

SECONDS_MAX: Final = 20.0
PLAINER: Final[tuple[dict[str, Any], ...]] = (
    {"nodes": 2}, {"nodes": 3}, {"loss_ppm": 0}, {"duplicate_ppm": 0}, {"in_order": True}, {"clock_skew_ppm": 0},
    {"sync_stall_ppm": 0}, {"damage_ppm": 0}, {"trim_weight": 0}, {"safety_ms": 400}, {"safety_ms": 800},
)  # fmt: skip

SENTENCES: Final[dict[str, Callable[[tuple[Any, ...]], str]]] = {
    "crash": lambda facts: f"node {facts[0]} crashed",
    "start": lambda facts: f"node {facts[0]} started",
    "damage": lambda facts: f"the log of node {facts[0]} was found damaged",
    "replace-disk": lambda facts: f"node {facts[0]} got an empty disk",
    "cut": lambda facts: "links were cut: " + ", ".join(f"{one} to {other}" for one, other in facts[0]),
    "heal": lambda facts: f"{facts[0]} links worked again",
    "liveness": lambda _facts: "all faults ended",
}


def shrink_multi(failed: RunResult, plant: str | None, seconds_max: float = SECONDS_MAX) -> Shrunk[RunResult]:
    """Look for a smaller run that breaks the same promise, for at most so many seconds."""
    began = time.monotonic()
    best, options, spared, runs = failed, failed.options, frozenset[int](), 0
    before = failed.events.get("strikes", 0)

    def out_of_time() -> bool:
        return time.monotonic() - began > seconds_max

    def attempt(with_options: SimulationOptions, without: frozenset[int]) -> bool:
        nonlocal best, options, spared, runs
        if out_of_time():
            return False
        runs += 1
        found = run_multi(failed.options.seed, plant, options=with_options, spared=without)
        if (
            found.failure is None
            or failed.failure is None
            or found.failure.invariant != failed.failure.invariant
        ):
            return False
        best, options, spared = found, with_options, without
        return True

    def only(kept: tuple[int, ...]) -> tuple[int, ...] | None:
        return kept if attempt(options, frozenset(range(before)) - frozenset(kept)) else None

    left_over = fewer(tuple(range(before)), only, out_of_time)
    for change in PLAINER:
        if any(getattr(options, name) != value for name, value in change.items()):
            attempt(replace(options, **change), spared)
    fewer(left_over, only, out_of_time)
    struck = best.events.get("strikes", 0)
    left = struck - sum(number < struck for number in spared)
    seconds = time.monotonic() - began
    return Shrunk(best, left, before, runs, seconds, complete=not out_of_time())


def tell_multi(result: RunResult) -> list[str]:
    """The story of a failed run, a sentence a line."""
    failure = result.failure
    if failure is None:
        return [f"Seed {result.options.seed} kept every promise."]
    lines = [
        f"At {time_ns / 1e9:.3f} s {SENTENCES[kind](facts)}."
        for time_ns, kind, _, facts in result.told
        if kind in SENTENCES and time_ns > 0
    ]
    name, _, what = failure.message.partition(": ")
    return [
        f"{result.options.nodes} nodes that all write, seed {result.options.seed}.",
        *elided(lines),
        f"At {failure.time_ns / 1e9:.3f} s {name} was broken: {what}.",
    ]
