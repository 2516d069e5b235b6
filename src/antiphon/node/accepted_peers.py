"""Connections that other nodes made to this one: what arrives on them, and what is sent back on them (`gateway.peers`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon.model.cluster import (
    AskShareStates,
    AskTransaction,
    Command,
    DeleteBefore,
    EndOffsets,
    EndTransaction,
    Heartbeat,
    MetadataDelta,
    Register,
    ReserveProducerIds,
    SetShareSettings,
    SplitReport,
)
from antiphon.node.peer_wire import SnapshotRequest, decode_peer, with_payload
from antiphon.node.peers import takes_feeds
from antiphon.replication.messages import Append, Message
from antiphon.replication.multi_messages import ReplicaMessage

if TYPE_CHECKING:
    from antiphon.gateway.peers import Answered, PeerConnection
    from antiphon.wire.frames import Buffer, Decode

CLUSTER_REQUESTS: Final = (Register, Heartbeat, ReserveProducerIds, DeleteBefore, Command, SplitReport)
QUESTIONS: Final = (AskTransaction, EndOffsets, AskShareStates, SetShareSettings)


class PeerFrames(Protocol):
    """What the node does with what other nodes say."""

    def heard_of(self, node_id: int) -> None:
        """A node has just connected: it can be reached again."""

    def deliver(self, sender: int, message: ReplicaMessage) -> None:
        """A replica message arrived."""

    def metadata_pushed(self, delta: MetadataDelta) -> None:
        """The coordinator sent a change of the metadata."""

    def coordinator_request(self, sender: int, body: Any, answered: Callable[[Any], None]) -> None:
        """A node asks this one as the coordinator."""

    def end_transaction(self, body: EndTransaction, answered: Callable[[Any], None]) -> None:
        """A coordinator of transactions wants a marker in a shard."""

    def question(self, body: Any, answered: Callable[[Any], None]) -> None:
        """A node asks what a listener here answers."""

    def snapshot_received(
        self, sender: int, body: Any, payload: memoryview, answered: Callable[[Any], None]
    ) -> None:
        """A leader sends a part of a snapshot."""

    def peer_drained(self, node_id: int) -> None:
        """A connection to the node was congested and is no more."""


class AcceptedPeer:
    """One connection that another node made; see `gateway.peers.PeerSession`."""

    def __init__(
        self,
        peers: "AcceptedPeers",
        node_id: int,
        connection: "PeerConnection",
        begin: "Callable[[int], Answered]",
    ) -> None:
        self.node_id = node_id
        self._peers = peers
        self._connection = connection
        self._begin = begin

    def received(self, request_id: int, body: Any, payload: memoryview) -> bool:
        """See PeerSession."""
        node, sender = self._peers.node, self.node_id
        if isinstance(body, Message):
            message: Any = with_payload(body, payload) if payload else body
            node.deliver(sender, message)
        elif isinstance(body, MetadataDelta):
            node.metadata_pushed(body)
        elif isinstance(body, CLUSTER_REQUESTS):
            node.coordinator_request(sender, body, self._begin(request_id))
        elif isinstance(body, QUESTIONS):
            node.question(body, self._begin(request_id))
        elif isinstance(body, SnapshotRequest):
            node.snapshot_received(sender, body, payload, self._begin(request_id))
        elif isinstance(body, EndTransaction):
            node.end_transaction(body, self._begin(request_id))
        else:
            return False
        return True

    def drained(self) -> None:
        """See PeerSession."""
        self._peers.node.peer_drained(self.node_id)

    def gone(self) -> None:
        """See PeerSession."""
        self._peers.forget(self)

    @property
    def congested(self) -> bool:
        """Does more wait to be sent than is good?"""
        return self._connection.congested

    def send_replica_message(self, message: ReplicaMessage, frame: "list[Buffer]") -> None:
        """Send a message to the node, as its `frame`; lost when the connection is gone."""
        connection = self._connection
        if type(message) is not Append or takes_feeds(connection, self._peers.write_limit_bytes):
            connection.send(frame)

    def cut(self, on: bool) -> None:
        """See Connection.cut."""
        self._connection.cut(on)


class AcceptedPeers:
    """All of them; see `gateway.peers.Peers`. `is_cut` says which nodes must not be reached now."""

    def __init__(self, node: PeerFrames, write_limit_bytes: int, is_cut: Callable[[int], bool]) -> None:
        self.node = node
        self.decode: Decode = decode_peer.decode
        self.write_limit_bytes = write_limit_bytes
        self.newest: dict[int, AcceptedPeer] = {}  # by node: the newest connection that it made
        self._all: list[AcceptedPeer] = []
        self._is_cut = is_cut

    def accepted(
        self, node_id: int, connection: "PeerConnection", begin: "Callable[[int], Answered]"
    ) -> AcceptedPeer:
        """See Peers."""
        made = AcceptedPeer(self, node_id, connection, begin)
        self._all.append(made)
        made.cut(self._is_cut(node_id))
        self.newest[node_id] = made
        self.node.heard_of(node_id)
        return made

    def forget(self, one: AcceptedPeer) -> None:
        """A connection is gone."""
        self._all.remove(one)
        if self.newest.get(one.node_id) is one:
            del self.newest[one.node_id]

    def cut_again(self) -> None:
        """Which nodes must not be reached has changed."""
        for one in self._all:
            one.cut(self._is_cut(one.node_id))
