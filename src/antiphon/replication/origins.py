"""Who writes as which origin: a table per shard that only grows (S4.22).

A row is (node, its disk id); its origin id is its place, counted from 1. A node writes only as the origin that the cluster's
metadata gives to the disk that it runs on. So a node that comes back with an empty disk gets a new origin id and can not
number an entry that its earlier self has numbered; the old id is never given away again. Ids are 1..31: a shard that has
used them all up takes no more members and lets no replaced disk write.
"""

from collections.abc import Iterable, Mapping

from antiphon.replication.messages import NodeId
from antiphon.replication.vclock import ORIGINS_MAX

OriginTable = tuple[tuple[NodeId, str], ...]

NONE = 0


def assign(table: OriginTable, members: Iterable[NodeId], disks: Mapping[NodeId, str]) -> OriginTable:
    """The table with a row for each member on its present disk, as far as there are ids left.

    `disks` are the disk ids of the nodes that are known; a member that never registered gets its row when it does.
    """
    rows = list(table)
    for node in members:
        disk = disks.get(node, "")
        if disk and (node, disk) not in rows and len(rows) < ORIGINS_MAX:
            rows.append((node, disk))
    return tuple(rows)


def origin_of(table: OriginTable, node: NodeId, disk: str) -> int:
    """The origin that `node` writes as on `disk`, NONE while it has none."""
    return table.index((node, disk)) + 1 if (node, disk) in table else NONE


def origins_of(
    table: OriginTable, members: Iterable[NodeId], disks: Mapping[NodeId, str]
) -> dict[NodeId, int]:
    """The present origin of each member, NONE where it has none."""
    return {node: origin_of(table, node, disks.get(node, "")) for node in members}
