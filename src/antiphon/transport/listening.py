"""Listening sockets: bound here or handed over, and the address at which others reach them."""

import asyncio
import socket
from collections.abc import Callable

from antiphon.errors import PortInUseError
from antiphon.security.listening import HANDSHAKES_MAX, Listening, serve
from antiphon.security.tls import ServerTls

BACKLOG = 512


async def listen(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    sock: socket.socket | None,
    name: str,
    tls: ServerTls | None = None,
    handshakes_max: int = HANDSHAKES_MAX,
) -> Listening:
    """Listen on an already bound socket, or bind `host:port`. Raises PortInUseError with the listener's name."""
    try:
        return await serve(factory, host, port, sock, BACKLOG, tls, handshakes_max)
    except OSError as error:
        raise PortInUseError(
            f"{host}:{port} ({name} listener) cannot be used: {error.strerror or error}; choose another port in node.toml",
            port=port,
        ) from None


def bound_address(server: Listening, host: str) -> str:
    """`host:port` as others reach the server: the host they are told, the port it really has."""
    port: int = server.sockets[0].getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
