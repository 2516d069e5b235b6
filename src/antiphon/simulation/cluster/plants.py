"""Bugs to plant in whole nodes: a simulator that never finds anything proves nothing.

Each plant is a mistake that somebody might make in the code that ships. It has to be caught within 1,000 seeds of worlds
that are sound without it.
"""

from collections.abc import Iterable
from typing import Final

from antiphon.invariants import invariant
from antiphon.simulation.cluster.access_plants import ACCESS_PLANTS
from antiphon.simulation.cluster.client_plants import CLIENT_PLANTS
from antiphon.simulation.cluster.compaction_plants import COMPACTION_PLANTS
from antiphon.simulation.cluster.consumer_plants import CONSUMER_PLANTS
from antiphon.simulation.cluster.core_plants import CORE_PLANTS
from antiphon.simulation.cluster.disk_plants import DISK_PLANTS
from antiphon.simulation.cluster.fault_plants import FAULT_PLANTS
from antiphon.simulation.cluster.host_plants import HOST_PLANTS
from antiphon.simulation.cluster.listener_plants import LISTENER_PLANTS
from antiphon.simulation.cluster.marker_plants import MARKER_PLANTS
from antiphon.simulation.cluster.midway_plants import MIDWAY_PLANTS
from antiphon.simulation.cluster.mode_plants import MODE_PLANTS
from antiphon.simulation.cluster.multi_plants import MULTI_PLANTS
from antiphon.simulation.cluster.plant import ClusterPlant, Edit, planted
from antiphon.simulation.cluster.protocol_plants import PROTOCOL_PLANTS, SCRIPT_PLANTS
from antiphon.simulation.cluster.read_plants import READ_PLANTS
from antiphon.simulation.cluster.reader_plants import READER_PLANTS
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.cluster.scrub_plants import SCRUB_PLANTS
from antiphon.simulation.cluster.shell_plants import SHELL_PLANTS
from antiphon.simulation.cluster.snapshot_plants import SNAPSHOT_PLANTS
from antiphon.simulation.cluster.store_plants import STORE_PLANTS
from antiphon.simulation.cluster.table_plants import TABLE_PLANTS
from antiphon.simulation.cluster.transaction_plants import TRANSACTION_PLANTS

__all__ = [
    "ALL_PLANTS",
    "CLUSTER_PLANTS",
    "OF_SCRIPTS",
    "ClusterPlant",
    "Edit",
    "name_now",
    "planted",
    "seeds_to_catch",
]

_ALL: Final = (
    *DISK_PLANTS,
    *HOST_PLANTS,
    *CLIENT_PLANTS,
    *LISTENER_PLANTS,
    *FAULT_PLANTS,
    *PROTOCOL_PLANTS,
    *TABLE_PLANTS,
    *MULTI_PLANTS,
    *CORE_PLANTS,
    *STORE_PLANTS,
    *SNAPSHOT_PLANTS,
    *SHELL_PLANTS,
    *READ_PLANTS,
    *MODE_PLANTS,
    *SCRUB_PLANTS,
    *READER_PLANTS,
    *ACCESS_PLANTS,
    *TRANSACTION_PLANTS,
    *CONSUMER_PLANTS,
    *MARKER_PLANTS,
    *MIDWAY_PLANTS,
    *COMPACTION_PLANTS,
)

CLUSTER_PLANTS: Final[dict[str, ClusterPlant]] = {plant.name: plant for plant in _ALL}
"""By name."""

ALL_PLANTS: Final[dict[str, ClusterPlant]] = {
    **CLUSTER_PLANTS,
    **{plant.name: plant for plant in SCRIPT_PLANTS},
}
"""With those that no world shows, but a script."""

OF_SCRIPTS: Final[dict[str, ClusterPlant]] = {
    plant.name: plant for plant in (*_ALL, *SCRIPT_PLANTS) if plant.is_of_protocol
}
"""Those that scripts can show: they change the replicas' own objects and nothing else."""

invariant(len(CLUSTER_PLANTS) == len(_ALL), "two plants have one name")


def name_now(name: str) -> str:
    """What a plant is called, by that name or the one of earlier versions, in which `listener-...` was `door-...`."""
    return f"listener-{name.removeprefix('door-')}" if name.startswith("door-") else name


def seeds_to_catch(plant: ClusterPlant, seeds: Iterable[int]) -> tuple[int, ClusterResult] | None:
    """How many of `seeds` it took until the bug was caught, and the run that caught it; None where none did."""
    for count, seed in enumerate(seeds, 1):
        result = run_cluster(plant.world(seed), planted=planted(plant))
        if result.failure is not None:
            return count, result
    return None
