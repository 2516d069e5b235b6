"""`antiphon top`: nodes, busy shards, groups and what happened, refreshed in a terminal until `q`."""

import asyncio
from typing import Annotated, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import print_json, usage

EVERY_S: Final = 2.0


@command("top", "antiphon top --every 5 --sort lag")
def top(
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, max=3600.0, help="Seconds between two refreshes.")
    ] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Show one second of the cluster, and end.")] = False,
    sort: Annotated[
        str, typer.Option("--sort", help="Order of the shards: rate, lag, size, name or leader.")
    ] = "rate",
    topic: Annotated[
        str, typer.Option("--topic", help="Only shards and groups of this topic or table.")
    ] = "",
    common: CommonOptions = COMMON,
) -> None:
    """Watch a cluster: nodes with their rates, the busiest shards, groups by lag, what happened last.

    In a terminal: q ends it, s changes the order of the shards. Elsewhere each refresh is plain lines, and with --json one
    JSON document on one line. A node is asked once for each refresh, about at most 500 of the shards that it leads.
    """
    from antiphon.tools.top.run import run
    from antiphon.tools.top.view import SORTS

    if sort not in SORTS:
        usage(f"--sort takes {', '.join(SORTS)}; not {sort!r}")
    asyncio.run(
        run(
            common.addresses(),
            topic,
            sort,
            every_s,
            once=once,
            write_json=print_json if common.as_json else None,
        )
    )
