"""Simulated time: a heap of things to do, in integer nanoseconds.

Things due at the same instant are carried out in an order drawn from the seed, so that no part of the protocol can lean on
the politeness of one event loop.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from antiphon.invariants import invariant

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class Scheduler:
    """Runs calls in the order of simulated time."""

    def __init__(self, random: Random) -> None:
        self.now_ns = 0
        self.steps = 0
        self._serial = 0
        self._draw = random.getrandbits
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_ns: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call(*arguments)` in `delay_ns` nanoseconds."""
        self.at(self.now_ns + delay_ns, call, *arguments)

    def at(self, time_ns: int, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call(*arguments)` at `time_ns`, which must not be past."""
        invariant(time_ns >= self.now_ns, f"{time_ns} ns is in the past of {self.now_ns} ns")
        self._serial += 1
        heapq.heappush(self._heap, (time_ns, self._draw(16), self._serial, call, arguments))

    def exactly(self, time_ns: int, call: Callable[..., None], *arguments: Any) -> None:
        """As `at`, before all else of that instant, and without a draw, so that planning it changes nothing else."""
        invariant(time_ns >= self.now_ns, f"{time_ns} ns is in the past of {self.now_ns} ns")
        self._serial += 1
        heapq.heappush(self._heap, (time_ns, -1, self._serial, call, arguments))

    def step(self) -> bool:
        """Carry out the next call; False when nothing is left."""
        if not self._heap:
            return False
        time_ns, _, _, call, arguments = heapq.heappop(self._heap)
        self.now_ns = time_ns
        self.steps += 1
        call(*arguments)
        return True

    def __len__(self) -> int:
        return len(self._heap)
