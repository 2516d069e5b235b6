"""An event loop in a thread, for nodes that tests talk to with clients that block."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopInThread:
    """`call` runs something on the loop and returns its result; `stop` ends the loop and the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="nodes", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 20) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
