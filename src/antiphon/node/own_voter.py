"""Opens and closes this node's replica of `__cluster`, as the metadata says who holds one.

A node that is told that it holds none any more closes its own, and keeps the files: a voter never forgets what it promised.
While its note says that it is no voter (`known_voters`), a start does not open them.
"""

from typing import TYPE_CHECKING, Protocol

import structlog

from antiphon.errors import AntiphonError
from antiphon.model.metadata import CLUSTER_SHARD_ID

if TYPE_CHECKING:
    from antiphon.node.context import NodeContext
    from antiphon.partition.partition import Partition


class VoterReplicas(Protocol):
    """Who opens and closes replicas."""

    broken: dict[int, AntiphonError]

    def reopen(self, shard_id: int, host: "Partition") -> None:
        """Close a replica, and open it again if it is still to be here."""
        ...

    def open_again(self, shard_id: int) -> None:
        """Open a replica that is closed."""
        ...


def follow_voters(node: "NodeContext", shards: VoterReplicas, *, is_registered: bool) -> None:
    """The metadata moved on: open or close this node's replica of `__cluster` as it says.

    Only what a registered process hears is certainly not older than what an earlier one did.
    """
    voters, host = node.voters, node.hosts.get(CLUSTER_SHARD_ID)
    voters.follow()
    if not is_registered:
        return
    if not voters.is_held_here:
        shards.broken.pop(CLUSTER_SHARD_ID, None)
        if host is not None:
            structlog.get_logger().info("votes_no_more", voters=voters.voting)
            shards.reopen(CLUSTER_SHARD_ID, host)
    elif host is None and CLUSTER_SHARD_ID not in shards.broken and voters.is_noted:
        shards.open_again(CLUSTER_SHARD_ID)
