"""Sockets of listeners, with TLS or without.

With TLS each connection is accepted here, and handed to its protocol after the handshake. So a handshake that fails can be
told of with the address of who began it, and how many are under way at once is bounded. Where those are silent, the oldest
of the address that has most of them makes room for who comes, so that nobody keeps all others out.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from antiphon.errors import PortInUseError
from antiphon.security.tls import HANDSHAKE_S, SHUTDOWN_S, ServerTls

BACKLOG: Final = 512  # connections that the system has and nobody has taken
HANDSHAKES_MAX: Final = 512  # at once, of a listener that is not told otherwise
SILENT_S: Final = (
    1.0  # a handshake that is as old makes room for others, who wait in the kernel's queue till then
)
ROOM_AGAIN_S: Final = 0.05
ACCEPT_AGAIN_S: Final = 0.5  # after the system had no descriptor left

Factory = Callable[[], asyncio.BaseProtocol]


class Listening(Protocol):
    """What `serve` returns: a server as asyncio has them."""

    @property
    def sockets(self) -> Sequence[Any]:
        """The sockets that listen."""

    def close(self) -> None:
        """Accept no more connections; those that there are stay."""

    async def wait_closed(self) -> None:
        """Return when it is closed."""


async def listen(
    factory: Factory,
    host: str,
    port: int,
    sock: socket.socket | None,
    name: str,
    tls: ServerTls | None = None,
    handshakes_max: int = HANDSHAKES_MAX,
    backlog: int = BACKLOG,
) -> Listening:
    """Listen on a bound socket, or on `host:port`. Raises PortInUseError with the listener's name."""
    try:
        return await serve(factory, host, port, sock, backlog, tls, handshakes_max)
    except OSError as error:
        raise PortInUseError(
            f"{host}:{port} ({name} listener) cannot be used: {error.strerror or error}; choose another port in node.toml",
            port=port,
        ) from None


async def serve(
    factory: Factory,
    host: str,
    port: int,
    sock: socket.socket | None,
    backlog: int,
    tls: ServerTls | None,
    handshakes_max: int = HANDSHAKES_MAX,
) -> Listening:
    """Listen on a bound socket, or on `host:port`; raises OSError. With `tls` every connection begins with a handshake."""
    loop = asyncio.get_running_loop()
    if sock is not None:
        sock.setblocking(False)
    if tls is not None:
        sockets = await _bound(host, port, backlog) if sock is None else [sock]
        return TlsServer(factory, sockets, tls, handshakes_max)
    if sock is not None:
        return await loop.create_server(factory, sock=sock, backlog=backlog)
    return await loop.create_server(factory, host, port, backlog=backlog, reuse_address=True)


async def _bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(places):
            made = socket.socket(family, kind, protocol)
            found.append(made)
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
            made.listen(backlog)
    except BaseException:
        for made in found:
            made.close()
        raise
    return found


class TlsServer:
    """See the module's text. Serves from its making to `close()`, on the running loop."""

    def __init__(
        self, factory: Factory, sockets: Sequence[socket.socket], tls: ServerTls, handshakes_max: int
    ) -> None:
        self.sockets = tuple(sockets)
        self._factory = factory
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._handshakes_max = handshakes_max or HANDSHAKES_MAX
        for sock in self.sockets:
            sock.listen()
        self._accepting = [self._loop.create_task(self._accept(sock)) for sock in self.sockets]
        self._greeting: dict[asyncio.Task[None], tuple[str, float]] = {}  # address, and when it came

    def close(self) -> None:
        """See Listening."""
        for task in (*self._accepting, *self._greeting):
            task.cancel()

    async def wait_closed(self) -> None:
        """See Listening."""
        await asyncio.gather(*self._accepting, *self._greeting, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        try:
            while True:
                try:
                    sock, address = await self._loop.sock_accept(listener)
                except ConnectionError:  # who came has gone again
                    continue
                except OSError:
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                    continue
                task = self._loop.create_task(self._greet(sock, address))
                self._greeting[task] = str(address[0]), self._loop.time()
                task.add_done_callback(self._greeting.pop)
                while len(self._greeting) >= self._handshakes_max:
                    self._make_room()
                    await asyncio.sleep(ROOM_AGAIN_S)
        finally:
            listener.close()

    def _make_room(self) -> None:
        """End the oldest handshake of who has most of those that take long, if there is any."""
        before_s = self._loop.time() - SILENT_S
        silent = [(task, host) for task, (host, since_s) in self._greeting.items() if since_s <= before_s]
        if silent:
            ((busiest, _),) = Counter(host for _, host in silent).most_common(1)
            next(task for task, host in silent if host == busiest).cancel()

    async def _greet(self, sock: socket.socket, address: Any) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                sock,
                ssl=self._tls.current(),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, EOFError) as error:
            self._tls.failed(f"{address[0]}:{address[1]}", error)
        else:
            self._tls.succeeded()
