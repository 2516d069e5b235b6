"""Writes to a table's shard, judged by its leader: only their effects go to the log."""

from collections.abc import Callable
from functools import partial
from typing import Final

from antiphon import system
from antiphon.errors import AlreadyAppliedError, InvalidRequestError, NotReadyError, StorageFailedError
from antiphon.log.producer_state import JOB_ID_MIN
from antiphon.model.requests import Put, TableWrite, TableWritten
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.reads import PartitionReads
from antiphon.partition.table_reads import joins
from antiphon.partition.table_shard import TableShard
from antiphon.records.batch import BatchHeader
from antiphon.records.builder import build_batch
from antiphon.table.evaluator import Evaluation, results_from_batch
from antiphon.table.ranges import check_ops, wrong_shard

OP_BYTES: Final = 256  # of an operation with its key, about


class TableWrites:
    """See the module's text; of one replica."""

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients, reads: PartitionReads) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._reads = reads

    def write(self, request: TableWrite, done: Done) -> None:
        """Carry out a TableWrite; `done` gets TableWritten or an error. Raises what is known at once."""
        queue = self._clients.queue
        if queue.limit and queue.is_busy:
            self._state.check_writable()
            write = partial(self._write, request, done)
            self._clients.in_turn(write, request.timeout_ms / 1000, done, size_of_write(request))
            return
        try:
            self._write(request, done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _write(self, request: TableWrite, done: Done) -> None:
        """Carry it out on the leader; see `table.evaluator` for the order of the steps."""
        state, clients = self._state, self._clients
        state.check_writable()
        table = state.table or state.require_table()
        if state.services.is_joining(state.shard_id):
            raise joins(state.shard_id)
        evaluator = table.evaluator
        if evaluator is None:
            raise NotReadyError(f"shard {state.shard_id} has just been elected; retry")
        timeout_s = request.timeout_ms / 1000
        now_ms = system.wall_ms()
        state.services.metrics.table_ops += len(request.ops)
        if request.producer_id >= 0:
            header = producer_header(request, now_ms)
            if (
                request.producer_id >= JOB_ID_MIN
            ):  # first: to this log alone, what came before a split is out of order
                _check_inherited(table, header)
            duplicate = state.log.producers.check(header, table=True)
            if duplicate is not None:
                state.services.metrics.duplicates += 1
                base, end = duplicate.base_offset, duplicate.next_offset

                def answer_again() -> None:
                    if base < state.log.log_start:
                        raise AlreadyAppliedError(
                            f"this write of producer {request.producer_id} (sequence {request.sequence}) was applied "
                            f"before, and nothing was applied again; shard {state.shard_id} no longer holds what it was "
                            "answered: read the keys",
                            offset=base,
                            log_start=state.log.log_start,
                        )
                    (batch,) = self._reads.read(base, 1, end)
                    done(results_from_batch(batch))

                clients.when_committed(end, timeout_s, answer_again, done)
                return
            if request.after >= 0:
                table.order.check(request, state.log.producers)
        owned = evaluator.owned
        if not owned.is_whole and not check_ops(owned, request.ops, request.hashes):
            # It is certain only when the entry that released the keys is: from then on no leader will carry this out.
            error = wrong_shard(state.shard_id, owned)
            clients.when_committed(evaluator.appended_end, timeout_s, lambda: done(error), done)
            return
        evaluation = evaluator.evaluate(request.ops, now_ms, atomic=request.atomic)
        if not evaluation.records:
            table.order.left_no_trace(request)
            written = TableWritten(tuple(evaluation.results), -1)
            clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)
            return
        append_effects(self._driver, clients, request, evaluation, evaluator.appended, timeout_s, done)


def append_effects(
    driver: ReplicaDriver,
    clients: PartitionClients,
    request: TableWrite,
    evaluation: Evaluation,
    appended: Callable[[Evaluation, int], None],
    timeout_s: float,
    done: Done,
) -> None:
    """Append what a judged request comes to, tell its judge where, and answer when it is committed."""
    state = driver.state
    base = state.log.terms.log_end
    batch = build_batch(
        evaluation.records,
        base_offset=base,
        leader_epoch=state.replica.term,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=request.sequence,
    )
    if len(batch) > clients.max_message_bytes:
        raise clients.too_large(len(batch))
    written = TableWritten(tuple(evaluation.results), base)
    records = len(evaluation.records)
    clients.stage(batch, records, base + records, written, timeout_s, done)
    tell_judge(driver, partial(appended, evaluation, base))


def tell_judge(driver: ReplicaDriver, appended: Callable[[], None]) -> None:
    """A batch is in the log: its judge hears of it, or else the replica stops, as the store would miss what it says."""
    try:
        appended()
    except Exception as error:  # noqa: BLE001 - whatever it is; who waits for the batch is told, as all are
        driver.fail(error)


def _check_inherited(table: TableShard, header: BatchHeader) -> None:
    """Refuse what a job has written already to the shard that this one was split off.

    Raises AlreadyAppliedError, ProducerFencedError, ReplayConflictError, OutOfOrderSequenceError.
    """
    inherited = table.inherited
    if inherited is None:
        return
    if (
        inherited.last_batch(header.producer_id) is not None
        and inherited.check(header, table=True) is not None
    ):
        raise AlreadyAppliedError(
            f"this write of job {header.producer_id} (sequence {header.base_sequence}) was applied before, to the shard "
            "that this one was split off, and nothing was applied again: read the keys"
        )


def size_of_write(request: TableWrite) -> int:
    """About how many bytes a TableWrite keeps while it waits."""
    return sum(OP_BYTES + (len(op.value) if isinstance(op, Put) else 0) for op in request.ops)


def producer_header(request: TableWrite, now_ms: int) -> BatchHeader:
    """A header that carries only what the duplicate check looks at, for a batch that is not built yet.

    Raises InvalidRequestError for a producer id without epoch or sequence.
    """
    if request.producer_epoch < 0 or request.sequence < 0:
        raise InvalidRequestError("a producer id needs an epoch and a sequence of at least 0")
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=max(0, len(request.ops) - 1),
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=request.sequence,
        record_count=len(request.ops),
    )
