"""Peers written in Go: server and client are built from a module in `go/`, whose go.mod and go.sum pin the versions."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.peers.servers.peer import (
    NODES,
    TABLE,
    Processes,
    UnavailableError,
    free_ports,
    listening,
    run_tool,
)

MODULES: Final = Path(__file__).parent.parent / "go"


class GoPeer:
    """What these peers have in common; a subclass starts its servers."""

    def __init__(self, name: str, title: str, module: str, package: str, settings: str) -> None:
        self.name = name
        self.title = title
        self._package = package
        self.module = module
        self.settings = f"{self.version()}; {settings}"
        self.clients: dict[str, tuple[str, ...]] = {}
        self.lacks: dict[str, str] = {}
        self.server = Path()

    def version(self) -> str:
        """The pinned version of the server's module."""
        text = (MODULES / self.name / "go.mod").read_text()
        found = re.search(rf"^(?:require)?\s+{re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise UnavailableError(f"go/{self.name}/go.mod does not name {self.module}")
        return found[1]

    def get(self, cache: Path) -> None:
        """Build the server, once per version, and the client."""
        if shutil.which("go") is None:
            raise UnavailableError("go is not installed")
        self.server = cache / f"{self.name}-{self.version()}"
        client = cache / f"{self.name}-client"
        where = MODULES / self.name
        if not self.server.exists():
            run_tool(("go", "build", "-o", f"{self.server}.part", self._package), where)
            Path(f"{self.server}.part").rename(self.server)
        run_tool(("go", "build", "-o", str(client), "."), where)
        self.clients = {TABLE: (str(client),)}

    def start(self) -> Processes:
        """Three nodes of this peer."""
        with Processes(self.name) as servers:
            self.start_in(servers)
        return servers

    def start_in(self, servers: Processes) -> None:
        """Start the servers, and wait until they listen."""
        raise UnavailableError(f"nobody has said how {self.title} starts")


def _announce(servers: Processes, scheme: str, clients: Sequence[int]) -> None:
    """Say where clients connect, and wait until all listen there."""
    servers.addresses[TABLE] = ",".join(f"{scheme}://127.0.0.1:{port}" for port in clients)
    servers.wait_until(lambda: all(listening(port) for port in clients))


class Etcd(GoPeer):
    """Three members; reads are linearizable, as etcd's client asks for them."""

    def __init__(self) -> None:
        module = "go.etcd.io/etcd/server/v3"
        super().__init__("etcd", "etcd", module, module, "one group of three members, linearizable reads")

    def start_in(self, servers: Processes) -> None:
        """The members."""
        ports = free_ports(2 * NODES)
        clients, peers = ports[:NODES], ports[NODES:]
        members = ",".join(f"n{node}=http://127.0.0.1:{port}" for node, port in enumerate(peers))
        for node in range(NODES):
            at, peer = f"http://127.0.0.1:{clients[node]}", f"http://127.0.0.1:{peers[node]}"
            servers.start(
                (
                    str(self.server), "--name", f"n{node}", "--data-dir", str(servers.dir / f"data-{node}"),
                    "--listen-client-urls", at, "--advertise-client-urls", at,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", members, "--initial-cluster-state", "new", "--log-level", "warn",
                )
            )  # fmt: skip
        _announce(servers, "http", clients)


class Nats(GoPeer):
    """Three servers with JetStream, which sync each write before they answer."""

    def __init__(self) -> None:
        module = "github.com/nats-io/nats-server/v2"
        said = "JetStream with sync_interval: always; a bucket of three replicas; reads by any replica"
        super().__init__("nats", "NATS", module, module, said)
        self.lacks = {"scan": "a bucket of NATS has no range of keys in order"}

    def start_in(self, servers: Processes) -> None:
        """The servers, each of which has routes to all."""
        ports = free_ports(2 * NODES)
        clients, routes = ports[:NODES], ports[NODES:]
        for node in range(NODES):
            file = servers.dir / f"{node}.conf"
            found = {
                "server_name": f"n{node}",
                "listen": f"127.0.0.1:{clients[node]}",
                "jetstream": {"store_dir": str(servers.dir / f"data-{node}"), "sync_interval": "always"},
                "cluster": {
                    "name": "peers",
                    "listen": f"127.0.0.1:{routes[node]}",
                    "routes": [f"nats://127.0.0.1:{port}" for port in routes],
                },
            }
            file.write_text(json.dumps(found))
            servers.start((str(self.server), "--config", str(file)))
        _announce(servers, "nats", clients)


class Oxia(GoPeer):
    """Three servers and a coordinator, four shards; the write-ahead logs are synced, which is Oxia's default."""

    def __init__(self) -> None:
        module = "github.com/oxia-db/oxia"
        said = "4 shards, replication 3, synced; the client's batches wait 5 ms (its default), 0 with one in flight"
        super().__init__("oxia", "Oxia", module, f"{module}/cmd", said)

    def start_in(self, servers: Processes) -> None:
        """The servers, then the coordinator that appoints leaders among them."""
        ports = free_ports(3 * NODES + 2)
        public, internal, metrics = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
        for node in range(NODES):
            servers.start(
                (
                    str(self.server), "server", "--log-level", "warn",
                    "--public-addr", f"127.0.0.1:{public[node]}", "--internal-addr", f"127.0.0.1:{internal[node]}",
                    "--metrics-addr", f"127.0.0.1:{metrics[node]}",
                    "--data-dir", str(servers.dir / f"db-{node}"), "--wal-dir", str(servers.dir / f"wal-{node}"),
                )
            )  # fmt: skip
        servers.wait_until(lambda: all(listening(port) for port in public))
        file = servers.dir / "cluster.yaml"
        nodes = [
            {"public": f"127.0.0.1:{public[node]}", "internal": f"127.0.0.1:{internal[node]}"}
            for node in range(NODES)
        ]
        namespace = {"name": "default", "initialShardCount": 4, "replicationFactor": NODES}
        file.write_text(json.dumps({"namespaces": [namespace], "servers": nodes}))
        servers.start(
            (
                str(self.server), "coordinator", "--log-level", "warn", "--conf", str(file),
                "--metadata", "file", "--file-clusters-status-path", str(servers.dir / "status.json"),
                "--internal-addr", f"127.0.0.1:{metrics[NODES]}", "--metrics-addr", f"127.0.0.1:{metrics[NODES + 1]}",
            )
        )  # fmt: skip
        servers.addresses[TABLE] = ",".join(f"127.0.0.1:{port}" for port in public)
        servers.wait_until(lambda: listening(metrics[NODES]))
