"""Open sessions of tables: their time-outs, rows and ages, as the leaders of the shards tell."""

import re
from typing import Final

from starlette.responses import Response

from antiphon.http.api.call import Call
from antiphon.http.api.tables import sessions_of
from antiphon.http.pages.health import name_of
from antiphon.http.pages.site import Look, Site

ROWS: Final = 100
_AFTER: Final = re.compile(r"([0-9]{1,12})-([0-9]{1,19})")


async def sessions(site: Site, look: Look) -> Response:
    """The page: of the tables that may be described."""
    place = _AFTER.fullmatch(look.text("after"))
    after = (0, 0) if place is None else (int(place[1]), int(place[2]))
    call = Call(site.gateway, look.rights, look.asker, lambda _: None)
    found, silent, following = await sessions_of(call, look.text("table"), after, ROWS)
    return site.page(
        look,
        "sessions.html",
        title="Sessions",
        rows=found,
        silent=[name_of(site.gateway, shard_id) for shard_id in silent],
        after=f"{following[0]}-{following[1]}" if following is not None else "",
    )
