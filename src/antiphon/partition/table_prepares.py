"""What transactions that span shards prepare in a table's shard, on its leader.

A prepare is a batch with the transactional bit: the log knows of the transaction by it, as a topic's does, and so do the
last stable offset, the index of aborted transactions and every replica. What becomes of its effects is the marker's to say
(`partition.transactions`, `table.prepared`).

While a part of the keys is about to be handed over to another shard (a split), nothing is prepared: the other shard takes
over rows, and no locks.
"""

from functools import partial
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    InvalidTxnStateError,
    NotReadyError,
    StorageFailedError,
    WrongKindError,
)
from antiphon.model.requests import Put, TableWritten
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.mode import MANY_WRITERS
from antiphon.partition.reads import PartitionReads
from antiphon.partition.services import Wanted
from antiphon.partition.table_reads import joins
from antiphon.partition.table_writes import answer_of, append_effects, producer_header, refuse_elsewhere
from antiphon.records.batch import TRANSACTIONAL_BIT
from antiphon.records.builder import build_batch
from antiphon.table.prepared import EFFECT_BYTES
from antiphon.table.prepared_writes import check_prepare, records_of_prepare
from antiphon.table.ranges import check_ops

if TYPE_CHECKING:
    from antiphon.log.producer_state import Duplicate
    from antiphon.model.table_transactions import PrepareWrite
    from antiphon.table.evaluation import Evaluation
    from antiphon.table.evaluator import TableEvaluator


class TablePrepares:
    """See the module's text; of one replica."""

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients, reads: PartitionReads) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._reads = reads

    def prepare(self, request: "PrepareWrite", number: int | None, done: Done) -> None:
        """Carry out a PrepareWrite; `done` gets TableWritten or an error. Raises what is known at once.

        `number`: of the transaction, where its coordinator was asked.
        """
        state = self._state
        state.check_writable()
        state.require_table()
        if state.has_many_writers:
            raise WrongKindError(f"shard {state.shard_id} takes no transactions: {MANY_WRITERS}")
        check_prepare(request.ops)
        run = partial(self._prepare, request, number, done)
        try:
            self._clients.in_turn(run, request.timeout_ms / 1000, done, _size_of(request))
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _prepare(self, request: "PrepareWrite", number: int | None, done: Done) -> None:
        state = self._state
        state.check_writable()
        evaluator = state.require_table().evaluator
        if state.is_joining:
            raise joins(state.shard_id)
        if evaluator is None:
            raise NotReadyError(f"shard {state.shard_id} has just been elected; retry")
        now_ms = system.wall_ms()
        records = records_of_prepare(request.ops)
        header = producer_header(request, records, now_ms, attributes=TRANSACTIONAL_BIT)
        transactions = state.log.producers.transactions
        transactions.check_epoch(header)
        duplicate = state.log.producers.check(header, full=state.services.producers_full)
        if duplicate is not None:
            self._repeated(request, duplicate, done)
            return
        transactions.check(header, number)
        if request.producer_id in transactions.open:
            raise InvalidTxnStateError(
                f"the transaction of {request.transactional_id!r} is prepared in shard {state.shard_id} already: a "
                "transaction is prepared once in each shard, at its commit"
            )
        self._judge(request, evaluator, now_ms, done)

    def _judge(
        self,
        request: "PrepareWrite",
        evaluator: "TableEvaluator",
        now_ms: int,
        done: Done,
    ) -> None:
        state, owned, timeout_s = self._state, evaluator.owned, request.timeout_ms / 1000
        refusal = state.services.refusal_of(state.shard_id, Wanted.PREPARES)
        if refusal is not None:
            raise refusal
        if owned.is_frozen:
            raise NotReadyError(f"keys of shard {state.shard_id} move to another shard this moment; retry")
        if not owned.is_whole and not check_ops(owned, request.ops, request.hashes):
            refuse_elsewhere(self._clients, state.shard_id, evaluator, timeout_s, done)
            return
        evaluator.transactions.check_room(_size_of(request))
        state.services.metrics.table_ops += len(request.ops)
        evaluation = evaluator.evaluate_prepare(request.ops, now_ms)
        if evaluation.records:
            self._append(request, evaluator, evaluation, done)
            return
        refused = TableWritten(tuple(evaluation.results), -1)
        self._clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(refused), done)

    def _append(
        self, request: "PrepareWrite", evaluator: "TableEvaluator", evaluation: "Evaluation", done: Done
    ) -> None:
        state = self._state
        batch = build_batch(
            evaluation.records,
            base_offset=state.log.terms.log_end,
            leader_epoch=state.replica.term,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            base_sequence=request.sequence,
            is_transactional=True,
        )
        appended = partial(evaluator.appended_prepare, request.producer_id)
        append_effects(self._driver, self._clients, request, evaluation, appended, done, batch)

    def _repeated(self, request: "PrepareWrite", duplicate: "Duplicate", done: Done) -> None:
        """Answer a prepare that was carried out before as it was then."""

        def gone() -> AntiphonError:
            return InvalidTxnStateError(
                f"this prepare of {request.transactional_id!r} was carried out before, and its transaction has ended"
            )

        answer = answer_of(self._state, self._reads, duplicate, gone, done)
        self._clients.when_committed(duplicate.next_offset, request.timeout_ms / 1000, answer, done)


def _size_of(request: "PrepareWrite") -> int:
    """About how many bytes what it changes takes."""
    return sum(
        EFFECT_BYTES + len(op.key) + (len(op.value) if isinstance(op, Put) else 0) for op in request.ops
    )
