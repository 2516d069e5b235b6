"""The address at which others reach a listening socket."""

from antiphon.security.listening import Listening


def bound_address(server: Listening, host: str) -> str:
    """`host:port` as others reach the server: the host they are told, the port it really has."""
    port: int = server.sockets[0].getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
