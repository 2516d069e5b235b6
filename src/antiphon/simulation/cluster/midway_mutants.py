"""Mutants that show only where a process was killed in the middle of a write: between a change and its sync.

Any other kill comes when a group of writes is whole and synced, so that the next process finds nothing that is not durable.
After a power failure it finds nothing else either: what it can read is what the disk has.
"""

from typing import Final

from antiphon.log import recovery
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM

_Recovery = vars(recovery)["_Recovery"]

_KILLS: Final = {
    **CALM,
    "fault_ms": 8_000,
    "fault_every_ms": 150,
    "fault_lasts_ms": 200,
    "kill_midway_weight": 6,
    "power_midway_weight": 2,
}

MIDWAY_MUTANTS: Final = (
    ClusterMutant(
        "node-believes-names",
        "recovery does not sync the directory of a log, in which a killed process may have left names that are not durable",
        Edit(
            recovery, "recover", "        disk.fsync_dir(directory)\n    start =", "        pass\n    start ="
        ),
        profile="raft",
        options=_KILLS,
        quick=True,
        first_seed=18,
    ),
    ClusterMutant(
        "node-believes-data",
        "recovery takes what it reads for durable, and does not sync what a killed process had only written",
        Edit(_Recovery, "_mend", "data.fdatasync()", "pass"),
        options=_KILLS,
        quick=True,
        first_seed=10,
    ),
)
