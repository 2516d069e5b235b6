"""Real nodes in this process on an event loop of their own, for tests that talk to them with blocking clients."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.kafka.kafka_nodes import listener_of
from tests.node.loop_in_thread import LoopInThread
from tests.node.real_nodes import Nodes, eventually

T = TypeVar("T")


class LiveNodes:
    """Nodes that run while this thread does something else."""

    def __init__(self, nodes: Nodes, loop: LoopInThread) -> None:
        self.nodes = nodes
        self._loop = loop

    @property
    def servers(self) -> str:
        return ",".join(member.native for member in self.nodes.members)

    @property
    def kafka(self) -> str:
        """Where Kafka's clients connect."""
        return ",".join(listener_of(server).address for server in self.nodes.servers.values())

    def run(self, work: Awaitable[T], timeout_s: float = 30.0) -> T:
        """Await something on the nodes' loop."""

        async def main() -> T:
            return await work

        return self._loop.call(main(), timeout_s)

    def stop(self, node_id: int) -> None:
        self.run(self.nodes.stop(node_id))

    def start(self, node_id: int) -> None:
        self.run(self.nodes.start(node_id))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait, looking from the nodes' loop."""
        self.run(eventually(condition))

    def log_starts(self, shard_id: int) -> dict[int, int]:
        """Where each replica's log begins."""

        async def look() -> dict[int, int]:
            return {
                node_id: node.hosts[shard_id].log.log_start
                for node_id, node in self.nodes.nodes.items()
                if shard_id in node.hosts
            }

        return self.run(look())

    def all_settled(self, shard_id: int) -> None:
        """Wait until every replica that is up knows that all is committed."""

        def same() -> bool:
            hosts = [node.hosts.get(shard_id) for node in self.nodes.nodes.values()]
            ends = {(host.mode.settled, host.log.log_end) for host in hosts if host is not None}
            return len(ends) == 1 and all(settled == end for settled, end in ends)

        self.until(same)


@contextmanager
def live_nodes(directory: Path, count: int, *, kafka: bool = False) -> Iterator[LiveNodes]:
    """A running cluster of `count` nodes in this process, in a thread; with `kafka` for Kafka's clients too."""
    loop = LoopInThread(asyncio.new_event_loop())

    async def make() -> Nodes:
        return Nodes(directory, count, {}, kafka=kafka)

    nodes = loop.call(make(), 10)
    try:
        loop.call(nodes.start_all(), 40)
        yield LiveNodes(nodes, loop)
    finally:
        loop.call(nodes.close(), 40)
        loop.stop()
