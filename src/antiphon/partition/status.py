"""What a replica says of itself on status pages."""

from typing import Final

from antiphon.model.requests import ReplicaStatus
from antiphon.partition.state import PartitionState

LOOKS: Final = 3  # one is not enough: a leader that was just elected has not spoken yet


def status_of(state: PartitionState) -> ReplicaStatus:
    """The status of one replica as of now."""
    log, replica, table = state.log, state.replica, state.table
    followers = tuple((one.node, one.ack_offset) for one in replica.followers()) if state.is_leader else ()
    return ReplicaStatus(
        shard_id=state.shard_id,
        role=str(replica.role),
        term=replica.term,
        log_start=state.log_start,
        high_watermark=state.high_watermark,
        log_end=log.log_end,
        size_bytes=log.size_bytes,
        followers=followers,
        state=_condition(state),
        applied=-1 if table is None else table.state.applied_offset,
        last_term=log.end.term,
    )


def _condition(state: PartitionState) -> str:
    if state.failed is not None:
        return "failed"
    damaged = state.log.damaged
    if damaged is not None:
        return "joining" if damaged.joins else "damaged"
    return "disk_full" if state.services.wal.refuses_clients else "ok"
