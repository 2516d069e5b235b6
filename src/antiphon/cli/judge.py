"""`antiphon judge ...`: our checkers and quorum arithmetic against cases that others have judged."""

import difflib
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.declare import JsonOption, command, group
from antiphon.cli.output import say

group(
    "judge",
    "Judge files of the public formats in conformance/: histories, quorum arithmetic, cluster scripts.",
    "Example: antiphon judge history etcd_000.log",
)

FilesArgument = Annotated[list[Path], typer.Argument(help="Files to judge.")]


@command("judge history", "antiphon judge history etcd_000.log")
def history(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Is each history linearizable? Reads Jepsen's register logs and key-value histories."""
    from antiphon.simulation.public_histories import judge_history

    found = {str(path): judge_history(path).value for path in files}
    told = [{"file": path, "verdict": verdict} for path, verdict in found.items()]
    say("\n".join(f"{path} {verdict}" for path, verdict in found.items()), told, as_json=as_json)


@command("judge quorum", "antiphon judge quorum majority_commit.txt")
def quorum(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Answer each stanza of quorum arithmetic; exits 1 where one is answered otherwise than the file says."""
    from antiphon.simulation.public_quorums import judge_quorums

    failed = False
    for path in files:
        stanzas, wrong = judge_quorums(path)
        _print_passed(path, len(stanzas) - len(wrong), len(stanzas), as_json=as_json)
        for stanza, answer in wrong[:20]:
            typer.echo(
                f"  line {stanza.line}: {stanza.command}: expected {stanza.expected}, got {answer}", err=True
            )
        failed = failed or bool(wrong)
    if failed:
        raise typer.Exit(1)


@command("judge script", "antiphon judge script lagging_commit.txt")
def script(
    files: FilesArgument,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Without the liberties that docs/simulation.md describes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Carry out each cluster script on our replicas; exits 1 where logs or states differ from what the file says."""
    from antiphon.simulation.public_scripts import judge_script

    failed = False
    for path in files:
        judgement = judge_script(path, as_is=as_is)
        _print_passed(path, judgement.passed, judgement.compared, as_json=as_json)
        for liberty, times in judgement.liberties.items():
            typer.echo(f"  {times} x {liberty}", err=True)
        for wrong in judgement.wrong:
            typer.echo(f"  line {wrong.line}: {wrong.command}", err=True)
            for line in difflib.unified_diff(
                wrong.expected, wrong.found, "expected", "found", lineterm="", n=1
            ):
                typer.echo(f"    {line}", err=True)
        failed = failed or bool(judgement.wrong)
    if failed:
        raise typer.Exit(1)


def _print_passed(path: Path, passed: int, compared: int, *, as_json: bool) -> None:
    shown = {"file": str(path), "passed": passed, "stanzas": compared}
    say(f"{path} {passed}/{compared} stanzas", shown, as_json=as_json)
