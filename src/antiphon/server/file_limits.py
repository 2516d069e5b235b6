"""How the file descriptors that the system grants this process are shared.

Logs, stores and other nodes come first: a node that cannot open a segment takes no writes, while a client that is turned
away asks another node. So clients' connections get what is left, each listener its own part, at most what it is configured
for.
"""

import resource
from typing import Final, NamedTuple

from antiphon.log.disk import open_files_for

STORES: Final = 512  # RocksDB's files, at most a quarter of what there is
PEERS: Final = 32  # other nodes' connections, listeners, the loop's own


class Shares(NamedTuple):
    """How many connections each listener may hold."""

    native: int
    kafka: int
    http: int


def connection_shares(descriptors: int | None = None) -> Shares:
    """The listeners' parts of `descriptors`, by default of what this process is granted now."""
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            descriptors = 1 << 31
    left = descriptors - open_files_for(descriptors) - min(STORES, descriptors // 4) - PEERS
    return Shares(max(16, left // 2), max(8, left * 3 // 8), max(4, left // 8))
