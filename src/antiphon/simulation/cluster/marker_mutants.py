"""Mutants of what a shard knows of transactions: open ones, the last stable offset, the aborted ones."""

from typing import Any, Final

from antiphon.log import recovery
from antiphon.log.transactions import TransactionState
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CRASHES, CUTS, only

_WORK: Final[dict[str, Any]] = only(operations_per_s=400, kafka_transactors=3)

MARKER_MUTANTS: Final = (
    ClusterMutant(
        "transactions-all-is-stable",
        "who reads what is committed is given transactions that are under way",
        Edit(TransactionState, "last_stable", "self._first_open(high_watermark)", "high_watermark"),
        options={**CRASHES, **_WORK},
    ),
    ClusterMutant(
        "transactions-cut-reopens-nothing",
        "a marker that is cut off the log leaves its transaction ended",
        Edit(TransactionState, "truncate", "known[change.producer_id] = value", "pass"),
        options={**CUTS, **_WORK},
        first_seed=2,
    ),
    ClusterMutant(
        "transactions-aborted-forgotten",
        "recovery does not learn from the log which transactions were aborted",
        Edit(vars(recovery)["_Recovery"], "_take", "self.segments[-1].aborted.add(aborted)", "pass"),
        options={**CRASHES, **_WORK},
    ),
)
