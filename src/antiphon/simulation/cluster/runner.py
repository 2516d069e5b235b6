"""Runs seeds of whole nodes, one after the other or on several processes, and says what came out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS, mutated
from antiphon.simulation.cluster.options import ClusterOptions, draw_options
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.pool import run_all


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """What a worker process needs to run one seed.

    Attributes:
        seed: decides everything.
        profile: None: drawn from the seed, or the mutant's.
        mutant: name of the mutant that runs, if any.
        fault_ms: length of the phase with faults; None: drawn.
        rocks: tables' stores are RocksDB.
    """

    seed: int
    profile: str | None = None
    mutant: str | None = None
    fault_ms: int | None = None
    rocks: bool = False

    def options(self) -> ClusterOptions:
        """The world that it runs."""
        if self.mutant is None:
            options = draw_options(self.seed, self.profile)
        else:
            options = CLUSTER_MUTANTS[self.mutant].world(self.seed)
        if self.rocks:
            options = replace(options, rocks=True)
        return options if self.fault_ms is None else replace(options, fault_ms=self.fault_ms)


def run_job(job: ClusterJob) -> ClusterResult:
    """Run one seed, with its mutant."""
    mutant = None if job.mutant is None else CLUSTER_MUTANTS[job.mutant]
    return run_cluster(job.options(), mutated=mutated(mutant))


def run_jobs(jobs: Iterable[ClusterJob], workers: int) -> Iterator[ClusterResult]:
    """Results in the order of the jobs; with more than one worker the seeds are spread over processes."""
    return run_all(run_job, jobs, workers)


def _when(result: ClusterResult, time_s: float) -> str:
    return (
        f"{(time_s - result.began_s) * 1000:.0f} ms after {'faults began' if result.founded else 'the start'}"
    )


def report(result: ClusterResult) -> str:
    """A failed run for a reader: seed, options, step, promise, and the last events."""
    failure, options = result.failure, result.options
    if failure is None:
        return f"seed {options.seed} ok: {result.steps} steps, trace {result.digest}"
    lines = [
        f"seed {options.seed} broke {failure.invariant} at step {failure.step}, {_when(result, failure.time_s)}",
        failure.message,
        f"options: {options.words()}",
        "last events (time since then, what):",
        *failure.trace,
    ]
    return "\n".join(lines)
