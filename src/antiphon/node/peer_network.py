"""All connections between this node and the others: those that it made, and those that they made.

Which of the two a message travels on is the operator's choice (`dial`, see `node.peers`). Nodes that are not reached now
are remembered here; whether they are dead is for the coordinator to say.
"""

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from antiphon import tracing
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.model.requests import PROTOCOL_VERSION, Hello
from antiphon.node.accepted_peers import AcceptedPeers, PeerFrames
from antiphon.node.config import split_address
from antiphon.node.peer_security import PeerSecurity
from antiphon.node.peer_wire import FEEDS, encode_replica_message
from antiphon.node.peers import ON_ACCEPTED, PeerEvents, PeerLink
from antiphon.replication.messages import Append
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.wire.frames import Buffer, encode_message, traced_frame

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.model.metadata import NodeMeta
    from antiphon.node.config import Member, NodeConfig
    from antiphon.node.injected_faults import InjectedFaults
    from antiphon.node.known_voters import Address
    from antiphon.node.metrics import NodeMetrics
    from antiphon.node.turn import Turn


class PeerCalls(PeerEvents, PeerFrames, Protocol):
    """What the node is told of other nodes, over connections of either kind."""


class PeerNetwork:
    """See the module's text."""

    def __init__(
        self,
        config: "NodeConfig",
        incarnation: str,
        turn: "Turn",
        node: PeerCalls,
        faults: "InjectedFaults | None",
        disk: "Disk",
        metrics: "NodeMetrics",
    ) -> None:
        self.links: dict[int, PeerLink] = {}
        self.accepted = AcceptedPeers(node, config.limits.connection_write, self._is_cut)
        self.lost: set[int] = set()
        self._config = config
        self._hello = Hello(
            PROTOCOL_VERSION,
            f"antiphon-node/{config.node_id}",
            config.cluster_id,
            config.node_id,
            incarnation,
        )
        self.security = PeerSecurity.load(config, disk)
        self._turn = turn
        self._node = node
        self._own = config.node_id
        self._metrics = metrics
        self._faults = faults
        if faults is not None:
            faults.followers.append(self._follow_faults)
        self._on_accepted = ON_ACCEPTED[config.dial]
        self._encoded: tuple[ReplicaMessage | None, list[Buffer]] = (None, [])  # what was sent last

    def add_first(self, noted: Iterable["Address"]) -> None:
        """Know the nodes that the configuration names, and the voters that this node noted when it ran last.

        Either may be of before a move. The configuration is tried first, as an operator may have just written it.
        """
        known: list[Member | Address] = [*self._config.nodes, *noted]
        for member in known:
            if member.id == self._config.node_id:
                continue
            link = self.links.get(member.id)
            if link is None:
                self._add(member.id, self._place(member))
            else:
                link.may_be_at(self._place(member))

    def start(self) -> None:
        """Begin to dial."""
        for link in self.links.values():
            link.start()

    async def close(self) -> None:
        """Hang up for good."""
        for link in self.links.values():
            await link.close()

    def _add(self, node_id: int, address: str) -> PeerLink:
        limit_bytes = self._config.limits.peer_write
        link = PeerLink(node_id, address, self._hello, self._turn, self._node, limit_bytes, self.security)
        link.reconnect_max_s = self._config.timings.reconnect_max / 1000
        link.cut(self._is_cut(node_id))
        self.links[node_id] = link
        self.lost.add(node_id)
        return link

    def address_of(self, node_id: int | None) -> dict[str, str]:
        """Where a node is, for one that does not know it; nothing where this one does not either."""
        link = None if node_id is None else self.links.get(node_id)
        return {} if link is None else {"address": link.address}

    def meet(self, node_id: int, address: str) -> None:
        """A node that asked another one was told of this one, which it did not know."""
        with contextlib.suppress(InvalidRequestError):
            split_address(address)
            if node_id not in self.links and node_id != self._own:
                self._add(node_id, address).start()

    def _place(self, node: "Member | NodeMeta | Address") -> str:
        """Where a node is reached by other nodes."""
        return (self.security.own_port and node.peer) or node.native

    def follow(self, nodes: Mapping[int, "NodeMeta"]) -> list[PeerLink]:
        """Dial the nodes that the metadata names; returns the connections to nodes that are no more, to be closed."""
        for node in nodes.values():
            if node.node_id == self._config.node_id:
                continue
            link = self.links.get(node.node_id)
            if link is None:
                self._add(node.node_id, self._place(node)).start()
            else:
                link.move(self._place(node))
        initial = {member.id for member in self._config.nodes}
        gone = [known for known in self.links if known not in nodes and known not in initial]
        self.lost.update(gone)
        return [self.links.pop(node_id) for node_id in gone]

    def link(self, node_id: int) -> PeerLink:
        """The connection to a node; UnavailableError for one that is not known."""
        found = self.links.get(node_id)
        if found is None:
            raise UnavailableError(f"node {node_id} is not known to node {self._config.node_id}")
        return found

    def lost_peers(self) -> list[int]:
        """Nodes that are not reached now."""
        return sorted(self.lost)

    def heard_of(self, node_id: int) -> bool:
        """A node has just connected. True: what was said to it before this connection stood is lost."""
        link = self.links.get(node_id)
        if link is None:
            return False
        link.dial_now()
        return link.up and bool(self._on_accepted)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, to: int, message: ReplicaMessage) -> None:
        """Send a replica message to a node, this one included; lost when there is no connection."""
        self._metrics.messages_out += 1
        if to == self._own:
            self._turn.for_shard(partial(self._node.deliver, to, message))
            return
        peer = self.accepted.newest.get(to) if type(message) in self._on_accepted else self.links.get(to)
        if peer is not None:
            if message is not self._encoded[0]:  # one that goes to several followers is encoded once
                is_feed = type(message) in FEEDS
                frame = encode_replica_message(message) if is_feed else encode_message(0, message)
                if tracing.outgoing is not None:
                    frame = traced_frame(frame, tracing.outgoing)
                self._encoded = (message, frame)
            peer.send_replica_message(message, self._encoded[1])

    def is_congested(self, to: int) -> bool:
        """Does more wait to be sent to that node than is good?"""
        if Append in self._on_accepted:
            session = self.accepted.newest.get(to)
            return session is not None and session.congested
        link = self.links.get(to)
        return link is not None and link.congested

    def hold_disk(self) -> None:
        """The disk is over its budget: read no entries on the connections that were made from here."""
        if Append in self._on_accepted:  # else entries come over accepted connections only
            for link in self.links.values():
                link.hold_disk()

    def release_disk(self) -> None:
        """The disk is within its budget again."""
        for link in self.links.values():
            link.release_disk()

    # -- injected faults ----------------------------------------------------------------------------------------

    def _is_cut(self, node_id: int) -> bool:
        return self._faults is not None and node_id in self._faults.cut

    def _follow_faults(self) -> None:
        """Do as the faults say now that a test has told them anew."""
        for link in self.links.values():
            link.cut(self._is_cut(link.node_id))
        self.accepted.cut_again()
