"""Ports that nodes of an earlier version keep while they restart.

Versions before `antiphon.tools.free_ports` take the kernel's choice for port 0: an outgoing connection may have that port
before the node is back. So they are told their ports.
"""

import socket
from typing import Final

from antiphon.tools.free_ports import bind_free

TRIES: Final = 100
PEERS_FROM_NATIVE: Final = 100  # a node's port for other nodes is so far from its native port
HOST: Final = "127.0.0.1"


def kept_port(offsets: list[int]) -> int:
    """A port that is free, as are those so far from it; none of them is given to outgoing connections."""
    for _ in range(TRIES):
        with socket.socket() as first:
            bind_free(first, HOST)
            port: int = first.getsockname()[1]
        if all(_is_free(port + offset) for offset in offsets):
            return port
    raise AssertionError(f"no port is free together with those {offsets} from it: tried {TRIES}")


def kept_ports(names: list[str], nodes: int) -> list[str]:
    """Words of `antiphon up`: the options' names, each with the port of node 0; node i takes that port + i."""
    words: list[str] = []
    taken: set[int] = set()
    for name in names:
        bases = [0, PEERS_FROM_NATIVE] if name == "--native-port" else [0]
        offsets = [base + node for base in bases for node in range(nodes)]
        port = kept_port(offsets)
        while taken & {port + offset for offset in offsets}:
            port = kept_port(offsets)
        taken |= {port + offset for offset in offsets}
        words += [name, str(port)]
    return words


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind((HOST, port))
        except OSError:
            return False
    return True
