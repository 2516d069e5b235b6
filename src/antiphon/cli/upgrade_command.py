"""`antiphon upgrade --check`: can a running cluster be upgraded to the version of this command?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from antiphon import system
from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import EXIT_FAILED, print_json, print_table, usage
from antiphon.client.local_folder import DEFAULT_DIR

if TYPE_CHECKING:
    from antiphon.tools.upgrade_check import Checked

HEADINGS = ("ORDER", "NODE", "STATUS", "VERSION", "METADATA", "REPLICAS", "LEADS", "STALLS")


@command("upgrade", "antiphon upgrade --check --json")
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Ask every node, and change nothing: all that this command does.")
    ] = False,
    common: CommonOptions = COMMON,
) -> None:
    """Say whether a running cluster can be upgraded to the version of this command, and how.

    Shows which version and formats each node has, what stands in the way, the order of the nodes, and what to type next.
    Exit code 1: something stands in the way. Nodes are upgraded one after the other by `antiphon node restart`, with the new
    version installed.
    """
    from antiphon.tools.upgrade_check import check_upgrade

    if not check:
        usage(
            "say --check: nothing else is done here; with the new version installed `antiphon node restart --all` upgrades "
            "the nodes one after the other"
        )
    version = system.installed_version()
    with common.connect() as db:
        found = check_upgrade(db, version)
    following = _next(found, common.servers, common.directory)
    if common.as_json:
        print_json({**msgspec.to_builtins(found), "next": following})
    else:
        _show(found, following)
    if not found.can:
        raise typer.Exit(EXIT_FAILED)


def _next(found: "Checked", servers: str | None, directory: Path) -> str | None:
    """What to type next; None where there is nothing to do."""
    where = f" --servers {servers}" if servers else ""
    if not servers and directory != DEFAULT_DIR:
        where = f" --dir {directory}"
    down = [one.node for one in found.nodes if one.status == "down"]
    if down and (directory / f"node-{down[0]}").is_dir():
        return f"antiphon node start --dir {directory / f'node-{down[0]}'}"
    if not found.can:
        return f"antiphon status{where}"
    left = sorted((one for one in found.nodes if one.order is not None), key=lambda one: one.order or 0)
    if not left:
        return None
    which = "--all" if len(left) == len(found.nodes) else " ".join(str(one.node) for one in left)
    return f"antiphon node restart {which}{where}"


def _show(found: "Checked", following: str | None) -> None:
    rows = [
        (
            one.order,
            one.node,
            one.status,
            one.version,
            f"reads up to {one.metadata_reads}",
            one.replicas,
            one.leads,
            one.stalls,
        )
        for one in sorted(found.nodes, key=lambda one: (one.order or 0, one.node))
    ]
    print_table(HEADINGS, rows, as_json=False)
    written = ", ".join(f"{name} {how['writes']}" for name, how in found.formats.items())
    typer.echo(f"\nVersion {found.version} writes, and reads up to: {written}")
    for one in found.nodes:
        if one.formats is not None and one.formats != found.formats:
            others = ", ".join(f"{name} {how['writes']}" for name, how in one.formats.items())
            typer.echo(f"Node {one.node} writes: {others}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    for reason in found.reasons:
        typer.echo(f"in the way: {reason}")
    word = "can" if found.can else "cannot"
    typer.echo(f"\nThe cluster {word} be upgraded to {found.version}{'' if found.can else ' now'}")
    if following is not None:
        typer.echo(f"Next:  {following}")
