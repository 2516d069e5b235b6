"""Features that ApiVersions tells of: what a client may use beyond the versions of APIs.

The levels come with the version of the nodes, so UpdateFeatures takes only the level that a feature has. A client may use
a level once every node of the cluster has it: in the middle of an upgrade its coordinator can be on any of them.
"""

from typing import Final, NamedTuple

from antiphon.coordination.cluster_records import SHARE_FORMAT
from antiphon.kafka.messages import cluster as m
from antiphon.model.metadata import ClusterMeta

FIRST_FROM_ZERO: Final = (
    4  # ApiVersions that may tell of a feature from level 0 on: older clients cannot read that
)


class Feature(NamedTuple):
    """A feature's levels: those that nodes can have, and the one that clients may use; None: told of as supported only.

    `since` is what the oldest nodes with the level say that they read (`NodeMeta.reads`).
    """

    min_level: int
    max_level: int
    finalized: int | None = None
    since: int = 0

    def level(self, meta: ClusterMeta) -> int:
        """The one that it has in this cluster; 0 while a node does not know it."""
        if not meta.nodes or any(node.reads < self.since for node in meta.nodes):
            return 0
        return self.max_level if self.finalized is None else self.finalized


CONDITIONAL_APPEND: Final = "antiphon.conditional_append"  # KIP-27
TRANSACTIONS: Final = "transaction.version"  # KIP-890: level 2 ends each transaction with a new epoch
SHARE: Final = "share.version"  # KIP-932
FEATURES: Final = {
    CONDITIONAL_APPEND: Feature(1, 1),
    SHARE: Feature(0, 1, finalized=1, since=SHARE_FORMAT),
    TRANSACTIONS: Feature(0, 2, finalized=2, since=4),
}


def supported(version: int) -> list[m.SupportedFeature]:
    """What ApiVersions of this version says of levels that nodes can have."""
    return [
        m.SupportedFeature(name=name, min_version=one.min_level, max_version=one.max_level)
        for name, one in FEATURES.items()
        if one.min_level or version >= FIRST_FROM_ZERO
    ]


def finalized(meta: ClusterMeta) -> list[m.FinalizedFeature]:
    """What it says of levels that clients may use."""
    levels = ((name, one.level(meta)) for name, one in FEATURES.items() if one.finalized is not None)
    return [
        m.FinalizedFeature(name=name, max_version_level=level, min_version_level=level)
        for name, level in levels
        if level
    ]
