"""Timers for later checks: a tick costs what is due, not what exists."""

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """A heap of (due time in ms, thing). Things are never cancelled; the receiver checks whether one still matters."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, thing: T) -> None:
        """Hand `thing` back at or after `due_ms`; equal times come back in the order they were added."""
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, thing))

    def due(self, now_ms: int, at_most: int) -> list[T]:
        """Up to `at_most` things whose time has come."""
        found: list[T] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < at_most:
            found.append(heapq.heappop(self._heap)[2])
        return found
