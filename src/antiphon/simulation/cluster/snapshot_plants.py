"""Bugs to plant in snapshots: how they are made, sent, and put in the place of a replica's log and store."""

from typing import Final

from antiphon.node import trimming
from antiphon.node.snapshots import Snapshots
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import SNAPSHOTS

_SENT: Final = (
    ClusterPlant(
        "node-snapshot-without-producers",
        "a snapshot says nothing of the producers of what it stands for",
        (
            Edit(
                Snapshots,
                "_copy_for",
                "host.log.producers.encode(before=at.offset)",
                "type(host.log.producers)().encode()",
            ),
        ),
        options={**SNAPSHOTS, "operations_per_s": 60, "appenders": 8, "putters": 4},
    ),
)

_TRIMMED: Final = (
    ClusterPlant(
        "node-trims-uncommitted",
        "a log is trimmed as far as is asked for, committed or not",
        (
            Edit(trimming, "trim_replica", "min(before, host.settled)", "before"),
            Edit(trimming, "trim_replica", "min(fed, host.settled, ", "min(fed, "),
        ),
        options=SNAPSHOTS,
    ),
)

SNAPSHOT_PLANTS: Final = (*_SENT, *_TRIMMED)
