"""`antiphon simulate` when something fails: the run made small and told, and the planted bugs that have to fail."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from antiphon.simulation.runner import RunResult

CATCH_SEEDS: Final = 1_000


def again(failed: "RunResult", plant: str | None) -> str:
    """The options that repeat a run."""
    planted = "" if plant is None else f" --plant {plant}"
    return f"--seed {failed.options.seed} --profile {failed.options.profile}{planted}"


def tell_small(failed: "RunResult", plant: str | None, save: Path | None, *, quiet: bool) -> None:
    """Shrink a failing run, print its story, and write it down if wanted. Progress goes to stderr."""
    from antiphon.simulation.plants import PLANTS
    from antiphon.simulation.replay import save as write_down
    from antiphon.simulation.shrink import shrink
    from antiphon.simulation.story import tell

    if failed.options.profile == "multi":
        _tell_small_multi(failed, plant, quiet=quiet)
        return
    if quiet and save is None:
        return

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r\x1b[K{text}", nl=False, err=True)

    small = shrink(failed, None if plant is None else PLANTS[plant], progress=progress)
    if sys.stderr.isatty():
        typer.echo("\r\x1b[K", nl=False, err=True)
    if not quiet:
        how = "nothing more can be left out" if small.complete else "time was up"
        typer.echo(
            f"\nmade small in {small.runs} runs, {small.seconds:.1f} s ({how}): "
            f"{len(small.result.schedule)} of {small.faults_before} faults are left"
        )
        typer.echo("\n".join(tell(small.result)))
    if save is not None:
        write_down(save, small.result, plant)
        if not quiet:
            typer.echo(f"again: antiphon simulate --replay {save}")


def _tell_small_multi(failed: "RunResult", plant: str | None, *, quiet: bool) -> None:
    """The same for the world in which every replica writes; such a run is repeated by its seed."""
    from antiphon.simulation.multi_shrink import shrink_multi, tell_multi

    if quiet:
        return
    small = shrink_multi(failed, plant)
    typer.echo(
        f"\nmade small in {small.runs} runs, {small.seconds:.1f} s: {small.faults} of {small.faults_before} faults are left"
    )
    typer.echo("\n".join(tell_multi(small.result)))


def catch_all(seeds: int, profile: str | None, workers: int, *, as_json: bool) -> None:
    """Plant each bug in turn, seed after seed until it is found: a table, and exit status 1 if one never is."""
    from antiphon.simulation.multi_plants import MULTI_PLANTS
    from antiphon.simulation.plants import PLANTS
    from antiphon.simulation.runner import Job, run_until_failure

    found: list[dict[str, Any]] = []
    if not as_json:
        typer.echo("| plant | profile | seeds | caught by |\n|---|---|---|---|")
    for plant in (*PLANTS.values(), *MULTI_PLANTS.values()):
        if profile not in (None, plant.profile):
            continue
        work = [Job(seed, plant.profile, plant.name) for seed in range(1, seeds + 1)]
        passed, failed = run_until_failure(work, workers)
        failure = None if failed is None else failed.failure
        took = len(passed) + 1 if failure is not None else None
        name = "" if failure is None else failure.invariant
        found.append({"plant": plant.name, "profile": plant.profile, "seeds": took, "invariant": name})
        if not as_json:
            count = f"none of {seeds}" if took is None else took
            typer.echo(f"| `{plant.name}`: {plant.description} | {plant.profile} | {count} | `{name}` |")
    missed = [one["plant"] for one in found if one["seeds"] is None]
    if as_json:
        typer.echo(json.dumps({"plants": found, "missed": missed}))
    elif missed:
        typer.echo(f"\nnot found within {seeds} seeds: {', '.join(missed)}")
    if missed:
        raise typer.Exit(1)
