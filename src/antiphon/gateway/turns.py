"""Work that may take long, a little in each turn of the event loop, so that what is quick never waits for all of it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from antiphon import system

SLICE_S: Final = 0.003  # of a turn


class Turns:
    """Pieces of work in the order in which they came. A piece that has more to do adds itself again, behind the others."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def add(self, work: Callable[[], None]) -> None:
        """Run `work` in this turn of the loop or a later one. It must not raise."""
        self._waiting.append(work)
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        end_s = system.monotonic_s() + SLICE_S
        waiting = self._waiting
        for _ in range(len(waiting)):
            waiting.popleft()()
            if system.monotonic_s() >= end_s:
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._run)
        else:
            self._running = False
