"""Work on large requests and answers beside the event loop, one piece at a time, of each client in turn.

Such work holds Python's interpreter for its share of the time. With several threads at it the event loop would wait for all
of them whenever it has let go of the interpreter, so the other clients of the node would. For the same reason the one thread
rests now and then (`pause`), for as long as it has worked: half of the time the loop has the interpreter to itself.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from antiphon import system
from antiphon.gateway.gate import Gate

Result = TypeVar("Result")
PIECE: Final = 256  # elements between two pauses
REST_MAX_S: Final = 0.05
_here: Final = threading.local()  # `since_s`: when this thread's piece began, or went on


def pause() -> None:
    """For work that takes long to call every millisecond or so: it rests if it runs beside the event loop."""
    since_s = getattr(_here, "since_s", None)
    if since_s is None:
        return
    took_s = system.monotonic_s() - since_s
    if took_s > 0:
        time.sleep(min(took_s, REST_MAX_S))
    _here.since_s = system.monotonic_s()


def paced(count: int) -> Iterable[int]:
    """`range(count)` for elements of a request, with a pause now and then."""
    return range(count) if count <= PIECE else _with_pauses(count)


def _with_pauses(count: int) -> Iterator[int]:
    for at in range(count):
        if at and not at % PIECE:
            pause()
        yield at


def _resting(work: Callable[..., Result], *arguments: object) -> Result:
    _here.since_s = system.monotonic_s()
    try:
        return work(*arguments)
    finally:
        del _here.since_s


class OneThread:
    """Runs what it is given in a thread, each piece after the one before it: those of one client in their order."""

    def __init__(self) -> None:
        self._gate = Gate(1)

    async def run(
        self,
        work: Callable[..., Result],
        *arguments: object,
        client: object = None,
        unless: Callable[[], Result | None] = lambda: None,
    ) -> Result:
        """What `work` returns. Where whoever waits is cancelled, the next piece still waits for the end of this one.

        Args:
            work: called in the thread.
            arguments: of `work`.
            client: who has this piece in turn with the others, however many he has waiting.
            unless: asked on the event loop when it is this piece's turn: what it returns, if that is not None, is
                returned in place of what `work` would. What it raises is raised.
        """
        await self._gate.enter(client)
        try:
            if (found := unless()) is not None:
                self._gate.leave()
                return found
            working = asyncio.get_running_loop().run_in_executor(None, _resting, work, *arguments)
        except BaseException:
            self._gate.leave()
            raise
        waiting = asyncio.shield(working)
        working.add_done_callback(self._done)  # whoever waits goes on before the next one's `unless` is asked
        return await waiting

    def _done(self, working: "asyncio.Future[Result]") -> None:
        self._gate.leave()
        if not working.cancelled():
            working.exception()  # where whoever waited is gone, nobody else asks for it
