"""What is done for a replica's log beside its clients' requests: hints for the next start, retention, trims."""

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from antiphon.errors import StorageFailedError
from antiphon.log.operations import TRIM, LogOp
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.mode import ReplicationMode
from antiphon.partition.status import LOOKS
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica

if TYPE_CHECKING:
    from antiphon.log.operations import Callback
    from antiphon.partition.table_shard import TableShard
    from antiphon.table.state import TableState

IDLE_TAIL_BYTES: Final = 0


class LogUpkeep(Protocol):
    """See the module's text."""

    def checkpoint(self) -> None:
        """Now and then: leave hints for the next start, and let go of memory where nothing happens."""

    def note_watermark(self) -> None:
        """Leave a hint for the next start."""

    def apply_retention(self, now_ms: int) -> None:
        """Now and then: trim what the topic's settings no longer keep."""

    def check_trimmable(self) -> None:
        """Raise InvalidRequestError for a shard that only retention trims."""

    def record_deletion(self, before: int) -> bool:
        """Begin to record in the log that records before an offset are deleted; False: the coordinator is to record it.

        Raises NotReadyError.
        """

    def trim(self, log_start: int, done: "Callback") -> None:
        """Let the log begin at a batch, which is settled; `done(error)` when the disk has it, also where it begins there."""


class WatermarkHint:
    """How far the log is settled, in its directory, for the next start. `noted`: what the file says."""

    def __init__(self, driver: ReplicaDriver, mode: ReplicationMode) -> None:
        self._driver = driver
        self._log = driver.state.log
        self._mode = mode
        self.noted = driver.state.replica.high_watermark

    def note(self) -> None:
        """Write it down."""
        # A leader may have committed what its own disk does not have yet: then the hint would accuse the disk of a loss.
        self.noted = min(self._mode.settled, self._log.durable_end)
        self._driver.submit(self._log.hard_state.stage_high_watermark(self.noted))

    def checkpoint(self) -> None:
        """Write it down where it changed, and let go of memory where nothing happens."""
        if self.noted != self._mode.settled:
            self.note()
        else:
            self._log.release_memory(IDLE_TAIL_BYTES)
        self._log.note_held()


class SingleWriterUpkeep:
    """Where one leader writes.

    Attributes:
        leader_lacks: checkpoints in a row at which the leader had not shown what is settled here.
    """

    def __init__(
        self,
        driver: ReplicaDriver,
        mode: ReplicationMode,
        replica: Replica | RaftReplica,
        hint: WatermarkHint,
    ) -> None:
        self._driver = driver
        self._state = driver.state
        self._mode = mode
        self._replica = replica
        self._hint = hint
        self._log = driver.state.lines
        self._is_flushing = False
        self.leader_lacks = 0

    def checkpoint(self) -> None:
        """See LogUpkeep. Says so, too, when a leader goes on without what was acknowledged and is settled here."""
        self._hint.checkpoint()
        self.leader_lacks = self.leader_lacks + 1 if self._replica.following.leader_shows_less else 0
        if self.leader_lacks == LOOKS:
            self._state.services.look_at(self._state.shard_id)
            self._log.error(
                "leader_lacks_acknowledged_entries",
                leader=self._replica.leader,
                high_watermark=self._mode.settled,
                reason="entries that were acknowledged are here and not in the leader's log: keep this node's directory",
            )

    def note_watermark(self) -> None:
        """See LogUpkeep."""
        self._hint.note()

    def apply_retention(self, now_ms: int) -> None:
        """See LogUpkeep. Of a table nothing goes before its store has it on disk, which is brought there in a thread."""
        log, table, limit = self._state.log, self._state.table, self._mode.settled
        if table is not None:
            if log.retention_start(now_ms, limit) > table.state.durable_offset:
                self._flush(table, now_ms)  # once in 30 s at most, and only if something goes
                return
            limit = min(limit, table.state.durable_offset)
        self._trim_old(now_ms, limit)

    def _flush(self, table: "TableShard", now_ms: int) -> None:
        """Bring the store to disk, then trim the log behind it. One at a time; other shards are served meanwhile."""
        if self._is_flushing:
            return
        self._is_flushing = True
        state = table.state
        flushed = asyncio.get_running_loop().run_in_executor(None, state.flush)
        flushed.add_done_callback(lambda done: self._flushed(table, state, done, now_ms))

    def _flushed(
        self, table: "TableShard", state: "TableState", done: "asyncio.Future[None]", now_ms: int
    ) -> None:
        self._is_flushing = False
        if done.cancelled():
            return
        error, own = done.exception(), self._state
        if own.closed or own.failed is not None or table.state is not state:
            return  # that store is closed, before it was flushed or after
        if isinstance(error, StorageFailedError):
            self._driver.stopped_by(error)
        elif isinstance(error, Exception):
            self._driver.fail(error)
        else:
            self._trim_old(now_ms, min(self._mode.settled, state.durable_offset))

    def _trim_old(self, now_ms: int, limit: int) -> None:
        log = self._state.log
        if self._state.table is not None:  # readers are to see what is prepared when it is committed
            limit = log.producers.transactions.last_stable(limit)
        op = log.apply_retention(now_ms, limit, self._state.deleted_before)
        if op is not None:
            self._log.info("log_trimmed", log_start=log.log_start)
            self._driver.submit(op)
            self._driver.call(self._replica.trimmed, log.log_start)

    def check_trimmable(self) -> None:
        """See LogUpkeep."""

    def record_deletion(self, before: int) -> bool:
        """See LogUpkeep."""
        replica = self._replica
        if not isinstance(replica, RaftReplica) or replica.membership is None:
            return False
        self._driver.call(replica.membership.delete_before, before)
        return True

    def trim(self, log_start: int, done: "Callback") -> None:
        """See LogUpkeep."""
        log = self._state.log
        op = log.trim(log_start)
        self._driver.submit(op or LogOp(log.queue, [], kind=TRIM), done)
        if op is not None:
            self._log.info("log_trimmed", log_start=log_start, asked=True)
            self._driver.call(self._replica.trimmed, log_start)
