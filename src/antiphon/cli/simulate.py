"""`antiphon simulate`: run the protocol in a seeded world and check its promises after every step."""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.output import usage
from antiphon.cli.simulate_failures import CATCH_SEEDS, again, catch_all, tell_small
from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.simulation.runner import RunResult

SEEDS_DEFAULT = 100
SEEDS_MAX = 100_000_000


def simulate(
    seeds: Annotated[
        int | None,
        typer.Option(
            help=f"How many seeds to run [default: {SEEDS_DEFAULT}, 1 with --seed].", min=1, max=SEEDS_MAX
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed to run, or to begin with.", min=0)] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="raft, oxia, fluvio, tarantool, kip27, table, table-raft, drawn from the seed if absent; or multi."
        ),
    ] = None,
    plant: Annotated[str | None, typer.Option(help="Plant this bug first: now a run has to fail.")] = None,
    plants: Annotated[
        bool, typer.Option("--plants", help="List the bugs that can be planted, a name a line.")
    ] = False,
    catch: Annotated[
        bool,
        typer.Option("--catch", help="Plant every bug in turn and say how many seeds it takes to find it."),
    ] = False,
    script: Annotated[
        Path | None, typer.Option(help="Carry out this scenario, step by step, instead of seeds.")
    ] = None,
    shrink: Annotated[bool, typer.Option(help="Make a failing run small and tell it as a story.")] = True,
    save: Annotated[
        Path | None, typer.Option(help="Write the failing run, made small, to this file.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Run what --save wrote, instead of seeds.")] = None,
    jobs: Annotated[
        int, typer.Option(help="Processes to run seeds on; 0: one per core.", min=0, max=1024)
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Run the replication protocol in a simulated cluster and check every promise after every step.

    A seed decides everything: network, disks, crashes, clients. The first broken promise ends the run with exit status 1,
    the seed, the step and a short trace; the same seed gives the same trace again.

    Examples: `antiphon simulate --seeds 1000` · `antiphon simulate --seed 42 --profile raft` ·
    `antiphon simulate --plant forgotten-vote` · `antiphon simulate --script scenarios/figure-7.txt`
    """
    from antiphon.simulation.multi_plants import MULTI_PLANTS
    from antiphon.simulation.plants import PLANTS
    from antiphon.simulation.runner import Job, report, run_until_failure

    if plants:
        typer.echo("\n".join([*PLANTS, *MULTI_PLANTS]))
        return
    _refuse_wrong_usage(profile, plant)
    if script is not None or replay is not None:
        if (seeds, seed, profile) != (None, None, None) or (script is not None and replay is not None):
            raise typer.BadParameter("--script and --replay each stand alone, without seeds and profile")
        if script is not None:
            _carry_out(script, plant, as_json=as_json)
        elif replay is not None:
            _replay(replay, as_json=as_json)
        return
    if catch:
        catch_all(seeds or CATCH_SEEDS, profile, jobs or os.cpu_count() or 1, as_json=as_json)
        return
    first = 1 if seed is None else seed
    count = seeds or (SEEDS_DEFAULT if seed is None else 1)
    work = [Job(number, profile, plant) for number in range(first, first + count)]
    workers = min(jobs or os.cpu_count() or 1, count)
    began = time.monotonic()
    passed, failed = run_until_failure(work, workers, _progress(count))
    elapsed_s = time.monotonic() - began
    if as_json:
        typer.echo(json.dumps(_summary(passed, failed, elapsed_s)))
    elif failed is not None:
        typer.echo(report(failed))
        typer.echo(f"again: antiphon simulate {again(failed, plant)}")
    else:
        typer.echo(_words(first, passed, elapsed_s))
    if failed is not None:
        if shrink:
            tell_small(failed, plant, save, quiet=as_json)
        raise typer.Exit(1)


def _carry_out(script: Path, plant: str | None, *, as_json: bool) -> None:
    """Run one scenario: a line a step, and exit status 1 with line and finding where it fails."""
    from antiphon.simulation.plants import PLANTS, planted
    from antiphon.simulation.script import run_script

    lines: list[str] = []
    try:
        with planted(None if plant is None else PLANTS[plant]):
            outcome = run_script(script, lines.append if as_json else typer.echo)
    except InvalidRequestError as error:
        usage(error.message)
    failed = outcome.line > 0
    if as_json:
        failure = {"line": outcome.line, "message": outcome.failure} if failed else None
        typer.echo(json.dumps({"script": str(script), "steps": outcome.steps, "failure": failure}))
    elif failed:
        typer.echo(f"{script}: line {outcome.line}: {outcome.failure}")
    else:
        typer.echo(f"{script}: {outcome.steps} steps, every expectation met, every promise kept")
    if failed:
        raise typer.Exit(1)


def _replay(path: Path, *, as_json: bool) -> None:
    """Run what was written down; it ends as it did then, as long as the code is the same."""
    from antiphon.simulation.replay import replay
    from antiphon.simulation.runner import report
    from antiphon.simulation.story import tell

    try:
        result, _ = replay(path)
    except InvalidRequestError as error:
        usage(error.message)
    if as_json:
        typer.echo(json.dumps(_summary([], result, 0.0)))
    else:
        typer.echo("\n".join([report(result), *(tell(result) if result.failure is not None else [])]))
    if result.failure is not None:
        raise typer.Exit(1)


def _refuse_wrong_usage(profile: str | None, plant: str | None) -> None:
    from antiphon.simulation.multi_plants import MULTI_PLANTS, PROFILE
    from antiphon.simulation.options import PROFILES
    from antiphon.simulation.plants import PLANTS

    profiles, known = (*PROFILES, PROFILE), {**PLANTS, **MULTI_PLANTS}
    if profile is not None and profile not in profiles:
        raise typer.BadParameter(f"{profile}: choose one of {', '.join(profiles)}", param_hint="--profile")
    if plant is None:
        return
    if plant not in known:
        raise typer.BadParameter(f"{plant}: --plants lists those that there are", param_hint="--plant")
    if profile is not None and profile != known[plant].profile:
        raise typer.BadParameter(
            f"{plant} shows in profile {known[plant].profile} only", param_hint="--profile"
        )


def _progress(count: int) -> "Callable[[RunResult], None] | None":
    """Shows on a terminal how far the run is; silent otherwise."""
    if not sys.stderr.isatty():
        return None
    done = 0

    def show(result: "RunResult") -> None:
        nonlocal done
        done += 1
        end = "\n" if done == count else ""
        typer.echo(
            f"\r{done}/{count} seeds, last {result.options.seed} ({result.options.profile})   {end}",
            nl=False,
            err=True,
        )

    return show


def _summary(passed: "list[RunResult]", failed: "RunResult | None", elapsed_s: float) -> dict[str, Any]:
    everything = [*passed, *([] if failed is None else [failed])]
    operations = {
        outcome: sum(result.operations.get(outcome, 0) for result in everything)
        for outcome in ("ok", "refused", "unknown")
    }
    simulated_s = sum(result.simulated_ns for result in everything) / 1e9
    summary: dict[str, Any] = {
        "seeds": len(everything),
        "steps": sum(result.steps for result in everything),
        "simulated_s": simulated_s,
        "elapsed_s": round(elapsed_s, 3),
        "cluster_seconds_per_second": round(simulated_s / max(elapsed_s, 1e-3), 1),
        "entries": sum(result.entries for result in everything),
        "operations": operations,
        "losses": {
            "acknowledged": sum(result.losses.acknowledged for result in everything),
            "lost": sum(result.losses.lost for result in everything),
            "longest_ms": max((result.losses.longest_ms for result in everything), default=0),
            "unclean_entries": sum(result.losses.unclean_entries for result in everything),
        },
        "digests": {str(result.options.seed): result.digest for result in everything[-10:]},
        "failure": None,
    }
    if failed is not None and failed.failure is not None:
        summary["failure"] = {
            "seed": failed.options.seed,
            "profile": failed.options.profile,
            "invariant": failed.failure.invariant,
            "message": failed.failure.message,
            "step": failed.failure.step,
            "trace": list(failed.failure.trace),
        }
    return summary


def _words(first: int, passed: "list[RunResult]", elapsed_s: float) -> str:
    figures = _summary(passed, None, elapsed_s)
    operations = figures["operations"]
    text = (
        f"seeds {first}..{first + len(passed) - 1}: every promise kept in {figures['steps']:,} steps, "
        f"{figures['simulated_s']:.0f} s of cluster time in {elapsed_s:.1f} s "
        f"({figures['simulated_s'] / max(elapsed_s, 1e-3):.0f} cluster-seconds per second); "
        f"{figures['entries']:,} entries committed, "
        f"operations: {operations['ok']:,} ok, {operations['refused']:,} refused, {operations['unknown']:,} unknown"
    )
    losses = figures["losses"]
    if losses["acknowledged"]:
        text += (
            f"\nasynchronous commit lost {losses['lost']:,} of {losses['acknowledged']:,} acknowledged requests, "
            f"all in the window; the longest was {losses['longest_ms']} ms before the next leader"
        )
    if losses["unclean_entries"]:
        text += (
            f"\nunclean elections lost {losses['unclean_entries']:,} committed entries, as their topics allow"
        )
    if len(passed) == 1:
        text += f"\nprofile {passed[0].options.profile}, trace {passed[0].digest}\noptions: {passed[0].options.words()}"
    return text
