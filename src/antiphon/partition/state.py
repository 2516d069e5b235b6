"""What the parts of one partition share: what it holds, how far clients were told, and whether it may serve.

Everybody may ask. Only three things change it: a commit, a loss and a change of role move `high_watermark`; a failure sets
`failed`; the node sets `closed`.
"""

from typing import TYPE_CHECKING, Protocol

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    DiskFullError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    WrongKindError,
)
from antiphon.partition.replica_lines import ReplicaLines
from antiphon.partition.replica_view import ReplicaView
from antiphon.partition.services import CommitObserver, PartitionServices
from antiphon.partition.traces import ShardTraces
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.config import LogConfig
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.table_shard import TableShard
    from antiphon.replication.actions import AppendLog


class WriterRules(Protocol):
    """What is asked of a replica beside leadership, where every replica writes."""

    def check_writable(self) -> None:
        """Raise what stands in the way of a write: NotLeaderError, NotReadyError."""

    def referred(self, error: NotLeaderError) -> NotLeaderError:
        """The error that points to a replica which may be asked instead."""


class PartitionState:
    """See the module's text.

    Attributes:
        services: of the node.
        table: the table's store; None for a plain topic.
        settings: of its topic; None for `__cluster`.
        default_isolation: of reads that name none (C7).
        observer: who follows the log inside the node.
        failed: why this replica has stopped for good; None while it works.
        closed: the node has closed it.
        high_watermark: first offset that clients have not been told is committed.
        deleted_before: records before this offset were deleted on request (docs/decisions/0038).
        has_leases: is the time to be told with events, because there are leases, or were?
        traces: spans of entries with a trace; None: there never was one.
        lines: what the node's log is told of this replica goes this way.
    """

    def __init__(
        self,
        services: PartitionServices,
        shard_id: int,
        log: "ShardLog",
        replica: ReplicaView,
        table: "TableShard | None",
        rules: WriterRules | None = None,
    ) -> None:
        self.services = services
        self.shard_id = shard_id
        self.log = log
        self.replica = replica
        self.table = table
        self.settings: PartitionSettings | None = None
        self.default_isolation = "committed"
        self.observer: CommitObserver | None = None
        self.failed: AntiphonError | None = None
        self.closed = False
        self.has_leases = False
        self.traces: ShardTraces | None = None
        self.lines = ReplicaLines(shard_id, replica)
        self.high_watermark = replica.high_watermark
        self.deleted_before = 0
        self._deletion_known = (0, 0)  # by the record of this term, and of this stage of it
        self._rules = rules

    def configure(self, settings: "PartitionSettings", log: "LogConfig") -> None:
        """Take over the settings of the topic. `log`: those of the log, as this replica keeps it."""
        self.settings = settings
        self.default_isolation = settings.isolation
        if self.log.config != log:
            self.log.configure(log)

    def follow(self, action: "AppendLog", parent: str, role: str) -> None:
        """Entries were just staged for what a trace says: follow them."""
        if action.entries:
            if self.traces is None:
                self.traces = ShardTraces(self.services.node_id, self.shard_id)
            self.traces.appended(action, parent, role)

    def now_us(self) -> int | None:
        """The time that is told with an event; None where there are no leases."""
        return system.elapsed_us() if self.has_leases else None

    @property
    def term(self) -> int:
        """The term that this replica is in."""
        return self.replica.term

    @property
    def log_start(self) -> int:
        """First offset that anybody is shown. The log itself begins at a batch, which may begin before this."""
        log = self.log
        return max(log.log_start, min(self.deleted_before, log.log_end))

    def note_deletion(self, before: int, term: int, *, has_candidate: bool) -> None:
        """A record of the shard, of this term, says that records before an offset are deleted. Records may come late.

        Only an unclean election takes that back, when its candidate is found: `has_candidate`.
        """
        told = (term, int(has_candidate))
        if told > self._deletion_known:
            self._deletion_known, self.deleted_before = told, before
        elif told == self._deletion_known:
            self.deleted_before = max(self.deleted_before, before)

    @property
    def stable_end(self) -> int:
        """Where reads of committed transactions end: the last stable offset."""
        transactions, high_watermark = self.log.producers.transactions, self.high_watermark
        return transactions.last_stable(high_watermark) if transactions.is_used else high_watermark

    @property
    def is_joining(self) -> bool:
        """Is the shard being split off another one, and has not all of its keys yet?"""
        table = self.table
        if table is not None and table.first_due and table.is_incomplete:  # 0 but for one that was recovered
            return True
        return self.services.is_joining(self.shard_id)

    @property
    def has_many_writers(self) -> bool:
        """Does every replica of the shard take writes?"""
        return self._rules is not None

    @property
    def is_leader(self) -> bool:
        """Does this replica lead, ready or not? Where every replica writes, each does."""
        return self.failed is None and self.replica.role is Role.LEADER

    @property
    def is_serving(self) -> bool:
        """Does this replica lead, and may it serve clients?"""
        return self.failed is None and self.replica.role is Role.LEADER and self.replica.ready

    def not_leader(self) -> NotLeaderError:
        """The error that points to who leads, or may be asked instead."""
        error = self._not_leader()
        return error if self._rules is None else self._rules.referred(error)

    def _not_leader(self) -> NotLeaderError:
        if self.failed is not None:  # the others elect a leader among them: worth a retry
            return NotLeaderError(
                f"the replica of shard {self.shard_id} on node {self.services.node_id} stopped: {self.failed.message}",
                leader=None,
                shard_id=self.shard_id,
                failed=self.failed.code,  # for good: who asks for this very replica need not wait
                offset=self.failed.details.get("offset"),
            )
        leader = None if self.is_leader else self.replica.leader
        return NotLeaderError(
            f"node {self.services.node_id} does not lead shard {self.shard_id}, "
            + (f"node {leader} does" if leader is not None else "nobody is known to"),
            leader=leader,
            shard_id=self.shard_id,
        )

    def check_alive(self) -> None:
        """Raise unless this replica works."""
        if self.failed is not None or self.closed:
            raise self.not_leader()

    def check_whole(self) -> None:
        """Raise unless this replica works, and has everything that it is known to have had."""
        if self.failed is not None or self.closed or self.log.damaged is not None:
            raise self.not_leader()

    def check_serving(self) -> None:
        """Raise NotLeaderError or NotReadyError unless this replica may serve clients (S0.8, S1.36)."""
        self.check_alive()
        if self.replica.role is not Role.LEADER:
            raise self.not_leader()
        if not self.replica.ready:
            raise NotReadyError(
                f"shard {self.shard_id} has just got its leader, whose term has no committed entry yet; retry",
                leader=self.services.node_id,
            )

    def check_writable(self) -> None:
        """The same, and there must be room for a write: DiskFullError, OverloadedError."""
        wal = self.services.wal
        if self.failed is not None or self.closed or not self.replica.ready:
            self.check_serving()  # says which of them it is
        if wal.disk_full or wal.is_low:
            raise DiskFullError(
                f"node {self.services.node_id} has no {wal.lacks}: writes are refused until that passes, reads go on"
            )
        if wal.backlog_bytes >= wal.refused_from_bytes:
            raise OverloadedError(
                f"{wal.backlog_bytes} bytes wait for the disk of node {self.services.node_id}; retry"
            )
        if self._rules is not None:
            self._rules.check_writable()

    def require_table(self) -> "TableShard":
        """The table's store; WrongKindError for a plain topic's shard."""
        if self.table is None:
            raise not_a_table(self.shard_id)
        return self.table


def not_a_table(shard_id: int) -> WrongKindError:
    """The error for a table's request to a plain topic's shard."""
    return WrongKindError(f"shard {shard_id} belongs to a topic, not to a table")
