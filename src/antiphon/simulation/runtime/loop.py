"""An asyncio event loop in virtual time, on which many simulated processes run.

Theory of operation. A heap holds what is due later, a queue what is due now; when the queue is empty, time jumps to the next
timer. Nothing waits for real time, and nothing but the seed decides an order. Each handle runs in the `contextvars` context
in which it was made, and the context says which process it belongs to. So the loop knows whose code it is about to run: a
dead process's handles are dropped, a paused one's are put aside until it goes on, and a process's clock may be fast or slow
(`time`, `call_at`). It also counts the steps of a process that is to end after so many of them: a timer fires only when
nothing else is due, and so never between two steps that follow each other at once.

What a real loop hands to threads (`run_in_executor`) is run here at a drawn moment, as a whole. `on_step` is called after
each handle, for checks that look at the state of all nodes.
"""

import asyncio
import gc
import heapq
import math
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from random import Random
from typing import Any, Final, Protocol

from antiphon.invariants import invariant, unreachable
from antiphon.log.simulated_disk import SimulatedCrash

EXECUTOR_S: Final = (0.0001, 0.004)  # how long work in another thread may take to come back
STEPS_PER_INSTANT_MAX: Final = 50_000  # more without time going on: something runs in a circle


class HostedProcess(Protocol):
    """What the loop asks of a process whose code it runs."""

    name: str
    host: str
    rate: float
    steps_left: int
    """After so many more steps it ends; 0: that is not planned."""
    spent_s: float
    """What its step that runs now has taken of the world's time; 0.0 where work takes none."""

    @property
    def state(self) -> Enum | None:
        """None while it simply runs."""

    @property
    def alive(self) -> bool:
        """Was it not killed?"""

    def local_s(self, world_s: float) -> float:
        """The world's time on this process's monotonic clock."""

    def world_s(self, local_s: float) -> float:
        """The other way round."""

    def put_aside(self, handle: "Handle") -> None:
        """The loop came to a handle while the process is paused."""

    def began(self, task: asyncio.Task[Any]) -> None:
        """A task of this process was made."""

    def stepped(self) -> None:
        """A step is over, and `steps_left` is not 0."""

    def worked(self) -> None:
        """A step is over, and `spent_s` is not 0."""

    def kill(self, *, silently: bool = False) -> None:
        """End it."""

    def dispose(self) -> None:
        """The run is over."""


class Connector(Protocol):
    """What the loop asks of the network, in the name of the process that calls."""

    def listen(self, factory: Callable[[], Any], port: int | None) -> Any:
        """Accept connections."""

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect to a listener."""


current_process: ContextVar[HostedProcess | None] = ContextVar("simulated_process", default=None)


class StalledError(Exception):
    """Nothing is left to happen, or time stands still: the run cannot go on."""


class Handle:
    """A callback that is due; as `asyncio.TimerHandle` for those who made it."""

    __slots__ = ("_when", "args", "callback", "context", "process")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None, when: float
    ) -> None:
        self.callback: Callable[..., Any] | None = callback  # None: it was cancelled
        self.args = args
        self._when = when
        self.context = copy_context() if context is None else context
        self.process: HostedProcess | None = self.context.get(current_process)

    def cancel(self) -> None:
        """It will not be called."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Was it cancelled?"""
        return self.callback is None

    def when(self) -> float:
        """When it is due, by the clock of the process that asked for it."""
        return self._when


set_running_loop: Callable[[Any], None] = vars(events)["_set_running_loop"]  # as every event loop calls it
# What is not here (files, signals, subprocesses) nodes and clients never ask for. To a type checker the base has no methods.
_EventLoop: Any = asyncio.AbstractEventLoop


def _with_running(loop: "VirtualLoop", work: Callable[[], Any]) -> None:
    """Coroutines that are closed may ask for the running loop, as in their lives."""
    set_running_loop(loop)
    try:
        work()
    finally:
        set_running_loop(None)


def collect_what_ended() -> None:
    """Collect what a run has left behind, with a loop on which nothing happens any more."""
    ended = VirtualLoop(Random(0))
    ended.close()
    _with_running(ended, gc.collect)


class VirtualLoop(_EventLoop):  # type: ignore[misc]
    """See the module's text."""

    def __init__(self, rng: Random) -> None:
        self.network: Connector
        self.on_step: Callable[[HostedProcess | None], None] | None = None
        self.steps = 0
        self.now = 1000.0  # seconds of the world's own clock
        self.failures: list[dict[str, Any]] = []  # what reached the exception handler
        self.thread_lag_s = 0.0  # what was done in a thread is known so much later, at most
        self._rng = rng
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = 0
        self._looked_s = 0.0
        self.processes: list[HostedProcess] = []  # all that ever ran here
        self._closed = False
        self._running = False

    # -- running --------------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run until `done()`, which is asked after each step. Raises StalledError, and what `on_step` raises."""
        invariant(not self._running, "the loop runs once at a time")
        set_running_loop(self)
        self._running = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._abandoned)
        try:
            step = self._step
            while not done():
                step()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self._running = False
            set_running_loop(None)

    def _abandoned(self, generator: AsyncGenerator[Any, None]) -> None:
        """Nobody iterates any more: it is closed in a task, as asyncio does; after the end of the run not at all."""
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    def run_until_complete(self, future: Any) -> Any:
        """See asyncio."""
        task = asyncio.ensure_future(future, loop=self)
        self.run_until(task.done)
        return task.result()

    def _step(self) -> None:
        ready = self._ready
        if not ready:
            self._advance()
        handle = ready.popleft()
        callback = handle.callback
        if callback is None:  # cancelled
            return
        process = handle.process
        if process is not None and process.state is not None:  # dead, paused, or busy
            if process.alive:
                process.put_aside(handle)
            else:
                _ended_unheard(handle.args)
            return
        self.steps += 1
        if not self.steps % STEPS_PER_INSTANT_MAX:
            self._check_that_time_goes_on()
        try:
            handle.context.run(callback, *handle.args)
        except SimulatedCrash:
            if process is None or process.alive:
                unreachable("whose disk crashes has ended")
        except Exception as error:  # noqa: BLE001 - as in asyncio: the loop goes on, the run judges it
            self.call_exception_handler({"message": "a callback failed", "exception": error})
        if process is not None and process.spent_s:
            process.worked()
        if self.on_step is not None:
            self.on_step(process)
        if process is not None and process.steps_left:
            process.stepped()

    def _check_that_time_goes_on(self) -> None:
        if self.now == self._looked_s:
            raise StalledError(
                f"{STEPS_PER_INSTANT_MAX} steps and more at {self.now}: something runs in a circle"
            )
        self._looked_s = self.now

    def _advance(self) -> None:
        timers = self._timers
        while timers:
            when, _, handle = heapq.heappop(timers)
            if handle.callback is not None:
                if when > self.now:
                    self.now = when
                self._ready.append(handle)
                return
        raise StalledError("nothing is left that could happen")

    # -- time -----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds on the clock of the process that asks."""
        process = current_process.get()
        return self.now if process is None else process.local_s(self.now + process.spent_s)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        """See asyncio."""
        handle = Handle(callback, args, context, 0.0)
        if not self._closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """See asyncio. The delay is by the clock of the process that asks."""
        process = current_process.get()
        if process is None:
            return self._at(self.now + delay, self.now + delay, callback, args, context)
        now = self.now + process.spent_s
        return self._at(now + delay / process.rate, process.local_s(now) + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """See asyncio. The time is by the clock of the process that asks."""
        process = current_process.get()
        if process is None:
            return self._at(when, when, callback, args, context)
        world_s = process.world_s(when)
        while (
            process.local_s(world_s) < when
        ):  # rounded down: who is called before the time would ask again, for ever
            world_s = math.nextafter(world_s, math.inf)
        return self._at(world_s, when, callback, args, context)

    def _at(
        self,
        world_s: float,
        local_s: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> Handle:
        handle = Handle(callback, args, context, local_s)
        if not self._closed:
            self._order += 1
            heapq.heappush(self._timers, (world_s, self._order, handle))
        return handle

    def in_context(self, delay_s: float, context: Context, callback: Callable[..., Any], *args: Any) -> None:
        """Call `callback` in a process's context after `delay_s` of the world's clock: how the world reaches a process."""
        self._at(self.now + delay_s, 0.0, callback, args, context)

    def put_back(self, handles: list[Handle]) -> None:
        """Handles of a process that goes on after a pause, in their order."""
        self._ready.extend(handles)

    # -- tasks, futures, threads ------------------------------------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: Any = None,
        context: Any = None,
    ) -> Any:
        """See asyncio. A process's tasks are kept with it: they end with the run, not when memory is collected."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = current_process.get()
        if process is not None:
            process.began(task)
        return task

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """See asyncio: the function is called at a drawn moment, also where nobody waits for it any more."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to who waits
                error = problem
            if self.thread_lag_s:
                lag_s = self._rng.uniform(0.0, self.thread_lag_s)
                self.in_context(lag_s, copy_context(), deliver, result, error)
            else:
                deliver(result, error)

        def deliver(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.in_context(self._rng.uniform(*EXECUTOR_S), copy_context(), work)
        return future

    # -- network --------------------------------------------------------------------------------------------------

    async def create_server(
        self, protocol_factory: Any, _host: Any = None, port: Any = None, **_options: Any
    ) -> Any:
        """See asyncio."""
        return self.network.listen(protocol_factory, port)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_options: Any
    ) -> Any:
        """See asyncio."""
        return await self.network.connect(protocol_factory, host, port)

    # -- the rest of an event loop ----------------------------------------------------------------------------------

    def is_running(self) -> bool:
        """See asyncio."""
        return self._running

    def is_closed(self) -> bool:
        """See asyncio."""
        return self._closed

    def close(self) -> None:
        """Drop everything that was to happen, and what waits for it."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        _with_running(self, self._end_processes)

    def _end_processes(self) -> None:
        with warnings.catch_warnings():
            # A process that ended between two steps may have made what was to be awaited in the next one.
            warnings.simplefilter("ignore", RuntimeWarning)
            for process in self.processes:
                process.kill(silently=True)
                process.dispose()
        self.processes.clear()

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Something went wrong where nobody waits: kept, for the run to judge."""
        if not self._closed:
            self.failures.append(context)

    default_exception_handler = call_exception_handler

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """See asyncio."""

    async def shutdown_asyncgens(self) -> None:
        """See asyncio."""

    async def shutdown_default_executor(self, _timeout: float | None = None) -> None:
        """See asyncio."""


def _ended_unheard(args: Sequence[Any]) -> None:
    """A process died between the end of a task and the callback that would have asked for its exception."""
    for task in args:
        if isinstance(task, asyncio.Future) and task.done() and not task.cancelled():
            task.exception()
