"""The browser for rows of a table: by the beginning of their keys, in the order of keys over all shards, now or in the past.

Keys are spread over the shards by their hash, so rows in order are merged from a look into each shard. Tables of more
shards than a page may ask are browsed shard by shard.
"""

from typing import Final

from starlette.responses import Response

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    KeyNotFoundError,
    LimitReachedError,
    OffsetOutOfRangeError,
    WrongKindError,
)
from antiphon.http.pages import past_rows, words
from antiphon.http.pages.row_pages import SHARDS_MERGED, end_of, merged_rows
from antiphon.http.pages.site import Look, Site
from antiphon.http.pages.topics import find_topic
from antiphon.model.access import Operation
from antiphon.model.metadata import KeyRanges, Kind, ShardMeta, TopicMeta
from antiphon.model.requests import TableGet
from antiphon.model.rows import Row

ROWS: Final = 50
KEY_HEX_MAX: Final = 8_192


async def rows(site: Site, look: Look) -> Response:
    """The page."""
    found = find_topic(site, look, Operation.READ)
    if found.kind is not Kind.TABLE:
        raise WrongKindError(f"{found.name!r} is a topic, which has records and no rows: look at its records")
    how = look.text("as") if look.text("as") in words.FORMATS else "auto"
    some, shard = _shards(look, found)
    prefix = look.text("q").encode()
    after = _bytes(look.request.query_params.get("after", ""))
    start = max(prefix, after + b"\x00") if after else prefix
    past: past_rows.Past | None = None
    exact: Row | None = None
    problem: AntiphonError | None = None
    shown = past_rows.Shown([], more=False, offsets=[])
    try:
        past = past_rows.asked(look)
        if past is None:
            exact = await _exact(look, found, prefix)
            ids = [one.shard_id for one in some]
            kept, more = await merged_rows(look.asker, ids, start, end_of(prefix), ROWS)
            shown = past_rows.Shown(kept, more, [])
        elif past.version is not None:
            shown = await past_rows.one_version(site, look, found, prefix, past.version)
        else:
            shown = await past_rows.as_of(site, look, past, found, some, (start, end_of(prefix)), ROWS)
    except (InvalidRequestError, KeyNotFoundError, LimitReachedError, OffsetOutOfRangeError) as error:
        problem = error  # the form stays, to ask for something else
    kept = shown.rows
    return site.page(
        look,
        "rows.html",
        title=f"{found.name} rows",
        topic=found,
        how=how,
        formats=words.FORMATS,
        shard=shard,
        merged=len(some),
        exact=None if exact is None or after else (exact, words.shown(exact.value, how)),
        rows=[(row, words.shown(row.key, how), words.shown(row.value, how)) for row in kept],
        next_key=kept[-1].key.hex() if shown.more and kept else "",
        past=past,
        offsets=shown.offsets,
        problem=problem,
    )


async def _exact(look: Look, found: TopicMeta, key: bytes) -> Row | None:
    """The row with this very key, whatever else begins with it."""
    if not key:
        return None
    place = KeyRanges(found.shards).shard_of(key)
    return (await look.asker.rows(TableGet(place.shard_id, (key,), consistency="leader"))).rows[0]


def _shards(look: Look, found: TopicMeta) -> tuple[list[ShardMeta], int | None]:
    """The shards that are looked into, and the one that was chosen; None: all of them."""
    asked = look.text("shard")
    if not asked and len(found.shards) <= SHARDS_MERGED:
        return list(found.shards), None
    index = look.whole("shard", 0)
    some = [one for one in found.shards if one.index == index]
    if not some:
        raise InvalidRequestError(f"{found.name!r} has shards 0 to {len(found.shards) - 1}, and no {index}")
    return some, index


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text[:KEY_HEX_MAX])
    except ValueError:
        return b""
