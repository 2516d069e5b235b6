"""The replicas of this node, found by shard; and what is said of a shard that has none here."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from antiphon.errors import NotLeaderError, NotReadyError, UnknownShardError
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, TopicMeta
from antiphon.model.requests import ReplicaStatus

if TYPE_CHECKING:
    from antiphon.node.local_view import LocalView
    from antiphon.partition.partition import Partition


class LocalReplicas:
    """See the module's text. `broken` says which shards' replicas here cannot be opened."""

    def __init__(
        self,
        node_id: int,
        view: "LocalView",
        hosts: "dict[int, Partition]",
        broken: Callable[[], Sequence[int]],
    ) -> None:
        self.node_id = node_id
        self.hosts = hosts
        self.view = view
        self._broken = broken

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        """Metadata of a shard; raises UnknownShardError, and NotReadyError while this node knows no metadata."""
        found = self.view.shard(shard_id)
        if found is None and self.view.version < 0:
            # A node that was told nothing since its start must not say that something does not exist.
            raise NotReadyError(
                f"node {self.node_id} was just started and does not know of shard {shard_id}; retry"
            )
        if found is None:
            raise UnknownShardError(f"there is no shard {shard_id}", shard_id=shard_id)
        return found

    def host(self, shard_id: int) -> "Partition":
        """This node's replica of the shard; NotLeaderError with the leader where it has none, or UnknownShardError."""
        host = self.hosts.get(shard_id)
        if host is not None:
            return host
        _, shard = self.shard(shard_id)
        leader = None if shard.leader == ABSENT_NODE else shard.leader
        if shard_id not in self._broken() and self.node_id in shard.ensemble:
            raise NotReadyError(f"node {self.node_id} is just opening its replica of shard {shard_id}; retry")
        raise NotLeaderError(
            f"node {self.node_id} has no replica of shard {shard_id}, node {leader} leads it",
            leader=leader,
            shard_id=shard_id,
        )

    def followers_with(self, shard_id: int, offset: int) -> list[int]:
        """Nodes whose replicas have the shard's log up to `offset`, as its leader here knows; the furthest first.

        Empty where this node does not lead the shard.
        """
        host = self.hosts.get(shard_id)
        if host is None or not host.state.is_serving:
            return []
        found = [one for one in host.replica.followers() if one.ack_offset >= offset]
        return [one.node for one in sorted(found, key=lambda one: (-one.ack_offset, one.node))]

    def statuses(self, shards: Collection[int] | None = None) -> tuple[ReplicaStatus, ...]:
        """State of every replica, or of those of some shards, by shard; those that cannot be opened included."""
        hosts = self.hosts
        wanted = hosts if shards is None else [one for one in shards if one in hosts]
        found = {shard_id: hosts[shard_id].status() for shard_id in wanted}
        for shard_id in self._broken():
            if shards is not None and shard_id not in shards:
                continue
            found[shard_id] = ReplicaStatus(shard_id, "not_member", 0, 0, 0, 0, 0, state="failed")
        return tuple(found[shard_id] for shard_id in sorted(found))
