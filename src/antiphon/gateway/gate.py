"""A few at a time, and of those who wait one of each client in turn: who asks often does not keep others out."""

import asyncio
from collections import deque


class Gate:
    """See the module's text. `places`: how many may be inside."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: dict[
            object, deque[asyncio.Future[None]]
        ] = {}  # by client, in the order of their turns

    async def enter(self, client: object) -> None:
        """Return when it is inside; each is to `leave`. One that is cancelled meanwhile is not inside."""
        if self._places:
            self._places -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """It is inside no more: the next one is."""
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            while turns and turns[0].done():
                turns.popleft()  # it waits no more
            if not turns:
                continue
            turns.popleft().set_result(None)
            if turns:
                self._waiting[client] = turns  # behind all other clients
            return
        self._places += 1
