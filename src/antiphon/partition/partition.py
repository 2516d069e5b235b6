"""What the node, its listeners' gateway and the simulator's judges see of one replica of one shard.

Two classes keep it: `SingleWriterPartition`, where one leader writes, and `MultiWriterPartition`, where every replica does.
Whoever holds a `Partition` does not ask which of them it is: where they differ, a part does. Only the judges of a simulation
do ask, as the promises that they hold the two to are not the same.

A partition is made of parts, each with one task, which share one `PartitionState`:

- `driver`: events go in there (`call`, `tick`, `stage`), one at a time; what follows from them goes out through the services
  that the node has handed in (`services.py`).
- `clients`: appends, and who waits for commits and confirmations. `transactions`: how those end.
  `hold`: of the log, for the moment of a backup. `reads`: fetches and
  offsets by time. `readers`: those who have read all there is and wait for more. `table_writes`, `table_reads`: what clients
  ask of a table.
- `sessions`: in a table, of clients whose rows go when they fall silent.
- `mode`: what follows from how the shard is replicated. `reports`: what the coordinator is told. `snapshots`: of the
  committed state. `upkeep`: retention, trims, hints for the next start.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from antiphon.model.metadata import NodeMeta, ShardMeta
from antiphon.model.requests import ReplicaStatus, TableWrite
from antiphon.model.sender import Sender
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.hold import ShardHold
from antiphon.partition.live_reports import LeaderReports
from antiphon.partition.mode import ReplicationMode
from antiphon.partition.reads import PartitionReads
from antiphon.partition.replica_view import ReplicaView
from antiphon.partition.services import PartitionServices
from antiphon.partition.sessions import PartitionSessions
from antiphon.partition.snapshots import PartitionSnapshots
from antiphon.partition.state import PartitionState
from antiphon.partition.table_loads import TableLoads
from antiphon.partition.table_prepares import TablePrepares
from antiphon.partition.table_reads import TableReads
from antiphon.partition.transactions import TransactionEnds
from antiphon.partition.upkeep import LogUpkeep
from antiphon.partition.waiting_readers import WaitingReaders
from antiphon.replication.multi_messages import ReplicaMessage

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.table_shard import TableShard


class WritesTable(Protocol):
    """What carries out the writes of clients to a table's shard."""

    def write(self, request: TableWrite, done: Done, sender: Sender | None = None) -> None:
        """Carry out a TableWrite; `done` gets TableWritten or an error. Raises what is known at once.

        Requests of one `sender` are carried out in their order.
        """


class Partition(Protocol):
    """See the module's text. All of it runs on the node's event loop.

    Attributes:
        services: of the node.
        log: on the disk.
    """

    services: PartitionServices
    shard_id: int
    log: "ShardLog"
    state: PartitionState
    driver: ReplicaDriver
    clients: PartitionClients
    transactions: TransactionEnds
    hold: ShardHold
    reads: PartitionReads
    readers: WaitingReaders
    prepares: TablePrepares
    table_loads: TableLoads
    table_reads: TableReads
    sessions: PartitionSessions

    @property
    def replica(self) -> ReplicaView:
        """The state machine of the protocol."""

    @property
    def table(self) -> "TableShard | None":
        """The table's store and evaluator; None for a plain topic."""

    @property
    def table_writes(self) -> WritesTable:
        """Writes to a table."""

    @property
    def mode(self) -> ReplicationMode:
        """How the shard is replicated."""

    @property
    def reports(self) -> LeaderReports:
        """What the coordinator is told of the shard."""

    @property
    def snapshots(self) -> PartitionSnapshots:
        """Of the committed state."""

    @property
    def upkeep(self) -> LogUpkeep:
        """Retention, trims, hints for the next start."""

    def configure(self, settings: "PartitionSettings") -> None:
        """Take over the settings of the topic, whatever this replica is doing."""

    def recorded(self, shard: ShardMeta, nodes: Mapping[int, NodeMeta]) -> None:
        """The metadata shows the shard like this, and these nodes."""

    def hand_over(self) -> bool:
        """Before a clean stop: let another replica lead, where this one may name it. Was one asked to?"""

    def receive(self, sender: int, message: ReplicaMessage) -> None:
        """A message from another replica, or from the coordinator."""

    def peer_drained(self, node_id: int) -> None:
        """The connection to another replica has room again."""

    def status(self) -> ReplicaStatus:
        """For status pages."""

    def close(self) -> None:
        """Stop serving: the node stops, or the shard is no longer here. The log's files are the caller's to close."""
