"""Other nodes, which connect to the same port as native clients: what the listener hands on of their connections.

The listener reads frames and answers `Hello`. A connection whose `Hello` names a node of this cluster belongs to that node
from then on. Its frames are decoded by `Peers.decode` and offered to its `PeerSession`: what only nodes say to each other
is taken there. What clients say too (a request that was passed on) goes through the gateway like a client's.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Buffer = bytes | bytearray | memoryview

Answered = Callable[[Any], None]
"""Called once with the reply's body, or with an AntiphonError."""


class PeerConnection(Protocol):
    """An accepted connection, as the node uses it to send to the node that made it."""

    @property
    def congested(self) -> bool:
        """Does more wait to be sent than the limit allows?"""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent."""

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send one frame at the end of the loop's turn; dropped when the connection is gone. Returns `congested`."""

    def cut(self, on: bool) -> None:
        """Let nothing through in either direction, or again what was held."""


class PeerSession(Protocol):
    """One connection that another node made."""

    def received(self, request_id: int, body: Any, payload: memoryview) -> bool:
        """Take a body that only nodes say; False for what clients say too, which is left to the listener."""

    def drained(self) -> None:
        """The connection was congested and is no more."""

    def gone(self) -> None:
        """The connection is closed; nothing is called afterwards."""


class Peers(Protocol):
    """The node, for connections that other nodes make to it.

    Attributes:
        decode: request id and body of a frame's header that a node sent; raises one of `wire.frames.UNREADABLE`.
    """

    decode: Callable[[Buffer], tuple[int, Any]]

    def accepted(
        self, node_id: int, connection: PeerConnection, begin: Callable[[int], Answered]
    ) -> PeerSession:
        """A node has connected and was greeted. Messages may be sent on the connection before this returns.

        `begin` is called with the id of a frame that is a request: it counts one open request of the connection and returns
        what takes the answer.
        """
