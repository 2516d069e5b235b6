"""The cluster, its nodes, what they found, what happened."""

from functools import partial

from antiphon.errors import UnavailableError
from antiphon.http.api.answers import (
    ClusterInfo,
    CountersInfo,
    EventInfo,
    FindingInfo,
    NodeInfo,
    Page,
    ScrubInfo,
    Trouble,
)
from antiphon.http.api.asked import Filtered, Listed, ListEvents, Nothing, OneNode
from antiphon.http.api.call import Call, page, told
from antiphon.http.api.problems import AskedWronglyError
from antiphon.http.pages import health
from antiphon.model.access import Operation, Resource
from antiphon.model.counters import LATENCY_BOUNDS_S
from antiphon.model.findings import Finding
from antiphon.model.metadata import ABSENT_NODE, NodeMeta
from antiphon.model.requests import GetStatus, StatusReply


def _voters(call: Call) -> tuple[int, ...]:
    recorded = call.gateway.metadata.voters
    return () if recorded is None else recorded.ensemble


async def get_cluster(call: Call, _asked: Nothing) -> ClusterInfo:
    """The cluster at a glance: its health, what is wrong and what to do, how many there are of all."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    meta = call.gateway.metadata
    statuses = await call.asker.statuses([])
    survey = health.surveyed(meta)
    found = health.problems(call.gateway, survey, statuses)
    bad = any(one.level == "bad" for one in found)
    return ClusterInfo(
        cluster_id=meta.cluster_id,
        metadata_version=meta.version,
        node=call.gateway.node_id,
        controller=meta.controller,
        voters=list(_voters(call)),
        health="unhealthy" if bad else "degraded" if found else "healthy",
        counts={
            name: count for name, count in survey.counts.items() if name not in {"controller", "version"}
        },
        troubles=[told(Trouble, one) for one in found[: health.PROBLEMS_SHOWN]],
        more_troubles=max(0, len(found) - health.PROBLEMS_SHOWN),
        mended=[told(Trouble, one) for one in health.mended(statuses)],
    )


async def list_nodes(call: Call, asked: Listed) -> Page[NodeInfo]:
    """The nodes, with what each tells of itself."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    statuses = await call.asker.statuses([])
    survey = health.surveyed(call.gateway.metadata)
    return page(
        call.gateway.metadata.nodes,
        asked,
        lambda one: _node(call, one, statuses.get(one.node_id), survey),
    )


def known_node(call: Call, node_id: int) -> NodeMeta:
    """The node of this id. Raises AskedWronglyError."""
    known = {one.node_id: one for one in call.gateway.metadata.nodes}
    if node_id not in known:
        raise AskedWronglyError(
            f"there is no node {node_id}: the cluster has {', '.join(map(str, sorted(known)))}",
            status=404,
            code="unknown_node",
            parameter="node",
            asked=str(node_id),
        )
    return known[node_id]


async def get_node(call: Call, asked: OneNode) -> NodeInfo:
    """One node."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    node = known_node(call, asked.node)
    status = None
    try:
        status = await call.asker.node(asked.node, GetStatus(()))
    except UnavailableError:
        status = None
    return _node(call, node, status, health.surveyed(call.gateway.metadata))


def _node(call: Call, node: NodeMeta, status: StatusReply | None, survey: health.Survey) -> NodeInfo:
    return told(
        NodeInfo,
        node,
        node=node.node_id,
        is_alive=node.alive,
        is_draining=node.draining,
        answers=status is not None,
        is_controller=node.node_id == call.gateway.metadata.controller,
        is_voter=node.node_id in _voters(call),
        leads=survey.leads.get(node.node_id, 0),
        holds=survey.holds.get(node.node_id, 0),
        version=None if status is None else status.version,
        uptime_ms=None if status is None else status.uptime_ms,
        memory_bytes=None if status is None else status.rss_bytes,
        counters=_counters(status),
        scrub=_scrub(status),
    )


def _counters(status: StatusReply | None) -> CountersInfo | None:
    found = None if status is None else status.counters
    return None if found is None else told(CountersInfo, found, latency_bounds_s=LATENCY_BOUNDS_S)


def _scrub(status: StatusReply | None) -> ScrubInfo | None:
    found = None if status is None else status.scrub
    if found is None:
        return None
    return told(ScrubInfo, found, shard_id=None if found.shard_id == ABSENT_NODE else found.shard_id)


async def list_findings(call: Call, asked: Filtered) -> Page[FindingInfo]:
    """What nodes found to be wrong on their disks and in their replicas, by scrub, audit of each other, or use."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    meta, statuses = call.gateway.metadata, await call.asker.statuses([])
    wanted = asked.q.lower()
    found = [
        (node, one)
        for node, status in statuses.items()
        for one in status.findings
        if wanted in f"{one.kind} {one.what}".lower()
    ]

    def info(what: tuple[int, Finding]) -> FindingInfo:
        node, one = what
        shard = None if one.shard_id < 0 else health.name_of(call.gateway, one.shard_id)
        return told(FindingInfo, one, node=node, shard=shard)

    return page(found, asked, info, is_partial=len(statuses) < len(meta.nodes))


async def list_events(call: Call, asked: ListEvents) -> Page[EventInfo]:
    """What happened lately, as this node heard of it: elections, fail-overs, nodes, topics; the newest first."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    found = [one for one in reversed(call.gateway.events) if not asked.kind or one.kind == asked.kind]
    return page(found, Listed(limit=asked.limit), partial(told, EventInfo))
