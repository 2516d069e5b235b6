"""What a partition needs of its node, and what follows a partition inside the node."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from antiphon.errors import AntiphonError
from antiphon.model.shard_part import ShardPart
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.errors import DamagedStoreError
    from antiphon.log.shard_log import ShardLog
    from antiphon.log.wal import Wal
    from antiphon.partition.table_shard import TableShard
    from antiphon.records.entry_id import EntryId, TermIndex
    from antiphon.records.packed_effects import EffectKernels
    from antiphon.replication.members import Members


class Wanted(StrEnum):
    """What not every version of a node can read in a table's log."""

    PREPARES = "transactions over tables"
    ATTRIBUTES = "attributes of rows"


class Pieces(Protocol):
    """Work that may take long, one piece of it in each turn of the event loop.

    Attributes:
        operations: of a table's write, or rows, that a piece is about.
    """

    operations: int

    def add(self, owner: object, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, in a coming turn; everybody else has one before the next of `owner`."""


class EndOfTurn(Protocol):
    """The end of the event loop's current turn."""

    @property
    def pieces(self) -> Pieces:
        """Takes what is carried out in several turns."""

    def for_shard(self, work: Callable[[], None]) -> None:
        """Run `work` then, before what goes to a connection is written; what that asks for in turn runs too."""


class Durations(Protocol):
    """A histogram of durations."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""


class PartitionMetrics(Protocol):
    """What partitions count on their node. Numbers only ever rise."""

    appends: int
    append_bytes: int
    append_records: int
    refusals: int
    duplicates: int
    expired_appends: int
    fetches: int
    fetch_bytes: int
    table_ops: int
    table_reads: int
    leased_reads: int
    elections: int
    shard_failures: int
    lost_tail_records: int
    relayed: int
    relay_duplicates: int
    split_brains: int
    sessions_expired: int

    @property
    def commit_latency(self) -> Durations:
        """From a client's append to its commit."""

    @property
    def apply_latency(self) -> Durations:
        """Of what is committed at once, into a table's store."""

    @property
    def disk_latency(self) -> Durations:
        """From handing a write to the WAL until it is durable."""


class Ticking(Protocol):
    """Whoever wants to hear of time."""

    shard_id: int

    def tick(self) -> bool:
        """One tick of time; False when no more are needed."""


class Waiting(Protocol):
    """Where clients wait for answers that a time-out may have to give.

    Attributes:
        is_looked_after: does the node call `expire`? The node says so, when it was asked (`someone_waits`).
    """

    shard_id: int
    is_looked_after: bool

    @property
    def waiting(self) -> bool:
        """Does anybody wait?"""

    def expire(self, now_s: float) -> None:
        """Answer what waited too long."""


class SnapshotSource(Protocol):
    """The leader whose committed state is sent to a follower.

    Attributes:
        log: on the disk.
        table: the store; None for a plain topic.
    """

    shard_id: int
    log: "ShardLog"
    table: "TableShard | None"

    @property
    def term(self) -> int:
        """The term that the replica is in."""

    @property
    def terms(self) -> "TermIndex":
        """Which terms the replica's log holds, and where."""

    def members_at(self, offset: int) -> "Members | None":
        """Who the members were at `offset`, where the replicas vote; None elsewhere."""

    def sent(self, to: int, at: "EntryId") -> None:
        """The follower has the state up to `at`."""

    def failed(self, to: int) -> None:
        """The follower has not got it."""

    def stopped_by(self, error: "DamagedStoreError") -> "AntiphonError":
        """The store cannot be read: this ends the replica. What to raise."""


class SessionBounds(Protocol):
    """What sessions may be: their time-outs, and how many are open in a shard at a time."""

    timeout_min_ms: int
    timeout_max_ms: int
    per_shard: int


class PartitionServices(Protocol):
    """What a partition needs of its node. All of it is called on the event loop.

    Attributes:
        stirred: shards whose replica here had an event; whoever looks after them takes them out.
        producers_full: do the node's replicas remember so many producers that new ones are refused?
        kernels: for large batches of tables.
    """

    node_id: int
    stirred: set[int]
    producers_full: bool
    kernels: "EffectKernels"

    @property
    def turn(self) -> EndOfTurn:
        """Collects what is done once a turn."""

    @property
    def metrics(self) -> PartitionMetrics:
        """What is counted."""

    @property
    def wal(self) -> "Wal":
        """Writes and syncs the logs of this node."""

    @property
    def session_bounds(self) -> SessionBounds:
        """Of sessions in tables."""

    def now_s(self) -> float:
        """The event loop's clock."""

    def send_message(self, to: int, message: ReplicaMessage) -> None:
        """Send to a node, this one included; lost when there is no connection."""

    def is_congested(self, to: int) -> bool:
        """Does more wait to be sent to that node than is good?"""

    def in_flight(self, change_bytes: int) -> None:
        """Bytes of client appends that are not committed have changed by this much."""

    def needs_ticks(self, driver: Ticking) -> None:
        """Call `driver.tick()` at every tick until it says that it needs none."""

    def someone_waits(self, clients: Waiting) -> None:
        """Call `clients.expire()` now and then while somebody waits."""

    def send_snapshot(self, source: SnapshotSource, to: int) -> None:
        """Stream a snapshot to a follower."""

    def is_joining(self, shard_id: int) -> bool:
        """Is the shard being split off another one, and not part of its table yet?"""

    def recovered_part(self, shard_id: int) -> ShardPart | None:
        """What a table's shard is to hold that lost most replicas once, of a table that was split; None for any other."""

    def refusal_of(self, shard_id: int, wanted: Wanted) -> AntiphonError | None:
        """Why a table's shard may not take this now, if so: a node with a replica would misread it, or, of what transactions
        prepare, the shard is about to hand keys over to one that is being split off.
        """

    def live_changed(self) -> None:
        """The coordinator should hear of a shard that is led here, at once."""

    def replica_changed(self, shard_id: int) -> None:
        """Role, term or readiness changed."""

    def look_at(self, shard_id: int) -> None:
        """Something is wrong with the replica, which goes on: see its status."""

    def replica_failed(self, shard_id: int, *, needs_leader: bool) -> None:
        """The replica stopped for good. `needs_leader`: it led, and the coordinator is to appoint another one."""


class CommitObserver(Protocol):
    """Who follows a shard's log inside the node (the coordinator follows `__cluster`)."""

    def committed(self, high_watermark: int) -> None:
        """The log is committed up to here."""

    def role_changed(self, role: Role, term: int, leader: int | None) -> None:
        """The replica changed its role, or learned of a leader."""

    def leader_ready(self, term: int) -> None:
        """The replica leads and may serve."""
