"""What the node, its listeners' gateway and the simulator's judges see of one replica of one shard.

Two classes keep it: `SingleWriterPartition`, where one leader writes, and `MultiWriterPartition`, where every replica does.
Whoever holds a `Partition` does not ask which of them it is: where they differ, a method does. Only the judges of a
simulation do ask (`single_writer`, `multi_writer`), as the promises that they hold the two to are not the same.

Events go in (`call`, `receive`, `tick`, `stage`), one at a time; what follows from them goes out through the services that
the node has handed in (`services.py`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from antiphon.errors import AntiphonError, DamagedLogError, NotLeaderError, StorageFailedError
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import NodeMeta, ShardMeta
from antiphon.model.requests import ReplicaStatus, TableGet, TableScan, TableWrite
from antiphon.replication.actions import Action
from antiphon.replication.members import Members
from antiphon.replication.messages import AnyMessage
from antiphon.replication.progress import FollowerStatus
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.operations import Callback, LogOp
    from antiphon.log.producer_state import ProducerState
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.clients import PartitionClients
    from antiphon.partition.multi_writer import MultiWriterPartition
    from antiphon.partition.reads import PartitionReads
    from antiphon.partition.services import CommitObserver, PartitionServices
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.single_writer import SingleWriterPartition
    from antiphon.partition.table_shard import TableShard
    from antiphon.records.entry_id import EntryId

Done = Callable[[Any], None]
Admit = Callable[[Callable[[], None]], None]
"""Called with a result or an AntiphonError."""


class InstallingSnapshot(NamedTuple):
    """What a log that is reset for a snapshot begins with, and what follows once the reset is durable."""

    producers: "ProducerState"
    then: Callable[[], None] | None


class ReplicaView(Protocol):
    """What the state machines of all kinds of shards have in common. Offsets are exclusive ends."""

    @property
    def role(self) -> Role:
        """What the replica is in its term."""
        ...

    @property
    def term(self) -> int:
        """The term that the replica is in."""
        ...

    @property
    def ready(self) -> bool:
        """May clients be served, where the replica leads?"""
        ...

    @property
    def leader(self) -> int | None:
        """The node that leads, as far as is known."""
        ...

    @property
    def damaged(self) -> bool:
        """Has the log lost something that it has not got back?"""
        ...

    @property
    def log_start(self) -> int:
        """First offset that is in the log."""
        ...

    @property
    def log_end(self) -> int:
        """Next offset to write, appends underway included."""
        ...

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed, or not known to be."""
        ...

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only `tick` can mend?"""
        ...

    def followers(self) -> tuple[FollowerStatus, ...]:
        """The other replicas, as this one knows them."""
        ...

    def persisted(self, write_id: int) -> Sequence[Any]:
        """Event: every write up to `write_id` is durable."""
        ...

    def request_read(self, token: int) -> Sequence[Any]:
        """Event: a read asks whether this replica may still answer."""
        ...

    def peer_connected(self, node: int) -> Sequence[Any]:
        """Event: a connection to `node` is there."""
        ...

    def peer_lost(self, node: int) -> Sequence[Any]:
        """Event: the connection to `node` broke."""
        ...

    def tick(self) -> Sequence[Any]:
        """Event: one tick of time passed."""
        ...

    def storage_failed(self) -> Sequence[Any]:
        """Event: a write or sync failed; the replica stops for good."""
        ...


class Partition(Protocol):
    """See the module's text. All of it runs on the node's event loop.

    Attributes:
        services: of the node.
        table: the table's store and evaluator; None for a plain topic.
        settings: of its topic; None for `__cluster`.
        clients: appends, and who waits for commits.
        reads: fetches, and who follows the log.
        observer: who follows the log inside the node.
        failed: why this replica has stopped for good; None while it works.
        closed: the node has closed it.
        high_watermark: first offset that clients have not been told is committed.
        noted_watermark: what the disk has as a hint for the next start.
        ticking: does the node call `tick`?
        installing: while a snapshot takes the place of log and store.
    """

    services: "PartitionServices"
    shard_id: int
    log: "ShardLog"
    replica: ReplicaView
    table: "TableShard | None"
    settings: "PartitionSettings | None"
    clients: "PartitionClients"
    reads: "PartitionReads"
    observer: "CommitObserver | None"
    failed: AntiphonError | None
    closed: bool
    high_watermark: int
    noted_watermark: int
    ticking: bool
    installing: InstallingSnapshot | None

    # -- who leads ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def term(self) -> int:
        """The term that this replica is in."""

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Does this replica lead, ready or not? Where every replica writes, each does."""

    @property
    @abstractmethod
    def is_serving(self) -> bool:
        """Does this replica lead, and may it serve clients?"""

    @property
    @abstractmethod
    def is_appointed(self) -> bool:
        """Does the coordinator appoint the leader of this shard?"""

    @property
    @abstractmethod
    def elects_itself(self) -> bool:
        """Do the replicas of this shard vote? `__cluster`'s do, and those of topics with `election=raft`."""

    @property
    @abstractmethod
    def needs_new_term(self) -> bool:
        """Was the log damaged and is it fed again? It counts only from a term that began since: somebody must begin one."""

    @property
    @abstractmethod
    def live(self) -> tuple[int, ...]:
        """The live replica set that the leader goes by (`commit=live`); empty elsewhere, and where this replica follows."""

    @property
    @abstractmethod
    def settled(self) -> int:
        """First offset that an election may still take back: what is written down, and as far as the log may be trimmed."""

    @property
    @abstractmethod
    def acknowledges_early(self) -> bool:
        """Does the topic's rule acknowledge what an election may still lose (`local`, small `at_least(k)`)?"""

    @property
    @abstractmethod
    def waits_for(self) -> str:
        """What may be missing when nothing is committed, as a question to an operator."""

    @abstractmethod
    def not_leader(self) -> NotLeaderError:
        """The error that points to who leads, or may be asked instead."""

    @abstractmethod
    def check_alive(self) -> None:
        """Raise unless this replica works."""

    @abstractmethod
    def check_serving(self) -> None:
        """Raise NotLeaderError or NotReadyError unless this replica may serve clients (S0.8, S1.36)."""

    @abstractmethod
    def check_writable(self) -> None:
        """The same, and there must be room for a write: DiskFullError, OverloadedError."""

    @abstractmethod
    def require_table(self) -> "TableShard":
        """The table's store; WrongKindError for a plain topic's shard."""

    @abstractmethod
    def status(self) -> ReplicaStatus:
        """For status pages."""

    # -- what the cluster says ------------------------------------------------------------------------------------

    @abstractmethod
    def configure(self, settings: "PartitionSettings") -> None:
        """Take over the settings of the topic, whatever this replica is doing."""

    @abstractmethod
    def recorded(self, shard: ShardMeta, nodes: Mapping[int, NodeMeta]) -> None:
        """The metadata shows the shard like this, and these nodes."""

    @abstractmethod
    def live_set(self, told: LiveSet | None) -> LiveSet | None:
        """What the coordinator is to be told of the followers here; `told`: what it was told last. None: nothing."""

    @abstractmethod
    def live_set_told(self) -> None:
        """The coordinator was told."""

    @abstractmethod
    def hand_over(self) -> bool:
        """Before a clean stop: let another replica lead, where this one may name it. Was one asked to?"""

    # -- events ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def call(self, event: Callable[..., Sequence[Any]], *arguments: Any) -> None:
        """Give the replica an event and do what it says; while that goes on for another event, this one waits for it.

        Raises what the replica refuses: NotLeaderError, NotReadyError, OverloadedError; nothing has changed then.
        """

    @abstractmethod
    def receive(self, sender: int, message: AnyMessage) -> None:
        """A message from another replica, or from the coordinator."""

    @abstractmethod
    def peer_drained(self, node_id: int) -> None:
        """The connection to another replica has room again."""

    @abstractmethod
    def tick(self) -> bool:
        """One tick of time; False when no more are needed."""

    @abstractmethod
    def stage(self, batch: bytearray, records: int) -> None:
        """Append a client batch that is stamped with the log's end and the term; it is on its way when this turn ends.

        Raises NotLeaderError, NotReadyError: nothing was appended. Never called while a step is under way.
        """

    @abstractmethod
    def submit(self, op: "LogOp", callback: "Callback | None" = None) -> None:
        """Give the WAL an operation of this log that does not come from the replica, such as a trim, just staged."""

    # -- tables ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def table_write(self, request: TableWrite, done: Done) -> None:
        """Carry out a TableWrite; `done` gets TableWritten or an error. Raises what is known at once."""

    @abstractmethod
    def table_get(self, request: TableGet, done: Done, admit: Admit | None = None) -> None:
        """Carry out a TableGet; `done` gets TableRows or an error. Raises what is known at once.

        `admit` is called with what reads the rows, at the moment from which they may be read.
        """

    @abstractmethod
    def table_scan(self, request: TableScan, done: Done, admit: Admit | None = None) -> None:
        """Carry out a TableScan; `done` gets TableRows or an error. Raises what is known at once. `admit`: as above."""

    # -- reading --------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool = True) -> list[memoryview]:
        """Batches for a client. A disk that does not give back what was written ends this replica, not only the read."""

    @abstractmethod
    async def read_in_thread(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool, from_disk: bool = False
    ) -> list[memoryview]:
        """The same, without keeping the event loop waiting for the disk; `from_disk` as for `ShardLog.plan_read`."""

    @abstractmethod
    def stopped_by(self, error: DamagedLogError | StorageFailedError | OSError) -> AntiphonError:
        """The disk failed in the middle of somebody's read: this ends the replica. What the reader is told."""

    @abstractmethod
    def report(self, error: Exception) -> None:
        """Log what went wrong with one client's request."""

    # -- snapshots ------------------------------------------------------------------------------------------------

    @abstractmethod
    def members_at(self, offset: int) -> Members | None:
        """Who the members were at `offset`, where the replicas vote; None elsewhere."""

    @abstractmethod
    def snapshot_installed(self, at: "EntryId", members: Members | None) -> Sequence[Action]:
        """A whole snapshot is here: what the replica makes of it. InvalidRequestError where none is taken."""

    # -- keeping house --------------------------------------------------------------------------------------------

    @abstractmethod
    def checkpoint(self) -> None:
        """Now and then: leave hints for the next start, and let go of memory where nothing happens."""

    @abstractmethod
    def note_watermark(self) -> None:
        """Leave a hint for the next start."""

    @abstractmethod
    def apply_retention(self, now_ms: int) -> None:
        """Now and then: trim what the topic's settings no longer keep."""

    @abstractmethod
    def check_trimmable(self) -> None:
        """Raise InvalidRequestError for a shard that only retention trims."""

    @abstractmethod
    def trim(self, log_start: int, done: "Callback") -> None:
        """Let the log begin at a batch, which is settled; `done(error)` when the disk has it, also where it begins there."""

    # -- the end --------------------------------------------------------------------------------------------------

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Stop this replica for good; nothing that was underway is acknowledged."""

    @abstractmethod
    def close(self) -> None:
        """Stop serving: the node stops, or the shard is no longer here. The log's files are the caller's to close."""

    # -- for judges -----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def single_writer(self) -> "SingleWriterPartition | None":
        """This partition, where one replica writes."""

    @property
    @abstractmethod
    def multi_writer(self) -> "MultiWriterPartition | None":
        """This partition, where every replica writes."""
