"""What every replica of a shard is, whoever writes: one event at a time, from events to actions to what others hear.

The pure replica says what to do (`replication.actions`), the partition does it: storage actions go to the WAL thread,
messages to the transport, reads for other replicas to the log.

The replica owns the log's end. A client batch is an entry of the replica from the moment at which it is stamped (`stage`),
and what is written is exactly what the replica's actions say. Writing and sending wait for the end of the loop's turn, so
that the batches of a turn cost one group of the WAL and one message to each of the other replicas.

A step is one event and its actions. It cannot be entered a second time: an event that comes while actions are carried out
waits for the next step. Whoever is outside the replica (clients, readers, the coordinator, the node) is told when the step
is done, in the order of the actions; so whatever they do then, the replica, its log and its table agree with each other.
Within a commit the order is: apply, answer clients, wake readers (S0.20, S1.20).

A broken invariant or a failed disk stops this replica for good, and nothing it had underway is acknowledged: the node
goes on with its other shards and reports this one's state.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from antiphon.errors import (
    AntiphonError,
    DamagedLogError,
    DamagedStoreError,
    DiskFullError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    StorageFailedError,
    WrongKindError,
)
from antiphon.invariants import unreachable
from antiphon.log.disk import NO_DESCRIPTORS
from antiphon.partition import table_shard
from antiphon.partition.clients import PartitionClients
from antiphon.partition.failures import as_failure
from antiphon.partition.log_writer import LogWriter
from antiphon.partition.partition import Admit, Done, InstallingSnapshot, Partition, ReplicaView
from antiphon.partition.reads import PartitionReads
from antiphon.partition.services import CommitObserver, PartitionServices
from antiphon.partition.status import status_of
from antiphon.partition.steps import BUSY, REFUSALS, Steps
from antiphon.replication.actions import Commit, ReadFailed, ReadReady, Repaired
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.operations import Callback, LogOp
    from antiphon.log.shard_log import ShardLog
    from antiphon.model.requests import ReplicaStatus, TableGet, TableScan
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.table_shard import TableShard

IDLE_TAIL_BYTES: Final = 0

R = TypeVar("R", bound=ReplicaView)


class PartitionBase(Partition, Generic[R]):
    """See the module's text. Each of the two kinds adds what it does for the actions of its replica (`_carry_out`)."""

    replica: R

    def __init__(
        self,
        services: PartitionServices,
        shard_id: int,
        log: "ShardLog",
        replica: R,
        table: "TableShard | None",
        max_message_bytes: int,
    ) -> None:
        self.services = services
        self.shard_id = shard_id
        self.log = log
        self.replica = replica
        self.table = table
        self.settings: PartitionSettings | None = None  # of its topic; `__cluster` has none
        self.reads = PartitionReads(self)
        self.clients = PartitionClients(self, max_message_bytes)
        self.observer: CommitObserver | None = None
        self.failed: AntiphonError | None = None
        self.closed = False
        self.high_watermark = replica.high_watermark
        self.noted_watermark = replica.high_watermark  # what the checkpoint file says
        self.ticking = False
        self.installing: InstallingSnapshot | None = None
        self._writer = LogWriter(services, log, self._tell_written, self.fail)
        self._send_appended: Callable[[], Sequence[Any]] = tuple  # an event
        self._unsent = False  # does the replica owe the others what clients have appended?
        self._turn_asked = False
        self._log = structlog.get_logger().bind(shard=shard_id)
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Commit: self._commit,
            ReadReady: self._read_ready,
            ReadFailed: self._read_failed,
            Repaired: self._repaired,
        }
        self._steps = Steps(self._carry_out, log, replica)

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The term that this replica is in."""
        return self.replica.term

    @property
    def is_leader(self) -> bool:
        """Does this replica lead, ready or not?"""
        return self.failed is None and self.replica.role is Role.LEADER

    @property
    def is_serving(self) -> bool:
        """Does this replica lead, and may it serve clients?"""
        return self.failed is None and self.replica.role is Role.LEADER and self.replica.ready

    def not_leader(self) -> NotLeaderError:
        """The error that points to who leads."""
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
        replica, wal = self.replica, self.services.wal
        if self.failed is not None or self.closed or replica.role is not Role.LEADER or not replica.ready:
            self.check_serving()  # says which of them it is
        if wal.disk_full:
            lacks = "the disk is full" if wal.committer.waits_for_room else "no file descriptors are left"
            raise DiskFullError(
                f"node {self.services.node_id} cannot write, {lacks}: writes are refused until that passes, reads go on"
            )
        if wal.overloaded:
            raise OverloadedError(
                f"{wal.backlog_bytes} bytes wait for the disk of node {self.services.node_id}; retry"
            )

    def require_table(self) -> "TableShard":
        """The table's store; WrongKindError for a plain topic's shard."""
        if self.table is None:
            raise self.not_a_table()
        return self.table

    def not_a_table(self) -> WrongKindError:
        """The error for a table's request to a plain topic's shard."""
        return WrongKindError(f"shard {self.shard_id} belongs to a topic, not to a table")

    def status(self) -> "ReplicaStatus":
        """For status pages."""
        return status_of(self)

    # -- events into the replica -------------------------------------------------------------------------------

    def call(self, event: Callable[..., Sequence[Any]], *arguments: Any) -> None:
        """Give the replica an event and do what it says; while that goes on for another event, this one waits for it.

        Raises what the replica refuses: NotLeaderError, NotReadyError, OverloadedError; nothing has changed then.
        """
        steps = self._steps
        if self.failed is not None or self.closed:
            return
        if steps.is_acting:
            steps.queue(event, *arguments)
            return
        try:
            if self._unsent:  # first: it goes out as one message then
                self._unsent = False
                steps.step(self._send_appended)
            steps.step(event, *arguments)
        except REFUSALS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, what the replica believes was not carried out
            self.fail(error)
        finally:
            if steps.events and self.failed is None:
                self._step_on()
            if steps.news:
                steps.tell(self.fail)
        if not self.ticking and self.replica.needs_tick and self._wants_ticks():
            self.ticking = True
            self.services.needs_ticks(self)

    def _step_on(self) -> None:
        """The events that came meanwhile; whoever they came from has gone on."""
        steps = self._steps
        while steps.events:
            event, arguments = steps.events.popleft()
            try:
                steps.step(event, *arguments)
            except REFUSALS as error:
                self.report(error)
            except Exception as error:  # noqa: BLE001 - as for the first event
                self.fail(error)

    def _wants_ticks(self) -> bool:
        return self.failed is None and not self.closed and self.replica.needs_tick

    def tick(self) -> bool:
        """One tick of time; False when no more are needed."""
        self.call(self.replica.tick)
        self.ticking = self._wants_ticks()
        return self.ticking

    def stage(self, batch: bytearray, records: int) -> None:
        """Append a client batch that is stamped with the log's end and the term; it is on its way when this turn ends.

        Raises NotLeaderError, NotReadyError: nothing was appended. Never called while a step is under way.
        """
        steps = self._steps
        if self.failed is not None or self.closed:
            raise self.not_leader()
        try:
            if steps.is_acting:
                unreachable(BUSY)
            steps.is_acting = True
            try:
                self._take_batch(batch, records)
            finally:
                steps.is_acting = False
        except REFUSALS:
            raise
        except Exception as error:  # the log may have the batch and the replica not, or the other way round
            self.fail(error)
            raise self.not_leader() from error
        if not self._turn_asked:
            self._turn_asked = True
            self.services.turn.for_shard(self._end_turn)

    @abstractmethod
    def _take_batch(self, batch: bytearray, records: int) -> None:
        """Make a stamped batch an entry of the replica, and stage what the replica says."""

    def _end_turn(self) -> None:
        """What clients appended in this turn goes to the disk and to followers; readers of uncommitted records are woken."""
        self._turn_asked = False
        self._writer.flush()
        if self._unsent:
            self._unsent = False
            self.call(self._send_appended)
        if self.reads.followers:
            self.reads.wake(committed=False)

    # -- actions out of the replica ----------------------------------------------------------------------------

    def submit(self, op: "LogOp", callback: "Callback | None" = None) -> None:
        """Give the WAL an operation of this log that does not come from the replica, such as a trim, just staged."""
        self._writer.submit(op, callback)

    def _tell_written(self) -> None:
        """Writes come back in order; the replica hears of the last of a group, once a turn."""
        writer = self._writer
        writer.is_told = True
        self.call(self.replica.persisted, writer.written_id)
        self.services.disk_progressed()

    def _commit(self, action: Commit) -> None:
        """Apply; then answer clients and wake readers (S0.20, S1.20)."""
        high_watermark = action.high_watermark
        if self.table is not None:
            self.table.committed(high_watermark)
        self.high_watermark = high_watermark
        self._steps.news.append((self.clients.committed, (high_watermark,)))
        if self.observer is not None:
            self._steps.later(self.observer.committed, high_watermark)

    def _send_clients_away(self) -> None:
        self.clients.fail_all(self.not_leader())

    def _read_ready(self, action: ReadReady) -> None:
        self._steps.later(self.clients.read_ready, action)

    def _read_failed(self, action: ReadFailed) -> None:
        self._steps.later(self.clients.read_failed, action)

    def _repaired(self, _action: Repaired) -> None:
        self._log.info("log_repaired", log_end=self.log.log_end)
        self.submit(self.log.clear_damage())

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool = True) -> list[memoryview]:
        """Batches for a client. A disk that does not give back what was written ends this replica, not only the read."""
        try:
            return self.log.read(offset, max_bytes, end, at_least_one=at_least_one)
        except (DamagedLogError, OSError) as error:
            raise self.stopped_by(error) from error

    async def read_in_thread(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool, from_disk: bool = False
    ) -> list[memoryview]:
        """The same, without keeping the event loop waiting for the disk; `from_disk` as for `ShardLog.plan_read`."""
        work = self.log.plan_read(offset, max_bytes, end, at_least_one, from_disk=from_disk)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except (DamagedLogError, OSError) as error:
            raise self.stopped_by(error) from error

    def stopped_by(self, error: DamagedLogError | StorageFailedError | OSError) -> AntiphonError:
        """The disk failed in the middle of somebody's read: this ends the replica. What the reader is told."""
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:  # that passes
            return OverloadedError(f"node {self.services.node_id} has no file descriptors left; retry")
        if isinstance(error, OSError):
            error = StorageFailedError(f"shard {self.shard_id} cannot be read from the disk: {error}")
        if not self.closed:
            self.fail(error)
        return self.not_leader()

    def report(self, error: Exception) -> None:
        """Log what went wrong with one client's request."""
        self._log.error("request_failed", error=str(error), exc_info=error)

    # -- tables -------------------------------------------------------------------------------------------------

    def table_get(self, request: "TableGet", done: Done, admit: Admit | None = None) -> None:
        """See Partition."""
        try:
            table_shard.get_rows(self, request, done, admit)
        except StorageFailedError as error:
            raise self.stopped_by(error) from error

    def table_scan(self, request: "TableScan", done: Done, admit: Admit | None = None) -> None:
        """See Partition."""
        try:
            table_shard.scan_rows(self, request, done, admit)
        except StorageFailedError as error:
            raise self.stopped_by(error) from error

    # -- the end -----------------------------------------------------------------------------------------------

    def note_watermark(self) -> None:
        """Leave a hint for the next start."""
        # A leader may have committed what its own disk does not have yet: then the hint would accuse the disk of a loss.
        self.noted_watermark = min(self.settled, self.log.durable_end)
        self.submit(self.log.hard_state.stage_high_watermark(self.noted_watermark))

    def checkpoint(self) -> None:
        """See Partition."""
        if self.noted_watermark != self.settled:
            self.note_watermark()
        else:
            self.log.release_memory(IDLE_TAIL_BYTES)
        self.log.note_held()

    def fail(self, error: Exception) -> None:
        """Stop this replica for good; nothing that was underway is acknowledged."""
        if self.failed is not None:
            return
        self._log.error("replica_stopped", error=str(error), kind=type(error).__name__, exc_info=error)
        self.failed = as_failure(error, f"shard {self.shard_id} stopped on this node")
        needs_leader = self.is_appointed and self.replica.role is Role.LEADER
        self.replica.storage_failed()  # silent from now on; its actions have nobody left to carry them out
        self._silenced()
        self._writer.drop()
        self._steps.stop()
        self.services.metrics.shard_failures += 1
        if self.table is not None:
            self.table.stop_leading()
            if isinstance(error, DamagedStoreError):
                self.table.note_damage()
        self._steps.later(self._send_clients_away)
        if self.observer is not None:
            self._steps.later(self.observer.role_changed, Role.FENCED, self.term, None)
        self._steps.later(partial(self.services.host_failed, self, needs_leader=needs_leader))
        self._steps.tell(self.fail)

    def close(self) -> None:
        """Stop serving: the node stops, or the shard is no longer here. The log's files are the caller's to close."""
        if not self.closed:
            self._writer.flush()
            self.closed = True
            self._silenced()
            self.clients.fail_all(self.not_leader())

    @abstractmethod
    def _silenced(self) -> None:
        """The replica says nothing more: nobody is fed by it."""
