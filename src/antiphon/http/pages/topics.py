"""Topics and tables: the list, one of them with its shards, and the browser for records."""

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from antiphon.errors import AntiphonError, InvalidRequestError, OffsetOutOfRangeError
from antiphon.http.access import may_see
from antiphon.http.pages import words
from antiphon.http.pages.asking import leaders_of, sizes_of, topic_for
from antiphon.http.pages.key_records import KeyFound, read_key, shard_of_key
from antiphon.http.pages.log_pages import RECORDS, Found, read_records
from antiphon.http.pages.site import Look, Site, paged
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta

if TYPE_CHECKING:
    from antiphon.model.requests import StatusReply

SHARD_ROWS: Final = 100
LOOKED_BACK: Final = 2_000  # offsets, where a text is looked for and no place is named
WHOLE_BYTES: Final = 256 * 1024  # of a record that is shown alone
SORTS: Final = ("name", "shards", "kind")


def find_topic(site: Site, look: Look, operation: Operation = Operation.DESCRIBE) -> TopicMeta:
    """The topic that the path names. Who may not describe one is not told whether it is there."""
    return topic_for(site.gateway, look.rights, str(look.request.path_params["name"]), operation)


async def topics(site: Site, look: Look) -> Response:
    """The list."""
    wanted, kind = look.text("q").lower(), look.text("kind")
    with_internal = look.text("internal") == "1"
    rows = [
        topic
        for topic in site.gateway.metadata.topics
        if wanted in topic.name.lower()
        and (not kind or topic.kind == kind)
        and (with_internal or not is_internal(topic))
        and may_see(look.rights, topic)
    ]
    rows.sort(
        key=lambda one: (-len(one.shards), one.name) if look.text("sort") == "shards" else (0, one.name)
    )
    page = paged(rows, look.whole("start", 0))
    sizes = await sizes_of(look.asker, look.rights, page.rows)
    return site.page(look, "topics.html", title="Topics", page=page, sizes=sizes, is_filtered=bool(wanted))


async def topic(site: Site, look: Look) -> Response:
    """One topic or table: its shards, its settings."""
    found = find_topic(site, look)
    page = paged(found.shards, look.whole("start", 0), SHARD_ROWS)
    statuses: dict[int, StatusReply] = {}
    if look.rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        statuses = await look.asker.statuses([shard.shard_id for shard in page.rows])
    return site.page(
        look,
        "topic.html",
        title=found.name,
        topic=found,
        page=page,
        replicas=leaders_of(statuses),
        ends={
            (node, one.shard_id): one.log_end for node, status in statuses.items() for one in status.replicas
        },
        may_read=_may(look, Operation.READ, found),
        may_alter=_may(look, Operation.ALTER_CONFIGS, found) or _may(look, Operation.ALTER, found),
        may_delete=_may(look, Operation.DELETE, found) and not is_internal(found),
    )


def _may(look: Look, operation: Operation, found: TopicMeta) -> bool:
    resource = Resource.TABLE if found.kind is Kind.TABLE else Resource.TOPIC
    return look.rights.sees(operation, resource, found.name)


# -- records ----------------------------------------------------------------------------------------------------------


async def records(site: Site, look: Look) -> Response:
    """The browser: from an offset, a time, or the newest; with a key or text that records have to contain."""
    found = find_topic(site, look, Operation.READ)
    index = look.whole("shard", 0)
    shard = next((one for one in found.shards if one.index == index), None)
    if shard is None:
        raise InvalidRequestError(
            f"{found.name!r} has shards 0 to {len(found.shards) - 1}, and no {index}: choose one of them"
        )
    key = _key(look)
    if key is not None and look.text("here") != "1":
        shard = shard_of_key(found, key)
    how = look.text("as") if look.text("as") in words.FORMATS else "auto"
    if look.text("at"):
        offset = await _offset_at(look, shard.shard_id)
        rest = {name: value for name, value in look.request.query_params.items() if name != "at"}
        query = urlencode({**rest, "offset": str(offset)})
        return RedirectResponse(f"{look.request.url.path}?{query}", 303)
    if key is not None:
        return await _of_key(site, look, found, shard, key, how)
    problem: AntiphonError | None = None
    page = Found([], [], None, 0, 0)
    start = 0
    try:
        start, end = await _start(look, shard.shard_id)
        page = await read_records(look.asker, shard.shard_id, start, end, look.text("q"))
    except AntiphonError as error:
        problem = error
    return site.page(
        look,
        "records.html",
        title=f"{found.name} records",
        topic=found,
        shard=shard,
        how=how,
        formats=words.FORMATS,
        key_forms=words.KEY_FORMS,
        start=start,
        page=page,
        problem=problem,
        rows=[(one, words.shown(one.key, how), words.shown(one.value, how)) for one in page.records],
        size=RECORDS,
    )


def _key(look: Look) -> bytes | None:
    """The key that is looked for; None: no key is."""
    text = str(look.request.query_params.get("key", ""))
    return words.key_bytes(text, look.text("key_as")) if text else None


async def _of_key(
    site: Site, look: Look, found: TopicMeta, shard: ShardMeta, key: bytes, how: str
) -> Response:
    """Records of one key, the newest first, backwards from an offset or the end."""
    problem: AntiphonError | None = None
    page = KeyFound([], [], None, 0, 0)
    first = before = 0
    try:
        bounds = await look.asker.offset_at(shard.shard_id, -2)
        first, end = bounds.log_start, bounds.high_watermark
        before = min(end, max(first, look.whole("offset", end - 1) + 1))
        page = await read_key(look.asker, shard.shard_id, first, before, key)
    except AntiphonError as error:
        problem = error
    return site.page(
        look,
        "key_records.html",
        title=f"{found.name} records of a key",
        topic=found,
        shard=shard,
        how=how,
        formats=words.FORMATS,
        key_forms=words.KEY_FORMS,
        first=first,
        before=before,
        page=page,
        problem=problem,
        shown_key=words.shown(key, how),
        rows=[(one, words.shown(one.value, how)) for one in page.records],
    )


async def record(site: Site, look: Look) -> Response:
    """One record, whole up to a bound, with its headers."""
    found = find_topic(site, look, Operation.READ)
    index, offset = look.whole("shard", 0), look.whole("offset", 0)
    shard = next((one for one in found.shards if one.index == index), None)
    if shard is None:
        raise InvalidRequestError(f"{found.name!r} has no shard {index}")
    how = look.text("as") if look.text("as") in words.FORMATS else "auto"
    try:
        page = await read_records(look.asker, shard.shard_id, offset, offset + 1, "")
    except OffsetOutOfRangeError:
        page = Found([], [], None, 0, 0)
    one = page.records[0] if page.records else None
    return site.page(
        look,
        "record.html",
        title=f"{found.name}/{index} @ {offset}",
        topic=found,
        shard=shard,
        offset=offset,
        one=one,
        how=how,
        formats=words.FORMATS,
        key_hex=(one.key or b"").hex() if one else "",
        key=words.shown(one.key if one else None, how, WHOLE_BYTES, indent=2),
        value=words.shown(one.value if one else None, how, WHOLE_BYTES, indent=2),
        headers=[(words.safe(name), words.shown(value, how)) for name, value in (one.headers if one else ())],
    )


async def _offset_at(look: Look, shard_id: int) -> int:
    reply = await look.asker.offset_at(shard_id, words.instant(look.text("at")))
    return reply.offset if reply.offset >= 0 else reply.high_watermark


async def _start(look: Look, shard_id: int) -> tuple[int, int]:
    """The first offset of the page, and where records end."""
    first = await look.asker.offset_at(shard_id, -2)
    end = first.high_watermark
    asked = look.text("offset")
    if asked in {"", "newest"}:
        return max(first.log_start, end - (LOOKED_BACK if look.text("q") else RECORDS)), end
    if asked == "oldest":
        return first.log_start, end
    return min(max(look.whole("offset", first.log_start), first.log_start), end), end
