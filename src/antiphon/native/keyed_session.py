"""One accepted connection on the nodes' port of a cluster whose nodes share a key: first the proof, then a node's frames."""

from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.model.peer_handshake import PeerHello, PeerProof
from antiphon.native.session import NativeSession
from antiphon.security.peer_key import Acceptor
from antiphon.wire.frames import Frame, MessageDecoder

if TYPE_CHECKING:
    from antiphon.gateway.peers import Peers
    from antiphon.native.exchange import Exchange
    from antiphon.native.session import SessionOwner
    from antiphon.security.peer_key import PeerKey
    from antiphon.transport.connection import Connection

decode_handshake: Final = MessageDecoder(PeerHello | PeerProof)


class KeyedSession(NativeSession):
    """See the module's text."""

    def __init__(self, exchange: "Exchange", peers: "Peers", owner: "SessionOwner", key: "PeerKey") -> None:
        super().__init__(exchange, peers, owner)
        self._acceptor = Acceptor(key, exchange.gateway.cluster_id, exchange.gateway.node_id)

    def received(self, connection: "Connection", frame: Frame) -> None:
        """See ConnectionOwner."""
        if self.greeted:
            super().received(connection, frame)
            return
        request_id, body = decode_handshake(frame.header)
        try:
            if isinstance(body, PeerHello):
                self.exchange.reply(request_id, self._acceptor.challenge(body))
                return
            node_id = self._acceptor.check(body)
        except AntiphonError as error:
            self.exchange.fail(request_id, error)
            connection.close(error)
            return
        self.greet(request_id, node_id)
