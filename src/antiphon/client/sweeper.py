"""Looks after the callers whose time is over: one timer for all of them, at the first deadline."""

import asyncio
import math
from collections.abc import Callable


class Sweeper:
    """Calls `sweep` with the loop's time when the first deadline has come; it returns the next one, or infinity.

    Attributes:
        at_s: when it looks next, on the loop's clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep: Callable[[float], float]) -> None:
        self.at_s = math.inf
        self._loop = loop
        self._sweep = sweep
        self._timer: asyncio.TimerHandle | None = None

    def plan(self, at_s: float) -> None:
        """Look at this time, and not at the one that was planned. Infinity: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._look) if at_s < math.inf else None
        self.at_s = at_s

    def _look(self) -> None:
        self.plan(self._sweep(self._loop.time()))
