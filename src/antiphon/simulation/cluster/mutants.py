"""Mutants of whole nodes: a simulator that never finds anything proves nothing.

Each mutant is a mistake that somebody might make in the code that ships. It has to be caught within 1,000 seeds of worlds
that are sound without it.
"""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from antiphon.invariants import invariant
from antiphon.simulation import cluster
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit, mutated
from antiphon.simulation.cluster.protocol_mutants import SCRIPT_MUTANTS
from antiphon.simulation.cluster.run import ClusterResult, run_cluster

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

_KINDS: Final = (
    "disk", "host", "client", "listener", "fault", "protocol", "table", "multi", "core", "store", "snapshot",
    "deletion", "shell", "read", "mode", "scrub", "reader", "access", "tenant", "identity", "settings",
    "transaction", "oxia", "prepared", "consumer", "expiry", "classic", "share", "session", "recipe", "marker",
    "midway", "compaction", "checkpoint", "backup", "audit", "archive", "condition", "turn", "voter",
    "recovery", "retention", "trace", "lease", "migration",
)  # fmt: skip
"""Each stands in a module of its own, `..._mutants.py`; in the order of the docs' table."""

_ALL: Final[tuple[ClusterMutant, ...]] = tuple(
    mutant
    for kind in _KINDS
    for mutant in getattr(import_module(f"{__package__}.{kind}_mutants"), f"{kind.upper()}_MUTANTS")
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

invariant(
    {f"{kind}_mutants" for kind in _KINDS}
    == {found.name for found in iter_modules(cluster.__path__) if found.name.endswith("_mutants")},
    "a module of mutants is not named, or there is none of a name",
)
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
