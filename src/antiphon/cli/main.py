"""`antiphon`: one command line for a cluster, its logs and tables, and the tools that prove them right."""

import os
from importlib import import_module
from typing import Annotated

import typer

from antiphon.cli import (
    access_commands,
    backup_commands,
    bench,
    capacity_command,
    client_metrics_commands,
    cluster_commands,
    completion,
    consume_command,
    data_commands,
    demo,
    group_commands,
    judge,
    kv_commands,
    membership_commands,
    quota_commands,
    recover_command,
    restart_command,
    scrub_command,
    secrets_command,
    settings_command,
    shard_recover_command,
    simulate,
    spark_support,
    top_command,
    topic_commands,
    transaction_commands,
    up_command,
    upgrade_command,
    verify,
    voters_command,
)
from antiphon.spark.jobs import JOBS

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


up_command.mount(app)
cluster_commands.mount(app)
top_command.mount(app)
topic_commands.mount(app)
membership_commands.mount(app)
voters_command.mount(app)
settings_command.mount(app)
recover_command.mount(app)
shard_recover_command.mount(app)
restart_command.mount(app)
upgrade_command.mount(app)
access_commands.mount(app)
quota_commands.mount(app)
client_metrics_commands.mount(app)
secrets_command.mount(app)
data_commands.mount(app)
consume_command.mount(app)
kv_commands.mount(app)
demo.mount(app)
bench.mount(app)
capacity_command.mount(app)
judge.mount(app)
verify.mount(app)
scrub_command.mount(app)
transaction_commands.mount(app)
group_commands.mount(app)
backup_commands.mount(app)
for module in dict.fromkeys(job.mounted_by for job in JOBS):
    import_module(f"antiphon.cli.{module}").mount(app)
spark_support.mount(app)
app.command(epilog="Example: antiphon simulate --seeds 1000")(simulate.simulate)


def main(name: str | None = None) -> None:
    """Entry point of the `antiphon` script; `name`: what it is called, where that is not its own name."""
    if completion.VARIABLE in os.environ:
        completion.prepare(app)
    app(prog_name=name)


if __name__ == "__main__":
    main()
