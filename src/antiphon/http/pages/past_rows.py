"""What pages show of a table's past: rows as of an offset of one shard or as of a time, and one version of one key."""

import heapq
from typing import NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.http.api.call import Call
from antiphon.http.api.past import row_of_version, rows_at
from antiphon.http.pages import words
from antiphon.http.pages.site import Look, Site
from antiphon.model.metadata import KeyRanges, ShardMeta, TopicMeta
from antiphon.model.rows import Row


class Past(NamedTuple):
    """Which past somebody asks for; one of the three is given, the others are None."""

    offset: int | None = None
    at_ms: int | None = None
    version: int | None = None


class Shown(NamedTuple):
    """Rows of a past, whether there are more, and as of which offset each shard was read: (index, offset)."""

    rows: list[Row]
    more: bool
    offsets: list[tuple[int, int]]


def asked(look: Look) -> Past | None:
    """What the form says; None: the rows of now. Raises InvalidRequestError."""
    given = {name: look.text(name) for name in ("offset", "at", "version") if look.text(name)}
    if len(given) > 1:
        raise InvalidRequestError(f"give one of {' and '.join(given)}: each of them names a past by itself")
    if "at" in given:
        return Past(at_ms=words.instant(given["at"]))
    for name, text in given.items():
        if not text.isdecimal() or len(text) > 19:
            raise InvalidRequestError(f"{text!r} is no {name}: write a whole number")
        return Past(**{name: int(text)})
    return None


async def one_version(site: Site, look: Look, topic: TopicMeta, key: bytes, version: int) -> Shown:
    """The row that a key was when it had this version."""
    if not key:
        raise InvalidRequestError("a version is one of a key: write the whole key into the first field")
    place = KeyRanges(topic.shards).shard_of(key)
    row = await row_of_version(_call(site, look), topic, place, key, version)
    return Shown([row], more=False, offsets=[])


async def as_of(
    site: Site,
    look: Look,
    past: Past,
    topic: TopicMeta,
    shards: list[ShardMeta],
    keys: tuple[bytes, bytes],
    limit: int,
) -> Shown:
    """Rows with keys from the first to before the second, of all these shards, in the order of keys.

    A time is an offset of each shard: of its first entry of that time or later, or where its log ends.
    """
    offsets = []
    for shard in shards:
        if past.offset is not None:
            offsets.append(past.offset)
            continue
        found = await look.asker.offset_at(shard.shard_id, past.at_ms or 0)
        offsets.append(found.offset if found.offset >= 0 else found.high_watermark)
    if past.offset is not None and len(shards) > 1:
        raise InvalidRequestError(
            f"an offset is one of a shard, and {topic.name!r} has {len(topic.shards)}: name the shard too, or a time"
        )
    call = _call(site, look)
    # One after the other: each keeps up to its share of what one answer may keep.
    parts = [
        await rows_at(call, topic, shard, keys, offset, len(shards))
        for shard, offset in zip(shards, offsets, strict=True)
    ]
    merged = heapq.merge(*parts, key=lambda row: row.key)
    kept = [row for _, row in zip(range(limit + 1), merged, strict=False)]
    told = [(shard.index, offset) for shard, offset in zip(shards, offsets, strict=True)]
    return Shown(kept[:limit], len(kept) > limit, told)


def _call(site: Site, look: Look) -> Call:
    return Call(site.gateway, look.rights, look.asker, lambda _: None)
