"""Mutants of work that takes several turns of the event loop: what must not happen between two of them."""

from typing import Any, Final

from antiphon.kafka.connection import Connection
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.multi_table import MergedWrites
from antiphon.partition.single_writer_actions import SingleWriterActions
from antiphon.partition.table_folds import TableFolds
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, only
from antiphon.table import pending_entries
from antiphon.table.folding import Folding
from antiphon.table.merge_evaluator import MergingEvaluator
from antiphon.table.merge_state import MergedState

_WORK: Final[dict[str, Any]] = only(putters=4, transactions=True, table_piece=1)
"""Writes of several operations, each of which is a turn."""

_LARGE: Final = {**CALM, **_WORK}

_MULTI: Final[dict[str, Any]] = {**CALM, **only(operations_per_s=400, multi_tables=True, table_piece=1)}

_INDEXED: Final[dict[str, Any]] = {
    **CALM,
    "oxia_clients": 4,
    "appenders": 0,
    "putters": 0,
    "table_piece": 1,
    "operations_per_s": 400,
    "delay_us": (5_000, 20_000),  # so that much waits for its commit
}

_SHARED: Final[dict[str, Any]] = {**CALM, "stalled_readers": 4, "table_piece": 1}
"""Kafka clients that send more in one go than their share of a turn."""

TURN_MUTANTS: Final = (
    ClusterMutant(
        "turn-loses-what-is-beyond-a-share",
        "what a Kafka client has sent beyond its share of a turn of the loop is let go of",
        Edit(
            Connection,
            "_cut",
            "self._wait_for_turn()\n            break\n",
            "self._wait_for_turn()\n            at = end\n            break\n",
        ),
        options=_SHARED,
        quick=True,
    ),
    ClusterMutant(
        "turn-applies-in-between",
        "what is committed while a large write is applied in turns is applied at once, in between",
        Edit(
            TableFolds,
            "commit",
            "    if not self.is_behind:\n",
            "    if self._steps is not None:\n"
            "        self._state.require_table().catch_up(high_watermark)\n"
            "    if not self.is_behind:\n",
        ),
        options=_LARGE,
        quick=True,
        first_seed=3,
    ),
    ClusterMutant(
        "turn-shows-half-of-a-write",
        "each turn brings what it has of a large write to the store",
        Edit(
            Folding,
            "_fold_large",
            "        yield\n    invariant",
            "        self._store.write(batch)\n        batch = self.batch()\n        yield\n    invariant",
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
        Edit(SingleWriterActions, "_leader_ready", "        self._common.folds.finish()\n", ""),
        options={**CUTS, **_WORK},
        quick=True,
        first_seed=18,
    ),
    ClusterMutant(
        "turn-forgets-what-came-meanwhile",
        "what is committed while a large write is applied in turns waits for the next commit",
        Edit(TableFolds, "_step", "self.is_behind = self.target > self._end", "self.is_behind = False"),
        options={**_LARGE, "fault_ms": 500, "putters": 8, "operations_per_s": 1_000},
        quick=True,
        first_seed=5,
    ),
    ClusterMutant(
        "turn-merges-half-of-a-write",
        "each turn brings what it has merged of a large write to the store, where every replica writes",
        Edit(
            MergedState,
            "_write",
            "if not number % piece:\n",
            "if not number % piece:\n            self._store.write(batch)\n            batch = self._store.batch()\n",
        ),
        profile="multi",
        options=_MULTI,
        quick=True,
    ),
    ClusterMutant(
        "turn-judges-two-writes-alike",
        "a write is judged while a large one is judged in turns, where every replica writes: both are numbered alike",
        Edit(MergedWrites, "write", "if queue.holds or queue.waiting.count:", "if False:"),
        profile="multi",
        options=_MULTI,
        quick=True,
        first_seed=3,
    ),
    ClusterMutant(
        "turn-loses-to-what-it-has-seen",
        "a change is made at the time of its node's clock, whatever times the changes have that it follows",
        Edit(MergingEvaluator, "begin", "self._merged.foreign_ms + 1", "0"),
        profile="multi",
        options={**_MULTI, "fault_ms": 3_000, "operations_per_s": 1_000, "clock_skew_ppm": 100_000},
        quick=True,
    ),
    ClusterMutant(
        "turn-prepares-without-what-waits",
        "what indexes lose by a large write follows from the store alone, whatever waits for its commit",
        Edit(pending_entries, "pending_entries", "if key in keys:", "if False:"),
        options=_INDEXED,
        quick=True,
        first_seed=2,
    ),
)
