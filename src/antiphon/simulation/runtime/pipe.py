"""One direction of a connection between simulated machines: bytes under way on a link that may be slow or cut."""

from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Final, Protocol

from antiphon.simulation.runtime.loop import VirtualLoop

WINDOW_BYTES: Final = (16 * 1024, 512 * 1024)


class End(Protocol):
    """One end of a connection, as what lies between the ends knows it."""

    number: int
    context: Context

    def arrived(self, data: bytes | None) -> None:
        """Bytes came out of the pipe, or its end."""

    def drained(self) -> None:
        """The other side has read."""


Observer = Callable[[str, End, bytes], None]


class Medium:
    """What all connections of a world share: its time, its chance, who looks on, and which machines have no power."""

    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.down: set[str] = set()  # machines without power
        self.observe: Observer = _nobody


def _nobody(_what: str, _end: End, _data: bytes) -> None:
    """Nobody looks."""


class Link:
    """One direction between two machines."""

    __slots__ = ("cut", "delay_s", "pieces", "waiting")

    def __init__(self, delay_s: tuple[float, float]) -> None:
        self.cut = False
        self.delay_s = delay_s
        self.pieces = False  # are writes delivered in small pieces?
        self.waiting: list[Pipe] = []  # pipes that have something to deliver when the link is healed

    def usual(self, delay_s: tuple[float, float]) -> None:
        """Be as a link usually is."""
        self.delay_s, self.pieces = delay_s, False


class Pipe:
    """Bytes on their way from one end of a connection to the other."""

    __slots__ = (
        "_arriving",
        "_last_s",
        "_medium",
        "_stalled",
        "_unsent",
        "_unsent_bytes",
        "_window",
        "link",
        "source",
        "target",
    )

    def __init__(self, medium: Medium, link: Link, window: int, source: End, target: End) -> None:
        self.link = link
        self.source, self.target = source, target
        self._medium = medium
        self._window = window  # bytes that may still be sent
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._arriving: deque[bytes | None] = deque()  # None: the end
        self._last_s = 0.0
        self._stalled = False

    @property
    def unsent_bytes(self) -> int:
        """What waits at the sender."""
        return self._unsent_bytes

    def write(self, data: bytes) -> None:
        """Send, as far as the window allows."""
        if self._unsent or len(data) > self._window:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            self.pump()
        else:
            self._window -= len(data)
            self._put(data)

    def pump(self) -> None:
        """Send what fits into the window."""
        while self._unsent and self._window > 0:
            head = self._unsent.popleft()
            if len(head) > self._window:
                self._unsent.appendleft(head[self._window :])
                head = head[: self._window]
            self._window -= len(head)
            self._unsent_bytes -= len(head)
            self._put(head)

    def finish(self) -> None:
        """The end comes after everything that was written, whether it fits or not."""
        while self._unsent:
            self._put(self._unsent.popleft())
        self._unsent_bytes = 0
        self._put(None)

    def consumed(self, size: int) -> None:
        """The receiver has read: there is room for more."""
        self._window += size
        if self._unsent:
            self.pump()
            self.source.drained()

    def _put(self, data: bytes | None) -> None:
        rng, link = self._medium.rng, self.link
        if data is not None and link.pieces and len(data) > 1:
            at = rng.randrange(1, len(data))
            self._schedule(data[:at])
            self._schedule(data[at:])
        else:
            self._schedule(data)

    def _schedule(self, data: bytes | None) -> None:
        self._arriving.append(data)
        link = self.link
        if link.cut:
            if self not in link.waiting:
                link.waiting.append(self)
            return
        loop = self._medium.loop
        self._last_s = max(self._last_s, loop.now + self._medium.rng.uniform(*link.delay_s))
        loop.in_context(self._last_s - loop.now, self.target.context, self._arrive)

    def _arrive(self) -> None:
        if self.link.cut:
            if self not in self.link.waiting:
                self.link.waiting.append(self)
            return
        if self._arriving and not self._stalled:
            self.target.arrived(self._arriving.popleft())

    def stall(self, seconds: float) -> None:
        """Nothing comes out for a while: a packet was lost, and is sent again by a kernel in no hurry."""
        if not self._stalled:
            self._stalled = True
            self._medium.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        self.healed()

    def healed(self) -> None:
        """The link works again: everything that was held back is on its way."""
        loop = self._medium.loop
        for _ in self._arriving:  # in their order, and not each only after the one before has arrived
            self._last_s = max(self._last_s, loop.now + self._medium.rng.uniform(*self.link.delay_s))
            loop.in_context(self._last_s - loop.now, self.target.context, self._arrive)

    def drop(self, *, sent_too: bool = True) -> None:
        """Nothing of this arrives any more, or only what has left the sender."""
        if sent_too:
            self._arriving.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
