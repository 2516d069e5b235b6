"""`antiphon bench`: figures on this machine, from real node processes, with the commands that made them.

Speed claims live in these figures, never in tests. What is measured: `tools/bench/`.
"""

import os
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.declare import command
from antiphon.cli.output import print_json, print_table, progress, usage
from antiphon.tools.bench.suites import SUITES, measure
from antiphon.tools.secure_folder import forget_settings

if TYPE_CHECKING:
    from antiphon.tools.bench.cluster import Rows


@command("bench", "antiphon bench table failover")
def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(SUITES)}; none: all of them."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each measurement runs.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Measure this machine: throughput, latency, fail-over, start-up, idle cost. docs/benchmarks.md keeps our figures."""
    unknown = [suite for suite in suites or [] if suite not in SUITES]
    if unknown:
        usage(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    forget_settings()
    found: dict[str, Rows] = {}
    for name in suites or list(SUITES):
        with progress(f"measuring {name}"):
            found[name] = measure(name, seconds)
        if not as_json:
            typer.echo(f"\n{name}")
            rows = found[name]
            print_table([key.upper() for key in rows[0]], [list(row.values()) for row in rows], as_json=False)
    if as_json:
        print_json({"machine": machine(), "seconds": seconds, "suites": found})


def machine() -> dict[str, Any]:
    """What the figures were made on."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "cpu": platform.machine(),
    }
