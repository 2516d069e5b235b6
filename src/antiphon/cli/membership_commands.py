"""`antiphon node add|drain|remove`, `antiphon shard move`, `antiphon rebalance`: who holds what, while everybody works."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from antiphon.cli.declare import COMMON, CommonOptions, DirOption, JsonOption, command
from antiphon.cli.moves import POLL_S, WAIT_S, anything, listed, wait_for_moves
from antiphon.cli.output import print_json, progress, say
from antiphon.client.local_folder import DEFAULT_DIR, LocalClusterFile, LocalNode, find_cluster, load_cluster
from antiphon.client.moves import is_on_its_way
from antiphon.errors import AntiphonError, InvalidRequestError, PortInUseError, UnavailableError
from antiphon.model.metadata import ClusterMeta
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import new_node, running_pid, save_cluster
from antiphon.tools.local_nodes import node_json

if TYPE_CHECKING:
    import antiphon

STOPPED_NOTICED_S = 15.0

WaitOption = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Return when it is done; with --no-wait as soon as it is decided."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1.0, help="Seconds to wait; what is decided goes on by itself.")
]


# -- shards ---------------------------------------------------------------------------------------------------------


@command("shard move", "antiphon shard move flights 0 --from 1 --to 3")
def shard_move(
    topic: Annotated[str, typer.Argument(help="Topic or table.")],
    shard: Annotated[int, typer.Argument(help="Shard number, from 0.")],
    from_node: Annotated[int, typer.Option("--from", help="The node that is to hold it no more.")],
    to_node: Annotated[int, typer.Option("--to", help="The node that is to hold it instead.")],
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Put a replica of a shard on another node, while it is read and written."""
    started = time.monotonic()
    with common.connect() as db:
        db.move_replica(topic, shard, from_node, to_node)
        if wait:
            wait_for_moves(db, lambda name, meta: (name, meta.index) == (topic, shard), timeout_s)
        meta = next(each for each in db.metadata().topics if each.name == topic).shards[shard]
    there = f"is on nodes {listed(meta.ensemble)}, led by node {meta.leader}"
    told = {
        "topic": topic,
        "shard": shard,
        "done": not is_on_its_way(meta),
        "ensemble": list(meta.ensemble),
        "leader": meta.leader if meta.leader >= 0 else None,
        "seconds": round(time.monotonic() - started, 3),
    }
    text = f"{topic}/{shard} {there if wait else f'goes to nodes {listed(meta.aim)}'}"
    say(text, told, as_json=common.as_json)


@command("rebalance", "antiphon rebalance --leaders-only")
def rebalance(
    leaders_only: Annotated[
        bool, typer.Option("--leaders-only", help="Only move leaderships, no replicas.")
    ] = False,
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Spread replicas, then leaderships, evenly over the nodes that are not draining, with as few moves as possible."""
    started = time.monotonic()
    moved = 0
    with common.connect() as db:
        if not leaders_only:
            db.rebalance()
            if wait:
                moved += wait_for_moves(db, anything, timeout_s)
        if leaders_only or wait:
            db.rebalance(leaders_only=True)
        if wait:
            moved += wait_for_moves(db, anything, timeout_s)
        cluster = db.metadata()
    rows = _carried(cluster)
    text = f"{moved} shards moved" if wait else "decided; `antiphon shard list` shows how far it is"
    text += "".join(
        f"\n  node {one['node']}: {one['replicas']} replicas, leads {one['leads']}" for one in rows
    )
    told = {"moved": moved, "nodes": rows, "seconds": round(time.monotonic() - started, 3)}
    say(text, told, as_json=common.as_json)


def _carried(cluster: ClusterMeta) -> list[dict[str, int]]:
    shards = [shard for topic in cluster.topics for shard in topic.shards]
    return [
        {
            "node": node.node_id,
            "replicas": sum(node.node_id in shard.ensemble for shard in shards),
            "leads": sum(node.node_id == shard.leader for shard in shards),
        }
        for node in cluster.nodes
    ]


# -- nodes ----------------------------------------------------------------------------------------------------------


@command("node drain", "antiphon node drain 3")
def node_drain(
    node: Annotated[int, typer.Argument(help="Node id.")],
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Take it back: what has not moved stays, and it gets new replicas."),
    ] = False,
    wait: WaitOption = True,
    timeout_s: TimeoutOption = WAIT_S,
    common: CommonOptions = COMMON,
) -> None:
    """Move everything that a node holds to other nodes, and put nothing new on it."""
    started = time.monotonic()
    moved = 0
    with common.connect() as db:
        db.drain_node(node, cancel=cancel)
        if wait and not cancel:
            moved = wait_for_moves(db, lambda _topic, shard: node in shard.everybody, timeout_s)
        cluster = db.metadata()
        left = _held_by(cluster, node)
    votes = cluster.voters is not None and node in cluster.voters.everybody
    if common.as_json:
        took_s = round(time.monotonic() - started, 3)
        done = {"node": node, "draining": not cancel, "moved": moved, "left": left, "seconds": took_s}
        print_json({**done, "votes": votes})
    elif cancel:
        typer.echo(f"Node {node} takes replicas again; it holds {left}")
    elif wait and votes:
        typer.echo(
            f"Node {node} is empty but for the cluster's own log: {moved} replicas moved. `antiphon node voters --replace "
            f"{node} NEW` has another node vote in its place; then `antiphon node remove {node}` forgets it"
        )
    elif wait:
        typer.echo(f"Node {node} is empty: {moved} replicas moved. `antiphon node remove {node}` forgets it")
    else:
        typer.echo(f"Node {node} is being drained: {left} replicas are left")


def _held_by(cluster: ClusterMeta, node: int) -> int:
    return sum(node in shard.everybody for topic in cluster.topics for shard in topic.shards)


@command("node remove", "antiphon node remove 3")
def node_remove(
    node: Annotated[int, typer.Argument(help="Node id.")],
    common: CommonOptions = COMMON,
) -> None:
    """Forget a node that is drained; a node of a local cluster is stopped first. Its folder stays."""
    directory = common.directory.absolute()
    cluster = load_cluster(directory) if common.servers is None else None
    member = next((each for each in cluster.nodes if each.id == node), None) if cluster else None
    with common.connect() as db, progress(f"removing node {node}"):
        try:
            db.remove_node(node)
        except InvalidRequestError as error:
            if not error.details.get("running") or member is None:
                raise
            supervisor.stop_nodes([Path(member.dir)])
            _remove_when_gone(db, node)
    if cluster is not None and member is not None:
        cluster.nodes.remove(member)
        save_cluster(directory, cluster)
    folder = f"; its folder {member.dir} is not needed any more" if member else ""
    say(f"Removed node {node}{folder}", {"node": node, "removed": True}, as_json=common.as_json)


def _remove_when_gone(db: "antiphon.Client", node: int) -> None:
    """Its process has ended: the coordinator notices within moments."""
    deadline = time.monotonic() + STOPPED_NOTICED_S
    while True:
        try:
            db.remove_node(node)
            return
        except InvalidRequestError as error:
            if not error.details.get("running") or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


@command("node add", "antiphon node add --dir /tmp/flights")
def node_add(directory: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Start one more node of a local cluster, as a process of its own. It holds nothing until something is put on it."""
    from antiphon.tools import node_process

    directory = directory.absolute()
    cluster = find_cluster(directory)
    if not any(running_pid(Path(node.dir)) is not None for node in cluster.nodes):
        raise UnavailableError(
            f"no node of the cluster in {directory} is running; `antiphon up --dir {shlex.quote(str(directory))}` starts "
            "them"
        )
    node = new_node(directory, cluster)
    sockets = _bind(cluster, node)
    config = node_process.prepare(cluster, node)
    # Written down before it runs: whatever happens to this process, the cluster's other commands know of the node.
    cluster.nodes.append(node)
    save_cluster(directory, cluster)
    pid, alone = node_process.start(node, config, sockets, progress(f"starting node {node.id}"))
    if alone:
        raise AntiphonError(
            f"node {node.id} runs (pid {pid}) but reaches no coordinator; see {Path(node.dir)}/node.log"
        )
    text = (
        f"Node {node.id} is up (pid {pid}): kafka {node.kafka}, oxia {node.oxia}, native {node.native}, http {node.http}\n"
        "It holds nothing yet: `antiphon rebalance` gives it its share"
    )
    say(text, node_json(node, pid), as_json=as_json)
    sys.stdout.flush()


def _bind(cluster: LocalClusterFile, node: LocalNode) -> supervisor.Sockets:
    """Bind the new node's listeners: in line with the others' ports where those are in a line, else anywhere."""
    alone = msgspec.structs.replace(cluster, nodes=[node])
    bases: dict[str, int | None] = {}
    for name in cluster.listeners:
        ports = {each.id: int(str(getattr(each, name)).rpartition(":")[2] or 0) for each in cluster.nodes}
        starts = {port - node_id for node_id, port in ports.items()}
        bases[name] = starts.pop() if len(starts) == 1 and len(ports) > 1 else 0
    try:
        return supervisor.bind_ports(alone, bases)[0]
    except PortInUseError:
        return supervisor.bind_ports(alone, dict.fromkeys(cluster.listeners, 0))[0]
