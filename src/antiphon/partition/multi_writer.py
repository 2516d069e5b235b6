"""One replica of a shard that every replica writes (`writers=multi`).

It is a `Partition` to everybody: listeners append, fetch and read here as they do at a leader, on every member. The log is
synced at every append whatever `flush` says: an entry that was relayed and then lost would be numbered a second time.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from antiphon.model.metadata import NodeMeta, ShardMeta
from antiphon.model.requests import ReplicaStatus
from antiphon.partition.clients import PartitionClients
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.hold import ShardHold
from antiphon.partition.live_reports import NoReports
from antiphon.partition.mode import MultiWriterMode
from antiphon.partition.multi_members import MultiWriterRules, member_origins
from antiphon.partition.multi_table import MergedShard, MergedWrites
from antiphon.partition.multi_upkeep import MultiWriterUpkeep, OriginMarks
from antiphon.partition.multi_writer_actions import MultiWriterActions
from antiphon.partition.reads import PartitionReads
from antiphon.partition.services import PartitionServices
from antiphon.partition.sessions import PartitionSessions
from antiphon.partition.snapshots import NoSnapshots
from antiphon.partition.state import PartitionState
from antiphon.partition.status import status_of
from antiphon.partition.table_loads import TableLoads
from antiphon.partition.table_prepares import TablePrepares
from antiphon.partition.table_reads import TableReads
from antiphon.partition.transactions import TransactionEnds
from antiphon.partition.upkeep import WatermarkHint
from antiphon.partition.waiting_readers import WaitingReaders
from antiphon.replication.messages import ChangeMembers, MembersSettled
from antiphon.replication.multi_messages import Relay, ReplicaMessage
from antiphon.replication.multi_writer import MultiWriterReplica

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.settings import PartitionSettings


class MultiWriterPartition:
    """A `Partition`. What it does for the actions of its replica is in `multi_writer_actions.py`."""

    def __init__(
        self,
        services: PartitionServices,
        disk: "Disk",
        log: "ShardLog",
        replica: MultiWriterReplica,
        table: MergedShard | None,
        disk_id: str,
        max_message_bytes: int,
    ) -> None:
        self.services = services
        self.shard_id = replica.shard
        self.log = log
        self.replica = replica
        self.table = table
        self._disk_id = disk_id
        self._duplicates = 0
        self._rules = MultiWriterRules(services.node_id, replica)
        self.state = PartitionState(services, replica.shard, log, replica, table, self._rules)
        self.mode = MultiWriterMode(self.state)
        self.readers = WaitingReaders(self.state)
        self.driver = ReplicaDriver(self.state, self.readers)
        self.clients = PartitionClients(self.driver, self.readers, self.mode, max_message_bytes)
        self.transactions = TransactionEnds(self.driver, self.clients)
        self.hold = ShardHold(self.state, self.clients)
        self.reads = PartitionReads(self.driver)
        self.prepares = TablePrepares(self.driver, self.clients, self.reads)
        self.table_reads = TableReads(self.driver, self.clients)
        self.sessions = PartitionSessions(self.driver, self.clients)
        self._common = CommonActions(self.driver, self.clients)
        folds = self._common.folds
        self.table_writes = MergedWrites(self.driver, self.clients, self.reads, replica, table, folds)
        self.table_loads = TableLoads(self.driver, self.clients, self.table_writes.write)
        self.snapshots = NoSnapshots(self.shard_id)
        self.reports = NoReports()
        self._marks = OriginMarks(disk, self.driver, replica)
        hint = WatermarkHint(self.driver, self.mode)
        self.upkeep = MultiWriterUpkeep(self.driver, replica, table, self._marks, hint)
        self._actions = MultiWriterActions(self.driver, replica, self._common, self.reads, self._marks)
        self.driver.attach(self._actions)
        self._log = self.state.lines

    def start(self, shard: ShardMeta, nodes: Mapping[int, NodeMeta]) -> None:
        """The first event."""
        self.recorded(shard, nodes)
        self.driver.call(self.replica.start)

    def configure(self, settings: "PartitionSettings") -> None:
        """See Partition. The log is synced at every append."""
        self.state.configure(settings, settings.log._replace(flush="always"))
        self.clients.configure(settings)

    def recorded(self, shard: ShardMeta, nodes: Mapping[int, NodeMeta]) -> None:
        """See Partition. Takes over the members and origins that the metadata names."""
        self._rules.recorded(shard)
        found = member_origins(shard, nodes, self.services.node_id, self._disk_id)
        if found != self.replica.members:
            self._log.info("origins", origins=found)
            self.driver.call(self.replica.set_members, found)

    def hand_over(self) -> bool:
        """See Partition."""
        return False

    def receive(self, sender: int, message: ReplicaMessage) -> None:
        """See Partition. Entries wait, at their sender, while there is no room for them."""
        if isinstance(message, ChangeMembers):
            self._answer_if_others_hold_it(sender, message)
            return
        if isinstance(message, Relay) and not self.services.wal.has_room_for(
            sum(one.size_bytes for one in message.entries)
        ):
            return
        self.driver.call(self.replica.receive, sender, message)
        duplicates = self.replica.duplicates - self._duplicates
        if duplicates:
            self._duplicates = self.replica.duplicates
            self.services.metrics.relay_duplicates += duplicates

    def _answer_if_others_hold_it(self, sender: int, message: ChangeMembers) -> None:
        """A coordinator asks whether this replica may go: yes, once those that stay have all that is here (S0.2)."""
        replica = self.replica
        stay = [node for node in message.members.voters if node != self.services.node_id]
        lags = replica.lags()
        is_held = replica.log.durable_end == replica.log_end and not any(lags.get(n, 1) for n in stay)
        if self._rules.leaves and is_held:
            settled = MembersSettled(self.shard_id, message.term, message.version)
            self.services.send_message(sender, settled)

    def peer_drained(self, node_id: int) -> None:
        """See Partition."""
        self._actions.peer_drained(node_id)

    def status(self) -> ReplicaStatus:
        """See Partition. With the vector clock, and whether a split brain was found."""
        found, replica = status_of(self.state), self.replica
        return msgspec.structs.replace(
            found,
            role="writer" if self.state.failed is None else found.role,
            state="split_brain" if replica.splits and found.state == "ok" else found.state,
            vclock=replica.vclock,
        )

    def close(self) -> None:
        """See Partition. Notes what makes the next start quick."""
        if not self.state.closed:
            self._common.close()
            self._actions.closed()
            if self.state.failed is None:
                self._marks.save()
