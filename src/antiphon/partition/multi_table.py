"""A table that every replica writes, beside its shard: merged on every commit, judged on by the writer's evaluator.

Every read is of this replica's own rows, whatever consistency was asked for: there is no order of writes across replicas
that a read could be linearizable with. A write is answered when it is durable here and merged.

A large write is judged and built in pieces, as at a leader (`long_writes`). It is judged against the rows of one moment, and
numbered as the entry that it will be: so meanwhile this replica appends nothing of its own, and merges nothing. What was
committed when the write's turn came is merged first. So large writes that follow each other do not keep out what others
wrote.
"""

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon import system
from antiphon.errors import InvalidRequestError, NotReadyError, StorageFailedError
from antiphon.model.requests import TableWrite, TableWritten
from antiphon.model.sender import Sender
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.long_writes import LongWrites
from antiphon.partition.reads import PartitionReads
from antiphon.partition.state import not_a_table
from antiphon.partition.table_folds import TableFolds
from antiphon.partition.table_shard import TableShard
from antiphon.partition.table_writes import (
    answer_repeat,
    append_effects,
    judged,
    producer_header,
    size_of_write,
)
from antiphon.records.batch import stamp
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.table.evaluation import Evaluation
from antiphon.table.folding import FoldSteps
from antiphon.table.merge import ConflictRule
from antiphon.table.merge_evaluator import MergingEvaluator
from antiphon.table.merge_state import MergedState

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.table.store import StoreEngine

FORGET_AT_ONCE = 10_000  # tombstones looked at in one go


class MergedShard(TableShard):
    """Store and evaluator of one replica."""

    def __init__(self, path: str, log: "ShardLog", stores: "StoreEngine", rule: ConflictRule) -> None:
        self.merged = MergedState.open(path, rule, stores)
        super().__init__(path, log, stores, self.merged)
        self.judge: MergingEvaluator | None = None
        self._forget_from = b""

    def folding(self, high_watermark: int, piece: int) -> FoldSteps:
        """See TableShard; merged is what is durable."""
        yield from super().folding(high_watermark, piece)
        if self.judge is not None:
            self.judge.committed(high_watermark)

    def begin(self, origin: int) -> None:
        """Judge as `origin` from now on; everything that is durable is merged."""
        self.merged.own_origin = origin
        if self.judge is None:
            self.judge = MergingEvaluator(self.merged)

    def forget_tombstones(self, stable: tuple[int, ...]) -> None:
        """Look at some more tombstones, which every member may have."""
        following = self.merged.forget_tombstones(stable, self._forget_from, FORGET_AT_ONCE)
        self._forget_from = following or b""


class MergedWrites:
    """Writes to such a table, each judged against this replica's own rows."""

    def __init__(
        self,
        driver: ReplicaDriver,
        clients: PartitionClients,
        reads: PartitionReads,
        replica: MultiWriterReplica,
        table: MergedShard | None,
        folds: TableFolds,
    ) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._reads = reads
        self._replica = replica
        self._table = table
        self._folds = folds
        self._long = LongWrites(driver, clients)

    def write(self, request: TableWrite, done: Done, sender: Sender | None = None) -> None:
        """Carry out a TableWrite on this replica; `done` gets TableWritten or an error. Raises what is known at once.

        Requests of one `sender` are carried out in their order.
        """
        self._state.check_writable()
        table, queue = self._table, self._clients.queue
        if table is None:
            raise not_a_table(self._state.shard_id)
        if queue.holds or queue.waiting.count:
            write, timeout_s = partial(self._write, table, request, done), request.timeout_ms / 1000
            is_large = len(request.ops) > self._state.services.turn.pieces.operations
            self._clients.in_turn(write, timeout_s, done, size_of_write(request), sender, is_large=is_large)
            return
        try:
            self._write(table, request, done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _write(self, table: MergedShard, request: TableWrite, done: Done) -> None:
        state = self._state
        now_ms, piece = system.wall_ms(), state.services.turn.pieces.operations
        state.services.metrics.table_ops += len(request.ops)
        if request.producer_id >= 0:
            header = producer_header(request, len(request.ops), now_ms)
            duplicate = state.log.producers.check(header, table=True, full=state.services.producers_full)
            if duplicate is not None:
                answer_repeat(self._long, self._reads, request, duplicate, done)
                return
            if request.after >= 0:
                table.order.check(request, state.log.producers)
        judge = self._judge_of(table)
        if len(request.ops) <= piece:
            at_ms = judge.begin(now_ms, self._replica.next_lsn, self._replica.origin)
            evaluation = judge.at_once(request.ops, at_ms, atomic=request.atomic)
            if evaluation is not None:  # else it removes a range, which may hold much
                self._judged(table, judge, request, evaluation, done)
                return
        steps = self._judging(table, judge, request, done)
        self._long.carry_out(steps, size_of_write(request), request.timeout_ms / 1000, done)

    def _judge_of(self, table: MergedShard) -> MergingEvaluator:
        table.begin(self._replica.origin)
        if table.judge is None:
            raise InvalidRequestError(f"shard {self._state.shard_id} takes no writes")
        return table.judge

    def _judged(
        self,
        table: MergedShard,
        judge: MergingEvaluator,
        request: TableWrite,
        evaluation: Evaluation,
        done: Done,
        batch: bytearray | None = None,
    ) -> None:
        """Append what a judged request comes to, or answer it where that is nothing."""
        clients = self._clients
        if evaluation.records:
            append_effects(self._driver, clients, request, evaluation, judge.appended, done, batch)
            return
        table.order.left_no_trace(request)
        written = TableWritten(tuple(evaluation.results), -1)
        clients.when_committed(evaluation.wait_for, request.timeout_ms / 1000, lambda: done(written), done)

    def _judging(
        self, table: MergedShard, judge: MergingEvaluator, request: TableWrite, done: Done
    ) -> Generator[Any, None, None]:
        """The steps of a large request; see the module's text."""
        folds, target = self._folds, self._folds.target
        while folds.is_behind and table.state.applied_offset < target:
            yield
        folds.holds += 1
        try:
            yield from self._judging_held(table, judge, request, done)
        finally:
            folds.holds -= 1

    def _judging_held(
        self, table: MergedShard, judge: MergingEvaluator, request: TableWrite, done: Done
    ) -> Generator[Any, None, None]:
        state, clients, replica = self._state, self._clients, self._replica
        piece = state.services.turn.pieces.operations
        place = replica.next_lsn, replica.origin
        at_ms = judge.begin(system.wall_ms(), *place)
        judging = judge.evaluating(request.ops, at_ms, piece, atomic=request.atomic)
        evaluation, batch = yield from judged(judging, request, clients, piece)
        if batch is not None:
            if place != (replica.next_lsn, replica.origin):
                raise NotReadyError(f"shard {state.shard_id} was given another origin meanwhile; retry")
            stamp(batch, state.log.terms.log_end, replica.term)
        self._judged(table, judge, request, evaluation, done, batch)
