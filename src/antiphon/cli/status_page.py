"""What `antiphon status` shows, for a person."""

from typing import Any

import typer

from antiphon.cli.output import print_table


def render(found: dict[str, Any]) -> None:
    """Print the page for a person."""
    word = "healthy" if found["healthy"] else "NOT healthy"
    typer.echo(
        f"Cluster {found['cluster_id'][:8]} is {word}: {found['topics']} topics, {found['tables']} tables, "
        f"{found['shards']} shards; node {found['controller']} coordinates\n"
    )
    names = ("id", "status", "leads", "replicas", "memory_mb", "uptime_s", "native", "kafka", "oxia", "http")
    rows = [[node[name] for name in names] for node in found["nodes"]]
    print_table([name.upper() for name in names], rows, as_json=False)
    if found["metadata_unreadable"]:
        typer.echo(
            f"\n{found['metadata_unreadable']} entries of the cluster's own log cannot be read and were passed over; the "
            "nodes' logs say which (metadata_not_readable)"
        )
    shown = found["problems"][:20]
    for problem in shown:
        typer.echo(f"\n! {problem}", nl=False)
    if shown:
        typer.echo(
            ""
            if len(shown) == len(found["problems"])
            else f"\n! and {len(found['problems']) - len(shown)} more"
        )
