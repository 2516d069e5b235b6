"""Requests that may take long: one in each turn of the event loop, so that what is quick waits for one of them at most."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

OPERATIONS: Final = 1_000


class Turns:
    """Pieces of work by who wants them. Everybody has one piece in turn, however many he has waiting.

    Attributes:
        operations: of a table's write, or rows, that a piece is about.
    """

    def __init__(self) -> None:
        self.operations = OPERATIONS
        self._waiting: dict[object, deque[Callable[[], None]]] = {}
        self._running = False

    def add(self, owner: object, work: Callable[[], None]) -> None:
        """Run `work` in a coming turn of the loop. It must not raise."""
        self._waiting.setdefault(owner, deque()).append(work)
        if not self._running:
            self._running = True
            self._soon()

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        owner = next(iter(self._waiting))
        works = self._waiting.pop(owner)
        work = works.popleft()
        if works:
            self._waiting[owner] = works  # behind all others
        try:
            work()
        finally:  # a mistake in one piece is not the others' trouble
            if self._waiting:
                self._soon()
            else:
                self._running = False

    async def next(self, owner: object) -> None:
        """Return when it is the turn of `owner`."""
        turn = asyncio.get_running_loop().create_future()
        self.add(owner, lambda: None if turn.done() else turn.set_result(None))
        await turn
