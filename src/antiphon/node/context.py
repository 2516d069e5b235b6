"""What every part of a node may use of it. Parts know this interface; only the node itself knows its parts."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.node.config import NodeConfig
    from antiphon.node.known_voters import KnownVoters
    from antiphon.node.local_view import LocalView
    from antiphon.node.metrics import NodeMetrics
    from antiphon.node.peers import PeerLink
    from antiphon.node.turn import Turn
    from antiphon.partition.partition import Partition


class NodeContext(Protocol):
    """The node, for its parts.

    Attributes:
        random: for jitter and drawn time-outs.
        hosts: the replicas on this node, by shard.
        stirred: those among them that had an event since the coordinator was told of them.
        suspects: those among them that were opened, stopped, or told of something wrong since they were well.
        disk: where all files of this node are.
        stopping: is the node on its way out? Nothing long is begun then.
    """

    node_id: int
    cluster_id: str
    config: "NodeConfig"
    loop: asyncio.AbstractEventLoop
    random: Random
    hosts: "dict[int, Partition]"
    stirred: set[int]
    suspects: set[int]
    disk: "Disk"
    stopping: bool

    @property
    def voters(self) -> "KnownVoters":
        """Who holds `__cluster`, as far as is known here."""

    @property
    def metrics(self) -> "NodeMetrics":
        """What is counted."""

    @property
    def turn(self) -> "Turn":
        """Work at the end of the event loop's turn."""

    @property
    def view(self) -> "LocalView":
        """The metadata as it is kept here."""

    def now_s(self) -> float:
        """The event loop's clock."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a rare piece of work in a task that ends with the node."""

    def link(self, node_id: int) -> "PeerLink":
        """The connection to another node; UnavailableError for one that is not known."""

    def lost_peers(self) -> list[int]:
        """Nodes that are not reached now."""

    def ask_coordinator(self, node_id: int, body: Any, answered: Callable[[Any], None]) -> None:
        """Send a request to the node that is believed to coordinate."""
