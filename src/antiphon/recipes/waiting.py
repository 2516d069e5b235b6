"""How recipes wait for what somebody else has: they look again, at growing intervals, until their time is over."""

import asyncio
from typing import Final

from antiphon import system
from antiphon.errors import TimedOutError

PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.5


class Looks:
    """Pauses between two looks, with jitter. `timeout_s` None: for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = None if timeout_s is None else self._loop.time() + timeout_s
        self._pause_s = PAUSE_S_MIN

    async def pause(self, what: str) -> None:
        """Wait before the next look. Raises TimedOutError, which says `what` was waited for, when the time is over."""
        pause_s = self._pause_s * system.rng().uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        if self._deadline is not None:
            left_s = self._deadline - self._loop.time()
            if left_s <= 0:
                raise TimedOutError(f"{what} in time")
            pause_s = min(pause_s, left_s)
        await asyncio.sleep(pause_s)
