"""What a replica says of itself on status pages."""

from typing import TYPE_CHECKING, Final

import structlog

from antiphon.model.requests import ReplicaStatus

if TYPE_CHECKING:
    from antiphon.partition.single_writer import ShardHost

LOOKS: Final = 3  # one is not enough: a leader that was just elected has not spoken yet


def look_at_leader(host: "ShardHost") -> None:
    """Say so when a leader goes on without what was acknowledged and is settled here: other replicas have lost it."""
    if host.every_replica_writes or not host.replica.leader_shows_less:
        host.leader_lacks = 0
        return
    host.leader_lacks += 1
    if host.leader_lacks == LOOKS:
        structlog.get_logger().error(
            "leader_lacks_acknowledged_entries",
            shard=host.shard_id,
            leader=host.replica.leader,
            high_watermark=host.settled,
            reason="entries that were acknowledged are here and not in the leader's log: keep this node's directory",
        )


def status_of(host: "ShardHost") -> ReplicaStatus:
    """The status of one replica as of now."""
    log, replica, table = host.log, host.replica, host.table
    followers = tuple((one.node, one.ack_offset) for one in replica.followers()) if host.is_leader else ()
    return ReplicaStatus(
        shard_id=host.shard_id,
        role=str(replica.role),
        term=replica.term,
        log_start=log.log_start,
        high_watermark=host.high_watermark,
        log_end=log.log_end,
        size_bytes=log.size_bytes,
        followers=followers,
        state=_state(host),
        applied=-1 if table is None else table.state.applied_offset,
    )


def _state(host: "ShardHost") -> str:
    if host.failed is not None:
        return "failed"
    damaged = host.log.damaged
    if damaged is not None:
        return "joining" if damaged.joins else "damaged"
    if host.leader_lacks >= LOOKS:
        return "ahead_of_leader"
    return "disk_full" if host.services.wal.disk_full else "ok"
