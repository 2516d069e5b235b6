"""What `antiphon simulate` runs: seeds of whole nodes, scenarios, mutants; see `simulation/cluster/`."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.simulation.cluster.mutants import ALL_MUTANTS, OF_SCRIPTS, mutated
from antiphon.simulation.cluster.options import PROFILES
from antiphon.simulation.cluster.run import ClusterResult
from antiphon.simulation.cluster.runner import ClusterJob, run_jobs
from antiphon.simulation.cluster.shrink import shrink
from antiphon.simulation.delta import Shrunk
from antiphon.simulation.pool import run_all, until_failure
from antiphon.simulation.script import Outcome, run_script
from antiphon.simulation.script_language import Step
from antiphon.simulation.written_script import Script

LAST_DIGESTS: Final = 10
MUTANTS: Final = ALL_MUTANTS
OUTCOMES: Final = ("ok", "refused", "unknown")
PROFILE_ALIASES: Final = {"table": "oxia", "table-raft": "raft"}  # words of before: each run has a table
Progress = Callable[[Any], None] | None


@dataclass(frozen=True, slots=True)
class Seeds:
    """Which seeds are run, and how.

    Attributes:
        first: the first seed.
        count: how many.
        profile: None: each seed draws its own.
        mutant: name of the mutant that runs, if any.
        fault_ms: length of the phase with faults, None: drawn.
        rocks: tables' stores are RocksDB.
    """

    first: int
    count: int
    profile: str | None = None
    mutant: str | None = None
    fault_ms: int | None = None
    rocks: bool = False


def script_of(mutant: str | None) -> Script | None:
    """The scenario that shows a mutant, where no world does."""
    text = "" if mutant is None else MUTANTS[mutant].script
    return Script(f"the scenario of {mutant}", text) if text else None


def carry_out(
    script: Path | Script,
    mutant: str | None,
    say: Callable[[str], None],
    shown: Callable[[Step, list[str]], None] | None = None,
) -> Outcome:
    """Run one scenario, with a bug of the replicas' own objects. Raises InvalidRequestError."""
    if mutant is not None and mutant not in OF_SCRIPTS:
        raise InvalidRequestError(
            f"--mutant {mutant}: a scenario runs the protocol's objects alone, and this bug is elsewhere"
        )
    with mutated(None if mutant is None else OF_SCRIPTS[mutant]):
        return run_script(script, say, shown)


def checked_profile(profile: str | None, mutant: str | None) -> str | None:
    """The profile that is meant. Raises InvalidRequestError for what there is not, or does not go together."""
    profile = PROFILE_ALIASES.get(profile, profile) if profile is not None else None
    if profile not in {None, *PROFILES}:
        raise InvalidRequestError(f"--profile {profile}: choose one of {', '.join(PROFILES)}")
    if mutant is None:
        return profile
    if mutant not in MUTANTS:
        raise InvalidRequestError(
            f"--mutant {mutant}: there is no such mutant; --mutants or --plants lists those that there are"
        )
    shows_in = MUTANTS[mutant].profile
    if profile not in {None, shows_in}:
        raise InvalidRequestError(f"--profile {profile}: {mutant} shows in profile {shows_in} only")
    return profile


def workers_for(jobs: int, count: int = 1024) -> int:
    """How many processes: as many as were asked for, or one per core; never more than there is work."""
    return min(jobs or os.cpu_count() or 1, count)


def run(
    seeds: Seeds, workers: int, progress: Progress = None
) -> tuple[list[ClusterResult], ClusterResult | None]:
    """Run seeds until one fails: the results before it, and the failed one or None."""
    numbers = range(seeds.first, seeds.first + seeds.count)
    jobs = [ClusterJob(seed, seeds.profile, seeds.mutant, seeds.fault_ms, seeds.rocks) for seed in numbers]
    return until_failure(run_jobs(jobs, workers), progress)


def shrunk(
    failed: ClusterResult, mutant: str | None, progress: Callable[[str], None]
) -> Shrunk[ClusterResult]:
    """Make a failed run small."""
    bug = None if mutant is None else MUTANTS[mutant]
    return shrink(failed, lambda: mutated(bug), progress=progress)


def again(failed: ClusterResult, seeds: Seeds) -> str:
    """The options that repeat a run."""
    words = [f"--seed {failed.options.seed} --profile {failed.options.profile}"]
    if seeds.mutant is not None:
        words.append(f"--mutant {seeds.mutant}")
    if seeds.fault_ms is not None:
        words.append(f"--seconds {seeds.fault_ms / 1000:g}")
    if seeds.rocks:
        words.append("--rocksdb")
    return " ".join(words)


def figures(passed: list[ClusterResult], failed: ClusterResult | None, elapsed_s: float) -> dict[str, Any]:
    """The outcome as one object."""
    results = [*passed, *([] if failed is None else [failed])]
    simulated_s = sum(result.simulated_s for result in results)
    return {
        "seeds": len(results),
        "steps": sum(result.steps for result in results),
        "simulated_s": simulated_s,
        "elapsed_s": round(elapsed_s, 3),
        "cluster_seconds_per_second": round(simulated_s / max(elapsed_s, 1e-3), 1),
        "entries": sum(result.entries for result in results),
        "operations": {name: sum(result.operations.get(name, 0) for result in results) for name in OUTCOMES},
        "digests": {str(result.options.seed): result.digest for result in results[-LAST_DIGESTS:]},
        "failure": None if failed is None or failed.failure is None else _failure(failed),
    }


def _failure(failed: Any) -> dict[str, Any]:
    return {
        "seed": failed.options.seed,
        "profile": failed.options.profile,
        "invariant": failed.failure.invariant,
        "message": failed.failure.message,
        "step": failed.failure.step,
        "trace": list(failed.failure.trace),
    }


def words(first: int, passed: list[ClusterResult], elapsed_s: float) -> str:
    """That all went well."""
    found = figures(passed, None, elapsed_s)
    operations, simulated_s = found["operations"], found["simulated_s"]
    text = (
        f"seeds {first}..{first + len(passed) - 1}: every promise kept in {found['steps']:,} steps, "
        f"{simulated_s:.0f} s of cluster time in {elapsed_s:.1f} s "
        f"({simulated_s / max(elapsed_s, 1e-3):.0f} cluster-seconds per second); "
        f"{found['entries']:,} entries committed, operations: {operations['ok']:,} ok, "
        f"{operations['refused']:,} refused, {operations['unknown']:,} unknown"
    )
    if len(passed) == 1:
        options = passed[0].options
        text += f"\nprofile {options.profile}, trace {passed[0].digest}\noptions: {options.words()}"
    return text


def caught(names: Iterable[str], count: int, workers: int) -> Iterator[dict[str, Any]]:
    """What each of these mutants took, in their order; `workers` of them run at a time, as most need a seed or two."""
    return run_all(partial(_catch, count=count), names, workers)


def _catch(name: str, count: int) -> dict[str, Any]:
    mutant, script = MUTANTS[name], script_of(name)
    if script is not None:
        found = carry_out(script, name, lambda _: None).failure
        took, invariant = (1, found.removeprefix("broke ").split(":")[0]) if found else (None, "")
    else:
        passed, failed = run(Seeds(1, count, mutant.profile, name), workers=1)
        failure = None if failed is None else failed.failure
        took = None if failure is None else len(passed) + 1
        invariant = "" if failure is None else failure.invariant
    told = {"mutant": name, "profile": mutant.profile, "seeds": took, "invariant": invariant}
    return told if script is None else {**told, "script": True}
