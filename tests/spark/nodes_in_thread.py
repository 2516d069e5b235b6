"""Real nodes in this process on an event loop of their own, for tests that talk to them with blocking clients."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.node.real_nodes import Nodes, eventually

T = TypeVar("T")


class LiveNodes:
    """Nodes that run while this thread does something else."""

    def __init__(self, nodes: Nodes, loop: asyncio.AbstractEventLoop) -> None:
        self.nodes = nodes
        self._loop = loop

    @property
    def servers(self) -> str:
        return ",".join(member.native for member in self.nodes.members)

    def run(self, work: Awaitable[T], timeout_s: float = 30.0) -> T:
        """Await something on the nodes' loop."""

        async def main() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result(timeout_s)

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
def live_nodes(directory: Path, count: int) -> Iterator[LiveNodes]:
    """A running cluster of `count` nodes in this process, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(40)

    async def make() -> Nodes:
        return Nodes(directory, count, {})

    nodes = asyncio.run_coroutine_threadsafe(make(), loop).result(10)
    try:
        wait(nodes.start_all())
        yield LiveNodes(nodes, loop)
    finally:
        wait(nodes.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
