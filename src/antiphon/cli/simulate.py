"""`antiphon simulate`: whole nodes in a seeded world, with all promises checked after every step."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.declare import command
from antiphon.cli.output import say, usage
from antiphon.cli.simulate_failures import catch_all, report_shrunk
from antiphon.cli.simulate_steps import Steps, StoppedError
from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from antiphon.simulation.written_script import Script
    from antiphon.tools import simulation_runs as runs

SEEDS_DEFAULT = 100
SEEDS_MAX = 100_000_000
CATCH_SEEDS = 200  # within which a mutant has to be found
SECONDS_LONGEST = 3_600


def _mutant_name(given: str | None) -> str | None:
    """What a mutant is called, by its name or one of before."""
    if given is None:
        return None
    from antiphon.simulation.cluster.mutants import name_now

    return name_now(given)


SeedsOption = Annotated[
    int | None,
    typer.Option(
        help=f"How many seeds to run [default: {SEEDS_DEFAULT}, 1 with --seed].", min=1, max=SEEDS_MAX
    ),
]
MutantOption = Annotated[
    str | None,
    typer.Option(
        "--mutant",
        "--plant",
        help="Put this bug into the product first: now a run has to fail.",
        callback=_mutant_name,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(help="oxia, raft, fluvio, tarantool, kip27 or multi, drawn from the seed if absent."),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        help="Simulated seconds in which faults are injected; drawn from the seed if absent.",
        min=0.1,
        max=SECONDS_LONGEST,
    ),
]
RocksOption = Annotated[
    bool,
    typer.Option(
        "--rocksdb",
        help="Tables' stores are RocksDB, as in the product, and not a store in memory that stands for it: slower.",
    ),
]

StepOption = Annotated[
    bool, typer.Option("--step", help="With --script: draw the cluster after each step, and wait for a key.")
]


@command("simulate", "antiphon simulate --seeds 1000")
def simulate(
    seeds: SeedsOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed to run, or to begin with.", min=0)] = None,
    profile: ProfileOption = None,
    mutant: MutantOption = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", "--plants", help="List the bugs that can be put in, a name a line.")
    ] = False,
    catch: Annotated[
        bool,
        typer.Option(
            "--catch", help="Put in every mutant in turn and say how many seeds it takes to find it."
        ),
    ] = False,
    seconds: SecondsOption = None,
    rocksdb: RocksOption = False,
    script: Annotated[
        Path | None, typer.Option(help="Carry out this scenario, step by step, instead of seeds.")
    ] = None,
    shrink: Annotated[bool, typer.Option(help="Make a failing run small and tell it as a story.")] = True,
    step: StepOption = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the failing run, made small, to this file.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Run what --save wrote, instead of seeds.")] = None,
    jobs: Annotated[
        int, typer.Option(help="Processes to run seeds on; 0: one per core.", min=0, max=1024)
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Run a cluster of whole nodes in a simulated world and check every promise after every step.

    A seed decides everything: network, disks, crashes, clients. The first broken promise ends the run with exit status 1,
    the seed, the step and a short trace; the same seed gives the same trace again.

    Examples: `antiphon simulate --seeds 1000` · `antiphon simulate --seed 42 --profile raft` ·
    `antiphon simulate --mutant node-promises-unsynced` · `antiphon simulate --script scenarios/figure-7.txt --step`
    """
    from antiphon.tools import simulation_runs as runs

    if mutants:
        typer.echo("\n".join(runs.MUTANTS))
        return
    if script is not None or replay is not None:
        if (seeds, seed, profile, seconds) != (None,) * 4 or rocksdb or None not in (script, replay):
            raise typer.BadParameter("--script and --replay each stand alone, without seeds and profile")
        if script is not None:
            _carry_out(script, mutant, as_json=as_json, step=step)
        elif replay is not None:
            _replay(replay, as_json=as_json)
        return
    if step:
        raise typer.BadParameter("--step needs a scenario: add --script scenarios/figure-8.txt")
    try:
        profile = runs.checked_profile(profile, mutant)
    except InvalidRequestError as error:
        usage(error.message)
    if catch:
        catch_all(seeds or CATCH_SEEDS, profile, runs.workers_for(jobs), as_json=as_json)
        return
    count = seeds or (SEEDS_DEFAULT if seed is None else 1)
    fault_ms = None if seconds is None else round(seconds * 1000)
    chosen = runs.Seeds(1 if seed is None else seed, count, profile, mutant, fault_ms, rocksdb)
    failed = _run(chosen, jobs, as_json=as_json)
    if failed is not None:
        if shrink:
            report_shrunk(failed, mutant, save, quiet=as_json)
        raise typer.Exit(1)


def _run(seeds: "runs.Seeds", jobs: int, *, as_json: bool) -> Any:
    """Run the seeds and say what came out; returns the failed run, if any. A mutant that no seed shows has a scenario."""
    from antiphon.simulation.cluster.runner import report
    from antiphon.tools import simulation_runs as runs

    script = runs.script_of(seeds.mutant)
    if script is not None:
        return _carry_out(script, seeds.mutant, as_json=as_json)
    began = time.monotonic()
    passed, failed = runs.run(seeds, runs.workers_for(jobs, seeds.count), _progress(seeds.count))
    elapsed_s = time.monotonic() - began
    if failed is None:
        text = runs.words(seeds.first, passed, elapsed_s)
    else:
        text = f"{report(failed)}\nagain: antiphon simulate {runs.again(failed, seeds)}"
    say(text, runs.figures(passed, failed, elapsed_s), as_json=as_json)
    return failed


def _carry_out(script: "Path | Script", mutant: str | None, *, as_json: bool, step: bool = False) -> None:
    """Run one scenario: a line a step, and exit status 1 with line and finding where it fails."""
    from antiphon.tools import simulation_runs as runs

    name = str(script) if isinstance(script, Path) else script.name
    lines: list[str] = []
    try:
        if step and not as_json:
            steps = Steps(script)
            with steps.reading_keys():
                outcome = runs.carry_out(script, mutant, steps.say, steps.show)
        else:
            outcome = runs.carry_out(script, mutant, lines.append if as_json else typer.echo)
    except StoppedError:
        return
    except InvalidRequestError as error:
        usage(error.message)
    failed = outcome.line > 0
    failure = {"line": outcome.line, "message": outcome.failure} if failed else None
    met = f"{outcome.steps} steps, every expectation met, every promise kept"
    text = f"{name}: line {outcome.line}: {outcome.failure}" if failed else f"{name}: {met}"
    say(text, {"script": name, "steps": outcome.steps, "failure": failure}, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _replay(path: Path, *, as_json: bool) -> None:
    """Run what was written down; it ends as it did then, as long as the code is the same."""
    from antiphon.simulation.cluster import replay, runner, story
    from antiphon.tools import simulation_runs as runs

    try:
        result, _ = replay.replay(path)
    except InvalidRequestError as error:
        usage(error.message)
    failed = result.failure is not None
    if as_json:
        typer.echo(json.dumps(runs.figures([] if failed else [result], result if failed else None, 0.0)))
    else:
        typer.echo("\n".join([runner.report(result), *(story.tell(result) if failed else [])]))
    if failed:
        raise typer.Exit(1)


def _progress(count: int) -> Callable[[Any], None] | None:
    """Shows on a terminal how far the run is; silent otherwise."""
    if not sys.stderr.isatty():
        return None
    done = 0

    def show(result: Any) -> None:
        nonlocal done
        done += 1
        end = "\n" if done == count else ""
        typer.echo(
            f"\r{done}/{count} seeds, last {result.options.seed} ({result.options.profile})   {end}",
            nl=False,
            err=True,
        )

    return show
