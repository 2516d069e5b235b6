"""`antiphon up`: a cluster on this machine, as processes; with --secure one that others may reach."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli.declare import DirOption, InsecureOption, JsonOption, command
from antiphon.cli.output import note, print_json, print_table, progress, usage
from antiphon.client.local_folder import DEFAULT_DIR, EVERYWHERE, LocalClusterFile, servers_of
from antiphon.tools.local_nodes import attend, node_json, note_signals
from antiphon.tools.local_start import cluster_to_start, note_security, start_all

PEER_PORTS_FROM_NATIVE = 100
PEER_PORTS_MAX = 65_000


@command("up", "antiphon up --nodes 3 --dir /tmp/flights")
def up(
    nodes: Annotated[int | None, typer.Option(help="How many nodes (a fresh cluster: 3).")] = None,
    directory: DirOption = DEFAULT_DIR,
    profile: Annotated[
        str, typer.Option(help="Replication profile of the first table and of topics that name none.")
    ] = "oxia",
    kafka_port: Annotated[
        int | None, typer.Option(help="Kafka port of node 0; node i takes port + i; 0: any free port. [9092]")
    ] = None,
    native_port: Annotated[int | None, typer.Option(help="Native port of node 0, likewise. [7400]")] = None,
    http_port: Annotated[int | None, typer.Option(help="HTTP port of node 0, likewise. [8080]")] = None,
    oxia_port: Annotated[
        int | None, typer.Option(help="Port for Oxia's clients of node 0, likewise. [6648]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on and to advertise.")] = "127.0.0.1",
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="TLS and authentication on every listener: makes an authority, certificates, keys and a first user.",
        ),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="With --secure: one more host name or address of the nodes, for their certificates; may be repeated. With "
            "--host 0.0.0.0 the first is what clients are told."
        ),
    ] = None,
    insecure: InsecureOption = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster is ready; stop it with `antiphon down`.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine, one process a node. The same --dir again is the same cluster with its data."""
    started_at = time.monotonic()
    if insecure and secure:
        usage("--secure and --insecure exclude each other")
    directory = directory.absolute()
    cluster = cluster_to_start(directory, nodes, host, profile, secure=secure)
    note_security(cluster, name or [], insecure=insecure)
    fresh = not any(node.native for node in cluster.nodes)
    bases = {
        "kafka": _base(kafka_port, 9092, fresh),
        "native": _base(native_port, 7400, fresh),
        "http": _base(http_port, 8080, fresh),
        "oxia": _base(oxia_port, 6648, fresh),
    }
    bases["peer"] = _peer_base(bases["native"])
    asked = note_signals()  # from the first fork on nothing may end this process without its nodes
    with progress(f"starting {len(cluster.nodes)} nodes"):
        pids = start_all(directory, cluster, bases, asked)
    _announce(directory, cluster, pids, time.monotonic() - started_at, as_json=as_json)
    if not detach:
        attend(directory, cluster, asked)


def _base(asked: int | None, default: int, fresh: bool) -> int | None:
    """Port base to use: what was asked for, the default on a fresh cluster, None (where it listened last) on an old one."""
    return asked if asked is not None else default if fresh else None


def _peer_base(native: int | None) -> int | None:
    """The ports for other nodes are beside the native ones; nobody types them."""
    if native is None:
        return None
    return native + PEER_PORTS_FROM_NATIVE if 0 < native < PEER_PORTS_MAX else 0


def _announce(
    directory: Path, cluster: LocalClusterFile, pids: dict[int, int], took_s: float, *, as_json: bool
) -> None:
    from antiphon.tools.client_examples import as_plain, as_text

    first, servers = cluster.nodes[0], servers_of(cluster)
    if as_json:
        found: dict[str, Any] = {
            "cluster_id": cluster.cluster_id,
            "dir": str(directory),
            "kafka": first.kafka,
            "oxia": first.oxia or None,
            "native": first.native,
            "http": first.http,
            "nodes": [node_json(node, pids.get(node.id)) for node in cluster.nodes],
            "servers": servers,
        }
        if cluster.secure:
            found["secure"] = as_plain(directory)
        print_json(found)
        sys.stdout.flush()
        return
    typer.echo(
        f"Cluster {cluster.cluster_id[:8]} is ready: {len(cluster.nodes)} nodes in {took_s:.2f} s, data in {directory}\n"
    )
    scheme = "https" if cluster.secure else "http"
    rows = [
        (node.id, pids.get(node.id), node.kafka, node.oxia, node.native, f"{scheme}://{node.http}/status")
        for node in cluster.nodes
    ]
    print_table(("NODE", "PID", "KAFKA", "OXIA", "NATIVE", "HTTP"), rows, as_json=False)
    if cluster.secure:
        typer.echo(as_text(directory, cluster))
        if cluster.public_host in EVERYWHERE:
            note(
                f"other machines cannot connect to {cluster.public_host}, which clients are told: give the name or address "
                "of this machine with --name"
            )
    else:
        typer.echo(f"\nTry:  export ANTIPHON_SERVERS={servers}")
        typer.echo("      echo hello | antiphon produce greetings && antiphon consume greetings")
    sys.stdout.flush()
