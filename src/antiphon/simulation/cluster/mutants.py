"""Mutants of whole nodes: a simulator that never finds anything proves nothing.

Each mutant is a mistake that somebody might make in the code that ships. It has to be caught within 1,000 seeds of worlds
that are sound without it.
"""

from collections.abc import Iterable
from typing import Final

from antiphon.invariants import invariant
from antiphon.simulation.cluster.access_mutants import ACCESS_MUTANTS
from antiphon.simulation.cluster.archive_mutants import ARCHIVE_MUTANTS
from antiphon.simulation.cluster.audit_mutants import AUDIT_MUTANTS
from antiphon.simulation.cluster.backup_mutants import BACKUP_MUTANTS
from antiphon.simulation.cluster.checkpoint_mutants import CHECKPOINT_MUTANTS
from antiphon.simulation.cluster.classic_mutants import CLASSIC_MUTANTS
from antiphon.simulation.cluster.client_mutants import CLIENT_MUTANTS
from antiphon.simulation.cluster.compaction_mutants import COMPACTION_MUTANTS
from antiphon.simulation.cluster.condition_mutants import CONDITION_MUTANTS
from antiphon.simulation.cluster.consumer_mutants import CONSUMER_MUTANTS
from antiphon.simulation.cluster.core_mutants import CORE_MUTANTS
from antiphon.simulation.cluster.deletion_mutants import DELETION_MUTANTS
from antiphon.simulation.cluster.disk_mutants import DISK_MUTANTS
from antiphon.simulation.cluster.expiry_mutants import EXPIRY_MUTANTS
from antiphon.simulation.cluster.fault_mutants import FAULT_MUTANTS
from antiphon.simulation.cluster.host_mutants import HOST_MUTANTS
from antiphon.simulation.cluster.identity_mutants import IDENTITY_MUTANTS
from antiphon.simulation.cluster.lease_mutants import LEASE_MUTANTS
from antiphon.simulation.cluster.listener_mutants import LISTENER_MUTANTS
from antiphon.simulation.cluster.marker_mutants import MARKER_MUTANTS
from antiphon.simulation.cluster.midway_mutants import MIDWAY_MUTANTS
from antiphon.simulation.cluster.mode_mutants import MODE_MUTANTS
from antiphon.simulation.cluster.multi_mutants import MULTI_MUTANTS
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit, mutated
from antiphon.simulation.cluster.oxia_mutants import OXIA_MUTANTS
from antiphon.simulation.cluster.prepared_mutants import PREPARED_MUTANTS
from antiphon.simulation.cluster.protocol_mutants import PROTOCOL_MUTANTS, SCRIPT_MUTANTS
from antiphon.simulation.cluster.read_mutants import READ_MUTANTS
from antiphon.simulation.cluster.reader_mutants import READER_MUTANTS
from antiphon.simulation.cluster.recipe_mutants import RECIPE_MUTANTS
from antiphon.simulation.cluster.recovery_mutants import RECOVERY_MUTANTS
from antiphon.simulation.cluster.retention_mutants import RETENTION_MUTANTS
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.cluster.scrub_mutants import SCRUB_MUTANTS
from antiphon.simulation.cluster.session_mutants import SESSION_MUTANTS
from antiphon.simulation.cluster.settings_mutants import SETTINGS_MUTANTS
from antiphon.simulation.cluster.share_mutants import SHARE_MUTANTS
from antiphon.simulation.cluster.shell_mutants import SHELL_MUTANTS
from antiphon.simulation.cluster.snapshot_mutants import SNAPSHOT_MUTANTS
from antiphon.simulation.cluster.store_mutants import STORE_MUTANTS
from antiphon.simulation.cluster.table_mutants import TABLE_MUTANTS
from antiphon.simulation.cluster.tenant_mutants import TENANT_MUTANTS
from antiphon.simulation.cluster.trace_mutants import TRACE_MUTANTS
from antiphon.simulation.cluster.transaction_mutants import TRANSACTION_MUTANTS
from antiphon.simulation.cluster.turn_mutants import TURN_MUTANTS
from antiphon.simulation.cluster.voter_mutants import VOTER_MUTANTS

__all__ = [
    "ALL_MUTANTS",
    "CLUSTER_MUTANTS",
    "OF_SCRIPTS",
    "ClusterMutant",
    "Edit",
    "mutated",
    "name_now",
    "seeds_to_catch",
]

_ALL: Final = (
    *DISK_MUTANTS,
    *HOST_MUTANTS,
    *CLIENT_MUTANTS,
    *LISTENER_MUTANTS,
    *FAULT_MUTANTS,
    *PROTOCOL_MUTANTS,
    *TABLE_MUTANTS,
    *MULTI_MUTANTS,
    *CORE_MUTANTS,
    *STORE_MUTANTS,
    *SNAPSHOT_MUTANTS,
    *DELETION_MUTANTS,
    *SHELL_MUTANTS,
    *READ_MUTANTS,
    *MODE_MUTANTS,
    *SCRUB_MUTANTS,
    *READER_MUTANTS,
    *ACCESS_MUTANTS,
    *TENANT_MUTANTS,
    *IDENTITY_MUTANTS,
    *SETTINGS_MUTANTS,
    *TRANSACTION_MUTANTS,
    *OXIA_MUTANTS,
    *PREPARED_MUTANTS,
    *CONSUMER_MUTANTS,
    *EXPIRY_MUTANTS,
    *CLASSIC_MUTANTS,
    *SHARE_MUTANTS,
    *SESSION_MUTANTS,
    *RECIPE_MUTANTS,
    *MARKER_MUTANTS,
    *MIDWAY_MUTANTS,
    *COMPACTION_MUTANTS,
    *CHECKPOINT_MUTANTS,
    *BACKUP_MUTANTS,
    *AUDIT_MUTANTS,
    *ARCHIVE_MUTANTS,
    *CONDITION_MUTANTS,
    *TURN_MUTANTS,
    *VOTER_MUTANTS,
    *RECOVERY_MUTANTS,
    *RETENTION_MUTANTS,
    *TRACE_MUTANTS,
    *LEASE_MUTANTS,
)

CLUSTER_MUTANTS: Final[dict[str, ClusterMutant]] = {mutant.name: mutant for mutant in _ALL}
"""By name."""

ALL_MUTANTS: Final[dict[str, ClusterMutant]] = {
    **CLUSTER_MUTANTS,
    **{mutant.name: mutant for mutant in SCRIPT_MUTANTS},
}
"""With those that no world shows, but a script."""

OF_SCRIPTS: Final[dict[str, ClusterMutant]] = {
    mutant.name: mutant for mutant in (*_ALL, *SCRIPT_MUTANTS) if mutant.is_of_protocol
}
"""Those that scripts can show: they change the replicas' own objects and nothing else."""

invariant(len(CLUSTER_MUTANTS) == len(_ALL), "two mutants have one name")


def name_now(name: str) -> str:
    """What a mutant is called, by that name or the one of earlier versions, in which `listener-...` was `door-...`."""
    return f"listener-{name.removeprefix('door-')}" if name.startswith("door-") else name


def seeds_to_catch(mutant: ClusterMutant, seeds: Iterable[int]) -> tuple[int, ClusterResult] | None:
    """How many of `seeds` it took until the bug was caught, and the run that caught it; None where none did."""
    for count, seed in enumerate(seeds, 1):
        result = run_cluster(mutant.world(seed), mutated=mutated(mutant))
        if result.failure is not None:
            return count, result
    return None
