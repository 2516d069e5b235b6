"""`antiphon up`, `down`, `status`, `doctor`, `node ...`: a cluster and its processes."""

import contextlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli.output import print_json, print_table, progress, reports_errors, unwritable, usage
from antiphon.errors import AntiphonError, InvalidRequestError, UnavailableError
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import (
    LocalClusterFile,
    LocalNode,
    find_cluster,
    hand_out_key,
    load_cluster,
    make_key,
    new_cluster,
    running_pid,
    save_cluster,
)

DEFAULT_DIR = Path("antiphon-data")
PEER_PORTS_FROM_NATIVE = 100
PEER_PORTS_MAX = 65_000

DirOption = Annotated[Path, typer.Option("--dir", help="Where the cluster keeps its data.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]

node_app = typer.Typer(no_args_is_help=True, help="Start single nodes; list them.", rich_markup_mode=None)


def mount(app: typer.Typer) -> None:
    """Add this module's commands to the command line."""
    app.command(epilog="Example: antiphon up --nodes 3 --dir /tmp/flights")(up)
    app.command(epilog="Example: antiphon down --dir /tmp/flights")(down)
    app.command(epilog="Example: antiphon status")(status)
    app.command(epilog="Example: antiphon doctor --dir /tmp/flights")(doctor)
    node_app.command("start", epilog="Example: antiphon node start --dir /tmp/flights/node-2")(node_start)
    node_app.command("list", epilog="Example: antiphon node list --json")(node_list)
    app.add_typer(node_app, name="node")


@reports_errors
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
        int | None, typer.Option(help="Taken so that scripts may name it; this version has no Oxia listener.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on and to advertise.")] = "127.0.0.1",
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster is ready; stop it with `antiphon down`.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine, one process a node. The same --dir again is the same cluster with its data."""
    started_at = time.monotonic()
    if oxia_port:
        typer.echo("antiphon: this version has no Oxia listener; --oxia-port is not used", err=True)
    directory = directory.absolute()
    cluster = _cluster_to_start(directory, nodes, host, profile)
    fresh = not any(node.native for node in cluster.nodes)
    bases = {
        "kafka": _base(kafka_port, 9092, fresh),
        "native": _base(native_port, 7400, fresh),
        "http": _base(http_port, 8080, fresh),
    }
    bases["peer"] = _peer_base(bases["native"])
    asked = _note_signals()  # from the first fork on nothing may end this process without its nodes
    with progress(f"starting {len(cluster.nodes)} nodes"):
        pids = _start_all(directory, cluster, bases, asked)
    _announce(directory, cluster, pids, time.monotonic() - started_at, as_json=as_json)
    if not detach:
        _attend(directory, cluster, asked)


def _base(asked: int | None, default: int, fresh: bool) -> int | None:
    """Port base to use: what was asked for, the default on a fresh cluster, None (where it listened last) on an old one."""
    return asked if asked is not None else default if fresh else None


def _peer_base(native: int | None) -> int | None:
    """The ports for other nodes are beside the native ones; nobody types them."""
    if native is None:
        return None
    return native + PEER_PORTS_FROM_NATIVE if 0 < native < PEER_PORTS_MAX else 0


def _cluster_to_start(directory: Path, nodes: int | None, host: str, profile: str) -> LocalClusterFile:
    cluster = load_cluster(directory)
    if cluster is None:
        if directory.exists() and any(directory.iterdir()):
            raise InvalidRequestError(
                f"{directory} holds other things and no cluster; name an empty or new directory with --dir"
            )
        return new_cluster(directory, nodes if nodes is not None else 3, host, profile)
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


def _start_all(
    directory: Path, cluster: LocalClusterFile, bases: dict[str, int | None], asked: list[int]
) -> dict[int, int]:
    """Start every node; returns their pids. Once a signal is in `asked`, stops those that run: KeyboardInterrupt."""
    from antiphon.cli.node_process import node_config, run, write_config
    from antiphon.server.process import warm_up

    bound = supervisor.bind_ports(cluster, bases)
    pids: dict[int, int] = {}
    pipes: dict[int, int] = {}
    failed: dict[int, str] = {}
    try:
        make_key(directory, cluster)
        save_cluster(directory, cluster)
        warm_up()
        for node, sockets in zip(cluster.nodes, bound, strict=True):
            config = node_config(cluster, node)
            others = [other for other in bound if other is not sockets]
            try:
                write_config(config, Path(node.dir))
                hand_out_key(cluster, Path(node.dir))
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
            cluster.founded = True
            save_cluster(directory, cluster)
    except BaseException:
        supervisor.stop_nodes([Path(node.dir) for node in cluster.nodes if node.id in pids])
        raise
    finally:
        supervisor.close_sockets(bound)
    return pids


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
    first = cluster.nodes[0]
    if as_json:
        print_json(
            {
                "cluster_id": cluster.cluster_id,
                "dir": str(directory),
                "kafka": first.kafka,
                "oxia": None,
                "native": first.native,
                "http": first.http,
                "nodes": [_node_json(node, pids.get(node.id)) for node in cluster.nodes],
            }
        )
        sys.stdout.flush()
        return
    typer.echo(
        f"Cluster {cluster.cluster_id[:8]} is ready: {len(cluster.nodes)} nodes in {took_s:.2f} s, data in {directory}\n"
    )
    rows = [
        (node.id, pids.get(node.id), node.kafka, node.native, f"http://{node.http}/status")
        for node in cluster.nodes
    ]
    print_table(("NODE", "PID", "KAFKA", "NATIVE", "HTTP"), rows, as_json=False)
    typer.echo(f"\nTry:  export ANTIPHON_SERVERS={first.native}")
    typer.echo("      echo hello | antiphon produce greetings && antiphon consume greetings")


def _all(cluster: LocalClusterFile, listener: str) -> str:
    return ",".join(getattr(node, listener) for node in cluster.nodes)


def _node_json(node: LocalNode, pid: int | None) -> dict[str, Any]:
    return {
        "id": node.id,
        "pid": pid,
        "dir": node.dir,
        "kafka": node.kafka,
        "oxia": node.oxia or None,
        "native": node.native,
        "http": node.http,
    }


def _note_signals() -> list[int]:
    """From now on signals that ask this process to end are only noted, in the list that is returned."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _frame: asked.append(n))
    return asked


def _attend(directory: Path | None, cluster: LocalClusterFile, asked: list[int]) -> None:
    """Wait for a signal, say when a node ends by itself, then stop every node, also ones started or added later."""
    while not asked:
        for pid, wait_status in supervisor.reap():
            code = os.waitstatus_to_exitcode(wait_status)
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            typer.echo(
                f"antiphon: a node (pid {pid}) {how}; `antiphon node start --dir DIR/node-N` brings it back",
                err=True,
            )
        time.sleep(0.1)
    if directory is not None:
        cluster = load_cluster(directory) or cluster
    killed = supervisor.stop_nodes([Path(node.dir) for node in cluster.nodes])
    if killed:
        raise AntiphonError(
            f"{len(killed)} nodes did not stop in time and were killed; they will recover at the next start"
        )


@reports_errors
def down(directory: DirOption = DEFAULT_DIR) -> None:
    """Stop a cluster on this machine; its data stays."""
    cluster = find_cluster(directory.absolute())
    dirs = [Path(node.dir) for node in cluster.nodes]
    running = sum(running_pid(node_dir) is not None for node_dir in dirs)
    with progress(f"stopping {running} nodes"):
        killed = supervisor.stop_nodes(dirs)
    if killed:
        raise AntiphonError(
            f"{len(killed)} of {running} nodes did not stop in time and were killed; they recover at the next start"
        )
    typer.echo(f"Stopped {running} of {len(dirs)} nodes; the data is in {directory}")


@reports_errors
def node_start(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder of one node of a local cluster, such as DIR/node-2.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A node.toml; the node runs in the foreground.")
    ] = None,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            help="With --config: this start founds a new cluster. For the first start of its nodes only, never for a node "
            "whose data was lost.",
        ),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="With --dir: stay until the node ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start one node: a member of a local cluster again (in the background), or a production node by its configuration."""
    from antiphon.cli import node_process

    if (directory is None) == (config is None):
        usage("give either --dir DIR/node-N or --config node.toml")
    if config is not None:
        node_process.run_from_file(config, bootstrap=bootstrap)
        return
    if bootstrap:
        usage("--bootstrap goes with --config; `antiphon up` founds local clusters")
    if directory is not None:
        _start_member(directory.absolute(), foreground=foreground, as_json=as_json)


def _start_member(directory: Path, *, foreground: bool, as_json: bool) -> None:
    from antiphon.cli import node_process

    cluster = find_cluster(directory.parent)
    node = next((node for node in cluster.nodes if Path(node.dir) == directory), None)
    if node is None:
        names = ", ".join(Path(member.dir).name for member in cluster.nodes)
        raise InvalidRequestError(
            f"{directory.name} is not a node of the cluster in {directory.parent}; it has {names}"
        )
    pid = running_pid(directory)
    if pid is not None:
        raise InvalidRequestError(f"node {node.id} is running already (pid {pid})")
    sockets = supervisor.bind_again(node)
    node_conf = node_process.node_config(cluster, node)
    node_process.write_config(node_conf, directory)
    hand_out_key(cluster, directory)
    pid, pipe = supervisor.fork_node(directory, lambda ready: node_process.run(node_conf, sockets, ready), [])
    supervisor.close_sockets([sockets])
    with progress(f"starting node {node.id}"):
        alone = supervisor.wait_ready({node.id: pipe})
    if alone:
        typer.echo(
            f"antiphon: node {node.id} runs but reaches no coordinator yet: start the other nodes too",
            err=True,
        )
    if as_json:
        print_json(_node_json(node, pid))
    else:
        typer.echo(
            f"Node {node.id} is up (pid {pid}): kafka {node.kafka}, native {node.native}, http {node.http}"
        )
    sys.stdout.flush()
    if foreground:
        only = LocalClusterFile(cluster.format, cluster.cluster_id, cluster.host, cluster.profile, [node])
        _attend(None, only, _note_signals())


def server_addresses(servers: str | None, directory: Path) -> str:
    """Addresses to ask: --servers, else the local cluster in `directory`."""
    if servers:
        return servers
    return _all(find_cluster(directory.absolute()), "native")


ServersOption = Annotated[
    str | None,
    typer.Option("--servers", envvar="ANTIPHON_SERVERS", help="Native addresses, host:port[,host:port...]."),
]


@reports_errors
def status(
    servers: ServersOption = None, directory: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """One screen of health: nodes, shards without a leader, shards that are short of replicas."""
    from antiphon.cli.status_page import collect, render

    found = collect(server_addresses(servers, directory))
    if as_json:
        print_json(found)
    else:
        render(found)
    if not found["healthy"]:
        raise typer.Exit(1)


@reports_errors
def node_list(
    servers: ServersOption = None, directory: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """The nodes of a cluster."""
    from antiphon.cli.status_page import collect

    found = collect(server_addresses(servers, directory))
    rows = [
        (
            node["id"],
            node["status"],
            node["leads"],
            node["replicas"],
            node["memory_mb"],
            node["native"],
            node["kafka"],
            node["http"],
        )
        for node in found["nodes"]
    ]
    print_table(
        ("NODE", "STATUS", "LEADS", "REPLICAS", "MEMORY_MB", "NATIVE", "KAFKA", "HTTP"), rows, as_json=as_json
    )


@reports_errors
def doctor(
    servers: ServersOption = None, directory: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """What is wrong here and what to do: Python, Java, ports, disk, clocks, and the cluster if there is one."""
    from antiphon.cli.doctor import examine

    cluster = None
    with contextlib.suppress(AntiphonError):
        cluster = load_cluster(directory.absolute())
    findings = examine(servers or (_all(cluster, "native") if cluster else None), cluster)
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            mark = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}[finding["level"]]
            typer.echo(
                f"{mark}  {finding['what']}" + (f"\n       do: {finding['do']}" if finding.get("do") else "")
            )
    if any(finding["level"] == "wrong" for finding in findings):
        raise typer.Exit(1)


def read_announcement(line: str) -> dict[str, Any]:
    """The JSON line of `antiphon up --json`."""
    found: dict[str, Any] = json.loads(line)
    return found
