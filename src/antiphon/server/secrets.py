"""What only the nodes of a cluster know."""

import hashlib
import os
from typing import TYPE_CHECKING

import msgspec
import structlog

from antiphon import system
from antiphon.errors import InvalidRequestError
from antiphon.log.disk import read_whole

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.node.config import NodeConfig
    from antiphon.security.settings import Security


def settings_of(config: "NodeConfig") -> "Security":
    """What the node is told about security, with the file of tokens' keys where it is: in the node's directory.

    Raises InvalidRequestError when there is no such file.
    """
    oauth = config.security.oauth
    if not oauth.keys:
        return config.security
    file = os.path.join(config.dir, oauth.keys)
    if not os.path.exists(file):
        raise InvalidRequestError(
            f"security.oauth.keys: there is no {file}: restore it, a JWKS file with the issuer's public keys"
        )
    return msgspec.structs.replace(config.security, oauth=msgspec.structs.replace(oauth, keys=file))


def shared_secret(config: "NodeConfig", disk: "Disk") -> bytes:
    """A secret that the nodes share where they have a peer key on `disk`, and of this process's own elsewhere.

    Logins of unknown users are answered with what is derived from it, so that they look like those of other users.
    """
    security = config.security
    if not security.authentication:
        return b""
    if security.peer_key:
        try:
            key = read_whole(disk, os.path.join(config.dir, security.peer_key))
        except OSError as error:
            structlog.get_logger().warning("peer_key_not_read", file=security.peer_key, error=error.strerror)
        else:
            if key is not None:  # a node that lacks its key does not start (`PeerSecurity`)
                return hashlib.blake2b(key, person=b"unknown users").digest()
    return system.secret_bytes(32)
