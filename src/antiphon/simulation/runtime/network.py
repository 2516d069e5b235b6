"""The network between simulated machines: TCP connections that delay, stall, split, end half-way and lie half-open.

A connection has two pipes, one each way. A pipe delivers bytes in order, in pieces of drawn sizes after drawn delays.
No more than a window of them is under way or unread; what is beyond waits at the sender, who is told to pause as by a full
socket. Between two machines a direction can be cut: then nothing arrives, nobody is told, and what was sent arrives after
the cut is healed, unless one side has given up by then (`SILENCE_S`, which stands for keep-alives and TCP's time-outs).

A killed process leaves its kernel behind: the other side reads to the end and is told of it. A machine that lost its power
says nothing: the other side has a half-open connection until it writes to a machine that is up again, or gives up.
"""

import asyncio
from asyncio import transports
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.simulation.runtime.loop import VirtualLoop, current_process

if TYPE_CHECKING:
    from antiphon.simulation.runtime.process import Process

SILENCE_S: Final = 20.0  # after which a side gives up a connection that nothing gets through
RETRANSMIT_S: Final = 1.0  # between two tries of a connection attempt
CONNECT_S: Final = 75.0  # a connection attempt that nobody answers; callers give up long before
HIGH_WATER_BYTES: Final = 64 * 1024
WINDOW_BYTES: Final = (16 * 1024, 512 * 1024)
FIRST_PORT: Final = 40_000

Address = tuple[str, int]
Observer = Callable[[str, "Transport", bytes], None]


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
    """Bytes on their way from one transport to the other."""

    __slots__ = (
        "_arriving",
        "_last_s",
        "_stalled",
        "_unsent",
        "_unsent_bytes",
        "_window",
        "link",
        "network",
        "source",
        "target",
    )

    def __init__(self, network: "Network", link: Link, window: int) -> None:
        self.network = network
        self.link = link
        self.source: Transport
        self.target: Transport
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
        rng, link = self.network.rng, self.link
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
        loop = self.network.loop
        self._last_s = max(self._last_s, loop.now + self.network.rng.uniform(*link.delay_s))
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
            self.network.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._stalled = False
        self.healed()

    def healed(self) -> None:
        """The link works again: everything that was held back is on its way."""
        loop = self.network.loop
        for _ in range(
            len(self._arriving)
        ):  # in their order, and not each only after the one before has arrived
            self._last_s = max(self._last_s, loop.now + self.network.rng.uniform(*self.link.delay_s))
            loop.in_context(self._last_s - loop.now, self.target.context, self._arrive)

    def drop(self) -> None:
        """Nothing of this arrives any more."""
        self._arriving.clear()
        self._unsent.clear()
        self._unsent_bytes = 0


class Transport(transports.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: "Network",
        process: "Process",
        context: Context,
        number: int,
        local: Address,
        remote: Address,
    ) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.context = context
        self.number = number
        self.local, self.remote = local, remote
        self.protocol: asyncio.Protocol | asyncio.BufferedProtocol
        self.out: Pipe
        self.inward: Pipe
        self.other: Transport
        self.closing = False
        self.lost = False
        self.reading = True
        self._inbox: deque[bytes | None] = deque()
        self._writing_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        process.transports[self] = None

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self.closing

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self.out.unsent_bytes

    def pause_reading(self) -> None:
        """See asyncio."""
        self.reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self.reading:
            self.reading = True
            self.network.loop.in_context(0.0, self.context, self._read)

    def is_reading(self) -> bool:
        """See asyncio."""
        return self.reading and not self.closing

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self.closing or not data:
            return
        piece = bytes(data)
        self.network.observe("write", self, piece)
        self.out.write(piece)
        self.network.wrote(self)
        if not self._writing_paused and self.out.unsent_bytes > self._high:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return False

    def close(self) -> None:
        """See asyncio."""
        if not self.closing:
            self.closing = True
            self.out.finish()
            self.ended(None)

    def abort(self) -> None:
        """See asyncio."""
        if not self.closing:
            self.closing = True
            self.out.drop()
            self.out.finish()
            self.ended(None)

    def ended(self, error: Exception | None) -> None:
        """The protocol is told that this end of the connection is gone."""
        if not self.lost:
            self.lost = True
            self._inbox.clear()
            self.process.transports.pop(self, None)
            self.network.loop.in_context(0.0, self.context, self.protocol.connection_lost, error)

    # -- the world's side -------------------------------------------------------------------------------------------

    def arrived(self, data: bytes | None) -> None:
        """Bytes came out of the pipe, or its end."""
        if not self.closing:
            self._inbox.append(data)
            self._read()

    def _read(self) -> None:
        while self._inbox and self.reading and not self.closing:
            data = self._inbox.popleft()
            if data is None:
                self.closing = True
                self.out.finish()
                self.ended(None)
                return
            buffer: Any = None
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer = self.protocol.get_buffer(-1)
                if len(buffer) < len(data):  # the rest stays in the kernel until the next read
                    self._inbox.appendleft(data[len(buffer) :])
                    data = data[: len(buffer)]
            self.network.observe("read", self, data)
            self.inward.consumed(len(data))
            self._hand_over(data, buffer)

    def _hand_over(self, data: bytes, buffer: Any) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        if not data:
            raise RuntimeError("get_buffer() returned an empty buffer")  # as asyncio says it
        buffer[: len(data)] = data
        self.protocol.buffer_updated(len(data))

    def drained(self) -> None:
        """The other side has read: perhaps writing may go on."""
        if self._writing_paused and self.out.unsent_bytes <= self._low and not self.closing:
            self._writing_paused = False
            self.network.loop.in_context(0.0, self.context, self.protocol.resume_writing)

    def reset(self) -> None:
        """The connection breaks: what is under way is lost, both ends are told."""
        for end in (self, self.other):
            if not end.closing:
                end.closing = True
                end.out.drop()
                end.ended(ConnectionResetError(104, "reset"))

    def break_off(self, late_s: float) -> None:
        """This end is told that the connection broke; what it had sent arrives all the same, later by `late_s`."""
        if not self.closing:
            self.closing = True
            self.out.stall(late_s)
            self.out.finish()
            self.ended(ConnectionResetError(104, "reset"))

    def give_up(self) -> None:
        """This end has not heard anything for too long."""
        if not self.closing:
            self.closing = True
            self.out.drop()
            self.out.finish()
            self.ended(TimeoutError(110, "timed out"))

    def process_died(self, *, silently: bool) -> None:
        """The process is gone; its kernel ends the connection, or the whole machine is gone."""
        if self.closing:
            return
        self.closing = self.lost = True
        self._inbox.clear()
        if silently:
            self.out.drop()
            self.network.half_open(self.other)
        else:
            self.out.finish()

    def __repr__(self) -> str:
        return f"<connection {self.number} {self.process.name} {self.local} - {self.remote}>"


class _Socket:
    """What is asked of a listening socket."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class Server:
    """A listener; as `asyncio.Server` for who made it."""

    def __init__(
        self, network: "Network", process: "Process", factory: Callable[[], Any], address: Address
    ) -> None:
        self.process = process
        self.factory = factory
        self.context = copy_context()
        self.sockets = [_Socket(address)]
        self._network = network
        self._address = address

    def close(self) -> None:
        """Accept nobody any more."""
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
        self.sockets = []

    async def wait_closed(self) -> None:
        """See asyncio."""

    def is_serving(self) -> bool:
        """See asyncio."""
        return bool(self.sockets)


class Network:
    """All machines' connections. Machines are known by host name."""

    def __init__(
        self, loop: VirtualLoop, rng: Random, delay_s: tuple[float, float] = (0.0001, 0.0015)
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.listeners: dict[Address, Server] = {}
        self.observe: Observer = _nobody
        self.down: set[str] = set()  # machines without power
        self.delay_s = delay_s
        self.connections = 0
        self._links: dict[tuple[str, str], Link] = {}
        self._port = FIRST_PORT
        self._open: dict[Transport, None] = {}  # one end of each connection
        loop.network = self

    def link(self, source: str, target: str) -> Link:
        """The direction from one machine to another."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self.delay_s)
        return found

    # -- connections ------------------------------------------------------------------------------------------------

    def listen(self, factory: Callable[[], Any], port: int | None) -> Server:
        """Accept connections; port 0: any free one."""
        process = _caller()
        if not port:
            self._port += 1
            port = self._port
        address = (process.host, port)
        other = self.listeners.get(address)
        if other is not None and other.process.alive:
            raise OSError(98, "Address already in use")
        server = self.listeners[address] = Server(self, process, factory, address)
        return server

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        """Connect from the machine of the calling process."""
        process = _caller()
        there, back = self.link(process.host, host), self.link(host, process.host)
        await self._pass(there)
        server = self.listeners.get((host, int(port)))
        if host in self.down or there.cut:
            await asyncio.sleep(CONNECT_S)
            raise TimeoutError(110, "timed out")
        if server is None or not server.process.alive:
            await self._pass(back)
            raise ConnectionRefusedError(111, "Connection refused")
        mine = self._pair(process, server, host, int(port))
        await self._pass(back)
        if mine.is_closing():
            raise ConnectionResetError(104, "reset")
        mine.protocol = factory()
        mine.protocol.connection_made(mine)
        mine.resume_reading()
        return mine, mine.protocol

    async def _pass(self, link: Link) -> None:
        """As long as it takes for a packet to get through; a cut holds it up until it is healed or the caller gives up."""
        await asyncio.sleep(self.rng.uniform(*link.delay_s))
        while link.cut:  # noqa: ASYNC110 - nobody tells of a healed cut; a caller gives up long before this matters
            await asyncio.sleep(RETRANSMIT_S)

    def _pair(self, process: "Process", server: Server, host: str, port: int) -> Transport:
        self._port += 1
        self.connections += 1
        here, there = (process.host, self._port), (host, port)
        mine = Transport(self, process, copy_context(), self.connections, here, there)
        theirs = Transport(self, server.process, server.context, self.connections, there, here)
        mine.other, theirs.other = theirs, mine
        mine.reading = theirs.reading = False  # until their protocols are there
        for source, target in ((mine, theirs), (theirs, mine)):
            link = self.link(source.local[0], target.local[0])
            pipe = Pipe(self, link, self.rng.randint(*WINDOW_BYTES))
            pipe.source, pipe.target = source, target
            source.out = target.inward = pipe
        theirs.protocol = _Early()
        mine.protocol = _Early()
        self._open[mine] = None
        self.loop.in_context(self.rng.uniform(*self.delay_s), server.context, _accept, server, theirs)
        return mine

    def wrote(self, transport: Transport) -> None:
        """Who writes into a direction that is cut gives up some time; a machine that is up again answers with a reset."""
        other = transport.other
        if other.closing and not other.process.alive and other.local[0] not in self.down:
            link = transport.out.link
            if not link.cut:
                self.loop.in_context(self.rng.uniform(*link.delay_s), transport.context, transport.reset)
                return
        if transport.out.link.cut or other.local[0] in self.down:
            self.half_open(transport)

    def half_open(self, transport: Transport) -> None:
        """Nothing gets through to the other end: this one gives up after a while, if that is still so."""

        def look() -> None:
            link = transport.out.link
            if link.cut or not transport.other.process.alive or transport.other.local[0] in self.down:
                transport.give_up()

        self.loop.in_context(SILENCE_S, transport.context, look)

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one machine to another."""
        self.link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        """Let everything through again, what was held back first."""
        link = self.link(source, target)
        if link.cut:
            link.cut = False
            waiting, link.waiting = link.waiting, []
            for pipe in waiting:
                pipe.healed()

    def heal_all(self) -> None:
        """All links work as they did at the beginning."""
        for source, target in list(self._links):
            self._links[source, target].usual(self.delay_s)
            self.heal(source, target)

    def transports(self) -> list[Transport]:
        """One end of each open connection, oldest first."""
        for transport in [one for one in self._open if one.is_closing() and one.other.is_closing()]:
            del self._open[transport]
        return list(self._open)


class _Early(asyncio.Protocol):
    """Stands in until the owner's protocol is made."""


def _accept(server: Server, transport: Transport) -> None:
    if transport.is_closing():
        return
    transport.protocol = server.factory()
    transport.protocol.connection_made(transport)
    transport.resume_reading()


def _caller() -> "Process":
    process = current_process.get()
    if process is None:
        raise RuntimeError("only processes use the network")
    return process


def _nobody(_what: str, _transport: Transport, _data: bytes) -> None:
    """Nobody looks."""
