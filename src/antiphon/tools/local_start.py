"""Starts all nodes of a local cluster, each as a process: what `antiphon up` does."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.client.local_folder import LocalClusterFile, load_cluster
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import forget_stopped, make_key, new_cluster, running_pid, save_cluster
from antiphon.tools.local_nodes import report
from antiphon.tools.secure_folder import new_security, secure_cluster, wait_for_first_user
from antiphon.tools.unwritable import unwritable

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig

# Nodes that start together are found by nobody before their first election has ended, which takes long on a busy machine.
TOGETHER_WAIT_MS: Final = 45_000


def cluster_to_start(
    directory: Path, nodes: int | None, host: str, profile: str, *, secure: bool
) -> LocalClusterFile:
    """The cluster in `directory`, or a new one. Raises InvalidRequestError where another one is there, or runs."""
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
            f"{directory} holds a cluster of {len(cluster.nodes)} nodes: leave out --nodes {nodes} or name another --dir",
            **({"lacking": "nodes"} if nodes > len(cluster.nodes) else {}),
        )
    running = [node.id for node in cluster.nodes if running_pid(Path(node.dir)) is not None]
    if running:
        raise InvalidRequestError(
            f"node {running[0]} of the cluster in {directory} is running already; "
            f"`antiphon down --dir {directory}` stops it"
        )
    cluster.host = host
    return cluster


def note_security(cluster: LocalClusterFile, names: list[str], *, insecure: bool) -> None:
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


def start_all(
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
        _report_failed(directory, cluster, failed)
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


def _report_failed(directory: Path, cluster: LocalClusterFile, failed: dict[int, str]) -> None:
    """A cluster that has run before goes on without nodes that cannot start; a new one needs all of them."""
    for node_id, why in failed.items():
        if not cluster.founded or len(failed) == len(cluster.nodes):
            raise UnavailableError(f"node {node_id} did not start: {why}")
        folder = directory / f"node-{node_id}"
        report(
            f"node {node_id} did not start: {' '.join(why.split())}; the others go on, "
            f"`antiphon node start --dir {folder}` brings it back"
        )
