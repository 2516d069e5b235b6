"""Mutants of the keeping of tables."""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.model.requests import Delete, Put, TableOp
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.table_shard import TableShard
from antiphon.partition.table_writes import TableWrites
from antiphon.records.changes import VERSION, effects_of
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, TROUBLE
from antiphon.table.bulk_puts import Loads
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.folding import Folding, FoldSteps
from antiphon.table.range_removals import RangeRemovals
from antiphon.table.stored_state import StoredState

_RANGES: Final = {**CALM, "range_deletes": True, "putters": 0, "appenders": 0}


def _committed_only(
    self: TableEvaluator, ops: Sequence[TableOp], _changed: dict[bytes, Any]
) -> dict[bytes, Any]:
    """Judges by the store, whatever is appended."""
    keys = [op.key for op in ops if isinstance(op, Put | Delete)]
    return dict(zip(keys, self.state.versions(keys), strict=True))


def _rows_after_offset(self: TableShard, high_watermark: int, _piece: int) -> FoldSteps:
    """A follower's rows wait until there is nothing behind them in its log; the offset goes ahead of them."""
    state, log = self.state, self._log
    if state.applied_offset >= high_watermark:
        return
    waiting = self.__dict__.setdefault("waiting", [])
    for batch in log.read(state.applied_offset, 1 << 30, high_watermark):
        waiting += effects_of(batch)
    newest = max((VERSION.unpack(version)[0] for *_, version in waiting), default=-1)
    ready = waiting if log.log_end == high_watermark else []
    state.apply_effects(ready, high_watermark, max(state.next_version_id, newest + 1))
    if ready:
        self.__dict__["waiting"] = []
    yield from ()


_LOADS: Final = {**CALM, "bulk_writers": 2, "putters": 1, "appenders": 0}
_BUSY: Final = {**CALM, "appenders": 0, "putters": 4, "operations_per_s": 300}

_WHILE_RUNNING: Final = (
    ClusterMutant(
        "table-rows-after-offset",
        "a follower notes how far its table goes before the rows are there, which come once its log has nothing more",
        ((TableShard, "folding", _rows_after_offset),),
        options=_BUSY,
        quick=True,
    ),
    ClusterMutant(
        "table-applies-again",
        "a follower that applies several changes at once applies the first of them again, after the others",
        Edit(
            Folding,
            "_apply_found",
            "self.apply_effects(effects, end,",
            "self.apply_effects([*effects, *effects[:1]], end,",
        ),
        options={**_BUSY, "delay_us": (2_000, 20_000)},
        quick=True,
    ),
)
"""What goes wrong is put right by what clients write next, so that nothing of it is left in the end."""

TABLE_MUTANTS: Final = (
    *_WHILE_RUNNING,
    ClusterMutant(
        "table-judges-by-store",
        "conditions are held against what is committed, and not against what is appended",
        ((TableEvaluator, "_view", _committed_only),),
        options={**TROUBLE, "conditional_ppm": 600_000, "putters": 4},
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "table-refuses-uncommitted",
        "a table's leader answers a refused condition that it judged on uncommitted state before that is committed",
        Edit(
            TableWrites,
            "_without_effect",
            "clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)",
            "clients.when_confirmed(0, timeout_s, lambda: done(written), done)",
        ),
        options={
            **CALM,
            "fault_ms": 6_000,
            "fault_every_ms": 300,
            "slow_weight": 4,
            "power_weight": 1,
            "conditional_ppm": 600_000,
            "putters": 6,
            "appenders": 0,
        },
        first_seed=9,
    ),
    ClusterMutant(
        "table-applies-uncommitted",
        "a follower applies a table's log beyond the high watermark",
        Edit(
            CommonActions,
            "_commit",
            "self.folds.commit(high_watermark)",
            "self.folds.commit(high_watermark if state.is_leader else state.log.log_end)",
        ),
        options=CALM,
    ),
    ClusterMutant(
        "node-range-has-no-end",
        "a delete of a range looks up the keys to remove without the range's end",
        Edit(
            RangeRemovals,
            "_delete_range",
            "order.stored(self.state, start, range_end, min",
            'order.stored(self.state, start, b"", min',
        ),
        options=_RANGES,
    ),
    ClusterMutant(
        "node-range-misses-uncommitted",
        "a delete of a range leaves alone what is in the log and not in the store yet",
        Edit(RangeRemovals, "_known", "[*self._overlay, *named, *to.made]", "[*named]"),
        options=_RANGES,
    ),
    ClusterMutant(
        "node-lets-writes-into-long-ones",
        "a write that is judged in pieces lets others into the log before it is appended",
        Edit(TableWrites, "write", "if queue.holds or", "if (queue.holds and len(request.ops) > 1) or"),
        options={**_RANGES, "putters": 4, "transactions": True, "table_piece": 1},
    ),
    ClusterMutant(
        "loads-lose-a-row",
        "the leader's store lacks the first row of each load",
        Edit(
            Loads,
            "appended",
            "in zip(loading.rows.keys, loading.rows.values(), strict=True):",
            "in zip(loading.rows.keys[1:], loading.rows.values()[1:], strict=True):",
        ),
        options=_LOADS,
        quick=True,
    ),
    ClusterMutant(
        "loads-have-no-order",
        "rows of a load get no entries in the hierarchical order",
        Edit(StoredState, "apply_prepared", "if self.order is not None and unordered:", "if False:"),
        options=_LOADS,
    ),
)
