"""Writes to a table that take long: one piece in each turn of the event loop, so that the node serves others in between.

While a write is judged nothing else may be appended, since it is judged against what is in the log now. So it holds the
shard's line (`append_queue`) until it is appended, or refused. Reads and commits go on. Where leadership ends in between,
nothing was written.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InternalError,
    StorageFailedError,
    TimedOutError,
)
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.failures import report_request
from antiphon.table.evaluation import RecordInput, Result, Steps

RECORD_BYTES_MIN: Final = 42  # of an effect in a batch, besides its key and value


class LongWrites:
    """See the module's text; of one replica. One write at a time, and answers that take long to make.

    Attributes:
        state, clients: the replica's.
    """

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients) -> None:
        self._driver = driver
        self.state = driver.state
        self.clients = clients
        self._steps: Generator[Any, None, None]
        self._done: Done
        self._evaluator: object = None
        self._size_bytes = 0
        self._deadline_s = 0.0

    def carry_out(
        self, steps: Generator[Any, None, None], size_bytes: int, timeout_s: float, done: Done
    ) -> None:
        """Take all of `steps`, one in each turn. They answer by themselves; `done` gets the error if they raise one.

        `size_bytes`: about what is kept meanwhile.
        """
        state, services = self.state, self.state.services
        self._steps, self._done, self._size_bytes = steps, done, size_bytes
        self._evaluator = state.require_table().evaluator
        self._deadline_s = services.now_s() + timeout_s
        self.clients.queue.holds += 1
        services.in_flight(size_bytes)
        services.turn.pieces.add(self, self._piece)

    def _piece(self) -> None:
        if self._guarded(self._step, self._done):
            self.state.services.turn.pieces.add(self, self._piece)
            return
        self._steps.close()
        del self._steps, self._done
        self.state.services.in_flight(-self._size_bytes)
        self.clients.let_go()

    def _step(self) -> bool:
        """One step; says whether there are more."""
        state = self.state
        state.check_writable()
        if state.require_table().evaluator is not self._evaluator:
            raise state.not_leader()
        if state.services.now_s() > self._deadline_s:
            raise TimedOutError(
                f"shard {state.shard_id} has not judged the write in time: nothing was written",
                shard_id=state.shard_id,
            )
        return next(self._steps, self) is not self

    def answer(self, work: Callable[[], None], done: Done) -> None:
        """Make an answer that takes long in a turn of its own; `done` gets the error instead."""

        def attempt() -> bool:
            self.state.check_alive()
            work()
            return False

        def guarded() -> None:
            self._guarded(attempt, done)

        self.state.services.turn.pieces.add(self, guarded)

    def _guarded(self, work: Callable[[], bool], done: Done) -> bool:
        """What `work` says; False where it went wrong, which is told."""
        try:
            return work()
        except StorageFailedError as error:
            told: AntiphonError = self._driver.stopped_by(error)
        except AntiphonError as error:
            told = error
        except Exception as error:  # noqa: BLE001 - answered as a bug of this node; others wait for the line
            self.state.lines.error("table_write_failed", exc_info=error)
            told = InternalError(f"{type(error).__name__}: {error}")
        try:
            done(told)
        except Exception as error:  # noqa: BLE001 - a bug in whoever asked: it is not the others' trouble
            report_request(self.state.shard_id, error)
        return False


def within(
    steps: Steps[Result], bytes_max: int, too_large: Callable[[int], BatchTooLargeError]
) -> Steps[Result]:
    """The same steps, until it is certain that their effects do not fit into a batch of `bytes_max`."""
    counted = size_bytes = 0
    while True:
        try:
            records: list[RecordInput] = next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        new = records[counted:]
        size_bytes += sum(RECORD_BYTES_MIN + len(key) + len(value or b"") for key, value, _, _ in new)
        counted += len(new)
        if size_bytes > bytes_max:
            raise too_large(size_bytes)
        yield records
