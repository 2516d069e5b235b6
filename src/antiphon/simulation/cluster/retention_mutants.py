"""Mistakes with records that are too old: they go too early, too late, or before they are committed."""

from typing import Any, Final

from antiphon.log import shard_log
from antiphon.node.shards import Shards
from antiphon.partition.upkeep import SingleWriterUpkeep
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CRASHES, LONG_CUTS, only

_WRITERS: Final[dict[str, Any]] = only(operations_per_s=900, retention_writers=3)
AGING: Final[dict[str, Any]] = {**CRASHES, **_WRITERS}
"""Clients write to a topic whose records are kept for a second or so, while nodes crash."""

BOUNDED_TABLES: Final[dict[str, Any]] = {
    **CRASHES,
    "appenders": 0,
    "putters": 4,
    "operations_per_s": 900,
    "row_log_bytes": 4096,
    "row_bytes": 500,
    "store_flush_every": 1_000,
}
"""A table's log is bounded, and its store is seldom written to disk, while nodes crash."""

RETENTION_MUTANTS: Final = (
    ClusterMutant(
        "retention-forgets-the-age",
        "a segment goes when all its records are older than now, whatever `retention.ms` says",
        Edit(
            shard_log,
            "retained_from",
            "max_timestamp < now_ms - config.retention_ms",
            "max_timestamp < now_ms",
        ),
        options=AGING,
        quick=True,
    ),
    ClusterMutant(
        "retention-never-looks",
        "nodes do not look for what is too old",
        Edit(Shards, "apply_retention", "self._retention.begin()", "pass"),
        options=AGING,
        quick=True,
    ),
    ClusterMutant(
        "retention-skips-what-is-young",
        "a segment with a younger record is passed over, and what is behind it goes with it",
        Edit(
            shard_log,
            "retained_from",
            "if next_offset > limit_offset or not (too_old or too_much or is_deleted):\n            break",
            "if next_offset > limit_offset or not (too_old or too_much or is_deleted):\n            continue",
        ),
        options=AGING,
        quick=True,
        first_seed=5,
    ),
    ClusterMutant(
        "retention-goes-by-the-disk",
        "what is too old goes as soon as it is durable here, committed or not",
        Edit(SingleWriterUpkeep, "apply_retention", "self._mode.settled", "self._state.log.durable_end"),
        options={**LONG_CUTS, **_WRITERS},
    ),
    ClusterMutant(
        "retention-does-not-wait-for-the-store",
        "of a table's log goes what is too much, be it in the store, on disk, or not",
        (Edit(SingleWriterUpkeep, "apply_retention", "if table is not None:", "if False:"),),
        options=BOUNDED_TABLES,
        quick=True,
    ),
)
