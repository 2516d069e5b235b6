"""A Kafka door on its own event loop in a thread, for clients that block or bring their own loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

from antiphon.kafka.door import KafkaDoor, KafkaDoorConfig
from antiphon.kafka.group_types import GroupConfig
from tests.kafka.memory_gateway import MemoryGateway

T = TypeVar("T")

FAST_GROUPS = GroupConfig(initial_delay_ms=20)


class Served:
    """A door over a memory gateway. `call` runs something on the door's loop and returns its result."""

    def __init__(self, config: KafkaDoorConfig) -> None:
        self.loop = uvloop.new_event_loop()
        self._config = config
        self._thread = threading.Thread(target=self.loop.run_forever, name="kafka door", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.call(self._open)

    async def _open(self) -> None:
        self.gateway = MemoryGateway()
        self.door = KafkaDoor(self.gateway, "127.0.0.1", 0, self._config)
        await self.door.start()
        self.gateway.advertise(1, self.door.address)

    @property
    def address(self) -> str:
        return self.door.address

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(20)

    def do(self, work: Callable[[], T]) -> T:
        async def wrapped() -> T:
            return work()

        return self.call(wrapped)

    def stop(self) -> None:
        self.call(self.door.stop)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextmanager
def serve(config: KafkaDoorConfig | None = None) -> Iterator[Served]:
    """A running door."""
    served = Served(config or KafkaDoorConfig(groups=FAST_GROUPS))
    served.start()
    try:
        yield served
    finally:
        served.stop()
