"""Pauses of work in the background that end early when what they were reckoned from has changed."""

import asyncio


class Pauses:
    """The pauses of one kind of work, on the event loop."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Future[None], None] = {}

    async def rest(self, pause_s: float) -> None:
        """Return after so long, or when pauses are ended."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(pause_s, _end, over)
        self._open[over] = None
        try:
            await over
        finally:
            timer.cancel()
            self._open.pop(over, None)

    def end(self) -> None:
        """Whoever rests goes on now."""
        for over in self._open:
            _end(over)


def _end(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
