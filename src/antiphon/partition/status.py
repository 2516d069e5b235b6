"""What a replica says of itself on status pages."""

from typing import TYPE_CHECKING, Final

from antiphon.model.requests import ReplicaStatus

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition

LOOKS: Final = 3  # one is not enough: a leader that was just elected has not spoken yet


def status_of(host: "Partition") -> ReplicaStatus:
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


def _state(host: "Partition") -> str:
    if host.failed is not None:
        return "failed"
    damaged = host.log.damaged
    if damaged is not None:
        return "joining" if damaged.joins else "damaged"
    return "disk_full" if host.services.wal.disk_full else "ok"
