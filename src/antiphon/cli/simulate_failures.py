"""`antiphon simulate` when something fails: the run made small and told, and the mutants that have to fail."""

import sys
import time
from pathlib import Path
from typing import Any

import typer

from antiphon.cli.output import print_json


def report_shrunk(failed: Any, mutant: str | None, save: Path | None, *, quiet: bool) -> None:
    """Shrink a failing run, print its story, and write it down if wanted. Progress goes to stderr."""
    if quiet and save is None:
        return
    from antiphon.simulation.cluster import replay, story
    from antiphon.tools import simulation_runs as runs

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r\x1b[K{text}", nl=False, err=True)

    small = runs.shrunk(failed, mutant, progress)
    if sys.stderr.isatty():
        typer.echo("\r\x1b[K", nl=False, err=True)
    if not quiet:
        how = "nothing more can be left out" if small.complete else "time was up"
        typer.echo(
            f"\nmade small in {small.runs} runs, {small.seconds:.1f} s ({how}): "
            f"{small.faults} of {small.faults_before} faults are left"
        )
        typer.echo("\n".join(story.tell(small.result)))
    if save is not None:
        replay.save(save, small.result, mutant)
        if not quiet:
            typer.echo(f"again: antiphon simulate --replay {save}")


def catch_all(count: int, profile: str | None, workers: int, *, as_json: bool) -> None:
    """Put in each mutant in turn, at most `count` seeds of each: a table, and exit status 1 if one is never found."""
    from antiphon.tools import simulation_runs as runs

    found: list[dict[str, Any]] = []
    began = time.monotonic()
    if not as_json:
        typer.echo("| mutant | profile | seeds | caught by |\n|---|---|---|---|")
    names = [name for name, mutant in runs.MUTANTS.items() if profile in {None, mutant.profile}]
    for one in runs.caught(names, count, workers):
        found.append(one)
        if not as_json:
            typer.echo(_row(one, runs.MUTANTS[one["mutant"]], count))
    missed = [one["mutant"] for one in found if one["seeds"] is None]
    if as_json:
        print_json(
            {
                "mutants": found,
                "plants": [{"plant": one["mutant"], **one} for one in found],  # the keys of before
                "missed": missed,
                "elapsed_s": round(time.monotonic() - began),
                "jobs": workers,
            }
        )
    elif missed:
        typer.echo(f"\nnot found: {', '.join(missed)}")
    if missed:
        raise typer.Exit(1)


def _row(found: dict[str, Any], mutant: Any, count: int) -> str:
    took = f"none of {count}" if found["seeds"] is None else "script" if "script" in found else found["seeds"]
    return f"| `{mutant.name}`: {mutant.description} | {mutant.profile} | {took} | `{found['invariant']}` |"
