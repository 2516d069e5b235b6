"""Open sessions of tables: their time-outs, rows and ages, as the leaders of the shards tell."""

import re
from typing import Final

from starlette.responses import Response

from antiphon.http.api.call import Call
from antiphon.http.api.tables import sessions_of
from antiphon.http.pages.site import Look, Site

ROWS: Final = 100
_AFTER: Final = re.compile(r"([0-9]{1,12})-([0-9]{1,19})")


async def sessions(site: Site, look: Look) -> Response:
    """The page: of the tables that may be described."""
    place = _AFTER.fullmatch(look.text("after"))
    after = (0, 0) if place is None else (int(place[1]), int(place[2]))
    call = Call(site.gateway, look.rights, look.asker, lambda _: None)
    found, silent, more = await sessions_of(call, look.text("table"), after, ROWS)
    last = found[-1] if found else None
    return site.page(
        look,
        "sessions.html",
        title="Sessions",
        rows=found,
        silent=[_named(site, shard_id) for shard_id in silent],
        after=f"{last[1].shard_id}-{last[2].session_id}" if last is not None and more else "",
    )


def _named(site: Site, shard_id: int) -> str:
    topic, shard = site.gateway.shard(shard_id)
    return f"{topic.name}/{shard.index}"
