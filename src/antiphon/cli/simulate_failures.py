"""`antiphon simulate` when something fails: the run made small and told, and the mutants that have to fail."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

from antiphon.cli import simulate_runs as runs


def report_shrunk(failed: Any, mutant: str | None, save: Path | None, *, quiet: bool) -> None:
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
    names = [name for name, mutant in runs.mutants().items() if profile in {None, mutant.profile}]
    for one in caught(names, count, workers):
        found.append(one)
        if not as_json:
            typer.echo(_row(one, count))
    missed = [one["mutant"] for one in found if one["seeds"] is None]
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "mutants": found,
                    "plants": [{"plant": one["mutant"], **one} for one in found],  # the keys of before
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


def caught(names: Iterable[str], count: int, workers: int) -> Iterator[dict[str, Any]]:
    """What each of these mutants took, in their order; `workers` of them run at a time, as most need a seed or two."""
    from antiphon.simulation.pool import run_all

    return run_all(partial(_catch, count=count), names, workers)


def _row(found: dict[str, Any], count: int) -> str:
    took = f"none of {count}" if found["seeds"] is None else "script" if "script" in found else found["seeds"]
    mutant = runs.mutants()[found["mutant"]]
    return f"| `{mutant.name}`: {mutant.description} | {mutant.profile} | {took} | `{found['invariant']}` |"


def _catch(name: str, count: int) -> dict[str, Any]:
    mutant, script = runs.mutants()[name], runs.script_of(name)
    if script is not None:
        found = runs.carry_out(script, name, lambda _: None).failure
        took, invariant = (1, found.removeprefix("broke ").split(":")[0]) if found else (None, "")
    else:
        passed, failed = runs.run(runs.Seeds(1, count, mutant.profile, name), workers=1)
        failure = None if failed is None else failed.failure
        took = None if failure is None else len(passed) + 1
        invariant = "" if failure is None else failure.invariant
    told = {"mutant": name, "profile": mutant.profile, "seeds": took, "invariant": invariant}
    return told if script is None else {**told, "script": True}
