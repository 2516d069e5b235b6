"""A simulated operating-system process: a context of its own, with a clock, chance and ids from the seed.

It can be killed at any moment (its handles are never called again, its connections end), paused and resumed, and its clock
may run fast or slow and be set wrong. A process never comes back: a restarted node is a new `Process` on the same `Machine`.
"""

import uuid
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from antiphon import system
from antiphon.log.simulated_disk import SimulatedCrash
from antiphon.simulation.runtime.loop import Handle, VirtualLoop, current_process

if TYPE_CHECKING:
    import asyncio

UNWINDINGS_MAX = 20
EPOCH_NS = 1_800_000_000_000_000_000  # what the wall clock says when the world begins
PID = 4242
DESCRIPTORS = 1 << 20  # that a process may have open, where its world says nothing else
LOOK_S = (0.00005, 0.0002)  # what a process whose work takes time does between two looks at its clock
RESIDENT_BYTES = 100_000_000  # of every process: memory is not simulated


class State(Enum):
    """Of a process that does not simply run."""

    BUSY = "busy"
    PAUSED = "paused"
    DEAD = "dead"


class Shield(NamedTuple):
    """What TLS would make of the connections that a client makes: nobody else reads them, and it may show a certificate.

    There is no TLS in the simulated network: both ends are told that there is, and no handshake takes place.
    `subject`: of the certificate, as `ssl.SSLSocket.getpeercert` gives it; empty: none is shown.
    """

    subject: tuple[tuple[tuple[str, str], ...], ...] = ()


class Connection(Protocol):
    """What a process has open, as long as it lives."""

    def process_died(self, *, silently: bool, sent_arrives: bool) -> None:
        """The process is gone; its kernel ends the connection, or the whole machine is gone."""


class Process:
    """See the module's text. It is a `system.System` for the code that runs in it."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        host: str,
        seed: int,
        *,
        rate: float = 1.0,
        wall_skew_s: float = 0.0,
    ) -> None:
        self.name = name
        self.host = host
        self.random = Random(seed)
        self.rate = rate
        self.state: State | None = None
        self.steps_left = 0
        self._at_last_step: Callable[[], None] | None = None
        self.connections: dict[Connection, None] = {}
        self.loop = loop
        self.descriptors = DESCRIPTORS
        self.shield: Shield | None = None  # of the connections that it makes
        self.spent_s = 0.0  # by the step that runs now
        self._work: Random | None = None
        self.began_s = loop.now
        self._wall_skew_ns = int(wall_skew_s * 1e9)
        self._put_aside: list[Handle] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._ended_tasks: list[asyncio.Task[Any]] = []
        self.context: Context = copy_context()
        self.context.run(self._enter)
        loop.processes.append(self)

    def _enter(self) -> None:
        current_process.set(self)
        system.use(self)

    @property
    def alive(self) -> bool:
        """Was it not killed?"""
        return self.state is not State.DEAD

    # -- its clock and its chance -----------------------------------------------------------------------------------

    def local_s(self, world_s: float) -> float:
        """The world's time on this process's monotonic clock."""
        return self.began_s + (world_s - self.began_s) * self.rate

    def world_s(self, local_s: float) -> float:
        """The other way round."""
        return self.began_s + (local_s - self.began_s) / self.rate

    def wall_ns(self) -> int:
        """See `system.System`."""
        return EPOCH_NS + self._wall_skew_ns + int(self.local_s(self.loop.now) * 1e9)

    def monotonic_s(self) -> float:
        """See `system.System`. Of a process whose work takes time, some of it is over since the last look."""
        if self._work is not None:
            self.spent_s += self._work.uniform(*LOOK_S)
        return self.local_s(self.loop.now + self.spent_s)

    def elapsed_us(self) -> int:
        """See `system.System`."""
        return int(self.monotonic_s() * 1e6)

    def new_uuid(self) -> uuid.UUID:
        """See `system.System`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def secret_bytes(self, count: int) -> bytes:
        """See `system.System`."""
        return self.random.randbytes(count)

    def resident_bytes(self) -> int:
        """See `system.System`."""
        return RESIDENT_BYTES

    def cpu_s(self) -> float:
        """See `system.System`. What runs here takes no time of its own."""
        return 0.0

    def open_files(self) -> int:
        """See `system.System`."""
        return 0

    def descriptors_max(self) -> int:
        """See `system.System`."""
        return self.descriptors

    def pid(self) -> int:
        """See `system.System`. It is in files, so it has one length in all runs."""
        return PID

    # -- its life ---------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin a task in this process."""
        return self.context.run(self.loop.create_task, work)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in this process, now."""
        return self.context.run(function, *args)

    def began(self, task: "asyncio.Task[Any]") -> None:
        """Keep a task of this process until it is done, or else until the run ends."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)

    def work_takes_time(self, seed: int) -> None:
        """From now on each look at the clock finds it later, and what comes due while a step lasts waits for its end."""
        self._work = Random(seed)

    def worked(self) -> None:
        """A step is over that took `spent_s`: the next one begins when that has passed."""
        spent_s, self.spent_s = self.spent_s, 0.0
        if self.state is None:
            self.state = State.BUSY
            self.loop.call_later(spent_s, self._is_free)

    def _is_free(self) -> None:
        if self.state is State.BUSY:
            self.state = None
            handles, self._put_aside = self._put_aside, []
            self.loop.put_back(handles)

    def pause(self) -> None:
        """Stop running, as after SIGSTOP: nothing of it happens until `resume`."""
        if self.state in {None, State.BUSY}:
            self.state = State.PAUSED

    def resume(self) -> None:
        """Go on; what came due meanwhile happens at once."""
        if self.state is State.PAUSED:
            self.state = None
            handles, self._put_aside = self._put_aside, []
            self.loop.put_back(handles)

    def put_aside(self, handle: Handle) -> None:
        """The loop came to a handle while the process is paused."""
        self._put_aside.append(handle)

    def end_after(self, steps: int, end: Callable[[], None]) -> None:
        """Call `end` when so many more callbacks of this process have run, whatever is due next: it is to kill it."""
        self.steps_left, self._at_last_step = steps, end

    def goes_on(self) -> None:
        """It does not end by `end_after`."""
        self.steps_left, self._at_last_step = 0, None

    def stepped(self) -> None:
        """A callback of this process has run."""
        self.steps_left -= 1
        if not self.steps_left and self._at_last_step is not None:
            self._at_last_step()

    def kill(self, *, silently: bool = False, sent_arrives: bool = False) -> None:
        """End it. The machine's kernel closes its connections, unless the machine goes down with it (`silently`).

        What such a machine had sent is lost with it, or is on its way by then and arrives (`sent_arrives`).
        """
        if not self.alive:
            return
        self.state = State.DEAD
        self.goes_on()
        self._put_aside.clear()
        for task in self._tasks:
            setattr(task, "_log_destroy_pending", False)  # noqa: B010 - asyncio has no public name for it
        self._ended_tasks = list(self._tasks)  # kept: to collect them would run their `finally` blocks
        for connection in list(self.connections):
            connection.process_died(silently=silently, sent_arrives=sent_arrives)
        self.connections.clear()

    def dispose(self) -> None:
        """The run is over: unwind what is suspended here, now, or Python does so when it collects memory, and complains."""
        for task in [*self._tasks, *self._ended_tasks]:
            for _ in range(UNWINDINGS_MAX):  # a `finally` that awaits needs one more
                try:
                    self.context.run(task.get_coro().close)
                except RuntimeError:
                    continue
                except (Exception, SimulatedCrash):  # noqa: BLE001 - nobody waits for it any more
                    break
                break
        self._ended_tasks.clear()

    def __repr__(self) -> str:
        return f"<process {self.name} {'' if self.state is None else self.state.value}>"


def calling_process() -> Process:
    """The process whose code runs now. Raises RuntimeError where none does."""
    process = current_process.get()
    if not isinstance(process, Process):
        raise RuntimeError("this is for code that runs in a process")
    return process
