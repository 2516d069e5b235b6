"""An event loop in a background thread, for programs that block."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon.client.aio import AsyncClient
from antiphon.client.connection import ClientClosedError
from antiphon.errors import InvalidRequestError
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

T = TypeVar("T")

JOIN_TIMEOUT_S: Final = 10.0


class LoopThread:
    """An event loop in a daemon thread, and one AsyncClient on it."""

    def __init__(
        self,
        servers: str | Iterable[str],
        timeout_s: float,
        client_id: str,
        account: Account | None = None,
        tls: "Dialing | None" = None,
    ) -> None:
        self.loop = _new_loop()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="antiphon-client", daemon=True)
        self._thread.start()

        async def make() -> AsyncClient:
            return AsyncClient(servers, timeout_s=timeout_s, client_id=client_id, account=account, tls=tls)

        try:
            self.client = self.call(make())
        except BaseException:
            self._stop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            asyncio.set_event_loop(None)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt of this thread cancels it."""
        if self._closed:
            work.close()
            raise ClientClosedError("this client is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequestError("the blocking client cannot be called from its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, chunks: AsyncIterator[Sequence[T]]) -> Generator[T, None, None]:
        """Items of asynchronous chunks, one by one. Closing the generator closes the asynchronous one."""

        async def following() -> Sequence[T] | None:
            return await anext(chunks, None)

        async def close() -> None:
            aclose = getattr(chunks, "aclose", None)
            if aclose is not None:
                await aclose()

        try:
            while (chunk := self.call(following())) is not None:
                yield from chunk
        finally:
            if not self.loop.is_closed():
                with contextlib.suppress(
                    ClientClosedError
                ):  # the client was closed first, and closed this too
                    self.call(close())

    def close(self) -> None:
        """Close the client, then the loop. Waits for the thread; a second close does nothing."""
        with self._closing:
            if self._closed:
                return
            try:
                asyncio.run_coroutine_threadsafe(self.client.close(), self.loop).result(JOIN_TIMEOUT_S)
            finally:
                self._stop()

    def _stop(self) -> None:
        self._closed = True
        asyncio.run_coroutine_threadsafe(_finish(), self.loop).result(JOIN_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_TIMEOUT_S)
        if not self._thread.is_alive():
            self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _finish() -> None:
    """Cancel what is left on the loop, such as iterators that were not used up."""
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
