"""`antiphon judge ...`: our checkers and quorum arithmetic against cases that others have judged."""

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.output import reports_errors

FilesArgument = Annotated[list[Path], typer.Argument(help="Files to judge.")]


def mount(app: typer.Typer) -> None:
    """Add this module's commands to the command line."""
    judge = typer.Typer(
        no_args_is_help=True, help="Run public judged cases, one line a file.", rich_markup_mode=None
    )
    judge.command(epilog="Example: antiphon judge history etcd_000.log")(history)
    judge.command(epilog="Example: antiphon judge quorum majority_commit.txt")(quorum)
    app.add_typer(judge, name="judge")


@reports_errors
def history(files: FilesArgument) -> None:
    """Is each history linearizable? Reads Jepsen's register logs and key-value histories."""
    from antiphon.simulation.public_histories import judge_history

    for path in files:
        typer.echo(f"{path} {judge_history(path).value}")


@reports_errors
def quorum(files: FilesArgument) -> None:
    """Answer each stanza of quorum arithmetic; exits 1 where one is answered otherwise than the file says."""
    from antiphon.simulation.public_quorums import judge_quorums

    failed = False
    for path in files:
        stanzas, wrong = judge_quorums(path)
        typer.echo(f"{path} {len(stanzas) - len(wrong)}/{len(stanzas)} stanzas")
        for stanza, answer in wrong[:20]:
            typer.echo(
                f"  line {stanza.line}: {stanza.command}: expected {stanza.expected}, got {answer}", err=True
            )
        failed = failed or bool(wrong)
    if failed:
        raise typer.Exit(1)
