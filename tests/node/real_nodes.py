"""Nodes in this process on a real event loop, with real sockets, files and threads, for the tests that are about those.

All others run in virtual time on simulated machines (`tests/node/in_process.py`), quicker and the same each time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.log.disk import Disk
from antiphon.node.config import Limits, Member, NodeConfig, Ports, Timings
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.security.settings import Security
from antiphon.server.server import Server
from tests.coroutines import run_by
from tests.node.in_process import append_to, eventually, leader_of
from tests.node.processes import bind, port_of

__all__ = ["Nodes", "cluster_of", "eventually", "run"]


class Nodes:
    """The nodes of one cluster, by id; `stop` and `start` one at will."""

    def __init__(
        self,
        directory: Path,
        count: int,
        disks: dict[int, Disk],
        dial: str = "each",
        *,
        kafka: bool = False,
        http: bool = False,
        oxia: bool = False,
        security: Security | None = None,
        racks: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.disks = disks
        self.dial = dial
        self.kafka = kafka  # is there a listener for Kafka's clients, on any free port?
        self.http = http
        self.oxia = oxia
        self.racks = racks or ("",) * count
        self.security = Security() if security is None else security
        self.servers: dict[int, Server] = {}
        self.nodes: dict[int, Node] = {}  # of the servers
        self._sockets = [bind() for _ in range(count)]
        self._ports = [port_of(listener) for listener in self._sockets]
        self._peer_sockets = [bind() for _ in range(count)] if self.security.proves_nodes else []
        self._peer_ports = [port_of(listener) for listener in self._peer_sockets] or [-1] * count
        self.members = [
            Member(i, f"127.0.0.1:{port}", f"127.0.0.1:{peer}" if peer >= 0 else "")
            for i, (port, peer) in enumerate(zip(self._ports, self._peer_ports, strict=True))
        ]

    def config(self, node_id: int, *, first: bool = False) -> NodeConfig:
        """The configuration of a node; the `first` start founds the cluster."""
        return NodeConfig(
            cluster_id="test",
            node_id=node_id,
            nodes=self.members,
            dir=self.directory / f"node-{node_id}",
            bootstrap=first,
            dial=self.dial,
            rack=self.racks[node_id],
            ports=Ports(
                self._ports[node_id],
                0 if self.kafka else -1,
                0 if self.oxia else -1,
                0 if self.http else -1,
                self._peer_ports[node_id],
            ),
            security=self.security,
            limits=Limits(disk_reserve=0),
            timings=Timings(tick=10, election_min=100, election_max=200, checkpoint=200),
        )

    async def start(self, node_id: int, *, first: bool = False) -> Node:
        """Start a node and wait until it has joined."""
        sockets = {"native": self._sockets[node_id]} if first else {}
        if first and self._peer_sockets:
            sockets["peer"] = self._peer_sockets[node_id]
        config, disk = self.config(node_id, first=first), self.disks.get(node_id)
        server = self.servers[node_id] = Server(config, sockets, disk, finishes_epochs=False)
        self.nodes[node_id] = server.node
        await server.start()
        return server.node

    async def start_all(self) -> None:
        """Start all and wait until they are a cluster."""
        for node_id in range(len(self._ports)):
            await self.start(node_id, first=True)
        for node in self.nodes.values():
            assert await node.joined(20)

    async def stop(self, node_id: int) -> None:
        """Stop a node cleanly."""
        del self.nodes[node_id]
        await self.servers.pop(node_id).stop()

    async def close(self) -> None:
        """Stop all."""
        for node_id in list(self.nodes):
            await self.stop(node_id)
        for listener in (*self._sockets, *self._peer_sockets):
            listener.close()

    async def leader(self, shard_id: int) -> Partition:
        """The replica that serves the shard."""
        return await leader_of(self, shard_id)

    async def append(self, shard_id: int, value: bytes) -> int:
        """Append one record through whoever leads; returns the offset after it."""
        return await append_to(self, shard_id, value)


@asynccontextmanager
async def cluster_of(
    directory: Path, count: int, disks: dict[int, Disk] | None = None, dial: str = "each"
) -> AsyncIterator[Nodes]:
    """A running cluster of `count` nodes in this process."""
    nodes = Nodes(directory, count, disks or {}, dial)
    try:
        await nodes.start_all()
        yield nodes
    finally:
        await nodes.close()


def run(test: Awaitable[None]) -> None:
    """Run a test's coroutine."""

    async def main() -> None:
        await asyncio.wait_for(test, 50)

    asyncio.run(main())


in_real_time = run_by(lambda test: run(test()))
"""A test that is a coroutine, on a loop of its own."""
