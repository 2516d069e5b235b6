"""`antiphon pipeline`: lake jobs from a TOML file."""

import dataclasses
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli.declare import command, group
from antiphon.cli.next_commands import CREATES, joined
from antiphon.cli.output import A_MOMENT_S, EXIT_FAILED, as_objects, print_table, progress, usage
from antiphon.cli.spark_support import Master, spark_job
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.values.formats import FORMATS
from antiphon.tools.local_nodes import ended_by_sigterm

if TYPE_CHECKING:
    from antiphon.lake.pipeline import Outcome, PipelineJob

group(
    "pipeline",
    "Keep lake tables equal to topics and tables, as a short TOML file says.",
    "Start with: antiphon pipeline example > pipeline.toml",
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, in TOML.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document in place of a table.")]


@command("pipeline check", "antiphon pipeline check pipeline.toml")
def check(
    file: File,
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Look at the file only, and ask no cluster.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what a file's jobs would do, which key is wrong, and which topic or table is not there. Starts nothing."""
    from antiphon.lake.pipeline_check import ask

    jobs = _read(file)
    problems = []
    if not offline:
        with progress("asking the cluster", after_s=A_MOMENT_S):
            problems = ask(jobs)
    rows = [(job.name, job.kind, job.source, _where(job), job.every) for job in jobs]
    headings = ["JOB", "KIND", "SOURCE", "TARGET", "EVERY"]
    told = [
        one | {"problems": [problem.what for problem in problems if problem.job == one["job"]]}
        for one in as_objects(headings, rows)
    ]
    print_table(headings, rows, told, as_json=json)
    for one in problems:
        what = f"antiphon: {one.job}: {one.what}"
        typer.echo(joined(what, one.do, CREATES) if one.do else what, err=True)
    if problems:
        raise typer.Exit(EXIT_FAILED)


@command("pipeline run", "antiphon pipeline run pipeline.toml --once")
def run(
    file: File,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there now, then end; default: go on until ctrl-C.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--job", help="Run this job only; may be given several times.", show_default=False),
    ] = None,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Where a job fails, let the others go on; the exit code is 1 then. Default: all end.",
        ),
    ] = False,
    master: Master = None,
    json: Json = False,
) -> None:
    """Run a file's jobs. Each row and each dead letter is written once, whatever is killed: run it again and it goes on."""
    from antiphon.lake.pipeline import run_pipeline

    jobs = _chosen(_read(file), only)
    names = ", ".join(job.name for job in jobs)
    typer.echo(f"{names}: starting Spark" + ("" if once else "; ctrl-C ends it"), err=True)
    with spark_job("antiphon - pipeline", master) as spark, ended_by_sigterm():
        found = run_pipeline(spark, jobs, once=once, told=_print_outcome, keep_going=keep_going)
    rows = [(one.job, one.kind, one.rows, one.files, one.dead_letters, one.epochs) for one in found]
    told = [dataclasses.asdict(one) for one in found]
    print_table(["JOB", "KIND", "ROWS", "FILES", "DEAD LETTERS", "EPOCHS"], rows, told, as_json=json)
    if any(one.failure is not None for one in found):
        raise typer.Exit(EXIT_FAILED)


@command("pipeline example", "antiphon pipeline example > pipeline.toml")
def example() -> None:
    """Print a file with every key and what it is for."""
    text = resources.files("antiphon.cli").joinpath("pipeline_example.toml").read_text("utf-8")
    for name, words in _choices().items():
        text = text.replace(f"@{name}@", words)
    typer.echo(text, nl=False)


def _choices() -> dict[str, str]:
    """What the example says there is, from the rows of targets and formats."""
    kinds = {
        "formats": list(FORMATS),
        "targets": list(KINDS),
        "changing targets": [kind.name for kind in KINDS.values() if kind.refusal is None],
    }
    return {name: f"{', '.join(words[:-1])} or {words[-1]}" for name, words in kinds.items()}


def _read(file: Path) -> "list[PipelineJob]":
    from antiphon.lake.pipeline import read_pipeline

    if not file.is_file():
        usage(f"there is no file {file}", unknown="pipeline")
    return read_pipeline(file)


def _chosen(jobs: "list[PipelineJob]", only: list[str] | None) -> "list[PipelineJob]":
    if not only:
        return jobs
    names = [job.name for job in jobs]
    for name in only:
        if name not in names:
            usage(f"there is no job {name!r} in the file; there is {', '.join(names)}")
    return [job for job in jobs if job.name in only]


def _where(job: "PipelineJob") -> str:
    place = " ".join(str(job.target[name]) for name in ("path", "table") if job.target.get(name))
    return f"{job.target['kind']}:{place}"


def _print_outcome(outcome: "Outcome") -> None:
    if outcome.failure is not None:
        typer.echo(f"{outcome.job}: failed: {' '.join(outcome.failure.split())}", err=True)
    elif outcome.kind == "mirror":
        dead = f", {outcome.dead_letters:,} dead letters" if outcome.dead_letters else ""
        typer.echo(f"{outcome.job}: {outcome.rows:,} rows in {outcome.epochs:,} epochs{dead}", err=True)
    elif outcome.problem is not None:
        typer.echo(f"{outcome.job}: not done this time: {outcome.problem}", err=True)
    else:
        typer.echo(f"{outcome.job}: {outcome.files:,} files replaced or removed", err=True)
