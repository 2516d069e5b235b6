"""`antiphon`: one command line for a cluster, its logs and tables, and the tools that prove them right."""

import os
from typing import Annotated

import typer

from antiphon.cli import completion
from antiphon.cli.declare import mount
from antiphon.spark.jobs import JOBS

# Modules that declare commands, in the order of the help.
MODULES = [
    "up_command", "cluster_commands", "top_command", "topic_commands", "split_command", "membership_commands",
    "voters_command", "settings_command", "recover_command", "shard_recover_command", "restart_command",
    "upgrade_command", "access_commands", "quota_commands", "client_metrics_commands", "secrets_command",
    "data_commands", "consume_command", "kv_commands", "demo", "bench", "capacity_command", "judge", "verify",
    "scrub_command", "transaction_commands", "group_commands", "backup_commands",
    *dict.fromkeys(job.declared_by for job in JOBS), "spark_support", "simulate",
]  # fmt: skip

app = typer.Typer(
    name="antiphon",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Replicated logs, and tables built from them. Kafka's clients connect unchanged; Spark reads and writes both.",
    epilog="Start with: antiphon up --nodes 3",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"antiphon {version('antiphon')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Replicated logs, and tables built from them."""


mount(app, MODULES)


def main(name: str | None = None) -> None:
    """Entry point of the `antiphon` script; `name`: what it is called, where that is not its own name."""
    if completion.VARIABLE in os.environ:
        completion.prepare(app)
    app(prog_name=name)


if __name__ == "__main__":
    main()
