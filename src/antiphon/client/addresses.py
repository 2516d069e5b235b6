"""Addresses of nodes: as people and metadata write them, and as sockets take them."""

from collections.abc import Iterable

from antiphon.errors import InvalidRequestError

Address = tuple[str, int]
"""Host and port."""


def parse_address(text: str) -> Address:
    """`host:port` or `[v6]:port`; raises InvalidRequestError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidRequestError(f"an address is host:port, such as 127.0.0.1:7400; got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_servers(servers: str | Iterable[str]) -> list[str]:
    """Addresses from `host:port[,host:port...]` or several of those; raises InvalidRequestError."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [text.strip() for text in texts if text.strip()]
    if not found:
        raise InvalidRequestError("give at least one address, such as 127.0.0.1:7400")
    for text in found:
        parse_address(text)
    return found


def address_text(address: Address) -> str:
    """An address as people write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
