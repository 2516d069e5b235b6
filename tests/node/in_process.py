"""Whole nodes on a simulated machine each: one event loop in virtual time, a network, disks and table stores in memory.

A test of nodes, clients or listeners runs here without a port, a file or a sleep, and does the same each time it runs.
What must be on the real machine (threads, RocksDB's files, sockets, `flock`) is in `tests/node/real_nodes.py`.

The test's own code runs in a process `test` on a machine of its own. Each node runs in a process on its machine, which can
be killed; its disk outlives it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from random import Random
from typing import Any, Final, ParamSpec, Protocol

import msgspec

from antiphon import system
from antiphon.client.connection import Connection, open_connection
from antiphon.errors import AntiphonError, NotLeaderError
from antiphon.log.disk import replace_file
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Limits, Member, NodeConfig, Ports, Timings
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.records.builder import build_batch
from antiphon.security.settings import Security
from antiphon.server.server import Server
from antiphon.simulation.memory_store import MemoryEngine
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process
from antiphon.simulation.runtime.wal import SimulatedWal
from antiphon.table.store import StoreEngine

P = ParamSpec("P")

NATIVE_PORT: Final = 7400
KAFKA_PORT: Final = 9092
PEER_PORT: Final = 7500
KEY_FILE: Final = "/etc/peer.key"
DIRECTORY: Final = "/data"  # of each node, on its own disk
TEST_S: Final = 60.0  # of virtual time, for one test
SEED: Final = os.environ.get("ANTIPHON_TEST_SEED", "0")  # another one draws other delays and time-outs


class SomeNodes(Protocol):
    """Nodes that a test can ask, simulated or real ones."""

    nodes: dict[int, Node]


class Nodes:
    """The nodes of one cluster, by id; `stop`, `kill` and `start` one at will."""

    def __init__(
        self,
        count: int,
        disks: dict[int, SimulatedDisk] | None = None,
        dial: str = "each",
        *,
        secrets: dict[int, bytes] | None = None,
        **config: Any,  # as of NodeConfig
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "simulated nodes need `in_process.run`"
        self.loop = loop
        self.network = loop.network
        self.dial = dial
        self.told_limits = config.pop("limits", Limits(disk_reserve=0))
        self.racks: tuple[str, ...] = config.pop("racks", ("",) * count)
        self.told = {"ports": Ports(NATIVE_PORT, -1, -1, -1), **config}
        self.servers: dict[int, Server] = {}
        self.nodes: dict[int, Node] = {}  # of the servers
        self.processes: dict[int, Process] = {}
        self.random = Random(system.rng().getrandbits(64))
        self.members = [Member(i, f"node-{i}:{NATIVE_PORT}") for i in range(count)]
        self.disks = {i: SimulatedDisk(Random(self.random.getrandbits(64))) for i in range(count)}
        self.disks |= disks or {}
        security = self.told.setdefault("security", Security())
        if secrets is None and security.authentication and count > 1:
            secrets = dict.fromkeys(range(count), b"what only the nodes of this test know")
        if secrets is not None:  # by node: what it believes to be the key of all nodes
            self.members = [
                Member(i, f"node-{i}:{NATIVE_PORT}", f"node-{i}:{PEER_PORT}") for i in range(count)
            ]
            self.told["ports"] = msgspec.structs.replace(self.told["ports"], peer=PEER_PORT)
            self.told["security"] = msgspec.structs.replace(security, peer_key=KEY_FILE)
            for node_id, secret in secrets.items():
                self.disks[node_id].makedirs(os.path.dirname(KEY_FILE))
                replace_file(self.disks[node_id], KEY_FILE, secret)
        self.told_reads: dict[int, int] = {}  # by node: the format of `__cluster` that it says it reads
        self.slow_s: dict[
            int, float
        ] = {}  # by node: what its disk takes for a group of writes beyond the usual

    def config(self, node_id: int, *, first: bool = False) -> NodeConfig:
        """The configuration of a node; the `first` start founds the cluster."""
        return NodeConfig(
            cluster_id="test",
            node_id=node_id,
            nodes=self.members,
            dir=DIRECTORY,  # type: ignore[arg-type]  # a path on the simulated disk
            bootstrap=first,
            dial=self.dial,
            listen_host=f"node-{node_id}",
            rack=self.racks[node_id],
            timings=Timings(tick=10, election_min=100, election_max=200, checkpoint=200),
            limits=self.told_limits,
            **self.told,
        )

    async def start(self, node_id: int, *, first: bool = False) -> Node:
        """Start a node in a new process; returns when it serves."""
        process = Process(self.loop, f"node-{node_id}", f"node-{node_id}", seed=self.random.getrandbits(64))
        self.processes[node_id] = process
        await process.run(self._start(process, node_id, first))
        return self.nodes[node_id]

    async def _start(self, process: Process, node_id: int, first: bool) -> None:
        disk, draw = self.disks[node_id], process.random
        server = self.servers[node_id] = Server(
            self.config(node_id, first=first),
            disk=disk,
            stores=self.engine(disk, Random(draw.getrandbits(64))),
            make_wal=partial(SimulatedWal, rng=draw, took_s=lambda: self.slow_s.get(node_id, 0.0)),
            finishes_epochs=False,
        )
        self.nodes[node_id] = server.node
        if node_id in self.told_reads:
            meta, reads = server.node.meta, self.told_reads[node_id]
            server.node.meta = lambda: msgspec.structs.replace(meta(), reads=reads)  # type: ignore[method-assign]
        await server.start()

    def engine(self, disk: SimulatedDisk, draw: Random) -> StoreEngine:
        """What keeps the tables of a node on this disk."""
        return MemoryEngine(disk, draw)

    async def start_all(self) -> None:
        """Start all and wait until they are a cluster."""
        for member in self.members:
            await self.start(member.id, first=True)
        for node in self.nodes.values():
            assert await node.joined(20)

    async def stop(self, node_id: int) -> None:
        """Stop a node cleanly."""
        process = self.processes[node_id]
        del self.nodes[node_id]
        await process.run(self.servers.pop(node_id).stop())
        process.kill()  # there is nothing left of it

    def kill(self, node_id: int) -> None:
        """End a node's process as `kill -9` does: what it wrote is on its disk."""
        del self.nodes[node_id], self.servers[node_id]
        self.processes[node_id].kill()
        self.disks[node_id] = self.disks[node_id].kill()

    async def restart_all(self) -> None:
        """End all as `kill -9` does, and start them again; returns when they are a cluster."""
        node_ids = list(self.nodes)
        for node_id in node_ids:
            self.kill(node_id)
        for node_id in node_ids:
            await self.start(node_id)
        for node in self.nodes.values():
            assert await node.joined(20)

    async def close(self) -> None:
        """Stop all."""
        for node_id in list(self.nodes):
            await self.stop(node_id)

    def lose_directory(self, node_id: int) -> None:
        """Empty a stopped node's disk."""
        self.disks[node_id].lose(DIRECTORY)

    def shard_path(self, node_id: int, shard_id: int) -> tuple[SimulatedDisk, str]:
        """Where a node keeps a shard's log."""
        return self.disks[node_id], f"{DIRECTORY}/shards/{shard_id}"

    async def new_shard(self, name: str = "t", kind: Kind = Kind.TOPIC, **how: Any) -> int:
        """Make a topic or table; its only shard."""
        return await new_shard(self, name, kind, **how)

    async def leader(self, shard_id: int) -> Partition:
        """The replica that serves the shard."""
        return await leader_of(self, shard_id)

    async def append(self, shard_id: int, value: bytes) -> int:
        """Append one record through whoever leads; returns the offset after it."""
        return await append_to(self, shard_id, value)


async def new_shard(nodes: SomeNodes, name: str = "t", kind: Kind = Kind.TOPIC, **how: Any) -> int:
    """Make a topic or table; its only shard."""
    node = next(iter(nodes.nodes.values()))
    topic = await node.gateway.create_topic(CreateTopic(name, kind, **how))
    return topic.shards[0].shard_id


async def leader_of(nodes: SomeNodes, shard_id: int) -> Partition:
    """The replica that serves the shard."""
    found: list[Partition] = []

    def serves() -> bool:
        hosts = (node.hosts.get(shard_id) for node in nodes.nodes.values())
        found[:] = [host for host in hosts if host is not None and host.state.is_serving]
        return bool(found)

    await eventually(serves)
    return found[0]


async def append_to(nodes: SomeNodes, shard_id: int, value: bytes) -> int:
    """Append one record through whoever leads; returns the offset after it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 20
    while True:
        node_id = (await leader_of(nodes, shard_id)).services.node_id
        try:
            batch = build_batch([(None, value, [], 1)])
            return (await nodes.nodes[node_id].gateway.append(shard_id, batch)).next_offset
        except AntiphonError as error:
            again = error.retriable or isinstance(error, NotLeaderError)
            if not again or loop.time() > deadline:
                raise
            await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster_of(
    count: int, disks: dict[int, SimulatedDisk] | None = None, dial: str = "each", **config: Any
) -> AsyncIterator[Nodes]:
    """A running cluster of `count` simulated nodes."""
    nodes = Nodes(count, disks, dial, **config)
    try:
        await nodes.start_all()
        yield nodes
    finally:
        await nodes.close()


def take_for_earlier(node: Node, reads: int) -> None:
    """Make the coordinator, which runs on this node, take it for one that reads no later format of `__cluster`."""
    assert node.coordinator is not None
    assert node.coordinator.coordinator is not None
    known = node.coordinator.coordinator.model.nodes
    known[node.node_id] = msgspec.structs.replace(known[node.node_id], reads=reads)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Connection]:
    """A client's connection to a node, for single requests."""
    connection = await open_connection(address, "test", None)
    try:
        yield connection
    finally:
        await connection.close()


async def ask(address: str, body: Any, payload: bytes = b"") -> Any:
    """The reply to one request of a client; raises the error that it is refused with."""
    async with connected(address) as client:
        return (await client.request(body, [payload] if payload else ()))[0]


async def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Look again every few milliseconds until `condition` holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine: see `run`."""

    @wraps(test)
    def ran(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return ran


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine in virtual time. What fails where nobody waits for it fails the test."""
    loop = VirtualLoop(Random(f"loop {SEED}"))
    Network(loop, Random(f"network {SEED}"))
    process = Process(loop, "test", "test", seed=Random(f"test {SEED}").getrandbits(64))

    async def main() -> None:
        await asyncio.wait_for(test, TEST_S)

    task = process.run(main())
    try:
        loop.run_until(task.done)
        task.result()
        assert not loop.failures, loop.failures
    finally:
        loop.close()
