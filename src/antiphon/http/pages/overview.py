"""The overview: what is wrong, the cluster as a map of shards and nodes, what went on, and the samples that plots are of."""

from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from antiphon import system
from antiphon.http.pages import health, time_line
from antiphon.http.pages.health import PROBLEMS_SHOWN
from antiphon.http.pages.site import Look, Paged, Site
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import is_internal
from antiphon.model.metadata import ClusterMeta, ShardMeta, ShardStatus
from antiphon.model.requests import ReplicaStatus, StatusReply

MAP_ROWS: Final = 30
EVENTS_SHOWN: Final = 60
BEHIND: Final = ((0, "even"), (100, "near"), (10_000, "behind"))  # entries that a replica lacks


class Cell(NamedTuple):
    """A replica on the map: its role, how it is, how far behind its leader (None: not known), whether it is live."""

    role: str
    looks: str
    lag: int | None
    is_live: bool
    says: str


async def overview(site: Site, look: Look) -> Response:
    """The page."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    meta = site.gateway.metadata
    found = _shards_found(meta, look.text("q"), with_internal=look.text("internal") == "1")
    start = min(max(0, look.whole("start", 0)), max(0, found.total - 1))
    page = found._replace(start=start, rows=found.rows[start : start + MAP_ROWS])
    statuses = await look.asker.statuses([shard.shard_id for _, shard in page.rows])
    told = {(node, one.shard_id): one for node, status in statuses.items() for one in status.replicas}
    survey = health.surveyed(meta)
    found_problems = health.problems(site.gateway, survey, statuses)
    shown_nodes = [node.node_id for node in meta.nodes]
    return site.page(
        look,
        "overview.html",
        title="Overview",
        problems=found_problems[:PROBLEMS_SHOWN],
        more_problems=max(0, len(found_problems) - PROBLEMS_SHOWN),
        mended=health.mended(statuses),
        counts=survey.counts,
        statuses=statuses,
        node_rows=_node_rows(meta, statuses, survey),
        page=page,
        map_nodes=shown_nodes,
        map_rows=[(topic, shard, _cells(shard, shown_nodes, told)) for topic, shard in page.rows],
        line=time_line.drawn(site.gateway.events, look.text("span"), system.wall_ms()),
        spans=[*time_line.SPANS],
        events=[*reversed(site.gateway.events)][:EVENTS_SHOWN],
    )


async def sample(site: Site, request: Request) -> Response:
    """What the nodes have counted, for the plots; a page asks for it while somebody looks."""
    look = site.look(request)
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    statuses = await look.asker.statuses([])
    nodes = {
        str(node): {**msgspec.structs.asdict(one.counters), "rss": one.rss_bytes, "uptime": one.uptime_ms}
        for node, one in statuses.items()
        if one.counters is not None
    }
    return JSONResponse({"at": system.wall_ms(), "nodes": nodes})


def _shards_found(meta: ClusterMeta, wanted: str, *, with_internal: bool) -> Paged:
    topics = [topic for topic in meta.topics if with_internal or not is_internal(topic)]
    words = wanted.lower().split()
    if "bad" in words:
        words.remove("bad")
        rows = [
            (topic, shard)
            for topic in meta.topics
            for shard in topic.shards
            if shard.status is not ShardStatus.ONLINE or len(shard.live) < len(shard.ensemble)
        ]
    else:
        rows = [(topic, shard) for topic in topics for shard in topic.shards]
    for word in words:
        rows = [row for row in rows if word in f"{row[0].name.lower()}/{row[1].index}"]
    return Paged(rows, 0, len(rows), MAP_ROWS)


def _node_rows(
    meta: ClusterMeta, statuses: dict[int, StatusReply], survey: health.Survey
) -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "status": statuses.get(node.node_id),
            "leads": survey.leads.get(node.node_id, 0),
            "holds": survey.holds.get(node.node_id, 0),
            "coordinates": node.node_id == meta.controller,
        }
        for node in meta.nodes
    ]


def _cells(
    shard: ShardMeta, nodes: list[int], told: dict[tuple[int, int], ReplicaStatus]
) -> list[Cell | None]:
    leads = told.get((shard.leader, shard.shard_id))
    end = leads.log_end if leads is not None else None
    return [_cell(shard, node, told.get((node, shard.shard_id)), end) for node in nodes]


def _cell(shard: ShardMeta, node: int, replica: ReplicaStatus | None, end: int | None) -> Cell | None:
    if node not in shard.everybody:
        return None
    role = "leader" if node == shard.leader else "learner" if node in shard.learners else "follower"
    live = node in shard.live or node == shard.leader
    if replica is None:
        return Cell(role, "lost", None, live, f"{role}; the node does not tell of it")
    lag = None if end is None else max(0, end - replica.log_end)
    looks = "broken" if replica.state in {"failed", "damaged", "ahead_of_leader"} else _looks(lag)
    if role == "leader":
        looks = "leader" if looks != "broken" else looks
    behind = "" if lag is None else f", {lag:,} entries behind"
    kept = f"{replica.log_start:,} to {replica.log_end:,}"
    says = f"{role} in term {replica.term}, {replica.state}{behind}; log {kept}{'' if live else '; not in the live set'}"
    return Cell(role, looks, lag, live, says)


def _looks(lag: int | None) -> str:
    if lag is None:
        return "unknown"
    return next((looks for most, looks in BEHIND if lag <= most), "far")
