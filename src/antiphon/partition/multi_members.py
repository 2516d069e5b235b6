"""Who writes a shard that every replica writes: the members, their origins, and whether this one may write now."""

from collections.abc import Mapping

from antiphon.errors import NotLeaderError
from antiphon.model.metadata import ABSENT_NODE, NodeMeta, ShardMeta
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.origins import OriginTable, origin_of, origins_of


class MultiWriterRules:
    """What the metadata and the replica say of writing here (`WriterRules`).

    `leaves`: this replica is to go, so it writes nothing new.
    """

    def __init__(self, node_id: int, replica: MultiWriterReplica) -> None:
        self._node_id = node_id
        self._replica = replica
        self._home = ABSENT_NODE  # the replica for clients that ask for none
        self.leaves = False

    def recorded(self, shard: ShardMeta) -> None:
        """The metadata shows the shard like this."""
        self._home = shard.leader
        self.leaves = self._node_id not in shard.ensemble

    def check_writable(self) -> None:
        """See WriterRules. This replica must have an origin and know its own entries: NotReadyError."""
        if self.leaves:
            raise NotLeaderError(
                f"node {self._node_id} is about to give up its replica of shard {self._replica.shard}",
                leader=self._home if self._home >= 0 else None,
            )
        self._replica.check_writable()

    def referred(self, error: NotLeaderError) -> NotLeaderError:
        """Why this replica does not serve, and another one that may."""
        others = [one.node for one in self._replica.followers() if one.connected]
        return NotLeaderError(error.message, leader=min(others, default=None), shard_id=self._replica.shard)


def member_origins(
    shard: ShardMeta, nodes: Mapping[int, NodeMeta], node_id: int, disk_id: str
) -> dict[int, int]:
    """Members with their origins; this node's by the disk that it really runs on."""
    table: OriginTable = shard.origins
    disks = {node: nodes[node].disk_id for node in shard.everybody if node in nodes}
    found = origins_of(table, shard.everybody, disks)
    found[node_id] = origin_of(table, node_id, disk_id)
    return found
