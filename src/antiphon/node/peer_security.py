"""What a node needs to prove to other nodes that it is one, and to have them prove it: a shared key, certificates, or both.

Without either, a node is whoever says so on the port of clients, as in clusters that an earlier version made.
"""

import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError
from antiphon.log.disk import Disk, read_whole
from antiphon.security.peer_key import PeerKey

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig


class PeerSecurity:
    """See the module's text.

    Attributes:
        key: what nodes prove to each other that they know, or None.
        dial_context: makes the TLS context for a connection that this node makes, or is None.
        own_port: do nodes speak to each other on a port of their own?
    """

    def __init__(
        self, key: PeerKey | None, dial_context: Callable[[], ssl.SSLContext] | None, *, own_port: bool
    ) -> None:
        self.key = key
        self.dial_context = dial_context
        self.own_port = own_port

    @classmethod
    def load(cls, config: "NodeConfig", disk: Disk) -> "PeerSecurity":
        """Read what the configuration names; raises InvalidRequestError saying which file is not good."""
        security = config.security
        key = None
        if security.peer_key:
            path = os.path.join(config.dir, security.peer_key)
            try:
                secret = read_whole(disk, path)
            except OSError as error:
                raise InvalidRequestError(
                    f"security.peer_key: cannot read {path}: {error.strerror}; give the node's user the right to read it"
                ) from None
            if secret is None:
                raise InvalidRequestError(
                    f"security.peer_key: there is no {path}: copy it from another node of the cluster"
                )
            try:
                key = PeerKey(secret)
            except InvalidRequestError as error:
                raise InvalidRequestError(f"{error.message}, or restore {path} from another node") from None
        dial_context = None
        if security.peer_tls.on:
            from antiphon.security.tls import PeerDialTls

            dial_context = PeerDialTls(security.peer_tls, config.dir).current
        return cls(key, dial_context, own_port=security.proves_nodes)


UNSECURED: Final = PeerSecurity(None, None, own_port=False)
