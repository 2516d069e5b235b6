"""Groups with their members, where they are and how far behind; transactional ids; jobs that remember; queries that write.

All of it stands in rows of internal tables, which any node can ask their leaders for. Each look is bounded.
"""

from typing import Final

from starlette.responses import Response

from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.http.pages import own_rows
from antiphon.http.pages.health import name_of
from antiphon.http.pages.site import Look, Site, paged
from antiphon.model.access import Operation, Resource
from antiphon.model.groups import GroupKind
from antiphon.model.transactions import ListTransactions, TransactionsReply

GROUP_ROWS: Final = 200
MEMBERS: Final = 200
IDS: Final = 200


async def groups(site: Site, look: Look) -> Response:
    """The list: each group with what it is, who is in it, and how many offsets it has."""
    wanted = look.text("q")
    seen, more = await own_rows.groups_seen(site.gateway, look.asker, look.rights, wanted)
    page = paged(seen, look.whole("start", 0))
    return site.page(look, "groups.html", title="Groups", page=page, more=more, is_filtered=bool(wanted))


async def group(site: Site, look: Look) -> Response:
    """One group: its members, where it is in each shard, and its lag."""
    name = str(look.request.path_params["name"])
    if not look.rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        look.rights.require(Operation.DESCRIBE, Resource.GROUP, name)
    start = look.whole("start", 0)
    found = await own_rows.group(look.asker, name, start, GROUP_ROWS)
    page = paged(range(found.position_count), start, GROUP_ROWS)
    lags = [one.lag for one in found.positions if one.lag is not None]
    return site.page(
        look,
        "group.html",
        title=name,
        name=name,
        group=found,
        is_share=found.kind is GroupKind.SHARE,
        members=found.members[:MEMBERS],
        page=page._replace(rows=found.positions),
        lag=sum(lags),
        most=max(lags, default=0),
        locked=sum(max(0, one.locked) for one in found.positions),
    )


async def transactions(site: Site, look: Look) -> Response:
    """Transactional ids, as each node tells of those that it coordinates."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    answers = await look.asker.each_node(ListTransactions(after=look.text("after"), limit=IDS))
    found = [one for reply in answers.values() if isinstance(reply, TransactionsReply) for one in reply.rows]
    wanted = look.text("q").lower()
    found = sorted(
        (one for one in found if wanted in one.transactional_id.lower()), key=lambda one: one.transactional_id
    )
    more = any(isinstance(reply, TransactionsReply) and reply.more for reply in answers.values())
    silent = [node for node, reply in answers.items() if isinstance(reply, AntiphonError)]
    rows = [
        (one, [name_of(site.gateway, shard) for shard in one.shards[:20]], max(0, len(one.shards) - 20))
        for one in found[:IDS]
    ]
    last = (
        found[IDS - 1].transactional_id if len(found) > IDS else found[-1].transactional_id if found else ""
    )
    return site.page(
        look,
        "transactions.html",
        title="Transactions",
        rows=rows,
        more=more or len(found) > IDS,
        last=last,
        silent=silent,
    )


async def jobs(site: Site, look: Look) -> Response:
    """Jobs that can be started again: what they were told, how many parts are through, whether they ended."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    found, more = await own_rows.jobs_told(site.gateway, look.asker)
    wanted = look.text("q").lower()
    seen = [(name, one) for name, one in found.items() if wanted in name.lower()]
    page = paged(seen, look.whole("start", 0))
    return site.page(look, "jobs.html", title="Jobs", page=page, more=more, is_filtered=bool(wanted))


async def queries(site: Site, look: Look) -> Response:
    """Spark queries that write exactly once: the last batch of each, whether it waits, and since when none came."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    wanted, now_ms = look.text("q"), system.wall_ms()
    found, more = await own_rows.queries_told(site.gateway, look.asker, wanted)
    # What waits longest comes first, then what wrote last.
    found.sort(key=lambda one: (-own_rows.waits_ms(one, now_ms), -one.decided_ms, one.query, one.target))
    page = paged(found, look.whole("start", 0))
    return site.page(
        look,
        "queries.html",
        title="Spark queries",
        page=page._replace(rows=[(one, own_rows.waits_ms(one, now_ms)) for one in page.rows]),
        more=more,
        is_filtered=bool(wanted),
    )
