"""Mutants of work that takes several turns of the event loop: what must not happen between two of them."""

from typing import Any, Final

from antiphon.partition.common_actions import CommonActions
from antiphon.partition.single_writer_actions import SingleWriterActions
from antiphon.partition.table_folds import TableFolds
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS
from antiphon.table.folding import Folding
from antiphon.table.merge_state import MergedState

_WORK: Final[dict[str, Any]] = {
    "appenders": 0,
    "putters": 4,
    "transactions": True,
    "table_piece": 1,
    "operations_per_s": 200,
}
"""Writes of several operations, each of which is a turn."""

_LARGE: Final = {**CALM, **_WORK}

_MULTI: Final[dict[str, Any]] = {
    **CALM,
    "multi_tables": True,
    "appenders": 0,
    "putters": 0,
    "table_piece": 1,
    "operations_per_s": 400,
}

TURN_MUTANTS: Final = (
    ClusterMutant(
        "turn-applies-in-between",
        "what is committed while a large write is applied in turns is applied at once, in between",
        (
            Edit(
                TableFolds,
                "commit",
                "    if not self.is_behind:\n",
                "    if self._steps is not None:\n"
                "        self._state.require_table().catch_up(high_watermark)\n"
                "    if not self.is_behind:\n",
            ),
        ),
        options=_LARGE,
        quick=True,
        first_seed=3,
    ),
    ClusterMutant(
        "turn-shows-half-of-a-write",
        "each turn brings what it has of a large write to the store",
        (
            Edit(
                Folding,
                "_fold_large",
                "        yield\n    invariant",
                "        self._store.write(batch)\n        batch = self.batch()\n        yield\n    invariant",
            ),
        ),
        options=_LARGE,
        quick=True,
    ),
    ClusterMutant(
        "turn-counts-before-applying",
        "a commit counts for clients and readers of a replica while its table still applies it in turns",
        (
            Edit(
                CommonActions,
                "_commit",
                "self.folds.commit(high_watermark)\n            return\n",
                "self.folds.commit(high_watermark)\n            folded = ()\n",
            ),
            Edit(
                CommonActions,
                "_commit",
                "table.evaluator.committed(",
                "table.evaluator is not None and table.evaluator.committed(",
            ),
        ),
        profile="multi",
        options=_MULTI,
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "turn-leads-before-applying",
        "a replica that is elected while it applies a large write in turns judges by what it has of it",
        (Edit(SingleWriterActions, "_leader_ready", "        self._common.folds.finish()\n", ""),),
        options={**CUTS, **_WORK},
        quick=True,
        first_seed=18,
    ),
    ClusterMutant(
        "turn-forgets-what-came-meanwhile",
        "what is committed while a large write is applied in turns waits for the next commit",
        (Edit(TableFolds, "_step", "self.is_behind = self.target > self._end", "self.is_behind = False"),),
        options={**_LARGE, "fault_ms": 500, "putters": 8, "operations_per_s": 1_000},
        quick=True,
        first_seed=5,
    ),
    ClusterMutant(
        "turn-merges-half-of-a-write",
        "each turn brings what it has merged of a large write to the store, where every replica writes",
        (
            Edit(
                MergedState,
                "_write",
                "if not number % piece:\n",
                "if not number % piece:\n            self._store.write(batch)\n            batch = self._store.batch()\n",
            ),
        ),
        profile="multi",
        options=_MULTI,
        quick=True,
    ),
)
