"""A node with a Kafka listener on an event loop in a thread, for clients that block or bring their own loop."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from antiphon.model.metadata import TopicMeta
from tests.kafka.kafka_nodes import create, listener_of, real_node
from tests.node.loop_in_thread import LoopInThread

T = TypeVar("T")


class Served:
    """`call` runs something on the node's loop and returns its result."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self._nodes = real_node(directory, **config)
        self._loop = LoopInThread()

    def start(self) -> None:
        server = self.call(self._nodes.__aenter__)
        self.node, self.listener = server.node, listener_of(server)

    @property
    def address(self) -> str:
        return self.listener.address

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._loop.call(work())

    def do(self, work: Callable[[], T]) -> T:
        async def wrapped() -> T:
            return work()

        return self.call(wrapped)

    def create(self, name: str, shards: int = 1, **fields: Any) -> TopicMeta:
        """Make a topic, or a table, or what belongs to the cluster."""
        return self.call(lambda: create(self.node, name, shards, **fields))

    def stop(self) -> None:
        self.call(lambda: self._nodes.__aexit__(None, None, None))
        self._loop.stop()


@contextmanager
def serve(directory: Path, **config: Any) -> Iterator[Served]:
    """A running node. `config`: of its listener."""
    served = Served(directory, **config)
    served.start()
    try:
        yield served
    finally:
        served.stop()
