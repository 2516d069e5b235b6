"""Loads of many rows into a table's shard, on its leader: judged together where that can be, else as the puts that they are.

A load is a request of its own (`model.loads`), with the same producers and sequences as a `TableWrite`. It becomes the batch
that its puts would have become, so who sent some of it as a `TableWrite` before is answered from the log all the same.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.errors import AntiphonError, InternalError, StorageFailedError
from antiphon.model.loads import Load
from antiphon.model.requests import Appended, Delete, OpStatus, Put, TableWrite, TableWritten
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.table_writes import judge_appended, producer_header
from antiphon.records.batch import stamp
from antiphon.records.packed_rows import unpacked
from antiphon.table.evaluator import TableEvaluator

if TYPE_CHECKING:
    from antiphon.log.producer_state import Duplicate

Writes = Callable[[TableWrite, Done], None]
LOADED: tuple[int, ...] = (OpStatus.OK, OpStatus.KEY_NOT_FOUND)


class TableLoads:
    """See the module's text; of one replica."""

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients, writes: Writes) -> None:
        """`writes`: what carries out the puts, where they are judged one by one."""
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._writes = writes

    def load(self, load: Load, done: Done) -> None:
        """Carry out a load; `done` gets Appended or an error. Raises what is known at once."""
        self._state.check_writable()
        try:
            evaluator = self._evaluator_for(load.request.rows)
            if evaluator is None or not self._together(load, evaluator, done):
                self._one_by_one(load, done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _evaluator_for(self, rows: int) -> TableEvaluator | None:
        """What judges rows of this shard together, now; None: they are to be judged one by one."""
        state, services, table = self._state, self._state.services, self._state.table
        if table is None or self._clients.queue.is_busy or state.is_joining:
            return None
        evaluator = table.evaluator
        if evaluator is None or not evaluator.owned.is_whole or table.inherited is not None:
            return None
        if rows > services.turn.pieces.operations or not services.kernels.are_for(rows):
            return None
        return evaluator

    def _together(self, load: Load, evaluator: TableEvaluator, done: Done) -> bool:
        """Judge all rows at once, and append them; False: nothing was done."""
        request, state, clients = load.request, self._state, self._clients
        now_ms = system.wall_ms()
        if request.producer_id >= 0:
            header = producer_header(request, request.rows, now_ms)
            duplicate = state.log.producers.check(header, table=True, full=state.services.producers_full)
            if duplicate is not None:
                self._repeat(load, duplicate, done)
                return True
        producer = request.producer_id, request.producer_epoch, request.sequence
        loading = evaluator.loads.judged(load.rows, request.rows, now_ms, producer, state.services.kernels)
        if loading is None:
            return False
        batch = loading.batch
        if len(batch) > clients.max_message_bytes:
            raise clients.too_large(len(batch))
        state.services.metrics.table_ops += request.rows
        base, term = state.log.terms.log_end, state.replica.term
        stamp(batch, base, term)
        end = base + request.rows
        clients.stage(batch, request.rows, end, Appended(base, end, term), request.timeout_ms / 1000, done)
        judge_appended(self._driver, partial(evaluator.loads.appended, loading, base))
        return True

    def _repeat(self, load: Load, duplicate: "Duplicate", done: Done) -> None:
        """Answer what was carried out before, when that is committed."""
        self._state.services.metrics.duplicates += 1
        base, end = duplicate.base_offset, duplicate.next_offset
        answer = Appended(base, end, self._state.replica.term, duplicate=True)
        self._clients.when_committed(end, load.request.timeout_ms / 1000, lambda: done(answer), done)

    def _one_by_one(self, load: Load, done: Done) -> None:
        """The same as a `TableWrite`."""
        request, term = load.request, self._state.replica.term

        def answered(result: TableWritten | AntiphonError) -> None:
            if isinstance(result, AntiphonError):
                done(result)
            elif any(one.status not in LOADED for one in result.results):
                done(
                    InternalError(f"shard {request.shard_id} refused rows of a load, which has no conditions")
                )
            else:
                effects = sum(one.status == OpStatus.OK for one in result.results)
                done(Appended(result.offset, result.offset + effects if effects else -1, term))

        self._writes(
            TableWrite(
                request.shard_id,
                tuple(
                    Delete(key) if value is None else Put(key, value)
                    for key, value in unpacked(load.rows, request.rows)
                ),
                request.producer_id,
                request.producer_epoch,
                request.sequence,
                request.timeout_ms,
            ),
            answered,
        )
