"""`antiphon simulate` when something fails: the run made small and told, and the mutants that have to fail."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import typer

from antiphon.cli import simulate_runs as runs


def tell_small(failed: Any, mutant: str | None, save: Path | None, *, quiet: bool) -> None:
    """Shrink a failing run, print its story, and write it down if wanted. Progress goes to stderr."""
    if quiet and save is None:
        return

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r\x1b[K{text}", nl=False, err=True)

    small = runs.shrink(failed, mutant, progress)
    if sys.stderr.isatty():
        typer.echo("\r\x1b[K", nl=False, err=True)
    if not quiet:
        how = "nothing more can be left out" if small.complete else "time was up"
        typer.echo(
            f"\nmade small in {small.runs} runs, {small.seconds:.1f} s ({how}): "
            f"{small.faults} of {small.faults_before} faults are left"
        )
        typer.echo("\n".join(runs.tell(small.result)))
    if save is not None:
        runs.save(save, small.result, mutant)
        if not quiet:
            typer.echo(f"again: antiphon simulate --replay {save}")


def catch_all(count: int, profile: str | None, workers: int, *, as_json: bool) -> None:
    """Put in each mutant in turn, at most `count` seeds of each: a table, and exit status 1 if one is never found."""
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    if not as_json:
        typer.echo("| mutant | profile | seeds | caught by |\n|---|---|---|---|")
    for name, mutant in runs.mutants().items():
        if profile in {None, mutant.profile}:
            found.append(_catch(name, count, workers, as_json=as_json))
    missed = [one["plant"] for one in found if one["seeds"] is None]
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "plants": found,
                    "missed": missed,
                    "elapsed_s": round(time.monotonic() - began),
                    "jobs": workers,
                }
            )
        )
    elif missed:
        typer.echo(f"\nnot found: {', '.join(missed)}")
    if missed:
        raise typer.Exit(1)


def _catch(name: str, count: int, workers: int, *, as_json: bool) -> dict[str, Any]:
    mutant, script = runs.mutants()[name], runs.script_of(name)
    if script is not None:
        found = runs.carry_out(script, name, lambda _: None).failure
        took, invariant = (1, found.removeprefix("broke ").split(":")[0]) if found else (None, "")
    else:
        passed, failed = runs.run(runs.Seeds(1, count, mutant.profile, name), workers)
        failure = None if failed is None else failed.failure
        took = None if failure is None else len(passed) + 1
        invariant = "" if failure is None else failure.invariant
    if not as_json:
        seeds = f"none of {count}" if took is None else took if script is None else "script"
        typer.echo(f"| `{name}`: {mutant.description} | {mutant.profile} | {seeds} | `{invariant}` |")
    told = {"plant": name, "profile": mutant.profile, "seeds": took, "invariant": invariant}
    return told if script is None else {**told, "script": True}
