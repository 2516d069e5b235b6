"""Listening sockets: bound here or handed over, and the address at which others reach them."""

import asyncio
import socket
from collections.abc import Callable

from antiphon.errors import PortInUseError


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, sock: socket.socket | None, name: str
) -> asyncio.Server:
    """Listen on an already bound socket, or bind `host:port`. Raises PortInUseError with the listener's name."""
    loop = asyncio.get_running_loop()
    try:
        if sock is not None:
            sock.setblocking(False)
            return await loop.create_server(factory, sock=sock, backlog=512)
        return await loop.create_server(factory, host, port, backlog=512, reuse_address=True)
    except OSError as error:
        raise PortInUseError(
            f"{host}:{port} ({name} listener) cannot be used: {error.strerror or error}; choose another port in node.toml",
            port=port,
        ) from None


def bound_address(server: asyncio.Server, host: str) -> str:
    """`host:port` as others reach the server: the host they are told, the port it really has."""
    port: int = server.sockets[0].getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
