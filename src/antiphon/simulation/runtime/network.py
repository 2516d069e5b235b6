"""The network between simulated machines: TCP connections that delay, stall, split, end half-way and lie half-open.

A connection has two pipes, one each way. A pipe delivers bytes in order, in pieces of drawn sizes after drawn delays.
No more than a window of them is under way or unread; what is beyond waits at the sender, who is told to pause as by a full
socket. Between two machines a direction can be cut: then nothing arrives, nobody is told, and what was sent arrives after
the cut is healed, unless one side has given up by then (`transport.SILENCE_S`, for keep-alives and time-outs of TCP).

A killed process leaves its kernel behind: the other side reads to the end and is told of it. A machine that lost its power
says nothing: the other side has a half-open connection until it writes to a machine that is up again, or gives up.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import Any, Final

from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.pipe import WINDOW_BYTES, Link, Medium, Pipe
from antiphon.simulation.runtime.process import Process, calling_process
from antiphon.simulation.runtime.transport import Address, Transport

RETRANSMIT_S: Final = 1.0  # between two tries of a connection attempt
CONNECT_S: Final = 75.0  # a connection attempt that nobody answers; callers give up long before
FIRST_PORT: Final = 40_000


class _Socket:
    """What is asked of a listening socket."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address


class Server:
    """A listener; as `asyncio.Server` for who made it."""

    def __init__(
        self, network: "Network", process: Process, factory: Callable[[], Any], address: Address
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
        self.medium = Medium(loop, rng)
        self.listeners: dict[Address, Server] = {}
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
        process = calling_process()
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
        process = calling_process()
        there, back = self.link(process.host, host), self.link(host, process.host)
        await self._pass(there)
        server = self.listeners.get((host, int(port)))
        if host in self.medium.down or there.cut:
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
        await asyncio.sleep(self.medium.rng.uniform(*link.delay_s))
        while link.cut:  # noqa: ASYNC110 - nobody tells of a healed cut; a caller gives up long before this matters
            await asyncio.sleep(RETRANSMIT_S)

    def _pair(self, process: Process, server: Server, host: str, port: int) -> Transport:
        self._port += 1
        self.connections += 1
        here, there = (process.host, self._port), (host, port)
        mine = Transport(self.medium, process, copy_context(), self.connections, here, there)
        theirs = Transport(self.medium, server.process, server.context, self.connections, there, here)
        mine.other, theirs.other = theirs, mine
        mine.shield = theirs.shield = process.shield
        theirs.accepted = True
        mine.reading = theirs.reading = False  # until their protocols are there
        for source, target in ((mine, theirs), (theirs, mine)):
            link = self.link(source.local[0], target.local[0])
            window = self.medium.rng.randint(*WINDOW_BYTES)
            source.out = target.inward = Pipe(self.medium, link, window, source, target)
        theirs.protocol = _Early()
        mine.protocol = _Early()
        self._open[mine] = None
        self.medium.loop.in_context(
            self.medium.rng.uniform(*self.delay_s), server.context, _accept, server, theirs
        )
        return mine

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
