"""Mistakes with records that were deleted by offset: what was answered is forgotten, or shown all the same."""

from typing import Any, Final

from antiphon.coordination import deletions
from antiphon.node.trimming import Trimming
from antiphon.partition.reads import PartitionReads
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.partition.upkeep import SingleWriterUpkeep
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CRASHES, LONG_CUTS, only

DELETES: Final[dict[str, Any]] = {
    **CRASHES,
    **only(operations_per_s=900, slow_calls_weight=2, record_deleters=3),
}
"""Clients of Kafka's protocol delete records, while nodes crash and disks are slow."""

_CUT_OFF: Final[dict[str, Any]] = {**LONG_CUTS, **only(operations_per_s=900, record_deleters=4)}

DELETION_MUTANTS: Final = (
    ClusterMutant(
        "deletion-is-the-leader-s-own",
        "a deletion is answered when its leader knows of it, and not recorded for later ones",
        Edit(
            Trimming,
            "_record",
            "await self._ask_coordinator(request, max(left_s, RETRY_S))",
            "await asyncio.sleep(0)",
        ),
        options=DELETES,
        quick=True,
    ),
    ClusterMutant(
        "deletion-is-not-told-to-leaders",
        "a node passes over what the metadata, and its appointment, say of deletions",
        (
            Edit(SingleWriterPartition, "recorded", "if self.mode.is_appointed:", "if False:"),
            Edit(SingleWriterPartition, "receive", "if type(message) is BecomeLeader:", "if False:"),
        ),
        options=DELETES,
        quick=True,
        first_seed=3,
    ),
    ClusterMutant(
        "deletion-shows-the-whole-batch",
        "reads begin at the batch that holds the first record that is left",
        Edit(PartitionReads, "_end_for", "if isolation == STORED else state.log_start", "if True else None"),
        options=DELETES,
        quick=True,
        first_seed=3,
    ),
    ClusterMutant(
        "deletion-of-an-earlier-term",
        "the coordinator records a deletion for a leader whose term is over, and a later one is not told in time",
        (
            Edit(deletions, "delete_before", "if meta.term != request.term:", "if False:"),
            Edit(SingleWriterPartition, "recorded", "if self.mode.is_appointed:", "if False:"),
        ),
        options=_CUT_OFF,
        rare=True,
    ),
    ClusterMutant(
        "deletion-is-not-in-the-log",
        "where replicas vote, a deletion is answered when the leader knows of it, and written nowhere",
        Edit(
            SingleWriterUpkeep,
            "record_deletion",
            "self._driver.call(replica.membership.delete_before, before)",
            "self._state.deleted_before = before",
        ),
        profile="raft",
        options=DELETES,
        quick=True,
        first_seed=4,
    ),
)
