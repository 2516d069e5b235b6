"""Requests that name much: some of it in each turn of the event loop, so that other clients have theirs in between."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

PIECE: Final = 128  # elements of a request that are dealt with in one turn


class TurnBudget:
    """Of one request, however its elements are nested. `turn` returns when it is the connection's turn."""

    __slots__ = ("_left", "_turn")

    def __init__(self, turn: Callable[[], Awaitable[None]]) -> None:
        self._turn = turn
        self._left = PIECE

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Each of them, after a turn where many were before."""
        for one in items:
            if self._left <= 0:
                await self._turn()
                self._left = PIECE
            self._left -= 1
            yield one

    def costs(self, elements: int) -> None:
        """One of them is about so many more."""
        self._left -= elements


async def at_once() -> None:
    """Nobody waits for a turn."""
