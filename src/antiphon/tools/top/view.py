"""What one refresh shows, as plain values: made of the metadata, the nodes' answers and the committed offsets of groups."""

from collections.abc import Iterable, Mapping
from heapq import nlargest, nsmallest
from typing import Any, Final, NamedTuple

from antiphon.model.internal import is_internal
from antiphon.model.metadata import (
    ABSENT_NODE,
    ClusterMeta,
    Kind,
    NodeMeta,
    ShardMeta,
    ShardStatus,
    TopicMeta,
)
from antiphon.model.requests import StatusReply
from antiphon.tools.top.rates import NodeRates, ShardBook, ShardRead

CONSUMERS: Final = "consumer"
SHARES: Final = "share"
ROWS_MAX: Final = 200  # of shards and groups: no terminal is higher
SORTS: Final = ("rate", "lag", "size", "name", "leader")


class NodeRow(NamedTuple):
    """A node. Rates are per second; times in seconds; None where it does not answer, or was asked once only."""

    node: int
    state: str
    coordinates: bool
    leads: int
    replicas: int
    rates: NodeRates | None
    memory_bytes: int | None
    descriptors: int | None
    uptime_s: int | None
    findings: int


class ShardRow(NamedTuple):
    """A shard, as its leader told last."""

    topic: str
    shard: int
    status: str
    leader: int | None
    term: int
    records_s: float | None
    lag: int | None
    lag_node: int | None
    size_bytes: int | None
    log_end: int | None
    state: str


class Reached(NamedTuple):
    """Where a group is in a shard: so many offsets are done, or committed. `kind` is CONSUMERS or SHARES."""

    group: str
    topic: str
    shard: int
    offset: int
    kind: str


class GroupRow(NamedTuple):
    """A group: how many records it is behind; `worst`: the shard with most of them."""

    group: str
    kind: str
    shards: int
    lag: int
    worst: str
    unknown: int  # shards whose end is not known yet


class EventRow(NamedTuple):
    """See `antiphon.model.events.Event`."""

    at_ms: int
    kind: str
    subject: str
    what: str


class View(NamedTuple):
    """Everything that is shown. `at_s` is s since 1970; `problem`: why what is shown is not new; empty: it is."""

    at_s: float
    cluster_id: str
    version: int
    controller: int
    topics: int
    tables: int
    shards: int
    without_leader: int
    under_replicated: int
    shards_asked: int
    topic: str
    sort: str
    nodes: list[NodeRow]
    busiest: list[ShardRow]
    groups: list[GroupRow]
    groups_note: str
    events: list[EventRow]
    problem: str

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        found = self._asdict()
        for name in ("busiest", "groups", "events"):
            found[name] = [row._asdict() for row in found[name]]
        found["nodes"] = [
            {**row._asdict(), "rates": None if row.rates is None else row.rates._asdict()}
            for row in self.nodes
        ]
        return found


class Census:
    """What follows from the metadata alone; made once for each version of it, for it looks at every shard.

    Attributes:
        shards: topic and shard by shard id.
        led: shard ids by the node that leads them; of one topic only, if one is named.
        names: of topics, by their ids.
        leads, holds: how many shards a node leads, and has replicas of.
    """

    def __init__(self, meta: ClusterMeta, topic: str = "") -> None:
        self.meta = meta
        self.shards: dict[int, tuple[TopicMeta, ShardMeta]] = {}
        self.led: dict[int, list[int]] = {}
        self.leads: dict[int, int] = {}
        self.holds: dict[int, int] = {}
        self.without_leader = self.under_replicated = 0
        self.topics = sum(one.kind is Kind.TOPIC and not is_internal(one) for one in meta.topics)
        self.tables = sum(one.kind is Kind.TABLE and not is_internal(one) for one in meta.topics)
        alive = {node.node_id for node in meta.nodes if node.alive}
        for one in meta.topics:
            for shard in one.shards:
                self._count(one, shard, alive, is_shown=topic in {"", one.name})
        self.names = {one.topic_id: one.name for one in meta.topics}
        self.by_name = {(one.name, shard.index): shard_id for shard_id, (one, shard) in self.shards.items()}
        self.has_topic = not topic or any(one.name == topic for one in meta.topics)

    def _count(self, topic: TopicMeta, shard: ShardMeta, alive: set[int], *, is_shown: bool) -> None:
        self.shards[shard.shard_id] = topic, shard
        self.without_leader += shard.status is not ShardStatus.ONLINE
        by_live = shard.fence != "majority" and len(shard.live) < len(shard.ensemble)
        self.under_replicated += by_live or not alive.issuperset(shard.ensemble)
        for node in shard.everybody:
            self.holds[node] = self.holds.get(node, 0) + 1
        if shard.leader != ABSENT_NODE:
            self.leads[shard.leader] = self.leads.get(shard.leader, 0) + 1
            if is_shown:
                self.led.setdefault(shard.leader, []).append(shard.shard_id)


def node_rows(
    census: Census, answers: Mapping[int, StatusReply], rates: Mapping[int, NodeRates | None]
) -> list[NodeRow]:
    """The nodes by id; without an answer of this refresh a node's row says so."""
    rows = []
    for node in sorted(census.meta.nodes, key=lambda one: one.node_id):
        node_id, answer = node.node_id, answers.get(node.node_id)
        rows.append(
            NodeRow(
                node_id,
                _state(node, answer),
                node_id == census.meta.controller,
                census.leads.get(node_id, 0),
                census.holds.get(node_id, 0),
                rates.get(node_id) if answer is not None else None,
                None if answer is None else answer.rss_bytes,
                None if answer is None or answer.counters is None else answer.counters.descriptors or None,
                None if answer is None else answer.uptime_ms // 1000,
                0 if answer is None else sum(not one.mended_ms for one in answer.findings),
            )
        )
    return rows


def _state(node: NodeMeta, answer: StatusReply | None) -> str:
    if answer is None:
        return "no answer" if node.alive else "DOWN"
    return "not in" if not node.alive else "draining" if node.draining else "up"


def busiest(census: Census, book: ShardBook, topic: str, sort: str, most: int = ROWS_MAX) -> list[ShardRow]:
    """The first shards in an order of SORTS, those without a leader before all others; of one topic, if one is named."""
    shown = (
        (shard_id, one, shard)
        for shard_id, (one, shard) in census.shards.items()
        if one.name == topic or (not topic and not is_internal(one)) or shard.status is not ShardStatus.ONLINE
    )
    if topic:
        shown = ((shard_id, one, shard) for shard_id, one, shard in shown if one.name == topic)
    rows = [(_order(one, shard, book.reads.get(shard_id), sort), shard_id) for shard_id, one, shard in shown]
    return [_shard_row(census, book, shard_id) for _, shard_id in nsmallest(most, rows)]


def _order(topic: TopicMeta, shard: ShardMeta, read: ShardRead | None, sort: str) -> tuple[Any, ...]:
    name = (topic.name, shard.index)
    led = shard.status is ShardStatus.ONLINE
    if sort == "name":
        return (led, *name)
    if sort == "leader":
        return (led, shard.leader, *name)
    if read is None:
        return (led, 1, *name)
    figure = {"lag": read.lag, "size": read.size_bytes}.get(sort, read.records_s)
    return (led, -(figure or 0), *name)


def _shard_row(census: Census, book: ShardBook, shard_id: int) -> ShardRow:
    topic, shard = census.shards[shard_id]
    read = book.reads.get(shard_id)
    leader = None if shard.leader == ABSENT_NODE else shard.leader
    place = (topic.name, shard.index, str(shard.status), leader, shard.term)
    if read is None or leader is None:
        return ShardRow(*place, None, None, None, None, None, "")
    lag_node = read.lag_node if read.lag else None
    return ShardRow(
        *place,
        read.records_s,
        read.lag,
        lag_node,
        read.size_bytes,
        read.log_end,
        "" if read.state == "ok" else read.state,
    )


def group_rows(
    census: Census, book: ShardBook, offsets: Iterable[Reached], most: int = ROWS_MAX
) -> list[GroupRow]:
    """Groups by what they are behind; the most first."""
    kinds: dict[str, str] = {}
    lags: dict[str, list[tuple[int, str]]] = {}
    unknown: dict[str, int] = {}
    for group, topic, index, offset, kind in offsets:
        kinds[group] = kind
        read = book.reads.get(census.by_name.get((topic, index), -1))
        found = lags.setdefault(group, [])
        if read is None:
            unknown[group] = unknown.get(group, 0) + 1
        else:
            found.append((max(0, read.high_watermark - offset), f"{topic}/{index}"))
    rows = [
        GroupRow(
            group,
            kinds[group],
            len(found) + unknown.get(group, 0),
            sum(lag for lag, _ in found),
            max(found)[1] if found and max(found)[0] else "",
            unknown.get(group, 0),
        )
        for group, found in lags.items()
    ]
    return nlargest(most, rows, key=lambda row: (row.lag, row.shards, row.group))


def merged_events(answers: Iterable[StatusReply], most: int) -> list[EventRow]:
    """The last events as the node tells of them that has known the cluster longest; the newest first."""
    told = max(answers, key=lambda one: (one.uptime_ms, -one.node.node_id), default=None)
    if told is None:
        return []
    return [EventRow(*one) for one in reversed(told.events[-most:])]
