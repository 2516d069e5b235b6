"""What a node's process runs: the bridge from the supervisor to `antiphon.server`."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from antiphon.client.local_folder import LocalClusterFile, LocalNode
from antiphon.node.config import Member, NodeConfig, Ports, load_config, save_config, split_address
from antiphon.records.intake import DEFAULT, FULL
from antiphon.security.exposure import is_loopback
from antiphon.security.private_files import private_folder
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import hand_out_key
from antiphon.tools.secure_folder import new_security, secure_node
from antiphon.tools.supervisor import Sockets


def node_config(cluster: LocalClusterFile, node: LocalNode) -> NodeConfig:
    """The configuration of one node of a local cluster; what a person changed in its node.toml is kept."""
    directory = Path(node.dir)
    # Who founded the cluster: the voters of `__cluster` are the first of these, on every node and at every start.
    members = [
        Member(id=member.id, native=member.native, peer=member.peer)
        for member in cluster.nodes
        if not member.added
    ]
    told = "" if cluster.public_host == cluster.host else cluster.public_host
    ports = Ports(native=_port(node.native), kafka=_port(node.kafka), oxia=-1, http=_port(node.http))
    if node.oxia:
        ports.oxia = _port(node.oxia)
    if cluster.peer_key:
        ports.peer = _port(node.peer)
    if (directory / "node.toml").exists():
        config = load_config(directory)
        config.nodes, config.ports, config.listen_host = members, ports, cluster.host
        config.bootstrap = not cluster.founded
        if cluster.peer_key:
            config.security.peer_key = cluster.peer_key
        config.security.insecure |= cluster.insecure
        if not cluster.peer_key and is_loopback(cluster.host):
            config.security.insecure = True  # an earlier version made the cluster, without a key
        config.advertised_host = config.advertised_host or told
        return config
    return NodeConfig(
        cluster_id=cluster.cluster_id,
        node_id=node.id,
        nodes=members,
        dir=directory,
        listen_host=cluster.host,
        advertised_host=told,
        bootstrap=not cluster.founded,
        profile=cluster.profile,
        # Strangers may produce there: what a reader could not unpack is refused, as Kafka's brokers do.
        record_validation=FULL if cluster.secure else DEFAULT,
        ports=ports,
        security=new_security(cluster),
    )


def start(
    node: LocalNode, config: NodeConfig, sockets: Sockets, waiting: AbstractContextManager[None]
) -> tuple[int, bool]:
    """Start a node in the background, and wait within `waiting` until it is ready; its pid, and whether it is alone.

    It is alone where it reaches no coordinator yet.
    """
    pid, pipe = supervisor.fork_node(Path(node.dir), lambda ready: run(config, sockets, ready), [])
    supervisor.close_sockets([sockets])
    with waiting:
        alone = supervisor.wait_ready({node.id: pipe})
    return pid, bool(alone)


def _port(address: str) -> int:
    return split_address(address)[1]


def write_config(config: NodeConfig, directory: Path) -> None:
    """Write `node.toml`, so that the node can be started alone too."""
    private_folder(directory)
    save_config(config, directory)


def prepare(cluster: LocalClusterFile, node: LocalNode) -> NodeConfig:
    """Write what a node of a local cluster needs in its folder; returns its configuration. Raises OSError."""
    config, folder = node_config(cluster, node), Path(node.dir)
    write_config(config, folder)
    hand_out_key(cluster, folder)
    secure_node(folder.parent, cluster, node, config)
    return config


def run(config: NodeConfig, sockets: Sockets, ready: Callable[[bool], None]) -> None:
    """Serve until SIGTERM; `ready` is called once with whether the node has joined its cluster."""
    from antiphon.server.process import run_node

    run_node(config, sockets=sockets, ready=ready)


def run_from_file(
    path: Path, own: Mapping[str, Any] | None = None, *, bootstrap: bool, insecure: bool
) -> None:
    """Serve in the foreground by a `node.toml`; what is `own` goes before its settings."""
    from antiphon.server.process import run_node

    config = load_config(path, own)
    config.bootstrap = bootstrap
    config.security.insecure |= insecure
    run_node(config)
