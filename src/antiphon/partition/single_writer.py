"""One replica of a shard that one leader writes: the leader, or one that follows it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from antiphon import system
from antiphon.model.metadata import NodeMeta, ShardMeta, ShardStatus
from antiphon.model.requests import ReplicaStatus
from antiphon.partition.clients import PartitionClients
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.hold import ShardHold
from antiphon.partition.live_reports import LiveReports
from antiphon.partition.mode import SingleWriterMode
from antiphon.partition.reads import PartitionReads
from antiphon.partition.services import PartitionServices
from antiphon.partition.sessions import PartitionSessions
from antiphon.partition.single_writer_actions import SingleWriterActions
from antiphon.partition.snapshots import SingleWriterSnapshots
from antiphon.partition.state import PartitionState
from antiphon.partition.status import LOOKS, status_of
from antiphon.partition.table_loads import TableLoads
from antiphon.partition.table_prepares import TablePrepares
from antiphon.partition.table_reads import TableReads
from antiphon.partition.table_writes import TableWrites
from antiphon.partition.transactions import TransactionEnds
from antiphon.partition.upkeep import SingleWriterUpkeep, WatermarkHint
from antiphon.partition.waiting_readers import WaitingReaders
from antiphon.replication.messages import BecomeLeader
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.table_shard import TableShard


class SingleWriterPartition:
    """A `Partition`. What it does for the actions of its replica is in `single_writer_actions.py`."""

    def __init__(
        self,
        services: PartitionServices,
        shard_id: int,
        log: "ShardLog",
        replica: Replica | RaftReplica,
        table: "TableShard | None",
        max_message_bytes: int,
    ) -> None:
        self.services = services
        self.shard_id = shard_id
        self.log = log
        self.replica = replica
        self.table = table
        self.state = PartitionState(services, shard_id, log, replica, table)
        self.state.has_leases = replica.in_term.promise.until_us > 0
        self.mode = SingleWriterMode(self.state, replica)
        self.readers = WaitingReaders(self.state)
        self.driver = ReplicaDriver(self.state, self.readers)
        self.clients = PartitionClients(self.driver, self.readers, self.mode, max_message_bytes)
        self.transactions = TransactionEnds(self.driver, self.clients)
        self.hold = ShardHold(self.state, self.clients)
        self.reads = PartitionReads(self.driver)
        self.prepares = TablePrepares(self.driver, self.clients, self.reads)
        self.table_reads = TableReads(self.driver, self.clients)
        self.sessions = PartitionSessions(self.driver, self.clients)
        self.table_writes = TableWrites(self.driver, self.clients, self.reads)
        self.table_loads = TableLoads(self.driver, self.clients, self.table_writes.write)
        self.snapshots = SingleWriterSnapshots(self.driver, replica)
        self.reports = LiveReports(self.driver, self.mode, replica)
        hint = WatermarkHint(self.driver, self.mode)
        self.upkeep = SingleWriterUpkeep(self.driver, self.mode, replica, hint)
        self._common = CommonActions(self.driver, self.clients)
        self._actions = SingleWriterActions(
            self.driver,
            replica,
            self._common,
            self.mode,
            self.reports,
            self.snapshots,
            hint,
            self.sessions,
        )
        self.driver.attach(self._actions)
        settled = None if self.mode.voter is None else self.mode.voter.settled_members
        if settled is not None:
            self.state.deleted_before = settled.deleted_before

    def configure(self, settings: "PartitionSettings") -> None:
        """See Partition."""
        self.state.configure(settings, settings.log)
        self.state.has_leases |= settings.replica.lease_ms > 0
        self.clients.configure(settings)
        self.driver.call(self.replica.set_config, settings.replica)
        self._actions.note_led_term()

    def recorded(self, shard: ShardMeta, _nodes: Mapping[int, NodeMeta]) -> None:
        """See Partition. A leader that goes by its live set is told of the record (S3.29)."""
        if self.mode.is_appointed:
            has_candidate = shard.status is not ShardStatus.ELECTION
            self.state.note_deletion(shard.deleted_before, shard.term, has_candidate=has_candidate)
        self.reports.recorded(shard)

    def hand_over(self) -> bool:
        """See Partition."""
        voter = self.mode.voter
        if voter is None or not self.state.is_serving or voter.transfer.successor is None:
            return False
        self.driver.call(voter.transfer_leadership, voter.transfer.successor)
        return True

    def receive(self, sender: int, message: ReplicaMessage) -> None:
        """See Partition. Who is appointed may have been told of older metadata only."""
        if type(message) is BecomeLeader:
            self.state.note_deletion(message.deleted_before, message.term, has_candidate=True)
        # Most have no leases, and are to have no call for them here: all that peers say comes this way.
        now_us = system.elapsed_us() if self.state.has_leases else None
        self.driver.call(self.replica.receive, sender, message, now_us)

    def peer_drained(self, node_id: int) -> None:
        """See Partition."""
        self._actions.peer_drained(node_id)

    def status(self) -> ReplicaStatus:
        """See Partition."""
        found = status_of(self.state)
        if self.upkeep.leader_lacks >= LOOKS and found.state in {"ok", "disk_full"}:
            return msgspec.structs.replace(found, state="ahead_of_leader")
        return found

    def close(self) -> None:
        """See Partition."""
        if not self.state.closed:
            self._common.close()
            self._actions.closed()
