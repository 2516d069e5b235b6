"""An event loop in a background thread, for programs that block."""

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from antiphon import tracing
from antiphon.client.aio import AsyncClient
from antiphon.client.closing import Closes
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.tasks import end_tasks
from antiphon.errors import InvalidRequestError
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

T = TypeVar("T")

JOIN_TIMEOUT_S: Final = 10.0
INTERRUPTED_WITHIN_S: Final = 0.5


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
        self._open: weakref.WeakSet[_Source[Any]] = weakref.WeakSet()  # touched on the loop only
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
            raise ClientClosedError("this client is closed: connect() makes a new one")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequestError("the blocking client cannot be called from its own event loop")
        if tracing.tracer is not None:
            work = _in_context(work, contextvars.copy_context())
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return _outcome(future)
        except BaseException:
            future.cancel()
            raise

    def iterate(self, chunks: AsyncIterator[Sequence[T]]) -> "Stream[T]":
        """Items of asynchronous chunks, one by one."""
        return Stream(_Source(self, chunks))

    def opened(self, source: "_Source[Any]") -> None:
        """Note chunks that have to be closed before the loop ends; called on the loop."""
        self._open.add(source)

    async def _end(self) -> None:
        await asyncio.gather(*(source.end() for source in list(self._open)), return_exceptions=True)
        await self.client.close()

    def close(self) -> None:
        """Close the client, then the loop. Waits for the thread; a second close does nothing."""
        with self._closing:
            if self._closed:
                return
            try:
                asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(JOIN_TIMEOUT_S)
            finally:
                self._stop()

    def _stop(self) -> None:
        self._closed = True
        asyncio.run_coroutine_threadsafe(_finish(), self.loop).result(JOIN_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_TIMEOUT_S)
        if not self._thread.is_alive():
            self.loop.close()


async def _in_context(work: Coroutine[Any, Any, T], context: contextvars.Context) -> T:
    """Run work as a part of what the calling thread does: spans are children of what is current there."""
    return await asyncio.get_running_loop().create_task(work, context=context)


def _outcome(future: Future[T]) -> T:
    """Wait for it. An interrupt that comes right before a thread begins to wait does not wake it, so it wakes by itself."""
    while True:
        try:
            return future.result(INTERRUPTED_WITHIN_S)
        except TimeoutError:
            if future.done():  # by now, or that is the work's own error
                return future.result()


class _Source(Generic[T]):
    """Asynchronous chunks, asked for from the threads of a program."""

    def __init__(self, thread: LoopThread, chunks: AsyncIterator[Sequence[T]]) -> None:
        self._thread = thread
        self._chunks = chunks
        self._asking: asyncio.Task[Any] | None = None
        self._closed = False

    def items(self) -> Generator[T, None, None]:
        """The items; the end of the generator, by whatever, closes the chunks."""
        try:
            while not self._closed and (chunk := self._thread.call(self._following())) is not None:
                yield from chunk
        except CancelledError:
            if not self._closed:
                raise
        finally:
            self.close()

    async def _following(self) -> Sequence[T] | None:
        if self._closed:
            return None
        self._thread.opened(self)
        self._asking = asyncio.current_task()
        try:
            return await anext(self._chunks, None)
        finally:
            self._asking = None

    def close(self) -> None:
        """Close the chunks. Whoever waits for one in another thread has come to the end."""
        self._closed = True
        if not self._thread.loop.is_closed():
            with contextlib.suppress(ClientClosedError):  # the client was closed first, and closed this too
                self._thread.call(self.end())

    async def end(self) -> None:
        """The same, on the loop. A generator that is at work cannot be closed: what it works for is cancelled first."""
        self._closed = True
        await end_tasks(self._asking)
        aclose = getattr(self._chunks, "aclose", None)
        if aclose is not None:
            await aclose()


class Stream(Generator[T, None, None], Closes):
    """A blocking iterator over what comes from a cluster; also a context manager.

    It ends when it is dropped, for instance by `break`, when it is closed, from another thread too, and by an interrupt.
    """

    def __init__(self, source: _Source[T]) -> None:
        self._source = source
        self._items = source.items()

    def __iter__(self) -> Generator[T, None, None]:  # noqa: PYI058 - as its base has it
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    def send(self, value: None) -> T:
        """The next item, as of any generator."""
        return self._items.send(value)

    def throw(self, *error: Any) -> T:
        """End it by an error, as any generator."""
        return self._items.throw(*error)

    def close(self) -> None:
        """End it. A second close does nothing."""
        self._source.close()


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
    await end_tasks(*(task for task in asyncio.all_tasks() if task is not own))
    await asyncio.get_running_loop().shutdown_asyncgens()
