"""Shards whose members are changing, according to the metadata."""

from antiphon.errors import UnknownShardError
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta


def is_on_its_way(shard: ShardMeta) -> bool:
    """Is a change of the shard's members asked for or under way?"""
    return bool(shard.goal or shard.outgoing or shard.learners)


def shards_on_their_way(cluster: ClusterMeta, name: str | None = None) -> list[tuple[str, ShardMeta]]:
    """(topic, shard) of all shards whose members change, of one topic if it is named."""
    return [
        (topic.name, shard)
        for topic in cluster.topics
        if name is None or topic.name == name
        for shard in topic.shards
        if is_on_its_way(shard)
    ]


def shard_of(topic: TopicMeta, shard: int) -> ShardMeta:
    """A shard by its place. Raises UnknownShardError."""
    if not 0 <= shard < len(topic.shards):
        raise UnknownShardError(
            f"{topic.name!r} has shards 0..{len(topic.shards) - 1}, not {shard}", name=topic.name, shard=shard
        )
    return topic.shards[shard]
