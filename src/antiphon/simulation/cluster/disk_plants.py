"""Bugs to plant between a node's log and its disk."""

from typing import Final

from antiphon.log import layout
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.hard_state import HardState
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM

DISK_PLANTS: Final = (
    ClusterPlant(
        "node-acknowledges-before-sync",
        "the WAL worker reports a group as done when it is written, and syncs it with the next flush",
        (
            Edit(
                GroupCommitter,
                "_sync",
                'if file is not None and queue.flush == "always":',
                'if file is not None and queue.flush == "never":',
            ),
        ),
        options=CALM,
    ),
    ClusterPlant(
        "node-promises-unsynced",
        "term and vote are written without a sync",
        (
            Edit(
                HardState,
                "_promise",
                "replace_file(self._disk, path, data)",
                "replace_file(self._disk, path, data, durable=False)",
            ),
        ),
        profile="raft",
        options=CALM,
    ),
    ClusterPlant(
        "node-writes-no-vote",
        "the term is written and the vote is kept in memory only",
        (
            Edit(
                HardState,
                "stage",
                "_PROMISE.pack(term, -1 if voted_for is None else voted_for)",
                "_PROMISE.pack(term, -1)",
            ),
        ),
        profile="raft",
        options=CALM,
    ),
    ClusterPlant(
        "node-segment-without-name",
        "a new segment's name is not synced in its directory",
        (Edit(layout, "create_segment", "    disk.fsync_dir(directory)\n", ""),),
        options=CALM,
    ),
)
