"""Several asynchronous generators as one: whoever has something takes turns, and nobody gets far ahead."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final, Generic, TypeVar

from antiphon.client.tasks import end_tasks

P = TypeVar("P")

_END: Final = object()


class Merged(Generic[P]):
    """What the sources give, each one's pieces in their order.

    A source is asked for its next piece when its last one was taken. So one piece of each is kept at most, and a source
    that always has more goes behind all others that have something. At most `at_once` are asked at the same time.
    """

    def __init__(self, sources: Iterable[AsyncGenerator[P, None]], at_once: int) -> None:
        self._waiting = deque(sources)
        self._at_once = at_once
        self._asked: dict[AsyncGenerator[P, None], asyncio.Task[object]] = {}
        self._came: deque[AsyncGenerator[P, None]] = deque()
        self._wake = asyncio.Event()

    def add(self, source: AsyncGenerator[P, None]) -> None:
        """One more, at once."""
        self._ask(source)

    async def pieces(self) -> AsyncGenerator[P, None]:
        """All of it; ends when all sources have, and with the first error of one, after what came before that."""
        try:
            while self._fill():
                if not self._came:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                source = self._came.popleft()
                piece: Any = self._asked[source].result()
                if piece is _END:
                    del self._asked[source]
                else:
                    yield piece
                    self._ask(source)
        finally:
            await self._close()

    def _fill(self) -> bool:
        while self._waiting and len(self._asked) < self._at_once:
            self._ask(self._waiting.popleft())
        return bool(self._asked)

    def _ask(self, source: AsyncGenerator[P, None]) -> None:
        task = self._asked[source] = asyncio.create_task(_following(source))
        task.add_done_callback(lambda _: self._note(source))

    def _note(self, source: AsyncGenerator[P, None]) -> None:
        self._came.append(source)
        self._wake.set()

    async def _close(self) -> None:
        await end_tasks(*self._asked.values())
        for source in [*self._asked, *self._waiting]:  # also the one whose piece was given last
            await source.aclose()


async def _following(source: AsyncGenerator[P, None]) -> object:
    return await anext(source, _END)
