"""Upkeep of a log that every replica writes: its marks, written down now and then, and what retention may take."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, DamagedLogError, InvalidRequestError
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.multi_files import pass_over, save_marks
from antiphon.partition.multi_table import MergedShard
from antiphon.partition.upkeep import WatermarkHint
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.origin_history import History, Mark

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.log.operations import Callback, LogOp

SAVE_EVERY_ENTRIES: Final = 16_384


class OriginMarks:
    """The marks of the log on disk, so that a start reads little of it."""

    def __init__(self, disk: "Disk", driver: ReplicaDriver, replica: MultiWriterReplica) -> None:
        self._disk = disk
        self._driver = driver
        self._replica = replica
        self._unsaved = 0

    def note(self, entries: int) -> None:
        """So many entries were appended: write the marks down now and then."""
        self._unsaved += entries
        if self._unsaved >= SAVE_EVERY_ENTRIES:
            self.save()

    def begin_with(self, mark: Mark) -> "LogOp":
        """The operation after which the log begins with this mark."""
        return save_marks(self._disk, self._driver.state.log, [mark])

    def save(self, saved: Callable[[AntiphonError | None], None] | None = None) -> None:
        """Write the marks down."""
        self._unsaved = 0
        self._driver.submit(
            save_marks(self._disk, self._driver.state.log, self._replica.log.durable_marks()), saved
        )


class MultiWriterUpkeep:
    """A `LogUpkeep`; see the module's text."""

    def __init__(
        self,
        driver: ReplicaDriver,
        replica: MultiWriterReplica,
        table: MergedShard | None,
        marks: OriginMarks,
        hint: WatermarkHint,
    ) -> None:
        self._driver = driver
        self._state = driver.state
        self._replica = replica
        self._table = table
        self._marks = marks
        self._hint = hint
        self._log = driver.state.lines

    def checkpoint(self) -> None:
        """See LogUpkeep."""
        self._hint.checkpoint()

    def note_watermark(self) -> None:
        """See LogUpkeep."""
        self._hint.note()

    def apply_retention(self, now_ms: int) -> None:
        """Trim what the settings no longer keep and every member has; forget removals that every member has."""
        state, replica = self._state, self._replica
        if state.failed is not None or state.closed:
            return
        if self._table is not None:
            if self._table.state.applied_offset < replica.log.durable_end:
                return  # older than a tombstone may be what is here and not merged yet
            try:
                self._table.forget_tombstones(replica.settled_clock())
            except AntiphonError as error:
                self._driver.fail(error)
            return  # its log is what a new member is filled from
        log = state.log
        start = log.retention_start(now_ms, replica.common_offset())
        if start <= replica.log_start:
            return
        history = History(replica.log.index.at_or_before(start))
        try:
            if not pass_over(log, history, start):
                return
        except (OSError, DamagedLogError) as error:
            self._driver.stopped_by(error)  # or it passes, and the next round finds the same to trim
            return
        base = history.mark()
        self._driver.call(replica.trimmed, base)

        def saved(error: AntiphonError | None) -> None:
            op = None if error is not None or state.closed else log.trim(base.offset)
            if op is not None:
                self._log.info("log_trimmed", log_start=log.log_start)
                self._driver.submit(op)

        self._marks.save(saved)

    def check_trimmable(self) -> None:
        """See LogUpkeep."""
        raise InvalidRequestError(
            f"shard {self._state.shard_id} is written by every replica, and what one still has to give to the others only "
            "it can say: use retention.ms or retention.bytes"
        )

    def record_deletion(self, _before: int) -> bool:
        """See LogUpkeep. `check_trimmable` refuses it."""
        return False

    def trim(self, _log_start: int, _done: "Callback") -> None:
        """See LogUpkeep."""
        self.check_trimmable()
