"""The three nodes that a suite runs against, and single ones with other listeners."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from antiphon.client.local_folder import load_cluster
from antiphon.node.config import Member, NodeConfig, Ports
from antiphon.security.settings import Security
from antiphon.server.process import run_node
from antiphon.tools.cluster_files import save_cluster
from antiphon.tools.local_cluster import LocalCluster

NODES: Final = 3
READY_S: Final = 60.0


def start_nodes(
    where: Path, settings: dict[str, str], kafka_port: int = 0, nodes: int = NODES
) -> LocalCluster:
    """Start nodes whose `node.toml` has these settings, the first one with this Kafka port, unless it is 0.

    A value may have `{id}` in it, the node's number. They are started twice: the first start makes the files.
    """
    with LocalCluster.start(nodes, where):
        pass
    for node in range(nodes):
        file = where / f"node-{node}" / "node.toml"
        kept = [line for line in file.read_text().splitlines() if line.split(" ", 1)[0] not in settings]
        own = [f"{key} = {value.format(id=node)}" for key, value in settings.items()]
        file.write_text("\n".join([*own, *kept, ""]))
    cluster = load_cluster(where)
    assert cluster is not None
    if kafka_port:
        cluster.nodes[0].kafka = f"{cluster.host}:{kafka_port}"
        save_cluster(where, cluster)
    return LocalCluster.start(nodes, where, any_port=False)


def config_of_one(folder: Path, host: str, port: int, partitions: int, security: Security) -> NodeConfig:
    """Of a node that is a cluster by itself and listens for Kafka's clients only."""
    return NodeConfig(
        cluster_id="interop",
        node_id=0,
        nodes=[Member(0, "127.0.0.1:7400")],  # nobody dials it
        dir=folder,
        bootstrap=True,
        advertised_host=host,
        num_partitions=partitions,
        ports=Ports(native=0, kafka=port, oxia=-1, http=-1),
        security=security,
    )


@contextmanager
def single_node(config: NodeConfig) -> Iterator[None]:
    """A node in a process of its own, ready."""
    spawning = multiprocessing.get_context("spawn")
    ready = spawning.Event()
    child = spawning.Process(target=_run, args=(config, ready))
    child.start()
    try:
        assert ready.wait(READY_S), f"{config.dir} is not ready"
        yield
    finally:
        child.terminate()
        child.join()


def _run(config: NodeConfig, ready: Any) -> None:
    run_node(config, ready=lambda _joined: ready.set())
