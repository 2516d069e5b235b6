"""What is wrong in a cluster, as its metadata and the nodes that answer tell; what was mended; how many there are of all."""

from collections import Counter
from typing import Final, NamedTuple

from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.model.internal import is_internal
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import StatusReply

PROBLEMS_SHOWN: Final = 30


class Problem(NamedTuple):
    """One line of what is wrong; `level` is bad, warn or mended."""

    level: str
    what: str
    do: str
    since_ms: int = 0


class Survey(NamedTuple):
    """What one look at all shards says.

    Attributes:
        counts: nodes, topics, shards: how many there are, and how many of them are well.
        leads, holds: how many shards each node leads, and of how many it has a replica.
        lost: the first shards without a leader, with their topics; `lost_count`: how many there are.
    """

    counts: dict[str, int]
    leads: Counter[int]
    holds: Counter[int]
    lost: list[tuple[TopicMeta, ShardMeta]]
    lost_count: int


def surveyed(meta: ClusterMeta) -> Survey:
    """The look: pages that follow the cluster ask for it every few seconds, so each shard is visited once."""
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    lost: list[tuple[TopicMeta, ShardMeta]] = []
    shards = lost_count = thin = 0
    for topic in meta.topics:
        for shard in topic.shards:
            shards += 1
            leads[shard.leader] += 1
            for node in shard.everybody:
                holds[node] += 1
            thin += len(shard.live) < len(shard.ensemble)
            if shard.status is not ShardStatus.ONLINE:
                lost_count += 1
                if len(lost) < PROBLEMS_SHOWN:
                    lost.append((topic, shard))
    counts = {
        "nodes": len(meta.nodes),
        "up": sum(node.alive for node in meta.nodes),
        "topics": sum(topic.kind == "topic" and not is_internal(topic) for topic in meta.topics),
        "tables": sum(topic.kind == "table" and not is_internal(topic) for topic in meta.topics),
        "shards": shards,
        "led": shards - lost_count,
        "thin": thin,
        "controller": meta.controller,
        "version": meta.version,
    }
    return Survey(counts, leads, holds, lost, lost_count)


def problems(gateway: Gateway, survey: Survey, statuses: dict[int, StatusReply]) -> list[Problem]:
    """What is wrong, the worst first."""
    found = []
    meta = gateway.metadata
    for node in meta.nodes:
        if not node.alive:
            do = "start it again: antiphon node start; or drain and replace it (docs/membership.md)"
            found.append(Problem("bad", f"Node {node.node_id} is down", do))
        elif node.node_id not in statuses:
            do = "look at its node.log; it is counted as alive, and this node does not reach it"
            found.append(Problem("warn", f"Node {node.node_id} does not answer", do))
    for topic, shard in survey.lost:
        do = (
            f"it needs a majority of nodes {', '.join(map(str, shard.ensemble))}: start those that are down; if most of "
            f"their disks are lost for good: antiphon shard recover {topic.name} {shard.index}"
        )
        found.append(Problem("bad", f"{topic.name}/{shard.index} has no leader ({shard.status})", do))
    if survey.lost_count > len(survey.lost):
        found.append(Problem("bad", f"{survey.lost_count - len(survey.lost)} more shards have no leader", ""))
    for node_id, status in statuses.items():
        if status.metadata_unreadable:
            what = f"Node {node_id} passed over {status.metadata_unreadable} entries of the cluster's own log"
            found.append(Problem("warn", what, "its node.log says which (metadata_not_readable)"))
        for one in status.findings:
            if not one.mended_ms:
                of = "" if one.shard_id < 0 else f", {name_of(gateway, one.shard_id)}"
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


def name_of(gateway: Gateway, shard_id: int) -> str:
    """A shard for people: `topic/index`; its number where it is not known."""
    try:
        topic, shard = gateway.shard(shard_id)
    except AntiphonError:
        return "__cluster" if shard_id == CLUSTER_SHARD_ID else f"shard {shard_id}"
    return f"{topic.name}/{shard.index}"
