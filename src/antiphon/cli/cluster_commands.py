"""`antiphon down`, `status`, `doctor`, `node ...`: a cluster and its processes."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli.declare import COMMON, CommonOptions, DirOption, InsecureOption, JsonOption, command, group
from antiphon.cli.output import A_MOMENT_S, note, print_json, print_table, progress, say, usage
from antiphon.client.local_folder import DEFAULT_DIR, LocalClusterFile, find_cluster, load_cluster
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import forget_stopped, note_stopped, running_pid
from antiphon.tools.local_nodes import attend, node_json, note_signals

group("node", "Start, add, drain, remove and restart single nodes; list them.", "Example: antiphon node list")


@command("down", "antiphon down --dir /tmp/flights")
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


@command("node start", "antiphon node start --dir /tmp/flights/node-2")
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
    from antiphon.tools import node_process

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
    from antiphon.tools import node_process

    cluster = find_cluster(directory.parent)
    node = next((node for node in cluster.nodes if Path(node.dir) == directory), None)
    if node is None:
        names = ", ".join(Path(member.dir).name for member in cluster.nodes)
        raise InvalidRequestError(
            f"{directory.name} is not a node of the cluster in {directory.parent}; it has {names}",
            lacking="nodes",
        )
    pid = running_pid(directory)
    if pid is not None:
        raise InvalidRequestError(f"node {node.id} is running already (pid {pid})", running=True)
    sockets = supervisor.bind_again(node)
    forget_stopped(directory.parent)
    node_conf = node_process.prepare(cluster, node)
    pid, alone = node_process.start(node, node_conf, sockets, progress(f"starting node {node.id}"))
    if alone:
        note(f"node {node.id} runs but reaches no coordinator yet: start the other nodes too")
    text = f"Node {node.id} is up (pid {pid}): kafka {node.kafka}, native {node.native}, http {node.http}"
    say(text, node_json(node, pid), as_json=as_json)
    sys.stdout.flush()
    if foreground:
        only = LocalClusterFile(cluster.format, cluster.cluster_id, cluster.host, cluster.profile, [node])
        attend(directory.parent, only, note_signals(), whole=False)


@command("status", "antiphon status")
def status(common: CommonOptions = COMMON) -> None:
    """One screen of health: nodes, shards without a leader, shards that are short of replicas."""
    from antiphon.cli.status_page import render
    from antiphon.tools.cluster_health import collect

    addresses = common.addresses()
    with progress("asking the nodes", after_s=A_MOMENT_S):
        found = collect(addresses)
    if common.as_json:
        print_json(found)
    else:
        render(found)
    if not found["healthy"]:
        raise typer.Exit(1)


@command("node list", "antiphon node list --json")
def node_list(common: CommonOptions = COMMON) -> None:
    """The nodes of a cluster."""
    from antiphon.tools.cluster_health import collect

    addresses = common.addresses()
    with progress("asking the nodes", after_s=A_MOMENT_S):
        found = collect(addresses)
    names = ("status", "leads", "replicas", "memory_mb", "native", "kafka", "http")
    rows = [[node["id"], *(node[name] for name in names)] for node in found["nodes"]]
    print_table(("NODE", *map(str.upper, names)), rows, as_json=common.as_json)


@command("doctor", "antiphon doctor --dir /tmp/flights")
def doctor(common: CommonOptions = COMMON) -> None:
    """What is wrong here and what to do: Python, Java, ports, disk, clocks, and the cluster if there is one."""
    from antiphon.tools.doctor import examine

    cluster, trouble = None, ""
    try:
        cluster = load_cluster(common.directory.absolute())
    except AntiphonError as error:
        trouble = error.message
    addresses = common.addresses(may_be_stopped=True) if common.servers or cluster else None
    with progress("looking at this machine and the cluster", after_s=A_MOMENT_S):
        findings = examine(addresses, cluster, trouble)
    if common.as_json:
        print_json(findings)
    else:
        for finding in findings:
            mark = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}[finding["level"]]
            typer.echo(
                f"{mark}  {finding['what']}" + (f"\n       do: {finding['do']}" if finding.get("do") else "")
            )
    if any(finding["level"] == "wrong" for finding in findings):
        raise typer.Exit(1)
