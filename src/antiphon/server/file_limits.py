"""How the file descriptors that the system grants this process are shared.

Logs, stores and other nodes come first: a node that cannot open a segment takes no writes, while a client that is turned
away asks another node. So clients' connections get what is left, each listener its own part, at most what it is configured
for.
"""

from typing import Final, NamedTuple

from antiphon import system
from antiphon.log.disk import open_files_for

STORES: Final = 512  # RocksDB's files, at most a quarter of what there is
OWN: Final = 16  # listeners, the loop's own
PEERS_MAX: Final = 256  # connections of other nodes, of which some wait to say that they are
HANDSHAKES_MAX: Final = 512  # of TLS at once, of one listener


class Shares(NamedTuple):
    """How many connections each listener may hold, those of TLS with which a handshake is under way included."""

    native: int
    kafka: int
    http: int
    oxia: int
    peers: int


class Places(NamedTuple):
    """A listener's share with TLS: connections that stand, and handshakes."""

    connections: int
    handshakes: int


def places(share: int, *, tls: bool) -> Places:
    """Divide a listener's share."""
    handshakes = min(HANDSHAKES_MAX, max(2, share // 8)) if tls else 0
    return Places(share - handshakes, handshakes)


def connection_shares(descriptors: int | None = None) -> Shares:
    """The listeners' parts of `descriptors`, by default of what this process is granted now."""
    if descriptors is None:
        descriptors = system.descriptors_max()
    peers = min(PEERS_MAX, max(8, descriptors // 32))
    left = descriptors - open_files_for(descriptors) - min(STORES, descriptors // 4)
    left -= 2 * peers + OWN  # this node connects to as many others as connect to it
    eighth = left // 8
    return Shares(max(16, left - 5 * eighth), max(8, 3 * eighth), max(4, eighth), max(4, eighth), peers)
