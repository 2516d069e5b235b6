"""Work on large requests and answers beside the event loop, one piece at a time.

Such work holds Python's interpreter for its share of the time. With several threads at it the event loop would wait for all
of them whenever it has let go of the interpreter, so the other clients of the node would.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class OneThread:
    """Runs what it is given in a thread, each piece after the one before it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        """What `work` returns. Where whoever waits is cancelled, the next piece still waits for the end of this one."""
        await self._lock.acquire()
        try:
            working = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        except BaseException:
            self._lock.release()
            raise
        working.add_done_callback(lambda _done: self._lock.release())
        return await asyncio.shield(working)
