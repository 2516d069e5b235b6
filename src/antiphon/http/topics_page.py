"""The page `/topics`: all topics that somebody may see, with their shards."""

from typing import Any

from antiphon.http.access import may_see
from antiphon.model.metadata import ClusterMeta
from antiphon.security.authorizer import Rights


def topics_told(cluster: ClusterMeta, rights: Rights) -> list[dict[str, Any]]:
    """As plain values for JSON."""
    return [
        {
            "name": topic.name,
            "kind": str(topic.kind),
            "replicas": topic.replicas,
            "profile": topic.profile,
            "config": topic.config,
            "shards": [
                {
                    "shard": shard.index,
                    "id": shard.shard_id,
                    "status": str(shard.status),
                    "leader": shard.leader,
                    "term": shard.term,
                    "ensemble": list(shard.ensemble),
                    "live": list(shard.live),
                }
                for shard in topic.shards
            ],
        }
        for topic in cluster.topics
        if may_see(rights, topic)
    ]
