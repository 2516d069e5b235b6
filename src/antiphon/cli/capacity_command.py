"""`antiphon capacity`: what a cluster would carry, by the model of docs/capacity.md."""

import os
import platform
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from antiphon.cli.declare import command
from antiphon.cli.output import as_objects, print_json, print_table, usage
from antiphon.tools.capacity.costs import Costs, our_costs
from antiphon.tools.capacity.model import Capacity, Cluster, Rate, capacity


@command("capacity", "antiphon capacity --nodes 30 --shards 3000 --cores 8")
def plan(
    nodes: Annotated[int, typer.Option(help="Nodes, one to a machine.")] = 3,
    replicas: Annotated[int, typer.Option(help="Copies of each shard.")] = 3,
    shards: Annotated[int, typer.Option(help="Shards of all topics and tables.")] = 300,
    connections: Annotated[int, typer.Option(help="Connections of clients, to all nodes together.")] = 100,
    batch_bytes: Annotated[int, typer.Option(help="Size of a batch that a producer sends.")] = 131_072,
    readers: Annotated[int, typer.Option(help="Consumers that read each batch.")] = 1,
    cores: Annotated[
        float, typer.Option(help="Cores of each machine. A node's event loop uses one at most.")
    ] = 2.0,
    disk: Annotated[float, typer.Option(help="How much each machine's disk writes, in MiB/s.")] = 500.0,
    network: Annotated[
        float, typer.Option(help="How much each machine's network carries in each direction, in MiB/s.")
    ] = 1_000.0,
    share: Annotated[float, typer.Option(help="The part of all that to be used at most, such as 0.5.")] = 0.6,
    costs: Annotated[
        Path | None,
        typer.Option(help="Costs of your machine, from --measure; else those of docs/capacity.md."),
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(help="Measure this machine instead, for some minutes, and write its costs there."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="With --measure: how long each measurement runs.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """How much a cluster would carry of each kind of work alone, and what limits it. No cluster has to run."""
    if measure is not None:
        _measure(measure, seconds, as_json=as_json)
        return
    cluster = Cluster(nodes, replicas, shards, connections, cores, disk, network, share)
    try:
        found = capacity(cluster, _costs_in(costs), batch_bytes, readers)
    except ValueError as error:
        usage(str(error))
    if as_json:
        rates = {name: one._asdict() for name, one in found._asdict().items() if isinstance(one, Rate)}
        print_json({"cluster": cluster._asdict(), "capacity": {**found._asdict(), **rates}})
        return
    print_table(["WORK", "A SECOND", "BOUND BY"], _rates(found, batch_bytes), as_json=False)
    typer.echo("")
    print_table(["", "VALUE"], _facts(found), as_json=False)


def _measure(path: Path, seconds: float, *, as_json: bool) -> None:
    from antiphon.tools.capacity.measure import measure

    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    found = measure(seconds, machine, lambda text: typer.echo(f"measuring {text}", err=True))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    checks = [[one.what, round(one.said), round(one.measured), round(one.ratio, 2)] for one in found.checks]
    if as_json:
        print_json(as_objects(("what", "said", "measured", "ratio"), checks))
        return
    print_table(["MEASURED, NOT USED FOR THE COSTS", "MODEL", "MEASURED", "RATIO"], checks, as_json=False)
    typer.echo(f"Wrote {path}: antiphon capacity --costs {path}")


def _costs_in(path: Path | None) -> Costs:
    if path is None:
        return our_costs()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except (OSError, msgspec.DecodeError) as error:
        usage(f"{path} has no costs: {error}; `antiphon capacity --measure {path}` writes one")


def _rates(found: Capacity, batch_bytes: int) -> list[list[str]]:
    def row(what: str, rate: Rate) -> list[str]:
        return [what, f"{rate.a_second:,.0f}", rate.bound_by]

    return [
        row(f"batches of {batch_bytes:,} bytes ({found.mib_s:,.0f} MiB)", found.batches),
        row("puts, many in flight", found.put),
        row("puts, one in flight for each client", found.put_alone),
        row("gets, many in flight", found.get),
        row("gets, one in flight for each client", found.get_alone),
    ]


def _facts(found: Capacity) -> list[list[str]]:
    return [
        ["CPU of a node that rests", f"{found.idle_percent:.1f} % of a core"],
        ["memory of a node, without what clients have under work", f"{found.memory_mib:,.0f} MiB"],
        ["metadata that a node is sent when it starts", f"{found.metadata_mib:,.1f} MiB"],
        ["all shards have leaders again, when all machines lost power", f"{found.elections_s:,.1f} s"],
    ]
