"""What only the nodes of a cluster know."""

import hashlib
import os
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig


def shared_secret(config: "NodeConfig") -> bytes:
    """A secret that the nodes share where they have a peer key, and of this process's own elsewhere.

    Logins of unknown users are answered with what is derived from it, so that they look like those of other users.
    """
    security = config.security
    if not security.authentication:
        return b""
    if security.peer_key:
        try:
            key = (config.dir / security.peer_key).read_bytes()
        except OSError as error:
            structlog.get_logger().warning("peer_key_not_read", file=security.peer_key, error=error.strerror)
        else:
            return hashlib.blake2b(key, person=b"unknown users").digest()
    return os.urandom(32)
