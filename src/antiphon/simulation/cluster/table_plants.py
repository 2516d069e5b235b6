"""Bugs to plant in the keeping of tables."""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.model.requests import Delete, Put, TableOp
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.table_writes import TableWrites
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM, TROUBLE
from antiphon.table.evaluator import TableEvaluator

_RANGES: Final = {**CALM, "range_deletes": True, "putters": 0, "appenders": 0}


def _committed_only(
    self: TableEvaluator, ops: Sequence[TableOp], _changed: dict[bytes, Any]
) -> dict[bytes, Any]:
    """Judges by the store, whatever is appended."""
    keys = [op.key for op in ops if isinstance(op, Put | Delete)]
    return dict(zip(keys, self.state.versions(keys), strict=True))


TABLE_PLANTS: Final = (
    ClusterPlant(
        "table-judges-by-store",
        "conditions are held against what is committed, and not against what is appended",
        ((TableEvaluator, "_view", _committed_only),),
        options={**TROUBLE, "conditional_ppm": 600_000, "putters": 4},
    ),
    ClusterPlant(
        "table-refuses-uncommitted",
        "a table's leader answers a refused condition that it judged on uncommitted state before that is committed",
        (
            Edit(
                TableWrites,
                "_without_effect",
                "clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)",
                "clients.when_confirmed(0, timeout_s, lambda: done(written), done)",
            ),
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
    ),
    ClusterPlant(
        "table-applies-uncommitted",
        "a follower applies a table's log beyond the high watermark",
        (
            Edit(
                CommonActions,
                "_commit",
                "state.table.committed(high_watermark)",
                "state.table.committed(high_watermark if state.is_leader else state.log.log_end)",
            ),
        ),
        options=CALM,
    ),
    ClusterPlant(
        "node-range-has-no-end",
        "a delete of a range looks up the keys to remove without the range's end",
        (
            Edit(
                TableEvaluator,
                "_delete_range",
                "self.state.versions_in(start, op.end, min",
                'self.state.versions_in(start, b"", min',
            ),
        ),
        options=_RANGES,
    ),
    ClusterPlant(
        "node-range-misses-uncommitted",
        "a delete of a range leaves alone what is in the log and not in the store yet",
        (Edit(TableEvaluator, "_delete_range", "[*self._overlay, *named]", "[*named]"),),
        options=_RANGES,
    ),
    ClusterPlant(
        "node-lets-writes-into-long-ones",
        "a write that is judged in pieces lets others into the log before it is appended",
        (Edit(TableWrites, "write", "if queue.holds or", "if (queue.holds and len(request.ops) > 1) or"),),
        options={**_RANGES, "putters": 4, "transactions": True, "table_piece": 1},
    ),
)
