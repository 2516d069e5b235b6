"""What `antiphon status` and `antiphon doctor` know of a cluster: its metadata and each node's own word."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

import antiphon
from antiphon.errors import AntiphonError
from antiphon.model.metadata import ClusterMeta, NodeMeta, ShardStatus
from antiphon.model.requests import GetStatus, StatusReply

T = TypeVar("T")
NODE_TIMEOUT_S = 3.0
PASSED_IN_WORDS_S = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))


def collect(servers: str) -> dict[str, Any]:
    """Everything for one screen; raises UnreachableError when no node answers."""
    with antiphon.connect(servers) as db:
        cluster = db.metadata()
        answers = {node.node_id: status_of(db, node.node_id) for node in cluster.nodes}
    return summarise(cluster, answers)


def status_of(
    db: "antiphon.Client", node_id: int, of: GetStatus | None = None, *, timeout_s: float = NODE_TIMEOUT_S
) -> StatusReply | None:
    """What one node knows of its replicas, or of what `of` asks; None where it does not answer."""
    try:
        return db.node_status(node_id, of, timeout_s=timeout_s)
    except AntiphonError:
        return None


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
    findings = _findings(answers)
    problems += [line_of(one) for one in findings if not one["mended_ms"]]
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
                "version": None if answer is None else answer.version,
                "uptime_s": None if answer is None else answer.uptime_ms // 1000,
                "native": node.native,
                "kafka": node.kafka,
                "oxia": node.oxia,
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
        "findings": findings,
        "metadata_unreadable": unreadable,
        "nodes": nodes,
    }


def _findings(answers: dict[int, StatusReply | None]) -> list[dict[str, Any]]:
    """What the nodes found to be wrong, and what of it is mended."""
    return [
        {"node": node_id, **as_plain(one)}
        for node_id, answer in sorted(answers.items())
        if answer is not None
        for one in answer.findings
    ]


def line_of(finding: dict[str, Any]) -> str:
    """A finding for people, on one line."""
    of = "" if finding["shard_id"] < 0 else f", shard {finding['shard_id']}"
    do = f"; to do: {finding['do']}" if finding["do"] and not finding["mended_ms"] else ""
    since = ago(finding["since_ms"])
    return f"node {finding['node']}{of}: {finding['kind']} since {since}: {finding['what']}{do}"


def as_plain(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields by name: on the wire they have none."""
    return msgspec.structs.asdict(struct)


def ago(since_ms: int) -> str:
    """A time in ms since 1970, for people: when, and how long ago that is."""
    passed_s = max(0.0, time.time() - since_ms / 1000)
    unit_s, unit = next((one for one in PASSED_IN_WORDS_S if passed_s >= 2 * one[0]), PASSED_IN_WORDS_S[-1])
    when = datetime.fromtimestamp(since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f"{when}, {int(passed_s // unit_s)} {unit} ago"


def _status(node: NodeMeta, is_up: bool) -> str:
    return "down" if not is_up else "draining" if node.draining else "up"


def from_each_node(
    db: "antiphon.Client", ask: Callable[[int], Iterable[T]]
) -> tuple[list[tuple[int, T]], list[tuple[int, str]]]:
    """What every node answers, by node; and the nodes that do not answer, with the reason."""
    found: list[tuple[int, T]] = []
    silent: list[tuple[int, str]] = []
    for node in db.metadata().nodes:
        try:
            found += [(node.node_id, one) for one in ask(node.node_id)]
        except AntiphonError as error:
            silent.append((node.node_id, error.message))
    return found, silent
