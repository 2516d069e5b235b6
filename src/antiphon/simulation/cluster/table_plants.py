"""Bugs to plant in the keeping of tables."""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.model.requests import Delete, Put, TableOp
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.single_writer_actions import SingleWriterActions
from antiphon.partition.table_writes import TableWrites
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM, CRASHES, TROUBLE
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.state import TableState

_GROUPS: Final = {"transactions": True, "appenders": 0, "table_piece": 1}
_SLICED: Final = {**CALM, **_GROUPS, "putters": 0}
_RANGES: Final = {**CALM, "range_deletes": True, "putters": 0, "appenders": 0}


def _committed_only(
    self: TableEvaluator, ops: Sequence[TableOp], _changed: dict[bytes, Any]
) -> dict[bytes, Any]:
    """Judges by the store, whatever is appended."""
    keys = [op.key for op in ops if isinstance(op, Put | Delete)]
    return dict(zip(keys, self.state.versions(keys), strict=True))


_WRITES_SLICES: Final = Edit(
    TableState,
    "_applying_one",
    "add_effects(prepared, effects)\n",
    "add_effects(prepared, effects)\n"
    "        self._store.write(prepared)\n"
    "        prepared = self._store.batch()\n",
)

_SLICES: Final = (
    ClusterPlant(
        "table-slices-are-seen",
        "each slice of a large entry is written to a follower's store at once, where readers see it before the rest",
        (_WRITES_SLICES,),
        options=_SLICED,
    ),
    ClusterPlant(
        "table-first-slice-counts-as-all",
        "the first slice of a large entry moves the applied offset to the entry's end",
        (
            _WRITES_SLICES,
            Edit(
                TableState,
                "_applying_one",
                "self._store.batch(), self.next_version_id\n",
                "self._store.batch(), self.next_version_id\n"
                "    prepared.put(META_KEY, META.pack(FORMAT, header.next_offset, next_version_id))\n",
            ),
        ),
        options={
            **CRASHES,
            "table_piece": 1,
            "bulk_writers": 3,
            "putters": 0,
            "appenders": 0,
            "store_flush_every": 2,
        },
    ),
    ClusterPlant(
        "table-judges-before-it-applied",
        "a new leader judges writes before its store has all that is committed",
        (Edit(SingleWriterActions, "_leader_ready", "self._common.finish_applying()", "pass"),),
        options={**TROUBLE, **_GROUPS, "conditional_ppm": 600_000, "putters": 4},
    ),
    ClusterPlant(
        "node-answers-before-the-last-slice",
        "clients and watchers hear of a commit while it is applied in slices",
        (
            Edit(
                CommonActions,
                "_commit",
                "            return\n        state.table",
                "            state.high_watermark = high_watermark\n"
                "            self._steps.news.append((self._clients.committed, (high_watermark,)))\n"
                "            return\n        state.table",
            ),
        ),
        options=_SLICED,
    ),
)

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
    *_SLICES,
)
