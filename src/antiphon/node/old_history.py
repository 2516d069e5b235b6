"""Replicas of before a shard's recovery: when this node closes them, keeps them, and lets go of them.

A recovery names one replica that a shard goes on from (`coordination.shard_recovery`). Every other one has the old history.
While nobody leads the shard again such a replica is closed, and its files are kept, so that an operator may still name it.
After that it is removed; should the shard be placed here again, it begins empty.

A replica that was away, and is opened when the shard is placed here again already, is recognised by its promise, which is
below the recovery's term.
"""

from typing import TYPE_CHECKING

import structlog

from antiphon.coordination.shard_recovery import is_kept, is_of_the_past
from antiphon.model.metadata import HASH_MAX
from antiphon.model.shard_part import ShardPart, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from antiphon.log.shard_log import ShardLog
    from antiphon.model.metadata import ShardMeta
    from antiphon.node.local_view import LocalView
    from antiphon.node.raft_shards import Placement
    from antiphon.partition.partition import Partition


def may_be_needed(view: "LocalView", node_id: int, shard_id: int) -> bool:
    """May the shard still have to go on from this node's replica, though it is no member any more?"""
    found = view.shard(shard_id)
    return found is not None and is_kept(found[1], node_id)


def is_old(host: "Partition", shard: "ShardMeta", node_id: int) -> bool:
    """Is this open replica, which is placed here, one of before the recovery?"""
    if shard.recovery is None or host.log.log_end == 0:
        return False
    return is_of_the_past(shard, node_id, host.state.term)


def is_old_log(log: "ShardLog", shard: "ShardMeta", node_id: int) -> bool:
    """The same of files that are about to be opened. Tells the node's log."""
    has_entries = log.log_end > 0 or log.damaged is not None
    if not has_entries or not is_of_the_past(shard, node_id, log.hard_state.term):
        return False
    structlog.get_logger().warning("old_history_removed", shard=shard.shard_id, log_end=log.log_end)
    return True


def recovered_part(
    view: "LocalView", placements: "Mapping[int, Placement]", shard_id: int
) -> ShardPart | None:
    """What a table's shard is to hold that lost most replicas once, of a table that was split; None for any other.

    Its log may not know of a split that the metadata knows of. `placements`: what was kept of replicas that vote, which may
    lead before anybody says what the metadata is.
    """
    found = view.shard(shard_id) or placements.get(shard_id)
    if found is None or found[1].recovery is None or found[1].split is not None:
        return None
    topic, shard = found
    if topic.shards or not shard.hashes:
        return part_of(topic, shard)
    return ShardPart(shard.hashes[0], shard.hashes[1], shard.hashes[0], HASH_MAX, shard.own_start)
