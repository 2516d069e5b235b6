"""`antiphon verify`: load and faults on a real local cluster, then the judges. Exits 1 when anything was lost or wrong."""

import random
import sys
from typing import Annotated, Any, Final

import typer

from antiphon.cli.declare import command
from antiphon.cli.output import print_json, usage
from antiphon.errors import InvalidRequestError
from antiphon.tools.secure_folder import forget_settings

SECONDS_DEFAULT: Final = 20.0
SHOWN: Final = 10  # problems of one check


@command("verify", "antiphon verify --seconds 30 --faults kill,partition")
def verify(
    seconds: Annotated[
        float, typer.Option(help="How long to load and hurt the cluster.", min=1, max=86_400)
    ] = SECONDS_DEFAULT,
    faults: Annotated[
        str, typer.Option(help="Which faults, separated by commas: kill, pause, partition, disk; or none.")
    ] = "kill,pause,partition,disk",
    seed: Annotated[
        int | None, typer.Option(help="Decides what the load does and which fault comes when.", min=0)
    ] = None,
    profile: Annotated[
        str, typer.Option(help="How the topics and the table are replicated; docs/modes.md lists profiles.")
    ] = "oxia",
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the cluster's directory; it is kept anyway when a check fails."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Load a real three-node cluster, hurt processes, network and disks, then check that every promise was kept.

    Appenders, conditional appenders, an idempotent Kafka producer (where confluent-kafka is installed), a consumer group,
    table clients and watchers write down what they are told; afterwards the logs, the replicas' files and the histories are
    compared. Nothing of an existing cluster is touched: this one lives in a temporary directory.
    """
    from antiphon.coordination.topic_rules import check_profile
    from antiphon.tools.verify.faults import parse_faults
    from antiphon.tools.verify.run import run

    try:
        names = parse_faults(faults)
        check_profile(profile)
    except InvalidRequestError as error:
        usage(error.message)
    chosen = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    forget_settings()
    found = run(seconds, names, chosen, say=_quiet if as_json else _speak, keep=keep, profile=profile)
    if as_json:
        print_json(found)
    else:
        _render(found)
    if not found["passed"]:
        raise typer.Exit(1)


def _quiet(_line: str) -> None:
    """With --json only the outcome is printed."""


def _speak(line: str) -> None:
    typer.echo(line, err=True)
    sys.stderr.flush()


def _render(found: dict[str, Any]) -> None:
    counts = found["operations"]
    hurt = ", ".join(f"{name} {count}" for name, count in sorted(found["faults"].items())) or "none"
    typer.echo(f"\nseed {found['seed']}, {found['seconds']:.0f} s of load, faults: {hurt}")
    for name in ("appends", "kafka", "table"):
        typer.echo(f"  {name}: " + ", ".join(f"{count:,} {what}" for what, count in counts[name].items()))
    typer.echo("  read: " + ", ".join(f"{count:,} {what}" for what, count in counts["read"].items()))
    for check in found["checks"]:
        mark = "BROKEN" if check["problems"] else "ok    "
        typer.echo(f"{mark}  {check['what']}" + (f" ({check['note']})" if check["note"] else ""))
        for problem in check["problems"][:SHOWN]:
            typer.echo(f"        {problem}")
        if len(check["problems"]) > SHOWN:
            typer.echo(f"        and {len(check['problems']) - SHOWN} more")
    typer.echo(
        "every promise was kept" if found["passed"] else f"BROKEN; the data is in {found['directory']}"
    )
