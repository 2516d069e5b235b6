"""A free port that stays free while the one who listens there is gone for a while.

The kernel gives "any port" from the range that it also takes outgoing connections' ports from. A node that ends and
comes back must have the port that its clients know, and a passing connection may have it by then. So ports are drawn
below that range.

Another program that draws a port at such a moment may get it as well. Programs that run at the same time, as the processes
of a test run do, draw each from a share of its own: `ANTIPHON_PORT_SHARE=2/4` is the third of four.
"""

import errno
import os
import re
import socket
from pathlib import Path
from typing import Final

from antiphon import system
from antiphon.errors import InvalidRequestError

RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST: Final = 10_240
DRAWS: Final = 64
SHARE: Final = "ANTIPHON_PORT_SHARE"
_SHARE: Final = re.compile(r"(\d{1,4})/(\d{1,4})")


def bind_free(listener: socket.socket, host: str) -> None:
    """Bind to a free port of `host`: one that no outgoing connection gets, or, where none is found, the kernel's choice."""
    ports = share_of(range(LOWEST, _outgoing_from()), os.environ.get(SHARE, "0/1"))
    for _ in range(DRAWS if ports else 0):
        try:
            listener.bind((host, system.rng().choice(ports)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    listener.bind((host, 0))


def share_of(ports: range, share: str) -> range:
    """One of so many equal parts. Raises InvalidRequestError where the share is none."""
    found = _SHARE.fullmatch(share)
    number, count = (int(one) for one in found.groups()) if found else (0, 0)
    if number >= count:
        raise InvalidRequestError(f"{SHARE}={share!r} is no share: 0/4 to 3/4 are those of four programs")
    size = len(ports) // count
    return ports[number * size : (number + 1) * size]


def _outgoing_from() -> int:
    """The first port that outgoing connections get; 0 where the system does not say."""
    try:
        return int(RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
