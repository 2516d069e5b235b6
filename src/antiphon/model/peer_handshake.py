"""How two nodes that share a key prove to each other that they know it: `PeerHello`, `PeerChallenge`, `PeerProof`.

They come in this order before everything else on a connection to the nodes' port; `HelloReply` ends the handshake.
`antiphon.security.peer_key` says what the proofs are made of.
"""

from antiphon.model.body import Body


class PeerHello(Body, frozen=True, array_like=True, tag=True):
    """First frame of the node that connects. `to_node`: whom it wants; `nonce`: 32 bytes that were never used before."""

    version: int
    cluster_id: str
    node_id: int
    to_node: int
    incarnation: str
    nonce: bytes


class PeerChallenge(Body, frozen=True, array_like=True, tag=True):
    """The answer: the other side's nonce, and the proof that it knows the key."""

    nonce: bytes
    proof: bytes


class PeerProof(Body, frozen=True, array_like=True, tag=True):
    """The proof of the node that connects; answered by `HelloReply`."""

    proof: bytes
