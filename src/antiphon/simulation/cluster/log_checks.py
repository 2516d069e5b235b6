"""What has to hold when a replica's log is opened, cut, or called whole again. See `watch` for the list of promises."""

import os
from typing import TYPE_CHECKING

from antiphon.errors import CorruptBatchError
from antiphon.log.segment import DATA_SUFFIX
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import HEADER_BYTES, check_batch, iter_batches, read_header
from antiphon.simulation.cluster.truth import ShardTruth
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.log.recovery import DamageReport
    from antiphon.log.simulated_disk import SimulatedDisk
    from antiphon.log.snapshot import SegmentSummary
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.machine import Machine


def is_new_voter(host: "Partition") -> bool:
    """Is this a replica of `__cluster` that says it forgot? Who is to vote cannot prove that it never did."""
    return host.shard_id == CLUSTER_SHARD_ID and host.log.damaged is not None and host.log.damaged.forgot


def may_have_been_placed(machine: "Machine", damaged: "DamageReport") -> bool:
    """Does a node on a new disk not know yet what had been placed on the old one? It takes what is new for forgotten."""
    return machine.has_new_disk and damaged.forgot


def check_opened(disk: "SimulatedDisk", path: str, host: "Partition", node_id: int) -> None:
    """What a start has read of the log, and goes on from, is whole by its checksums."""
    log = host.log
    read_from = log.recovery.snapshot_offset or 0
    for name in sorted(name for name in disk.durable_names(path) if name.endswith(DATA_SUFFIX)):
        data, at = bytes(disk.durable(os.path.join(path, name)) or b""), 0
        while at + HEADER_BYTES <= len(data):
            header = read_header(data, at)
            if not HEADER_BYTES <= header.size_bytes <= len(data) - at or header.base_offset >= log.log_end:
                break
            batch = data[at : at + header.size_bytes]
            at += header.size_bytes
            if header.base_offset < max(read_from, log.log_start):
                continue
            try:
                check_batch(header, batch)
            except CorruptBatchError as error:
                reason = error.message
            else:
                continue
            require(
                False,
                "sound-log",
                f"node {node_id} has opened a log from {read_from} to {log.log_end}, and at {header.base_offset} in {name} "
                f"{reason}",
                host.shard_id,
            )


def check_compacted(
    truth: ShardTruth, data: bytes, host: "Partition", new: "SegmentSummary", node_id: int
) -> None:
    """A segment is about to take the place of others: it is durable, and what compaction may leave of what is committed."""
    at = new.base_offset
    for header, batch in iter_batches(data):
        require(
            header.base_offset == at,
            "compaction-offsets",
            f"node {node_id} compacts its log, and a batch begins at {header.base_offset} where {at} comes next",
            host.shard_id,
        )
        check_batch(header, batch)
        if truth.compaction is not None:
            truth.compaction.check(header, bytes(batch), f"node {node_id}")
        at = header.next_offset
    require(
        (len(data), at) == (new.size_bytes, new.next_offset),
        "compaction-offsets",
        f"node {node_id} has {len(data)} bytes up to {at} on its disk of a segment that is to be {new}",
        host.shard_id,
    )


def check_cut(truth: ShardTruth, host: "Partition", to_offset: int, node_id: int) -> None:
    """A log is about to be cut: nothing goes that is committed."""
    batch = truth.at(to_offset)
    if batch is None or host.log.log_end < batch.next_offset or host.log.log_start > to_offset:
        return
    require(
        host.log.terms.term_before(batch.next_offset) != batch.term,
        "committed-kept",
        f"node {node_id} cuts its log to {to_offset}, and has the batch that is committed there "
        f"(term {batch.term}, to {batch.next_offset})",
        host.shard_id,
    )


def check_repaired(host: "Partition", held: int, node_id: int) -> None:
    """A log that had lost something is called whole again: what it held of what is committed is there, durably."""
    require(
        host.log.durable_end >= held,
        "no-false-evidence",
        f"node {node_id} takes its log up to {host.log.durable_end} for whole; before its disk was hurt it held what is "
        f"committed up to {held}",
        host.shard_id,
    )


def check_producers(truth: ShardTruth, host: "Partition", node_id: int) -> None:
    """A log was cut: no producer's last batch is known that is behind the end."""
    log_end = host.log.log_end
    for producer_id in truth.producers:
        last = host.log.producers.last_batch(producer_id)
        require(
            last is None or last.next_offset <= log_end,
            "producers-known",
            f"the log on node {node_id} was cut to {log_end}, and producer {producer_id} is known by {last}",
            host.shard_id,
        )
