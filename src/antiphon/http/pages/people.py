"""Who may do what (never with what secret), and the nodes: what each has found, its scrub, its replicas."""

from typing import Final

from starlette.responses import Response

from antiphon.errors import AntiphonError, InvalidRequestError, UnavailableError
from antiphon.http.pages.access_forms import quota_link
from antiphon.http.pages.health import name_of
from antiphon.http.pages.site import Look, Site, paged
from antiphon.model.access import Operation, Resource
from antiphon.model.node_settings import GetNodeSettings, NodeSetting, NodeSettingsReply, known_here
from antiphon.model.requests import GetStatus, StatusReply

REPLICA_ROWS: Final = 100


async def security(site: Site, look: Look) -> Response:
    """Users, access control lists, quotas."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    book, wanted = site.gateway.access, look.text("q").lower()
    users = [
        (name, [one.mechanism for one in user.credentials])
        for name, user in sorted(book.users.items())
        if wanted in name.lower()
    ]
    acls = [
        one
        for one in sorted(book.acls.values())
        if wanted in f"{one.principal} {one.resource} {one.name}".lower()
    ]
    quotas = [
        one
        for _, one in sorted(book.quotas.items())
        if wanted in " ".join(part or "" for part in one.entity).lower()
    ]
    return site.page(
        look,
        "security.html",
        title="Security",
        limited=look.rights.limited,
        users=paged(users, look.whole("start", 0)),
        acls=paged(acls, look.whole("start", 0)),
        quotas=paged(quotas, look.whole("start", 0)),
        is_filtered=bool(wanted),
        quota_link=quota_link,
    )


async def node(site: Site, look: Look) -> Response:
    """One node."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    meta = site.gateway.metadata
    node_id = int(look.request.path_params["node"])
    found = next((one for one in meta.nodes if one.node_id == node_id), None)
    if found is None:
        known = ", ".join(str(one.node_id) for one in meta.nodes)
        raise InvalidRequestError(f"there is no node {node_id}: the cluster has {known}")
    wanted = look.text("q").lower()
    held = [
        (topic, shard)
        for topic in meta.topics
        for shard in topic.shards
        if node_id in shard.everybody and (not wanted or wanted in f"{topic.name}/{shard.index}".lower())
    ]
    page = paged(held, look.whole("start", 0), REPLICA_ROWS)
    status: StatusReply | None = None
    problem = ""
    try:
        reply = await look.asker.node(node_id, GetStatus(tuple(shard.shard_id for _, shard in page.rows)))
        status = reply if isinstance(reply, StatusReply) else None
    except UnavailableError as error:
        problem = error.message
    settings = await _settings(look, node_id)
    replicas = {one.shard_id: one for one in status.replicas} if status is not None else {}
    return site.page(
        look,
        "node.html",
        title=f"Node {node_id}",
        node=found,
        status=status,
        problem=problem,
        settings=settings,
        page=page,
        replicas=replicas,
        coordinates=meta.controller == node_id,
        findings=[
            (one, name_of(site.gateway, one.shard_id) if one.shard_id >= 0 else "")
            for one in (status.findings if status else ())
        ],
        reads=name_of(site.gateway, status.scrub.shard_id)
        if status and status.scrub and status.scrub.shard_id >= 0
        else "",
    )


async def _settings(look: Look, node_id: int) -> list[tuple[NodeSetting, str, str]] | None:
    """What a node goes by: each setting that can be changed while it runs. None: the one who looks may not see them."""
    if not look.rights.sees(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
        return None
    try:
        told = await look.asker.node(node_id, GetNodeSettings())
    except AntiphonError:
        return []
    if not isinstance(told, NodeSettingsReply):
        return []
    return [(setting, *values[0]) for setting, values in known_here(told)]
