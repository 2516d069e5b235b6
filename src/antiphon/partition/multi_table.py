"""A table that every replica writes, beside its shard: merged on every commit, judged on by the writer's evaluator.

Every read is of this replica's own rows, whatever consistency was asked for: there is no order of writes across replicas
that a read could be linearizable with. A write is answered when it is durable here and merged.
"""

from functools import partial
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.errors import InvalidRequestError, StorageFailedError
from antiphon.model.requests import TableWrite, TableWritten
from antiphon.model.sender import Sender
from antiphon.partition.append_queue import Done
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.reads import PartitionReads
from antiphon.partition.state import not_a_table
from antiphon.partition.table_shard import TableShard
from antiphon.partition.table_writes import already_applied, answer_of, append_effects, producer_header
from antiphon.replication.multi_writer import MultiWriterReplica
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
    ) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._reads = reads
        self._replica = replica
        self._table = table

    def write(self, request: TableWrite, done: Done, sender: Sender | None = None) -> None:  # noqa: ARG002 - nobody waits here
        """Carry out a TableWrite on this replica; `done` gets TableWritten or an error. Raises what is known at once."""
        self._state.check_writable()
        if self._table is None:
            raise not_a_table(self._state.shard_id)
        try:
            self._write(self._table, request, done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _write(self, table: MergedShard, request: TableWrite, done: Done) -> None:
        state, clients = self._state, self._clients
        timeout_s = request.timeout_ms / 1000
        now_ms = system.wall_ms()
        state.services.metrics.table_ops += len(request.ops)
        if request.producer_id >= 0:
            header = producer_header(request, len(request.ops), now_ms)
            duplicate = state.log.producers.check(header, table=True, full=state.services.producers_full)
            if duplicate is not None:
                gone = partial(already_applied, state, request, duplicate.base_offset)
                answer = answer_of(state, self._reads, duplicate, gone, done)
                clients.when_committed(duplicate.next_offset, timeout_s, answer, done)
                return
            if request.after >= 0:
                table.order.check(request, state.log.producers)
        origin, lsn = self._replica.origin, self._replica.next_lsn
        table.begin(origin)
        judge = table.judge
        if judge is None:
            raise InvalidRequestError(f"shard {state.shard_id} takes no writes")
        evaluation = judge.judge(request.ops, now_ms, lsn, origin, atomic=request.atomic)
        if not evaluation.records:
            table.order.left_no_trace(request)
            written = TableWritten(tuple(evaluation.results), -1)
            clients.when_committed(evaluation.wait_for, timeout_s, lambda: done(written), done)
            return
        append_effects(self._driver, clients, request, evaluation, judge.appended, done)
