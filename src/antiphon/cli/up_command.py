"""`antiphon up`: a cluster on this machine, as processes; with --secure one that others may reach."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from antiphon.cli.declare import DirOption, InsecureOption, JsonOption, command
from antiphon.cli.local_nodes import attend, node_json, note_signals
from antiphon.cli.output import print_json, print_table, progress, unwritable, usage
from antiphon.client.local_folder import DEFAULT_DIR, EVERYWHERE, LocalClusterFile, load_cluster, servers_of
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import forget_stopped, make_key, new_cluster, running_pid, save_cluster
from antiphon.tools.secure_folder import new_security, secure_cluster, wait_for_first_user

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig

PEER_PORTS_FROM_NATIVE = 100
PEER_PORTS_MAX = 65_000
# Nodes that start together are found by nobody before their first election has ended, which takes long on a busy machine.
TOGETHER_WAIT_MS = 45_000


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
    cluster = _cluster_to_start(directory, nodes, host, profile, secure=secure)
    _note_security(cluster, name or [], insecure=insecure)
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
        pids = _start_all(directory, cluster, bases, asked)
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


def _cluster_to_start(
    directory: Path, nodes: int | None, host: str, profile: str, *, secure: bool
) -> LocalClusterFile:
    cluster = load_cluster(directory)
    if cluster is None:
        if directory.exists() and any(directory.iterdir()):
            raise InvalidRequestError(
                f"{directory} holds other things and no cluster; name an empty or new directory with --dir"
            )
        made = new_cluster(directory, nodes if nodes is not None else 3, host, profile)
        made.secure = secure
        return made
    if secure and not cluster.secure:
        raise InvalidRequestError(
            f"{directory} holds a cluster that was made without --secure: `antiphon up` without it goes on as before, and "
            "docs/security.md says what to set in each node.toml to secure it; for a secure one name a new --dir"
        )
    if nodes is not None and nodes != len(cluster.nodes):
        raise InvalidRequestError(
            f"{directory} holds a cluster of {len(cluster.nodes)} nodes: leave out --nodes {nodes} or name another --dir"
        )
    running = [node.id for node in cluster.nodes if running_pid(Path(node.dir)) is not None]
    if running:
        raise InvalidRequestError(
            f"node {running[0]} of the cluster in {directory} is running already; "
            f"`antiphon down --dir {directory}` stops it"
        )
    cluster.host = host
    return cluster


def _note_security(cluster: LocalClusterFile, names: list[str], *, insecure: bool) -> None:
    """Note what was asked for; refuse what is not safe before anything is written. Raises InvalidRequestError."""
    from antiphon.node.config import CONFIG_FILE, load_config
    from antiphon.security.exposure import refuse_exposure

    if names and not cluster.secure:
        raise InvalidRequestError("--name is for the certificates of a cluster that is made with --secure")
    if insecure and cluster.secure:
        raise InvalidRequestError("this cluster is secure, --insecure has no meaning for it: leave it out")
    cluster.names = list(dict.fromkeys([*cluster.names, *names]))
    cluster.insecure |= insecure
    for node in cluster.nodes:
        has_own = (Path(node.dir) / CONFIG_FILE).exists()
        security = load_config(Path(node.dir)).security if has_own else new_security(cluster)
        refuse_exposure(
            cluster.host, msgspec.structs.replace(security, insecure=security.insecure or cluster.insecure)
        )


def _start_all(
    directory: Path, cluster: LocalClusterFile, bases: dict[str, int | None], asked: list[int]
) -> dict[int, int]:
    """Start every node; returns their pids. Once a signal is in `asked`, stops those that run: KeyboardInterrupt."""
    from antiphon.server.process import warm_up
    from antiphon.tools.node_process import prepare, run

    bound = supervisor.bind_ports(cluster, bases)
    pids: dict[int, int] = {}
    pipes: dict[int, int] = {}
    failed: dict[int, str] = {}
    try:
        make_key(directory, cluster)
        save_cluster(directory, cluster)
        forget_stopped(directory)
        secure_cluster(directory, cluster)
        warm_up()
        for node, sockets in zip(cluster.nodes, bound, strict=True):
            others = [other for other in bound if other is not sockets]
            try:
                config = _patient(prepare(cluster, node))
                pids[node.id], pipes[node.id] = supervisor.fork_node(
                    Path(node.dir), partial(run, config, sockets), others
                )
            except OSError as error:
                failed[node.id] = unwritable(error, node.dir)
        alone = supervisor.wait_ready(pipes, asked=asked, failed=failed)
        _judge_failed(directory, cluster, failed)
        if alone:
            raise UnavailableError(
                f"nodes {alone} found no coordinator; node.log in the nodes' folders in {directory} says why"
            )
        if not cluster.founded:
            wait_for_first_user(directory, cluster, asked)
            cluster.founded = True
            save_cluster(directory, cluster)
    except BaseException:
        supervisor.stop_nodes([Path(node.dir) for node in cluster.nodes if node.id in pids])
        raise
    finally:
        supervisor.close_sockets(bound)
    return pids


def _patient(config: "NodeConfig") -> "NodeConfig":
    """What a node is told that starts together with the others: their coordinator may come late."""
    wait_ms = max(config.timings.ready_wait, TOGETHER_WAIT_MS)
    return msgspec.structs.replace(
        config, timings=msgspec.structs.replace(config.timings, ready_wait=wait_ms)
    )


def _judge_failed(directory: Path, cluster: LocalClusterFile, failed: dict[int, str]) -> None:
    """A cluster that has run before goes on without nodes that cannot start; a new one needs all of them."""
    for node_id, why in failed.items():
        if not cluster.founded or len(failed) == len(cluster.nodes):
            raise UnavailableError(f"node {node_id} did not start: {why}")
        folder = directory / f"node-{node_id}"
        typer.echo(
            f"antiphon: node {node_id} did not start: {' '.join(why.split())}; the others go on, "
            f"`antiphon node start --dir {folder}` brings it back",
            err=True,
        )


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
            typer.echo(
                f"antiphon: other machines cannot connect to {cluster.public_host}, which clients are told: give the "
                "name or address of this machine with --name",
                err=True,
            )
    else:
        typer.echo(f"\nTry:  export ANTIPHON_SERVERS={servers}")
        typer.echo("      echo hello | antiphon produce greetings && antiphon consume greetings")
    sys.stdout.flush()
