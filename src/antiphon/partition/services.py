"""What a partition needs of its node, and what follows a partition inside the node."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from antiphon.replication.messages import AnyMessage
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.wal import Wal
    from antiphon.partition.partition import Partition
    from antiphon.partition.single_writer import SingleWriterPartition


class EndOfTurn(Protocol):
    """The end of the event loop's current turn."""

    def for_shard(self, work: Callable[[], None]) -> None:
        """Run `work` then, before what goes to a connection is written; what that asks for in turn runs too."""
        ...


class Durations(Protocol):
    """A histogram of durations."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        ...


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
    elections: int
    shard_failures: int
    lost_tail_records: int
    relayed: int
    relay_duplicates: int
    split_brains: int

    @property
    def commit_latency(self) -> Durations:
        """From a client's append to its commit."""
        ...

    @property
    def disk_latency(self) -> Durations:
        """From handing a write to the WAL until it is durable."""
        ...


class PartitionServices(Protocol):
    """What a partition needs of its node. All of it is called on the event loop."""

    node_id: int

    @property
    def turn(self) -> EndOfTurn:
        """Collects what is done once a turn."""
        ...

    @property
    def metrics(self) -> PartitionMetrics:
        """What is counted."""
        ...

    @property
    def wal(self) -> "Wal":
        """Writes and syncs the logs of this node."""
        ...

    def now_s(self) -> float:
        """The event loop's clock."""
        ...

    def send(self, shard_host: "Partition", to: int, message: AnyMessage) -> None:
        """Send to a node, this one included."""
        ...

    def is_congested(self, to: int) -> bool:
        """Does more wait to be sent to that node than is good?"""
        ...

    @property
    def is_overloaded(self) -> bool:
        """Are more client bytes underway than the node may have?"""
        ...

    def in_flight(self, change_bytes: int) -> None:
        """Bytes of client appends that are not committed have changed by this much."""
        ...

    def disk_progressed(self) -> None:
        """Some writes are done: reading may go on where the disk was the bound."""
        ...

    def needs_ticks(self, host: "Partition") -> None:
        """Call `host.tick()` at every tick until it says that it needs none."""
        ...

    def someone_waits(self, host: "Partition") -> None:
        """Call `host.clients.expire()` now and then while somebody waits."""
        ...

    def send_snapshot(self, host: "SingleWriterPartition", to: int) -> None:
        """Stream a snapshot to a follower."""
        ...

    def is_joining(self, shard_id: int) -> bool:
        """Is the shard being split off another one, and not part of its table yet?"""
        ...

    def live_changed(self) -> None:
        """The coordinator should hear of a shard that is led here, at once."""
        ...

    def host_changed(self, host: "Partition") -> None:
        """Role, term or readiness changed."""
        ...

    def host_failed(self, host: "Partition", *, needs_leader: bool) -> None:
        """The replica stopped for good. `needs_leader`: it led, and the coordinator is to appoint another one."""
        ...


class CommitObserver(Protocol):
    """Who follows a shard's log inside the node (the coordinator follows `__cluster`)."""

    def committed(self, high_watermark: int) -> None:
        """The log is committed up to here."""
        ...

    def role_changed(self, role: Role, term: int, leader: int | None) -> None:
        """The replica changed its role, or learned of a leader."""
        ...

    def leader_ready(self, term: int) -> None:
        """The replica leads and may serve."""
        ...
