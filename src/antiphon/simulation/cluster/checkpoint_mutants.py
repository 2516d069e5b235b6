"""Mutants of the checkpoints of the cluster's metadata, and of logs and folds that begin at one."""

from typing import Any, Final

from antiphon.coordination import checkpoints
from antiphon.coordination.checkpoints import Checkpoints
from antiphon.node.coordinator_shell import CoordinatorShell
from antiphon.node.metadata_fold import MetadataFold
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, CUTS

_SMALL: Final[dict[str, Any]] = {
    "checkpoint_records": 1,
    "checkpoint_batch": 16,
    "metadata_segment_bytes": 4096,
    "operations_per_s": 100,
}
_CRASHES: Final[dict[str, Any]] = {**CRASHES, **_SMALL}

CHECKPOINT_MUTANTS: Final = (
    ClusterMutant(
        "checkpoint-trims-before-commit",
        "the coordinator's node lets the log begin at a checkpoint when its last record is appended, committed or not",
        Edit(
            CoordinatorShell,
            "_propose",
            "self._proposed.append((host.log.log_end, token))",
            "self._proposed.append((host.log.log_end, token))\n"
            "    from antiphon.coordination.cluster_records import CHECKPOINT_KEY, read_record\n"
            "    for record in records:\n"
            "        if record[0] == CHECKPOINT_KEY:\n"
            "            begin = read_record(record, host.log.log_end).value.begin\n"
            "            host.upkeep.trim(begin, lambda _error: None)",
        ),
        options={**CALM, **_SMALL, "operator_weight": 1, "fault_every_ms": 100},
        quick=True,
    ),
    ClusterMutant(
        "checkpoint-fold-shows-half",
        "a fold that begins at a checkpoint shows what it has before it has all of it",
        Edit(MetadataFold, "_show", "if self._folding.is_whole:", "if True:"),
        options=_CRASHES,
        quick=True,
    ),
    ClusterMutant(
        "checkpoint-fold-keeps-what-is-gone",
        "a fold whose log begins anew goes on with what it knew, also what was removed meanwhile",
        Edit(MetadataFold, "starts_at", "self._begin(log_start)", "self.offset = log_start"),
        options={
            **CUTS,
            **_SMALL,
            "checkpoint_batch": 256,
            "operator_weight": 12,
            "kill_weight": 3,
        },
    ),
    ClusterMutant(
        "checkpoint-begins-too-late",
        "a checkpoint names as its beginning where it ends",
        Edit(
            Checkpoints,
            "tick",
            "self._ledger.close_checkpoint(self._begin)",
            "self._ledger.close_checkpoint(self._model.version)",
        ),
        options=_CRASHES,
        quick=True,
    ),
    ClusterMutant(
        "checkpoint-forgets-counters",
        "a checkpoint lacks the numbers that are to be given next",
        Edit(checkpoints, "names", "in kinds for", "in kinds if kind != 'counter' for"),
        options=_CRASHES,
    ),
    ClusterMutant(
        "checkpoint-closes-unfinished",
        "a checkpoint is closed when its first object is written",
        Edit(Checkpoints, "tick", "names(self._model)", "iter([('cluster', '')])"),
        options=_CRASHES,
    ),
)
