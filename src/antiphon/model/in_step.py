"""Is a node in step: does it take part in all shards that it holds, as far as the metadata tells?

Asked by whoever restarts nodes one after the other, and by a node of itself (`/readyz`). What the metadata tells of a node
is about its present process only where it names that process (`NodeMeta.incarnation`): the caller looks.
"""

from typing import NamedTuple

from antiphon.model.metadata import ClusterMeta, ShardMeta, ShardStatus


class Lack(NamedTuple):
    """A shard in which a node is missed, and why, in words."""

    shard_id: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def out_of_step(cluster: ClusterMeta, node_id: int) -> list[Lack]:
    """The shards of a node in which it does not take part yet.

    A shard that elects a leader counts. One that cannot, as too few members are left, counts only while all of them are
    alive: for other members, this node cannot do anything. A learner is not missed.
    """
    alive = {node.node_id for node in cluster.nodes if node.alive}
    return [
        Lack(shard.shard_id, f"{topic.name}/{shard.index}", why)
        for topic in cluster.topics
        for shard in topic.shards
        if node_id in shard.ensemble and (why := _lack_of(shard, node_id, alive))
    ]


def _lack_of(shard: ShardMeta, node_id: int, alive: set[int]) -> str:
    if shard.status is ShardStatus.OFFLINE:
        return "no leader yet" if alive.issuperset(shard.ensemble) else ""
    if shard.status is not ShardStatus.ONLINE:
        return "no leader yet"
    return "" if node_id in shard.live else f"node {node_id} has not caught up"


def not_to_be_missed(cluster: ClusterMeta, node_id: int) -> list[Lack]:
    """The shards of a node that could not spare it now: somebody else is missing in them, or they are changing."""
    return [
        Lack(shard.shard_id, f"{topic.name}/{shard.index}", why)
        for topic in cluster.topics
        for shard in topic.shards
        if node_id in shard.everybody and (why := _why_not(shard, node_id))
    ]


def _why_not(shard: ShardMeta, node_id: int) -> str:
    if shard.goal or shard.outgoing or shard.learners:
        return "its members are changing"
    if shard.split is not None:
        return "it is being split"
    others = [node for node in shard.ensemble if node != node_id]
    if shard.status is not ShardStatus.ONLINE:
        return f"it is {shard.status.value}" if others else ""
    missing = [node for node in others if node not in shard.live]
    return f"node {missing[0]} has not caught up" if missing else ""
