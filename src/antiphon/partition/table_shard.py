"""A table's store beside its shard: applied on every commit, judged on by the leader's evaluator.

Followers apply the log's batches blindly; the leader applies the effects that its evaluator kept, which saves it the
decoding.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from antiphon import system
from antiphon.errors import (
    AlreadyAppliedError,
    DamagedStoreError,
    InvalidRequestError,
    NotReadyError,
    StorageFailedError,
)
from antiphon.invariants import invariant
from antiphon.log.producer_state import JOB_ID_MIN, ProducerState
from antiphon.model.metadata import HASH_MAX
from antiphon.model.requests import Put, TableGet, TableRows, TableScan, TableWrite, TableWritten
from antiphon.partition.clients import producer_header
from antiphon.partition.table_files import note_damage
from antiphon.partition.write_order import WriteOrder
from antiphon.records.batch import BatchHeader
from antiphon.records.builder import build_batch
from antiphon.table.evaluator import Evaluation, TableEvaluator, results_from_batch
from antiphon.table.ranges import check_ops, covers, wrong_shard
from antiphon.table.state import EQUAL, TableState, open_state

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.partition import Admit, Partition
    from antiphon.table.store import StoreEngine

APPLY_BYTES: Final = 1024 * 1024
OP_BYTES: Final = 256  # of an operation with its key, about
GET_KEYS_MAX: Final = 100_000  # of one request
READ_TIMEOUT_S: Final = 30.0
CONSISTENCIES: Final = ("linearizable", "leader", "local")


class TableShard:
    """Store and, while this node leads, evaluator of one table shard."""

    def __init__(
        self, path: str, log: "ShardLog", stores: "StoreEngine", state: TableState | None = None
    ) -> None:
        """Opens the store in directory `path`, unless it is given. Raises what `open_state` does."""
        self.path = path
        self.stores = stores
        self.state = open_state(path, stores) if state is None else state
        self.evaluator: TableEvaluator | None = None
        self.order = WriteOrder()
        self._log = log
        self._inherited: tuple[bytes, ProducerState | None] = (b"", None)

    @property
    def inherited(self) -> ProducerState | None:
        """What jobs had written to the shard that this one was split off, before it was."""
        jobs = self.state.jobs
        if self._inherited[0] is not jobs:
            self._inherited = (jobs, ProducerState.decode(jobs) if jobs else None)
        return self._inherited[1]

    def committed(self, high_watermark: int) -> None:
        """Apply the log up to here. Raises StorageFailedError."""
        if self.evaluator is not None:
            self.evaluator.committed(high_watermark)
        else:
            self.catch_up(high_watermark)

    def catch_up(self, high_watermark: int) -> None:
        """Apply from the log what is committed and not applied, in pieces."""
        state = self.state
        while state.applied_offset < high_watermark:
            before = state.applied_offset
            state.apply(self._log.read(before, APPLY_BYTES, high_watermark))
            invariant(state.applied_offset > before, f"the log holds nothing to apply at {before}")

    def start_over(self) -> None:
        """Forget everything: the log, which reaches back to its beginning, tells it again as it is committed."""
        self.evaluator = None
        self.state.close()
        self._log.disk.remove_tree(self.path)
        self.state = open_state(self.path, self.stores)

    def note_damage(self) -> None:
        """The store was found damaged: the next start makes it anew, or does not use it."""
        note_damage(self._log.disk, self.path)

    def let_go(self, reason: Exception | None) -> None:
        """Close the store, as well as it goes. `reason`: why the replica ends, where that is a failure."""
        if isinstance(reason, DamagedStoreError):
            self.note_damage()
        try:
            self.state.close()
        except StorageFailedError as error:
            structlog.get_logger().error("table_not_closed", path=self.path, error=error.message)

    def lead(self) -> None:
        """The replica leads and everything committed is applied: judge from now on."""
        self.evaluator = TableEvaluator(self.state)
        self.order = WriteOrder()

    def stop_leading(self) -> None:
        """Forget what was judged and not committed."""
        self.evaluator = None


def write_table(host: "Partition", request: TableWrite, done: Callable[[Any], None]) -> None:
    """Carry out a TableWrite on the leader; see `table.evaluator` for the order of the steps."""
    host.check_writable()
    table, clients = host.table or host.require_table(), host.clients
    if host.services.is_joining(host.shard_id):
        raise _joins(host)
    evaluator = table.evaluator
    if evaluator is None:
        raise NotReadyError(f"shard {host.shard_id} has just been elected; retry")
    timeout_s = request.timeout_ms / 1000
    now_ms = system.wall_ms()
    host.services.metrics.table_ops += len(request.ops)
    if request.producer_id >= 0:
        if request.producer_epoch < 0 or request.sequence < 0:
            raise InvalidRequestError("a producer id needs an epoch and a sequence of at least 0")
        header = producer_header(
            request.producer_id, request.producer_epoch, request.sequence, len(request.ops), now_ms
        )
        if (
            request.producer_id >= JOB_ID_MIN
        ):  # first: to this log alone, what came before the split is out of order
            _check_inherited(table, header)
        duplicate = host.log.producers.check(header, table=True)
        if duplicate is not None:
            host.services.metrics.duplicates += 1
            base, end = duplicate.base_offset, duplicate.next_offset

            def answer_again() -> None:
                if base < host.log.log_start:
                    raise AlreadyAppliedError(
                        f"this write of producer {request.producer_id} (sequence {request.sequence}) was applied before, "
                        f"and nothing was applied again; shard {host.shard_id} no longer holds what it was answered: read "
                        "the keys",
                        offset=base,
                        log_start=host.log.log_start,
                    )
                (batch,) = host.read(base, 1, end)
                done(results_from_batch(batch))

            clients.when_committed(end, timeout_s, answer_again, done)
            return
        table.order.check(request, host.log.producers)
    owned = evaluator.owned
    if not owned.is_whole and not check_ops(owned, request.ops, request.hashes):
        # It is certain only when the entry that released the keys is: from then on no leader will carry this out.
        error = wrong_shard(host.shard_id, owned)
        clients.when_committed(evaluator.appended_end, timeout_s, lambda: done(error), done)
        return
    evaluation = evaluator.evaluate(request.ops, now_ms, atomic=request.atomic)
    if not evaluation.records:
        table.order.left_no_trace(request)
        written = TableWritten(tuple(evaluation.results), -1)
        clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)
        return
    append_effects(host, request, evaluation, evaluator.appended, timeout_s, done)


def append_effects(
    host: "Partition",
    request: TableWrite,
    evaluation: Evaluation,
    appended: Callable[[Evaluation, int], None],
    timeout_s: float,
    done: Callable[[Any], None],
) -> None:
    """Append what a judged request comes to, tell its judge where, and answer when it is committed."""
    base = host.log.log_end
    batch = build_batch(
        evaluation.records,
        base_offset=base,
        leader_epoch=host.replica.term,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=request.sequence,
    )
    clients = host.clients
    if len(batch) > clients.max_message_bytes:
        raise clients.too_large(len(batch))
    written = TableWritten(tuple(evaluation.results), base)
    records = len(evaluation.records)
    clients.stage(batch, records, base + records, written, timeout_s, done)
    tell_judge(host, partial(appended, evaluation, base))


def tell_judge(host: "Partition", appended: Callable[[], None]) -> None:
    """A batch is in the log: its judge hears of it, or else the replica stops, as the store would miss what it says."""
    try:
        appended()
    except Exception as error:  # noqa: BLE001 - whatever it is; who waits for the batch is told, as all are
        host.fail(error)


def _joins(host: "Partition") -> NotReadyError:
    """The error while the shard is being split off another one: it is not part of its table yet."""
    return NotReadyError(
        f"shard {host.shard_id} is being split off another one and does not serve yet; retry"
    )


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


def get_rows(
    host: "Partition", request: TableGet, done: Callable[[Any], None], admit: "Admit | None" = None
) -> None:
    """Carry out a TableGet; `done` gets TableRows or an error. See Partition for `admit`."""
    table = host.require_table()
    if len(request.keys) > GET_KEYS_MAX:
        raise InvalidRequestError(f"a get has up to {GET_KEYS_MAX} keys, not {len(request.keys)}")

    def read() -> None:
        state = table.state
        if request.comparison == EQUAL:
            owned = state.owned
            if (owned.first or owned.last != HASH_MAX) and not all(map(owned.holds, request.keys)):
                raise wrong_shard(host.shard_id, owned)
            rows = state.get_many(request.keys, include_value=request.include_value)
        else:
            rows = state.find_many(request.keys, request.comparison, include_value=request.include_value)
        done(TableRows(tuple(rows)))

    _consistently(host, request.consistency, _guarded(host, read, admit), done)


def scan_rows(
    host: "Partition", request: TableScan, done: Callable[[Any], None], admit: "Admit | None" = None
) -> None:
    """Carry out a TableScan; `done` gets TableRows or an error. See Partition for `admit`."""
    table = host.require_table()

    def read() -> None:
        state, hashes = table.state, request.hashes
        owned = state.owned
        if not covers(owned, hashes):
            raise wrong_shard(host.shard_id, owned)
        if hashes and hashes[0] <= owned.first and owned.last <= hashes[1]:
            hashes = ()  # all that is here
        rows, more = state.scan(
            request.start, request.end, request.limit, include_value=request.include_value, hashes=hashes
        )
        done(TableRows(tuple(rows), more))

    _consistently(host, request.consistency, _guarded(host, read, admit), done)


def _guarded(host: "Partition", read: Callable[[], None], admit: "Admit | None") -> Callable[[], None]:
    """What reads when it is admitted. By then the replica may have been closed, or find its store broken."""
    if admit is None:
        return read

    def later() -> None:
        try:
            host.check_alive()
            read()
        except StorageFailedError as error:
            raise host.stopped_by(error) from error

    return partial(admit, later)


def _consistently(
    host: "Partition",
    consistency: str,
    read: Callable[[], None],
    done: Callable[[Any], None],
) -> None:
    host.services.metrics.table_reads += 1
    if host.services.is_joining(host.shard_id):
        raise _joins(host)
    if consistency == "linearizable":
        host.check_serving()
        host.clients.when_confirmed(0, READ_TIMEOUT_S, read, done)
    elif consistency == "leader":
        host.check_serving()
        read()
    elif consistency == "local":
        host.check_alive()
        read()
    else:
        raise InvalidRequestError(f"consistency is one of {', '.join(CONSISTENCIES)}, not {consistency!r}")
