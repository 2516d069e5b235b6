"""What is known to be committed, by shard, and which machines' disks hold it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from antiphon.records.batch import Buffer, read_header
from antiphon.simulation.cluster.disk_view import DurableLog, shard_path
from antiphon.simulation.cluster.truth import ShardTruth
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.machine import Machine


class Evidence:
    """See the module's text."""

    def __init__(self) -> None:
        self.truths: dict[int, ShardTruth] = {}
        self.hurt: set[int] = set()  # nodes whose disks lost what was durable: their copies prove nothing
        self._durable: dict[tuple[int, int], DurableLog] = {}

    def truth(self, shard_id: int) -> ShardTruth:
        """What is committed in a shard."""
        found = self.truths.get(shard_id)
        if found is None:
            found = self.truths[shard_id] = ShardTruth(shard_id)
        return found

    def learn_from(self, machine: "Machine", shard_id: int) -> None:
        """All that a machine's disk holds of a shard is committed."""
        log, truth = self.durable_log(machine.node_id, shard_id), self.truth(shard_id)
        while (batch := log.batch(machine.disk, truth.end)) is not None:
            truth.take(read_header(batch), batch, f"the disk of node {machine.node_id}")

    def disk_changed(self, machine: "Machine") -> None:
        """Files of this machine are others now: where batches lie in them is to be found anew."""
        self._durable = {key: log for key, log in self._durable.items() if key[0] != machine.node_id}

    def holds(self, machine: "Machine", shard_id: int, base_offset: int, data: bytes) -> bool:
        """Is this batch durable on the machine's disk?"""
        return self.durable_log(machine.node_id, shard_id).batch(machine.disk, base_offset) == data

    def holds_all(self, machine: "Machine", host: "Partition", end: int) -> bool:
        """Is on this machine's disk, byte for byte, what was committed from its log's start up to `end`?"""
        log, start = self.durable_log(machine.node_id, host.shard_id), host.log.log_start
        if self.truth(host.shard_id).compaction is not None:
            return self._holds_what_is_left(machine, host, end)
        return all(
            log.batch(machine.disk, batch.base_offset) == batch.data
            for batch in self.truth(host.shard_id).batches
            if start <= batch.base_offset and batch.next_offset <= end
        )

    def _holds_what_is_left(self, machine: "Machine", host: "Partition", end: int) -> bool:
        """The same of a compacted log: all of it that compaction may have left."""
        log, truth, at = (
            self.durable_log(machine.node_id, host.shard_id),
            self.truth(host.shard_id),
            host.log.log_start,
        )
        while at < end:
            batch = log.batch(machine.disk, at)
            if batch is None:
                return False
            header = read_header(batch)
            try:
                truth.take(header, batch, f"the disk of node {machine.node_id}")
            except ViolationError:
                return False
            at = header.next_offset
        return True

    def durable_batches(self, machine: "Machine", host: "Partition") -> Iterator[Buffer]:
        """All batches of a replica from its log's start, as they are durable on its disk."""
        at = host.log.log_start
        first = self.truth(host.shard_id).first_within(at)
        return self.batches_between(
            machine, host.shard_id, at if first is None else first, host.log.durable_end
        )

    def batches_between(self, machine: "Machine", shard_id: int, at: int, end: int) -> Iterator[Buffer]:
        """The batches from `at` to `end`, which is called durable, as they are on a machine's disk."""
        log = self.durable_log(machine.node_id, shard_id)
        while at < end:
            batch = log.batch(machine.disk, at)
            require(
                batch is not None,
                "durable-log",
                f"the disk of node {machine.node_id} has no batch at {at}, though {end} is called durable",
                shard_id,
            )
            if batch is None:
                return
            yield batch
            at = read_header(batch).next_offset

    def durable_log(self, node_id: int, shard_id: int) -> DurableLog:
        """Where the batches of a shard's log lie on a node's disk."""
        key = (node_id, shard_id)
        found = self._durable.get(key)
        if found is None:
            found = self._durable[key] = DurableLog(shard_path(shard_id))
        return found
