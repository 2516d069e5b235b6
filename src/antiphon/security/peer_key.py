"""Nodes prove to each other that they know the key that all nodes share: a challenge and response with HMAC-SHA-256.

Sans-IO. The node that connects is the dialer, the other one the acceptor. Each proves itself over everything that both have
said: who they are, in which cluster, and a fresh nonce of each side. So no proof is of use for another connection, in the
other direction, or towards another node.

    dialer                                         acceptor
      PeerHello(cluster, ids, incarnation, nonce) ->
                                                <- PeerChallenge(nonce, proof "acceptor")
      PeerProof(proof "dialer")                   ->
                                                <- HelloReply

This says who is at the other end when the connection is made. It does not encrypt: who can change bytes between the nodes
can take a connection over, and for such networks there is `peer_tls`.
"""

import hmac
from typing import Final, NamedTuple

from antiphon import system
from antiphon.errors import ForeignDirectoryError, InvalidRequestError, UnprovenNodeError
from antiphon.model.peer_handshake import PeerChallenge, PeerHello, PeerProof
from antiphon.model.requests import PROTOCOL_VERSION

KEY_BYTES_MIN: Final = 32
NONCE_BYTES: Final = 32
LABEL: Final = b"antiphon peer handshake 1"


class Terms(NamedTuple):
    """What both sides have said; a proof is over all of it."""

    cluster_id: str
    dialer: int
    acceptor: int
    incarnation: str
    dialer_nonce: bytes
    acceptor_nonce: bytes


class PeerKey:
    """The shared key. Raises InvalidRequestError for one that could be guessed."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret.strip()
        if len(self._secret) < KEY_BYTES_MIN:
            raise InvalidRequestError(
                f"security.peer_key: the file holds {len(self._secret)} bytes, a key has at least {KEY_BYTES_MIN}; "
                "make one with `openssl rand -hex 32`"
            )

    def __repr__(self) -> str:
        return "PeerKey(...)"

    def proof(self, role: bytes, terms: Terms) -> bytes:
        """That `role` knows the key and agrees to these terms."""
        made = hmac.new(self._secret, digestmod="sha256")
        parts = (
            LABEL,
            role,
            terms.cluster_id.encode(),
            b"%d" % terms.dialer,
            b"%d" % terms.acceptor,
            terms.incarnation.encode(),
            terms.dialer_nonce,
            terms.acceptor_nonce,
        )
        for part in parts:
            made.update(len(part).to_bytes(4, "big"))
            made.update(part)
        return made.digest()

    def is_proof(self, said: bytes, role: bytes, terms: Terms) -> bool:
        """Is `said` that proof? Takes the same time for any wrong one."""
        return hmac.compare_digest(said, self.proof(role, terms))


class Dialer:
    """The side that connects: `hello`, then `answer` to what came back."""

    def __init__(self, key: PeerKey, cluster_id: str, node_id: int, other: int, incarnation: str) -> None:
        self._key = key
        self.hello: Final = PeerHello(
            PROTOCOL_VERSION, cluster_id, node_id, other, incarnation, system.secret_bytes(NONCE_BYTES)
        )

    def answer(self, challenge: PeerChallenge) -> PeerProof:
        """This side's proof; raises UnprovenNodeError when the other's is wrong."""
        hello = self.hello
        terms = _terms(hello, challenge.nonce)
        if len(challenge.nonce) != NONCE_BYTES or not self._key.is_proof(challenge.proof, b"acceptor", terms):
            raise UnprovenNodeError(
                f"node {hello.to_node} did not prove that it knows the peer key: give all nodes the same security.peer_key"
            )
        return PeerProof(self._key.proof(b"dialer", terms))


class Acceptor:
    """The side that is connected to: `challenge` for a hello, then `check`."""

    def __init__(self, key: PeerKey, cluster_id: str, node_id: int) -> None:
        self._key = key
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._terms: Terms | None = None

    def challenge(self, hello: PeerHello) -> PeerChallenge:
        """The challenge for a node. Raises InvalidRequestError, ForeignDirectoryError, UnprovenNodeError."""
        if hello.version != PROTOCOL_VERSION:
            raise InvalidRequestError(
                f"protocol version {hello.version} is not spoken here, {PROTOCOL_VERSION} is: use matching versions"
            )
        if hello.cluster_id != self._cluster_id or hello.to_node != self._node_id:
            raise ForeignDirectoryError(
                f"this is node {self._node_id} of cluster {self._cluster_id}, not node {hello.to_node} of "
                f"{hello.cluster_id}"
            )
        if len(hello.nonce) != NONCE_BYTES or hello.node_id == self._node_id or self._terms is not None:
            raise UnprovenNodeError("this is not how a node begins a connection")
        nonce = system.secret_bytes(NONCE_BYTES)
        terms = self._terms = _terms(hello, nonce)
        return PeerChallenge(nonce, self._key.proof(b"acceptor", terms))

    def check(self, proof: PeerProof) -> int:
        """Id of the node that has proved itself; raises UnprovenNodeError. A proof counts once."""
        terms, self._terms = self._terms, None
        if terms is None or not self._key.is_proof(proof.proof, b"dialer", terms):
            raise UnprovenNodeError(
                "the proof of the peer key is wrong: give all nodes the same security.peer_key"
            )
        return terms.dialer


def _terms(hello: PeerHello, acceptor_nonce: bytes) -> Terms:
    return Terms(
        hello.cluster_id, hello.node_id, hello.to_node, hello.incarnation, hello.nonce, acceptor_nonce
    )
