"""The one way from a replica's decisions to its log's files.

The replica says what is appended, cut or promised; this stages it in the `ShardLog` at once and gives the operations to the
WAL in the order of staging. Nobody else stages or submits for this log once its replica runs.

Client batches of one turn of the event loop come one at a time. Their operations are held here until `flush`, so that a turn
costs the WAL one group and the replica one word of it. Any other operation of the log goes behind what is held.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from antiphon.errors import AntiphonError, DiskFullError
from antiphon.invariants import unreachable
from antiphon.records.batch import BatchHeader, Buffer

if TYPE_CHECKING:
    from antiphon.log.operations import Callback, LogOp
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.services import PartitionServices


class LogWriter:
    """See the module's text. `written(write_id)`: all up to there is durable. `failed(error)`: a write or sync failed."""

    def __init__(
        self,
        services: "PartitionServices",
        log: "ShardLog",
        written: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._services = services
        self._log = log
        self._written = written
        self._failed = failed
        self._held: list[LogOp] = []
        self._held_id = 0  # write id of the last of them

    def append(self, write_id: int, batches: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Stage an append of the replica's, readable at once, and hold it until `flush`. `headers`: of the batches.

        Raises InvariantError when it does not continue the log.
        """
        self._held.append(self._log.stage_append(batches, headers))
        self._held_id = write_id

    def write(self, op: "LogOp", write_id: int) -> None:
        """Submit another storage action of the replica, just staged."""
        self.flush()
        self._submit(op, write_id)

    def submit(self, op: "LogOp", callback: "Callback | None" = None) -> None:
        """Submit an operation that the replica need not hear of, just staged."""
        self.flush()
        self._services.wal.submit(op, callback)

    def flush(self) -> None:
        """Submit what is held."""
        if self._held:
            held, self._held = self._held, []
            submit = self._services.wal.submit
            for op in held[:-1]:
                submit(op)
            self._submit(held[-1], self._held_id)

    def drop(self) -> None:
        """The replica stopped for good: what is held is never written."""
        self._held.clear()

    def _submit(self, op: "LogOp", write_id: int) -> None:
        services = self._services
        began_s = services.now_s()

        def finished(error: AntiphonError | None) -> None:
            if error is None:
                services.metrics.disk_latency.observe(services.now_s() - began_s)
                self._written(write_id)
            elif not isinstance(error, DiskFullError):  # that one comes only when the node stops
                self._failed(error)

        services.wal.submit(op, finished)


def not_as_said(header: BatchHeader, term: int, base_offset: int, next_offset: int) -> NoReturn:
    """A batch is not the entry that the replica said: written, it would be another one here than on the other replicas."""
    unreachable(
        f"the replica appends {base_offset}..{next_offset} of term {term}, "
        f"the batch is {header.base_offset}..{header.next_offset} of term {header.leader_epoch}"
    )
