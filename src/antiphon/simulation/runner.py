"""Runs seeds, one after the other or on several processes, and says what came out."""

import gc
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from antiphon.invariants import InvariantError
from antiphon.simulation.faults import Fault
from antiphon.simulation.losses import NO_LOSSES, LossReport
from antiphon.simulation.options import SimulationOptions, derive
from antiphon.simulation.plants import PLANTS, Plant, planted
from antiphon.simulation.pool import run_all, until_failure
from antiphon.simulation.trace import Event
from antiphon.simulation.violation import ViolationError
from antiphon.simulation.world import World

TRACE_LINES = 40


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken promise: which one, when, and the last events before it."""

    invariant: str
    message: str
    step: int
    time_ns: int
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outcome of one seed."""

    options: SimulationOptions
    digest: str
    steps: int
    simulated_ns: int
    entries: int
    operations: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)  # how many of each kind
    losses: LossReport = NO_LOSSES  # of what was acknowledged, where the rule allows any
    schedule: tuple[Fault, ...] = ()  # the faults that happened
    told: tuple[Event, ...] = ()  # what a story of the run is made of; kept of failed runs only
    failure: Failure | None = None


def run_seed(
    options: SimulationOptions,
    plant: Plant | None = None,
    trace_lines: int = TRACE_LINES,
    schedule: tuple[Fault, ...] | None = None,
) -> RunResult:
    """Run one world to its end or to the first broken promise.

    With a `schedule` these faults happen and no others; `options` are then taken as they are, also under a plant.
    """
    if plant is not None and schedule is None:
        options = plant.adapt(options)
    with planted(plant):
        world = World(options, plant, schedule)
        failure = None
        collecting = gc.isenabled()
        gc.disable()
        try:
            world.run()
        except ViolationError as error:
            failure = _failure(world, error.invariant, str(error), error.shard, trace_lines)
        except InvariantError as error:
            where = traceback.extract_tb(error.__traceback__)[-2]
            text = f"no-crash: {error} ({os.path.basename(where.filename)}:{where.lineno})"
            failure = _failure(world, "no-crash", text, None, trace_lines)
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding, with its trace
            text = "no-crash: " + "".join(traceback.format_exception(error)).rstrip()
            failure = _failure(world, "no-crash", text, None, trace_lines)
        finally:
            if collecting:
                gc.enable()
    return RunResult(
        options=options,
        digest=world.trace.digest(),
        steps=world.scheduler.steps,
        simulated_ns=world.scheduler.now_ns,
        entries=world.committed_entries(),
        operations=world.history.counts(),
        events=world.trace.counts,
        losses=world.losses,
        schedule=() if world.faults is None else tuple(world.faults.happened),
        told=() if failure is None else tuple(world.trace.told),
        failure=failure,
    )


def _failure(world: World, name: str, text: str, shard: int | None, lines: int) -> Failure:
    only = shard if shard is not None and shard >= 0 else None
    return Failure(
        name, text, world.scheduler.steps, world.scheduler.now_ns, tuple(world.trace.tail(lines, only))
    )


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker process needs to run one seed."""

    seed: int
    profile: str | None
    plant: str | None


def _run_job(job: Job) -> RunResult:
    if job.profile == "multi" or (job.plant or "").startswith("multi-"):
        from antiphon.simulation.multi_world import run_multi

        return run_multi(job.seed, job.plant)
    plant = None if job.plant is None else PLANTS[job.plant]
    profile = job.profile if plant is None else plant.profile
    return run_seed(derive(job.seed, profile), plant)


def run_jobs(jobs: Iterable[Job], workers: int) -> Iterator[RunResult]:
    """Results in the order of the jobs; with more than one worker the seeds are spread over processes."""
    return run_all(_run_job, jobs, workers, chunk=4)


def run_until_failure(
    jobs: Iterable[Job], workers: int, progress: Callable[[RunResult], None] | None = None
) -> tuple[list[RunResult], RunResult | None]:
    """Run jobs until one fails; returns the results before, and the failed one or None."""
    return until_failure(run_jobs(jobs, workers), progress)


def seeds_to_catch(plant: Plant, seeds: Iterable[int]) -> tuple[int, RunResult] | None:
    """How many seeds it takes until the planted bug is caught, and the failure; None if it never is."""
    for tried, seed in enumerate(seeds, start=1):
        result = run_seed(derive(seed, plant.profile), plant)
        if result.failure is not None:
            return tried, result
    return None


def report(result: RunResult) -> str:
    """A failed run for a reader: seed, options, step, promise, and the last events."""
    failure = result.failure
    if failure is None:
        return f"seed {result.options.seed} ok: {result.steps} steps, trace {result.digest}"
    lines = [
        f"seed {result.options.seed} broke {failure.invariant} at step {failure.step}, {failure.time_ns / 1e9:.6f} s",
        failure.message,
        f"options: {result.options.words()}",
        "last events (step, time, shard, what):",
        *failure.trace,
    ]
    return "\n".join(lines)
