"""What `antiphon status` and `antiphon doctor` know of a cluster: its metadata and each node's own word."""

from typing import Any

import typer

import antiphon
from antiphon.cli.output import print_table
from antiphon.errors import AntiphonError
from antiphon.model.metadata import ClusterMeta, NodeMeta, ShardStatus
from antiphon.model.requests import StatusReply

NODE_TIMEOUT_S = 3.0


def collect(servers: str) -> dict[str, Any]:
    """Everything for one screen; raises UnreachableError when no node answers."""
    with antiphon.connect(servers) as db:
        cluster = db.metadata()
        answers: dict[int, StatusReply | None] = {}
        for node in cluster.nodes:
            try:
                answers[node.node_id] = db.node_status(node.node_id, timeout_s=NODE_TIMEOUT_S)
            except AntiphonError:
                answers[node.node_id] = None
    return summarise(cluster, answers)


def summarise(cluster: ClusterMeta, answers: dict[int, StatusReply | None]) -> dict[str, Any]:
    """The page as plain data."""
    shards = [(topic, shard) for topic in cluster.topics for shard in topic.shards]
    alive = {node.node_id for node in cluster.nodes if node.alive and answers.get(node.node_id) is not None}
    problems = [f"node {node.node_id} is down" for node in cluster.nodes if node.node_id not in alive]
    problems += [
        f"{topic.name}/{shard.index} is {shard.status.value}"
        for topic, shard in shards
        if shard.status is not ShardStatus.ONLINE
    ]
    problems += [
        f"node {node_id}: the replica of shard {replica.shard_id} is {replica.state}"
        for node_id, answer in sorted(answers.items())
        if answer is not None
        for replica in answer.replicas
        if replica.state != "ok"
    ]
    unreadable = max(
        (answer.metadata_unreadable for answer in answers.values() if answer is not None), default=0
    )
    nodes = []
    for node in cluster.nodes:
        answer = answers.get(node.node_id)
        nodes.append(
            {
                "id": node.node_id,
                "status": _status(node, node.node_id in alive),
                "leads": sum(shard.leader == node.node_id for _, shard in shards),
                "replicas": sum(node.node_id in shard.ensemble for _, shard in shards),
                "memory_mb": None if answer is None else round(answer.rss_bytes / 2**20),
                "uptime_s": None if answer is None else answer.uptime_ms // 1000,
                "native": node.native,
                "kafka": node.kafka,
                "http": node.http,
            }
        )
    return {
        "cluster_id": cluster.cluster_id,
        "healthy": not problems,
        "version": cluster.version,
        "controller": cluster.controller,
        "topics": sum(topic.kind == "topic" for topic in cluster.topics),
        "tables": sum(topic.kind == "table" for topic in cluster.topics),
        "shards": len(shards),
        "problems": problems,
        "metadata_unreadable": unreadable,
        "nodes": nodes,
    }


def _status(node: NodeMeta, is_up: bool) -> str:
    return "down" if not is_up else "draining" if node.draining else "up"


def render(found: dict[str, Any]) -> None:
    """Print the page for a person."""
    word = "healthy" if found["healthy"] else "NOT healthy"
    typer.echo(
        f"Cluster {found['cluster_id'][:8]} is {word}: {found['topics']} topics, {found['tables']} tables, "
        f"{found['shards']} shards; node {found['controller']} coordinates\n"
    )
    names = ("id", "status", "leads", "replicas", "memory_mb", "uptime_s", "native", "kafka", "http")
    rows = [[node[name] for name in names] for node in found["nodes"]]
    print_table([name.upper() for name in names], rows, as_json=False)
    if found["metadata_unreadable"]:
        typer.echo(
            f"\n{found['metadata_unreadable']} entries of the cluster's own log cannot be read and were passed over; the "
            "nodes' logs say which (metadata_not_readable)"
        )
    shown = found["problems"][:20]
    for problem in shown:
        typer.echo(f"\n! {problem}", nl=False)
    if shown:
        typer.echo(
            ""
            if len(shown) == len(found["problems"])
            else f"\n! and {len(found['problems']) - len(shown)} more"
        )
