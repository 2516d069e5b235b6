"""A table that every replica writes, beside its shard: merged on every commit, judged on by the writer's evaluator.

Every read is of this replica's own rows, whatever consistency was asked for: there is no order of writes across replicas
that a read could be linearizable with. A write is answered when it is durable here and merged.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antiphon import system
from antiphon.errors import InvalidRequestError
from antiphon.model.requests import TableWrite, TableWritten
from antiphon.partition.clients import producer_header
from antiphon.partition.table_shard import TableShard, append_effects
from antiphon.table.evaluator import results_from_batch
from antiphon.table.merge import ConflictRule
from antiphon.table.merge_evaluator import MergingEvaluator
from antiphon.table.merge_state import MergedState

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.multi_writer import MultiWriterPartition
    from antiphon.table.store import StoreEngine

FORGET_AT_ONCE = 10_000  # tombstones looked at in one go


class MergedShard(TableShard):
    """Store and evaluator of one replica."""

    def __init__(self, path: str, log: "ShardLog", stores: "StoreEngine", rule: ConflictRule) -> None:
        self.merged = MergedState.open(path, rule, stores)
        super().__init__(path, log, stores, self.merged)
        self.judge: MergingEvaluator | None = None
        self._forget_from = b""

    def committed(self, high_watermark: int) -> None:
        """Merge the log up to here. Raises StorageFailedError."""
        self.catch_up(high_watermark)
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


def write_merged(host: "MultiWriterPartition", request: TableWrite, done: Callable[[Any], None]) -> None:
    """Carry out a TableWrite on this replica; `done` gets TableWritten or an error. Raises what is known at once."""
    table, clients = host.merged, host.clients
    timeout_s = request.timeout_ms / 1000
    now_ms = system.wall_ms()
    host.services.metrics.table_ops += len(request.ops)
    if request.producer_id >= 0:
        if request.producer_epoch < 0 or request.sequence < 0:
            raise InvalidRequestError("a producer id needs an epoch and a sequence of at least 0")
        header = producer_header(
            request.producer_id, request.producer_epoch, request.sequence, len(request.ops), now_ms
        )
        duplicate = host.log.producers.check(header, table=True)
        if duplicate is not None:
            host.services.metrics.duplicates += 1
            base, end = duplicate.base_offset, duplicate.next_offset

            def answer_again() -> None:
                (batch,) = host.read(base, 1, end)
                done(results_from_batch(batch))

            clients.when_committed(end, timeout_s, answer_again, done)
            return
        table.order.check(request, host.log.producers)
    origin, lsn = host.next_identity()
    table.begin(origin)
    judge = table.judge
    if judge is None:
        raise InvalidRequestError(f"shard {host.shard_id} takes no writes")
    evaluation = judge.judge(request.ops, now_ms, lsn, origin, atomic=request.atomic)
    if not evaluation.records:
        table.order.left_no_trace(request)
        written = TableWritten(tuple(evaluation.results), -1)
        clients.when_committed(evaluation.wait_for, timeout_s, lambda: done(written), done)
        return
    append_effects(host, request, evaluation, judge.appended, timeout_s, done)
