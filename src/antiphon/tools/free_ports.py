"""A free port that stays free while the one who listens there is gone for a while.

The kernel gives "any port" from the range that it also takes outgoing connections' ports from. A node that ends and
comes back must have the port that its clients know, and a passing connection may have it by then. So ports are drawn
below that range.
"""

import errno
import socket
from pathlib import Path
from typing import Final

from antiphon import system

RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST: Final = 10_240
DRAWS: Final = 64


def bind_free(listener: socket.socket, host: str) -> None:
    """Bind to a free port of `host`: one that no outgoing connection gets, or, where none is found, the kernel's choice."""
    end = _outgoing_from()
    for _ in range(DRAWS if end > LOWEST else 0):
        try:
            listener.bind((host, system.rng().randrange(LOWEST, end)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    listener.bind((host, 0))


def _outgoing_from() -> int:
    """The first port that outgoing connections get; 0 where the system does not say."""
    try:
        return int(RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
