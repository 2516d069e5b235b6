"""What is wrong in a cluster, as its metadata and the nodes that answer tell; what was mended; how many there are of all."""

from collections import Counter
from typing import Final, NamedTuple

from antiphon.model.internal import is_internal
from antiphon.model.metadata import ClusterMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import StatusReply

PROBLEMS_SHOWN: Final = 30


class Problem(NamedTuple):
    """One line of what is wrong; `level` is bad, warn or mended."""

    level: str
    what: str
    do: str
    since_ms: int = 0


def counts(meta: ClusterMeta) -> dict[str, int]:
    """Nodes, topics, shards: how many there are, and how many of them are well."""
    shards = [shard for topic in meta.topics for shard in topic.shards]
    return {
        "nodes": len(meta.nodes),
        "up": sum(node.alive for node in meta.nodes),
        "topics": sum(topic.kind == "topic" and not is_internal(topic) for topic in meta.topics),
        "tables": sum(topic.kind == "table" and not is_internal(topic) for topic in meta.topics),
        "shards": len(shards),
        "led": sum(shard.status is ShardStatus.ONLINE for shard in shards),
        "thin": sum(len(shard.live) < len(shard.ensemble) for shard in shards),
        "controller": meta.controller,
        "version": meta.version,
    }


def problems(meta: ClusterMeta, statuses: dict[int, StatusReply]) -> list[Problem]:
    """What is wrong, the worst first."""
    found = []
    for node in meta.nodes:
        if not node.alive:
            do = "start it again: antiphon node start; or drain and replace it (docs/membership.md)"
            found.append(Problem("bad", f"Node {node.node_id} is down", do))
        elif node.node_id not in statuses:
            do = "look at its node.log; it is counted as alive, and this node does not reach it"
            found.append(Problem("warn", f"Node {node.node_id} does not answer", do))
    lost = [(topic, shard) for topic, shard in every_shard(meta) if shard.status is not ShardStatus.ONLINE]
    for topic, shard in lost[:PROBLEMS_SHOWN]:
        do = (
            f"it needs a majority of nodes {', '.join(map(str, shard.ensemble))}: start those that are down; if most of "
            f"their disks are lost for good: antiphon shard recover {topic.name} {shard.index}"
        )
        found.append(Problem("bad", f"{topic.name}/{shard.index} has no leader ({shard.status})", do))
    if len(lost) > PROBLEMS_SHOWN:
        found.append(Problem("bad", f"{len(lost) - PROBLEMS_SHOWN} more shards have no leader", ""))
    for node_id, status in statuses.items():
        if status.metadata_unreadable:
            what = f"Node {node_id} passed over {status.metadata_unreadable} entries of the cluster's own log"
            found.append(Problem("warn", what, "its node.log says which (metadata_not_readable)"))
        for one in status.findings:
            if not one.mended_ms:
                of = "" if one.shard_id < 0 else f", {name_of(meta, one.shard_id)}"
                level = "bad" if one.level == "unhealthy" else "warn"
                found.append(
                    Problem(level, f"Node {node_id}{of}: {one.kind}: {one.what}", one.do, one.since_ms)
                )
    return sorted(found, key=lambda one: one.level != "bad")


def mended(statuses: dict[int, StatusReply]) -> list[Problem]:
    """What was wrong, the last five."""
    found = [
        Problem("mended", f"Node {node_id}: {one.kind}: {one.what}", "", one.mended_ms)
        for node_id, status in statuses.items()
        for one in status.findings
        if one.mended_ms
    ]
    return sorted(found, key=lambda one: -one.since_ms)[:5]


def every_shard(meta: ClusterMeta) -> list[tuple[TopicMeta, ShardMeta]]:
    """Each shard with its topic."""
    return [(topic, shard) for topic in meta.topics for shard in topic.shards]


def carried(meta: ClusterMeta) -> tuple[Counter[int], Counter[int]]:
    """How many shards each node leads, and of how many it has a replica."""
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    for _, shard in every_shard(meta):
        leads[shard.leader] += 1
        holds.update(shard.everybody)
    return leads, holds


def name_of(meta: ClusterMeta, shard_id: int) -> str:
    """A shard for people: `topic/index`; its number where it is not known."""
    for topic, shard in every_shard(meta):
        if shard.shard_id == shard_id:
            return f"{topic.name}/{shard.index}"
    return "__cluster" if shard_id == 0 else f"shard {shard_id}"
