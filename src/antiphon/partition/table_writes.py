"""Writes to a table's shard, judged by its leader: only their effects go to the log."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.errors import (
    AlreadyAppliedError,
    AntiphonError,
    InvalidRequestError,
    NotReadyError,
    StorageFailedError,
)
from antiphon.log.producer_state import JOB_ID_MIN, Duplicate
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import Put, TableOp, TableWrite, TableWritten
from antiphon.model.sender import Sender
from antiphon.model.sessions import PutEphemeral
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.long_writes import LongWrites, within
from antiphon.partition.reads import PartitionReads
from antiphon.partition.services import Wanted
from antiphon.partition.state import PartitionState
from antiphon.partition.table_reads import joins
from antiphon.partition.table_shard import TableShard
from antiphon.records.batch import BatchHeader, stamp
from antiphon.records.builder import build_batch, building
from antiphon.table.evaluation import Evaluation, Steps
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.outcomes import results_from_batch
from antiphon.table.ranges import check_ops, wrong_shard

if TYPE_CHECKING:
    from antiphon.model.loads import LoadRows
    from antiphon.model.table_transactions import PrepareWrite

OP_BYTES: Final = 256  # of an operation with its key, about


class TableWrites:
    """See the module's text; of one replica."""

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients, reads: PartitionReads) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._reads = reads
        self._long = LongWrites(driver, clients)

    def write(self, request: TableWrite, done: Done, sender: Sender | None = None) -> None:
        """Carry out a TableWrite; `done` gets TableWritten or an error. Raises what is known at once.

        Requests of one `sender` are carried out in their order.
        """
        queue = self._clients.queue
        if queue.holds or queue.waiting.count or (queue.limit and queue.is_busy):
            self._state.check_writable()
            write, timeout_s = partial(self._write, request, done), request.timeout_ms / 1000
            is_large = len(request.ops) > self._state.services.turn.pieces.operations
            size_bytes = size_of_write(request)
            self._clients.in_turn(write, timeout_s, done, size_bytes, sender, is_large=is_large)
            return
        try:
            self._write(request, done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _write(self, request: TableWrite, done: Done) -> None:
        """Carry it out on the leader, or begin to; see `table.evaluator` for the order of the steps."""
        state = self._state
        state.check_writable()
        table = state.table or state.require_table()
        if state.is_joining:
            raise joins(state.shard_id)
        evaluator = table.evaluator
        if evaluator is None:
            raise NotReadyError(f"shard {state.shard_id} has just been elected; retry")
        now_ms = system.wall_ms()
        state.services.metrics.table_ops += len(request.ops)
        if request.producer_id >= 0:
            header = producer_header(request, len(request.ops), now_ms)
            if request.producer_id >= JOB_ID_MIN:
                # First: to this log alone, what came before a split is out of order.
                _check_inherited(table, header)
            duplicate = state.log.producers.check(header, table=True, full=state.services.producers_full)
            if duplicate is not None:
                answer_repeat(self._long, self._reads, request, duplicate, done)
                return
            if request.after >= 0:
                table.order.check(request, state.log.producers)
        if len(request.ops) > state.services.turn.pieces.operations:
            self._begin_long(self._checked(request, evaluator, done), request, done)
            return
        owned = evaluator.owned
        if not owned.is_whole and not self._may_be_here(evaluator, request, request.ops):
            self._not_here(request, evaluator, done)
            return
        evaluation = evaluator.at_once(request.ops, now_ms, atomic=request.atomic)
        if evaluation is None:  # it removes a range, which may hold much
            self._begin_long(self._judging(request, evaluator, done), request, done)
        elif evaluation.records:
            append_effects(self._driver, self._clients, request, evaluation, evaluator.appended, done)
        else:
            self._without_effect(request, evaluation, done)

    def _may_be_here(self, evaluator: TableEvaluator, request: TableWrite, ops: Sequence[TableOp]) -> bool:
        """`check_ops` of some of a request's operations."""
        strays = request.placed and evaluator.has_strays
        return check_ops(evaluator.owned, ops, request.hashes, placed=request.placed, strays=strays)

    def _begin_long(self, steps: Generator[Any, None, None], request: TableWrite, done: Done) -> None:
        self._long.carry_out(steps, size_of_write(request), request.timeout_ms / 1000, done)

    def _not_here(self, request: TableWrite, evaluator: TableEvaluator, done: Done) -> None:
        refuse_elsewhere(self._clients, self._state.shard_id, evaluator, request.timeout_ms / 1000, done)

    def _without_effect(self, request: TableWrite, evaluation: Evaluation, done: Done) -> None:
        """Answer a request that leaves the table as it is."""
        clients, timeout_s = self._clients, request.timeout_ms / 1000
        self._state.require_table().order.left_no_trace(request)
        written = TableWritten(tuple(evaluation.results), -1)
        clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)

    # -- in pieces ----------------------------------------------------------------------------------------------

    def _checked(
        self, request: TableWrite, evaluator: TableEvaluator, done: Done
    ) -> Generator[None, None, None]:
        """The steps of a large request."""
        owned, ops, piece = evaluator.owned, request.ops, self._state.services.turn.pieces.operations
        for at in range(0, 0 if owned.is_whole else len(ops), piece):
            if not self._may_be_here(evaluator, request, ops[at : at + piece]):
                self._not_here(request, evaluator, done)
                return
            yield
        yield from self._judging(request, evaluator, done)

    def _judging(
        self, request: TableWrite, evaluator: TableEvaluator, done: Done
    ) -> Generator[Any, None, None]:
        """The steps of a request to which the shard may say yes: judge it, build the batch, then append that."""
        driver, clients, piece = self._driver, self._clients, self._state.services.turn.pieces.operations
        judging = evaluator.evaluating(request.ops, system.wall_ms(), piece, atomic=request.atomic)
        evaluation, batch = yield from judged(judging, request, clients, piece)
        if batch is None:
            self._without_effect(request, evaluation, done)
            return
        yield from evaluator.preparing(evaluation, piece)
        stamp(batch, driver.state.log.terms.log_end, driver.state.replica.term)
        append_effects(driver, clients, request, evaluation, evaluator.appended, done, batch)


def refuse_elsewhere(
    clients: PartitionClients, shard_id: int, evaluator: TableEvaluator, timeout_s: float, done: Done
) -> None:
    """Refuse keys that another shard holds.

    It is certain only when the entry that released them is: from then on no leader will carry this out.
    """
    error = wrong_shard(shard_id, evaluator.owned)
    clients.when_committed(evaluator.appended_end, timeout_s, lambda: done(error), done)


def already_applied(state: PartitionState, request: TableWrite, base: int) -> AlreadyAppliedError:
    """The error for a repeat whose first outcome, at offset `base`, was trimmed."""
    return AlreadyAppliedError(
        f"this write of producer {request.producer_id} (sequence {request.sequence}) was applied before, and nothing was "
        f"applied again; shard {state.shard_id} no longer holds what it was answered: read the keys",
        offset=base,
        log_start=state.log.log_start,
    )


def answer_of(
    state: PartitionState,
    reads: PartitionReads,
    duplicate: Duplicate,
    gone: Callable[[], AntiphonError],
    done: Done,
) -> Callable[[], None]:
    """What answers a repeat as the request was answered, from its batch; `gone`: the error where that was trimmed."""
    state.services.metrics.duplicates += 1
    base, end = duplicate.base_offset, duplicate.next_offset

    def answer() -> None:
        if base < state.log.log_start:
            raise gone()
        (batch,) = reads.read(base, 1, end)
        done(results_from_batch(batch))

    return answer


def answer_repeat(
    long: LongWrites, reads: PartitionReads, request: TableWrite, duplicate: Duplicate, done: Done
) -> None:
    """Answer a request that was carried out before as it was then, in turns where that takes long."""
    state, base, end = long.state, duplicate.base_offset, duplicate.next_offset
    answer = answer_of(state, reads, duplicate, partial(already_applied, state, request, base), done)
    if end - base > state.services.turn.pieces.operations:
        answer = partial(long.answer, answer, done)
    long.clients.when_committed(end, request.timeout_ms / 1000, answer, done)


def judged(
    judging: Steps[Evaluation], request: TableWrite, clients: PartitionClients, piece: int
) -> Generator[Any, None, tuple[Evaluation, bytearray | None]]:
    """The steps of judging a large request, and of building its batch, which is not stamped; None where it has no effect."""
    # An atomic request may turn out to be refused, and then it is no matter how large it would have been.
    bytes_max = 1 << 62 if request.atomic else clients.max_message_bytes
    evaluation = yield from within(judging, bytes_max, clients.too_large)
    if not evaluation.records:
        return evaluation, None
    yield
    producer = (request.producer_id, request.producer_epoch, request.sequence)
    batch = yield from building(evaluation.records, piece, producer)
    if len(batch) > clients.max_message_bytes:
        raise clients.too_large(len(batch))
    yield
    return evaluation, batch


def append_effects(
    driver: ReplicaDriver,
    clients: PartitionClients,
    request: "TableWrite | PrepareWrite",
    evaluation: Evaluation,
    appended: Callable[[Evaluation, int], None],
    done: Done,
    batch: bytearray | None = None,
) -> None:
    """Append what a judged request comes to, tell its judge where, and answer when it is committed.

    `batch`: of the effects, stamped for the log's end, if it is there.
    """
    state = driver.state
    if evaluation.attributed:
        refusal = state.services.refusal_of(state.shard_id, Wanted.ATTRIBUTES)
        if refusal is not None:
            raise refusal
    base = state.log.terms.log_end
    if batch is None:
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
    clients.stage(batch, records, base + records, written, request.timeout_ms / 1000, done)
    judge_appended(driver, partial(appended, evaluation, base))


def judge_appended(driver: ReplicaDriver, appended: Callable[[], None]) -> None:
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
    return sum(
        OP_BYTES + (len(op.value) if isinstance(op, Put | PutEphemeral | PutAttributed) else 0)
        for op in request.ops
    )


def producer_header(
    request: "TableWrite | PrepareWrite | LoadRows", records: int, now_ms: int, *, attributes: int = 0
) -> BatchHeader:
    """A header that carries only what the checks of a producer look at, for a batch that is not built yet.

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
        attributes=attributes,
        last_offset_delta=max(0, records - 1),
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=request.sequence,
        record_count=records,
    )
