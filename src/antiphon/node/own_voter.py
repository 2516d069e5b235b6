"""Opens and closes this node's replica of `__cluster`, as the metadata says who holds one.

A node that is told that it holds none any more closes its own, and keeps the files: a voter never forgets what it promised.
While its note says that it is no voter (`known_voters`), a start does not open them.
"""

from typing import TYPE_CHECKING, Protocol

import structlog

from antiphon.errors import AntiphonError, UnavailableError
from antiphon.model.cluster import MetadataDelta
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.replication.messages import AskTerm
from antiphon.replication.multi_messages import ReplicaMessage

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.node.context import NodeContext
    from antiphon.partition.partition import Partition


class VoterReplicas(Protocol):
    """Who opens and closes replicas."""

    broken: dict[int, AntiphonError]

    def reopen(self, shard_id: int, host: "Partition") -> None:
        """Close a replica, and open it again if it is still to be here."""

    def open_again(self, shard_id: int) -> None:
        """Open a replica that is closed."""


def is_of_the_past(log: "ShardLog", mark: int) -> bool:
    """Has this log of `__cluster` entries, and none of the history that begins in term `mark`?

    Nobody of that history ever answers one who is of the past, so its promise stays below the mark.
    """
    return log.log_end > 0 and log.hard_state.term < mark


def is_told_nothing(message: ReplicaMessage, mark: int) -> bool:
    """Is this of a replica of `__cluster` that is of the past? Only who forgot its promises may ask for terms."""
    return message.term < mark and not (isinstance(message, AskTerm) and message.floor < 0)


def history_of(node: "NodeContext") -> int:
    """What a node says of its history when it registers: see `Register`."""
    host = node.hosts.get(CLUSTER_SHARD_ID)
    if node.voters.is_past:
        return 0
    return host.state.term if host is not None and host.log.log_end else -1


def send_recovery(node: "NodeContext", node_id: int) -> None:
    """A connection stands: whoever still goes by what was before a recovery has to know."""
    view = node.view
    if view.recovery is None:
        return
    try:
        link = node.link(node_id)
    except UnavailableError:
        return
    link.send(
        MetadataDelta(
            view.cluster_id,
            view.version,
            view.version,
            view.controller,
            view.coordinator_term,
            voters=view.voters,
            recovery=view.recovery,
        )
    )


def follow_voters(node: "NodeContext", shards: VoterReplicas, *, is_registered: bool) -> None:
    """The metadata moved on: open or close this node's replica of `__cluster` as it says.

    Only what a registered process hears is certainly not older than what an earlier one did.
    """
    voters, host = node.voters, node.hosts.get(CLUSTER_SHARD_ID)
    voters.follow()
    if host is not None and is_of_the_past(host.log, voters.mark):
        voters.is_past = True
        shards.reopen(CLUSTER_SHARD_ID, host)  # which is refused
    if voters.is_past or not is_registered:
        return
    if not voters.is_held_here:
        shards.broken.pop(CLUSTER_SHARD_ID, None)
        if host is not None:
            structlog.get_logger().info("votes_no_more", voters=voters.voting)
            shards.reopen(CLUSTER_SHARD_ID, host)
    elif host is None and CLUSTER_SHARD_ID not in shards.broken and voters.is_noted:
        shards.open_again(CLUSTER_SHARD_ID)
