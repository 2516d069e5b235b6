"""Rows of the cluster's own tables: what groups have committed, and jobs that remember. Each look is bounded."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.http.pages.asking import Asker
from antiphon.model.internal import GROUPS_TABLE, JOBS_TABLE
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row
from antiphon.transactions.group_offsets import committed_of, place_of

SCAN_ROWS: Final = 1_000
SCANS_MAX: Final = 10  # of each shard, for one page
JOB_PARTS: Final = b"part/"


class Position(NamedTuple):
    """A group's committed offset in a shard, and the shard's end; None where that is not known."""

    topic: str
    shard: int
    offset: int
    end: int | None
    commit_ms: int
    note: str

    @property
    def lag(self) -> int | None:
        """Records between the two."""
        return None if self.end is None else max(0, self.end - self.offset)


async def scan_own(
    gateway: Gateway, asker: Asker, table: str, prefix: bytes, *, values: bool
) -> tuple[list[Row], bool]:
    """Rows of an internal table whose keys begin so; and whether there are more than a page looks at."""
    try:
        shards = gateway.topic(table).shards
    except UnknownTopicError:
        return [], False

    async def one(shard_id: int) -> tuple[list[Row], bool]:
        found: list[Row] = []
        start, end = prefix, prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else b""
        for _ in range(SCANS_MAX):
            body = TableScan(
                shard_id, start, end, limit=SCAN_ROWS, include_value=values, consistency="leader"
            )
            reply = await asker.cluster_rows(body)
            some = [row for row in reply.rows if row is not None]
            found += some
            if not reply.more or not some:
                return found, False
            start = some[-1].key + b"\x00"
        return found, True

    parts = await asyncio.gather(*(one(shard.shard_id) for shard in shards))
    return [row for part, _ in parts for row in part], any(more for _, more in parts)


async def committed_by_group(gateway: Gateway, asker: Asker) -> tuple[dict[str, tuple[int, list[str]]], bool]:
    """For each group in the order of names: how many offsets it has committed, and of which topics; are there more?"""
    rows, more = await scan_own(gateway, asker, GROUPS_TABLE, b"offset/", values=False)
    counts: Counter[str] = Counter()
    topics: dict[str, set[str]] = {}
    for row in rows:
        place = place_of(row.key)
        if place is not None:
            counts[place[0]] += 1
            topics.setdefault(place[0], set()).add(place[1])
    return {name: (count, sorted(topics[name])) for name, count in sorted(counts.items())}, more


Place = tuple[str, int, Row]


async def places_of_group(gateway: Gateway, asker: Asker, name: str) -> list[Place]:
    """Topic, shard and row of each offset that a group has committed, in order."""
    escaped = name.replace("%", "%25").replace("/", "%2F")
    rows, _ = await scan_own(gateway, asker, GROUPS_TABLE, f"offset/{escaped}/".encode(), values=True)
    return sorted((place[1], place[2], row) for row in rows if (place := place_of(row.key)) is not None)


async def positions(gateway: Gateway, asker: Asker, places: Iterable[Place]) -> list[Position]:
    """The same with where the shards end now."""
    found = list(places)
    shards = {(topic, index): _shard_id(gateway, topic, index) for topic, index, _ in found}
    ends = await asker.ends([one for one in shards.values() if one is not None])
    told = []
    for topic, index, row in found:
        committed = committed_of(row.value)
        if committed is not None:
            end = ends.get(shards[topic, index] or -1)
            told.append(
                Position(topic, index, committed.offset, end, committed.commit_ms, committed.metadata)
            )
    return told


def _shard_id(gateway: Gateway, topic: str, index: int) -> int | None:
    try:
        found = gateway.topic(topic)
    except UnknownTopicError:
        return None
    return next((one.shard_id for one in found.shards if one.index == index), None)


async def jobs_told(gateway: Gateway, asker: Asker) -> tuple[dict[str, dict[str, Any]], bool]:
    """Jobs by name: what they were told, how many parts are through, whether they ended; are there more rows?"""
    rows, more = await scan_own(gateway, asker, JOBS_TABLE, b"", values=True)
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, _, what = row.key.partition(b"\x00")
        one = found.setdefault(
            name.decode("utf-8", "replace"), {"parts": 0, "plan": "", "end": "", "changed_ms": 0}
        )
        one["changed_ms"] = max(one["changed_ms"], row.version.modified_ms)
        if what.startswith(JOB_PARTS):
            one["parts"] += 1
        elif what in {b"plan", b"end"}:
            one[what.decode()] = _told(row.value)
    return dict(sorted(found.items())), more


def _told(value: bytes | None) -> str:
    """What a job wrote, as text of bounded length."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            return str(decode(value or b""))[:400]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return ""
