"""A node with a Kafka listener on an event loop in a thread, for clients that block or bring their own loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from antiphon.model.metadata import TopicMeta
from tests.kafka.kafka_nodes import create, listener_of, real_node

T = TypeVar("T")


class Served:
    """`call` runs something on the node's loop and returns its result."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self._nodes = real_node(directory, **config)
        self._thread = threading.Thread(target=self.loop.run_forever, name="kafka listener", daemon=True)

    def start(self) -> None:
        self._thread.start()
        server = self.call(self._nodes.__aenter__)
        self.node, self.listener = server.node, listener_of(server)

    @property
    def address(self) -> str:
        return self.listener.address

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(20)

    def do(self, work: Callable[[], T]) -> T:
        async def wrapped() -> T:
            return work()

        return self.call(wrapped)

    def create(self, name: str, shards: int = 1, **fields: Any) -> TopicMeta:
        """Make a topic, or a table, or what belongs to the cluster."""
        return self.call(lambda: create(self.node, name, shards, **fields))

    def stop(self) -> None:
        self.call(lambda: self._nodes.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextmanager
def serve(directory: Path, **config: Any) -> Iterator[Served]:
    """A running node. `config`: of its listener."""
    served = Served(directory, **config)
    served.start()
    try:
        yield served
    finally:
        served.stop()
