"""`antiphon down`, `status`, `doctor`, `node ...`: a cluster and its processes."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli.local_nodes import attend, node_json, note_signals
from antiphon.cli.output import (
    A_MOMENT_S,
    note_asked,
    print_json,
    print_table,
    progress,
    reports_errors,
    say,
    usage,
)
from antiphon.client.local_folder import (
    DEFAULT_DIR,
    LocalClusterFile,
    find_cluster,
    load_cluster,
    local_servers,
)
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import forget_stopped, note_stopped, running_pid
from antiphon.tools.secure_folder import use_settings

DirOption = Annotated[
    Path, typer.Option("--dir", help="Directory of the local cluster, as given to `antiphon up`.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen where other machines reach it also without TLS and authentication: everybody there may read and write "
        "everything.",
    ),
]

node_app = typer.Typer(
    no_args_is_help=True,
    help="Start, add, drain, remove and restart single nodes; list them.",
    epilog="Example: antiphon node list",
    rich_markup_mode=None,
)


def mount(app: typer.Typer) -> None:
    """Add this module's commands to the command line."""
    app.command(epilog="Example: antiphon down --dir /tmp/flights")(down)
    app.command(epilog="Example: antiphon status")(status)
    app.command(epilog="Example: antiphon doctor --dir /tmp/flights")(doctor)
    node_app.command("start", epilog="Example: antiphon node start --dir /tmp/flights/node-2")(node_start)
    node_app.command("list", epilog="Example: antiphon node list --json")(node_list)
    app.add_typer(node_app, name="node")


@reports_errors
def down(directory: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Stop a cluster on this machine; its data stays."""
    cluster = find_cluster(directory.absolute())
    dirs = [Path(node.dir) for node in cluster.nodes]
    running = sum(running_pid(node_dir) is not None for node_dir in dirs)
    note_stopped(directory.absolute())
    with progress(f"stopping {running} nodes"):
        killed = supervisor.stop_nodes(dirs)
    if killed:
        raise AntiphonError(
            f"{len(killed)} of {running} nodes did not stop in time and were killed; they recover at the next start"
        )
    shown = {"stopped": running, "nodes": len(dirs), "dir": str(directory)}
    say(f"Stopped {running} of {len(dirs)} nodes; the data is in {directory}", shown, as_json=as_json)


@reports_errors
def node_start(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder of one node of a local cluster, such as DIR/node-2.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A node.toml; the node runs in the foreground.")
    ] = None,
    own_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            envvar="ANTIPHON_NODE_ID",
            help="With --config: the node's id, in place of the file's; of a name such as antiphon-2 the number at its end.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            envvar="ANTIPHON_ADVERTISED_HOST",
            help="With --config: the host that others are told, in place of the file's advertised_host.",
        ),
    ] = None,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            envvar="ANTIPHON_BOOTSTRAP",
            help="With --config: this start founds a new cluster. For the first start of its nodes only, never for a node "
            "whose data was lost.",
        ),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="With --dir: stay until the node ends.")
    ] = False,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start one node: a member of a local cluster again (in the background), or a production node by its configuration."""
    from antiphon.cli import node_process

    if (directory is None) == (config is None):
        usage("give either --dir DIR/node-N or --config node.toml")
    if config is not None:
        own: dict[str, Any] = {} if own_id is None else {"node_id": _id_of(own_id)}
        own |= {} if advertise is None else {"advertised_host": advertise}
        node_process.run_from_file(config, own, bootstrap=bootstrap, insecure=insecure)
        return
    if bootstrap or insecure or own_id is not None or advertise is not None:
        usage(
            "--id, --advertise, --bootstrap and --insecure go with --config; `antiphon up` founds local clusters"
        )
    if directory is not None:
        _start_member(directory.absolute(), foreground=foreground, as_json=as_json)


def _id_of(text: str) -> int:
    """A node's id: a number, or the one at the end of a name, as pods of a StatefulSet have it."""
    found = re.fullmatch(r"(?:.*[^0-9])?([0-9]{1,10})", text, re.ASCII | re.DOTALL)
    if found is None:
        usage(f"--id takes a number, or a name that ends in one, not {text!r}")
    return int(found[1])


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
    forget_stopped(directory.parent)
    node_conf = node_process.prepare(cluster, node)
    pid, alone = node_process.start(node, node_conf, sockets)
    if alone:
        typer.echo(
            f"antiphon: node {node.id} runs but reaches no coordinator yet: start the other nodes too",
            err=True,
        )
    if as_json:
        print_json(node_json(node, pid))
    else:
        typer.echo(
            f"Node {node.id} is up (pid {pid}): kafka {node.kafka}, native {node.native}, http {node.http}"
        )
    sys.stdout.flush()
    if foreground:
        only = LocalClusterFile(cluster.format, cluster.cluster_id, cluster.host, cluster.profile, [node])
        attend(directory.parent, only, note_signals(), whole=False)


def server_addresses(servers: str | None, directory: Path) -> str:
    """Addresses to ask: --servers, else the local cluster in `directory`; if that is secure, its clients know how."""
    directory = directory.absolute()
    found, cluster = local_servers(servers or "", directory)
    note_asked(found)
    if cluster is not None:
        use_settings(directory, cluster)
    return found


ServersOption = Annotated[
    str | None,
    typer.Option(
        "--servers",
        envvar="ANTIPHON_SERVERS",
        help="Native addresses of nodes, host:port[,host:port...]; without them the cluster in --dir.",
    ),
]


@reports_errors
def status(
    servers: ServersOption = None, directory: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """One screen of health: nodes, shards without a leader, shards that are short of replicas."""
    from antiphon.cli.status_page import render
    from antiphon.tools.cluster_health import collect

    addresses = server_addresses(servers, directory)
    with progress("asking the nodes", after_s=A_MOMENT_S):
        found = collect(addresses)
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
    from antiphon.tools.cluster_health import collect

    addresses = server_addresses(servers, directory)
    with progress("asking the nodes", after_s=A_MOMENT_S):
        found = collect(addresses)
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
    from antiphon.tools.doctor import examine

    cluster, trouble = None, ""
    try:
        cluster = load_cluster(directory.absolute())
    except AntiphonError as error:
        trouble = error.message
    addresses = server_addresses(servers, directory) if servers or cluster else None
    with progress("looking at this machine and the cluster", after_s=A_MOMENT_S):
        findings = examine(addresses, cluster, trouble)
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
