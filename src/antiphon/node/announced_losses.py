"""What a coordinator's node says when it let a shard go on from a replica that may lack committed records."""

from typing import TYPE_CHECKING

import structlog

from antiphon.coordination.actions import ShardRecovered, UncleanElection

if TYPE_CHECKING:
    from antiphon.node.metrics import NodeMetrics


def announce_loss(metrics: "NodeMetrics", loss: UncleanElection | ShardRecovered) -> None:
    """Log it, and count it."""
    log = structlog.get_logger()
    if isinstance(loss, UncleanElection):
        log.warning("unclean_election", shard=loss.shard_id, term=loss.term, leader=loss.leader)
        metrics.unclean_elections += 1
    else:
        log.warning("shard_recovered", shard=loss.shard_id, term=loss.term, node=loss.node, lost_from=loss.at)
        metrics.shards_recovered += 1
