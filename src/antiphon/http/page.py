"""The page at `/` where the dashboard's libraries are missing: the cluster at a glance, as this node knows it.

Plain HTML, which refreshes itself.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardStatus, TopicMeta
from antiphon.model.requests import ReplicaStatus

REFRESH_S: Final = 5
SHARDS_SHOWN_MAX: Final = 500

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; color: #556; } a { color: #0b5cad; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .8rem .3rem 0; }
th { font-weight: 600; border-bottom: 2px solid #cfd6df; } td { border-bottom: 1px solid #e6eaef; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: #1a6e34; } .bad { color: #b3261e; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ea; }
p { color: #9aa6b2; } a { color: #7ab8ff; }
th { border-color: #3a4452; } td { border-color: #262e39; } .ok { color: #7bd495; } .bad { color: #ff8a80; } }
"""


def render(
    node_id: int, cluster: ClusterMeta, replicas: Sequence[ReplicaStatus], paths: Iterable[str], note: str
) -> bytes:
    """The whole page, UTF-8, with a `note` at the top."""
    topics = sorted(cluster.topics, key=lambda topic: (topic.internal, topic.name))
    own = {replica.shard_id: replica for replica in replicas}
    links = " · ".join(
        f'<a href="{escape(path)}">{escape(path)}</a>' for path in sorted(paths) if path != "/"
    )
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH_S}">',
        f"<title>Antiphon node {node_id}</title><style>{_STYLE}</style>",
        f"<h1>Antiphon</h1><p>{_health(cluster)}</p><p>{escape(note)}</p>",
        f"<p>cluster {escape(cluster.cluster_id)} · as node {node_id} knows it · metadata version {cluster.version}</p>",
        f"<p>coordinator on node {cluster.controller} · {links}</p>",
        "<h2>Nodes</h2>",
        _nodes(cluster),
        "<h2>Topics and tables</h2>",
        _topics(topics),
        "<h2>Shards</h2>",
        _shards(topics, own),
        "</html>\n",
    ]
    return "\n".join(parts).encode()


def _health(cluster: ClusterMeta) -> str:
    down = [str(node.node_id) for node in cluster.nodes if not node.alive]
    offline = sum(
        shard.status is not ShardStatus.ONLINE for topic in cluster.topics for shard in topic.shards
    )
    if not down and not offline:
        return f'<span class="ok">healthy</span>: {len(cluster.nodes)} nodes up, every shard is led'
    words = []
    if down:
        words.append(f"node {', '.join(down)} down")
    if offline:
        words.append(f"{offline} shards without a leader")
    return f'<span class="bad">{escape("; ".join(words))}</span>'


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int]) -> str:
    head = "".join(
        f'<th class="n">{name}</th>' if i in numbers else f"<th>{name}</th>"
        for i, name in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="n">{cell}</td>' if i in numbers else f"<td>{cell}</td>" for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _nodes(cluster: ClusterMeta) -> str:
    led: dict[int, int] = {}
    for topic in cluster.topics:
        for shard in topic.shards:
            led[shard.leader] = led.get(shard.leader, 0) + 1
    rows = [
        (
            str(node.node_id),
            '<span class="ok">up</span>' if node.alive else '<span class="bad">DOWN</span>',
            str(led.get(node.node_id, 0)),
            escape(node.kafka),
            escape(node.native),
            f'<a href="http://{escape(node.http)}/">{escape(node.http)}</a>' if node.http else "",
        )
        for node in cluster.nodes
    ]
    return _table(("node", "state", "leads", "Kafka", "native", "HTTP"), rows, frozenset({2}))


def _topics(topics: Sequence[TopicMeta]) -> str:
    rows = [
        (
            escape(topic.name),
            topic.kind.value + (" (internal)" if topic.internal else ""),
            str(len(topic.shards)),
            str(topic.replicas),
            escape(topic.profile),
            escape(", ".join(f"{name}={value}" for name, value in sorted(topic.config.items()))),
        )
        for topic in topics
    ]
    return _table(("name", "kind", "shards", "replicas", "profile", "settings"), rows, frozenset({2, 3}))


def _shards(topics: Sequence[TopicMeta], own: dict[int, ReplicaStatus]) -> str:
    rows: list[tuple[str, ...]] = []
    total = sum(len(topic.shards) for topic in topics)
    for topic in topics:
        for shard in topic.shards[: max(0, SHARDS_SHOWN_MAX - len(rows))]:
            here = own.get(shard.shard_id)
            online = shard.status is ShardStatus.ONLINE
            rows.append(
                (
                    f"{escape(topic.name)}/{shard.index}",
                    f'<span class="{"ok" if online else "bad"}">{shard.status.value}</span>',
                    str(shard.leader) if shard.leader != ABSENT_NODE else "none",
                    str(shard.term),
                    ", ".join(map(str, shard.ensemble)),
                    here.role if here is not None else "",
                    f"{here.high_watermark:,}" if here is not None else "",
                    f"{here.log_end:,}" if here is not None else "",
                    f"{here.size_bytes:,}" if here is not None else "",
                )
            )
    headings = ("shard", "status", "leader", "term", "ensemble", "here", "high watermark", "log end", "bytes")
    note = f"<p>the first {len(rows)} of {total}; /topics has all</p>" if total > len(rows) else ""
    return _table(headings, rows, frozenset({2, 3, 6, 7, 8})) + note
