"""The one way from a replica's decisions to its log's files.

The replica says what is appended, cut or promised; this stages it in the `ShardLog` at once and gives the operations to the
WAL in the order of staging. Nobody else stages or submits for this log once its replica runs.

Client batches of one turn of the event loop come one at a time. They become one operation, held here until `flush`, so that
a turn costs the WAL one operation and the replica one word of it. Any other operation of the log goes behind what is held.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from antiphon.errors import AntiphonError, DiskFullError
from antiphon.invariants import unreachable
from antiphon.records.batch import BatchHeader, Buffer, read_header
from antiphon.replication.actions import AppendLog

if TYPE_CHECKING:
    from antiphon.log.operations import Callback, LogOp
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.services import PartitionServices


class LogWriter:
    """See the module's text.

    `written()` is called once a turn in which writes of the replica became durable: all up to `written_id` are. It sets
    `is_told`. `failed(error)`: a write or sync failed.
    """

    def __init__(
        self,
        services: "PartitionServices",
        log: "ShardLog",
        written: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._services = services
        self._log = log
        self._written = written
        self._failed = failed
        self._held: LogOp | None = None  # the batches of this turn
        self._held_id = 0  # write id of the last of them
        self.written_id = 0
        self.is_told = True  # has the replica been told of `written_id`?

    def append(self, action: AppendLog) -> None:
        """Stage exactly what the replica says, readable at once, and hold it until `flush`.

        Raises InvariantError for a batch that is not the entry that the replica said, or that does not continue the log.
        """
        batches: list[Any] = []
        headers = []
        for term, base_offset, next_offset, data, _ in action.entries:
            batch: Any = data
            header = read_header(batch)
            if (
                header.base_offset != base_offset
                or header.leader_epoch != term
                or base_offset + header.last_offset_delta + 1 != next_offset
            ):
                not_as_said(header, term, base_offset, next_offset)
            batches.append(batch)
            headers.append(header)
        self._held = self._log.stage_append(batches, headers, self._held)
        self._held_id = action.write_id

    def append_checked(
        self, write_id: int, batches: Sequence[Buffer], headers: Sequence[BatchHeader]
    ) -> None:
        """The same for batches that were held against what the replica said; by `headers` the log is to know them."""
        self._held = self._log.stage_append(batches, headers, self._held)
        self._held_id = write_id

    def write(self, op: "LogOp", write_id: int) -> None:
        """Submit another storage action of the replica, just staged."""
        self.flush()
        self._services.wal.submit(op, partial(self._finished, write_id, self._services.now_s()))

    def submit(self, op: "LogOp", callback: "Callback | None" = None) -> None:
        """Submit an operation that the replica need not hear of, just staged."""
        self.flush()
        self._services.wal.submit(op, callback)

    def flush(self) -> None:
        """Submit what is held."""
        op = self._held
        if op is not None:
            self._held = None
            services = self._services
            services.wal.submit(op, partial(self._finished, self._held_id, services.now_s()))

    def drop(self) -> None:
        """The replica stopped for good: what is held is never written."""
        self._held = None

    def _finished(self, write_id: int, began_s: float, error: AntiphonError | None) -> None:
        """Writes come back in order; of the last of a group the replica hears once a turn."""
        services = self._services
        if error is None:
            services.metrics.disk_latency.observe(services.now_s() - began_s)
            self.written_id = write_id
            if self.is_told:
                self.is_told = False
                services.turn.for_shard(self._written)
        elif not isinstance(error, DiskFullError):  # that one comes only when the node stops
            self._failed(error)


def not_as_said(header: BatchHeader, term: int, base_offset: int, next_offset: int) -> NoReturn:
    """A batch is not the entry that the replica said: written, it would be another one here than on the other replicas."""
    unreachable(
        f"the replica appends {base_offset}..{next_offset} of term {term}, "
        f"the batch is {header.base_offset}..{header.next_offset} of term {header.leader_epoch}"
    )
