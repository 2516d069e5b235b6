"""Consumer groups with what they have committed and how far behind they are; transactional ids; jobs that remember.

All of it stands in rows of internal tables, which any node can ask their leaders for. Each look is bounded.
"""

import asyncio
from collections import Counter
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.http.pages.site import Look, Site, paged
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import GROUPS_TABLE, JOBS_TABLE
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row
from antiphon.model.transactions import ListTransactions, TransactionsReply
from antiphon.transactions.group_offsets import committed_of, place_of

SCAN_ROWS: Final = 1_000
SCANS_MAX: Final = 10  # of each shard, for one page
GROUP_ROWS: Final = 200
IDS: Final = 200
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


async def _scan(site: Site, look: Look, table: str, prefix: bytes, *, values: bool) -> tuple[list[Row], bool]:
    """Rows of an internal table whose keys begin so; and whether there are more than a page looks at."""
    try:
        shards = site.gateway.topic(table).shards
    except UnknownTopicError:
        return [], False

    async def one(shard_id: int) -> tuple[list[Row], bool]:
        found: list[Row] = []
        start, end = prefix, prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else b""
        for _ in range(SCANS_MAX):
            body = TableScan(
                shard_id, start, end, limit=SCAN_ROWS, include_value=values, consistency="leader"
            )
            reply = await look.asker.cluster_rows(body)
            some = [row for row in reply.rows if row is not None]
            found += some
            if not reply.more or not some:
                return found, False
            start = some[-1].key + b"\x00"
        return found, True

    parts = await asyncio.gather(*(one(shard.shard_id) for shard in shards))
    return [row for part, _ in parts for row in part], any(more for _, more in parts)


async def groups(site: Site, look: Look) -> Response:
    """The list: each group that has committed offsets, with how many."""
    rows, more = await _scan(site, look, GROUPS_TABLE, b"offset/", values=False)
    counts: Counter[str] = Counter()
    topics: dict[str, set[str]] = {}
    for row in rows:
        place = place_of(row.key)
        if place is not None:
            counts[place[0]] += 1
            topics.setdefault(place[0], set()).add(place[1])
    everything = look.rights.sees(Operation.DESCRIBE, Resource.CLUSTER)
    wanted = look.text("q").lower()
    seen = [
        (name, count, sorted(topics[name]))
        for name, count in sorted(counts.items())
        if wanted in name.lower()
        and (everything or look.rights.sees(Operation.DESCRIBE, Resource.GROUP, name))
    ]
    page = paged(seen, look.whole("start", 0))
    return site.page(
        look, "groups.html", title="Consumer groups", page=page, more=more, is_filtered=bool(wanted)
    )


async def group(site: Site, look: Look) -> Response:
    """One group: what it has committed for each shard, and its lag."""
    name = str(look.request.path_params["name"])
    if not look.rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        look.rights.require(Operation.DESCRIBE, Resource.GROUP, name)
    escaped = name.replace("%", "%25").replace("/", "%2F")
    rows, _ = await _scan(site, look, GROUPS_TABLE, f"offset/{escaped}/".encode(), values=True)
    places = sorted((place[1], place[2], row) for row in rows if (place := place_of(row.key)) is not None)
    page = paged(places, look.whole("start", 0), GROUP_ROWS)
    shards = {(topic, index): _shard_id(site, topic, index) for topic, index, _ in page.rows}
    ends = await look.asker.ends([one for one in shards.values() if one is not None])
    positions = []
    for topic, index, row in page.rows:
        committed = committed_of(row.value)
        if committed is not None:
            end = ends.get(shards[topic, index] or -1)
            positions.append(
                Position(topic, index, committed.offset, end, committed.commit_ms, committed.metadata)
            )
    lags = [one.lag for one in positions if one.lag is not None]
    return site.page(
        look,
        "group.html",
        title=name,
        name=name,
        page=page._replace(rows=positions),
        lag=sum(lags),
        most=max(lags, default=0),
    )


def _shard_id(site: Site, topic: str, index: int) -> int | None:
    try:
        found = site.gateway.topic(topic)
    except UnknownTopicError:
        return None
    return next((one.shard_id for one in found.shards if one.index == index), None)


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
        (one, [_named(site, shard) for shard in one.shards[:20]], max(0, len(one.shards) - 20))
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


def _named(site: Site, shard_id: int) -> str:
    try:
        topic, shard = site.gateway.shard(shard_id)
    except AntiphonError:
        return f"shard {shard_id}"
    return f"{topic.name}/{shard.index}"


async def jobs(site: Site, look: Look) -> Response:
    """Jobs that can be started again: what they were told, how many parts are through, whether they ended."""
    look.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    rows, more = await _scan(site, look, JOBS_TABLE, b"", values=True)
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
    wanted = look.text("q").lower()
    seen = [(name, one) for name, one in sorted(found.items()) if wanted in name.lower()]
    page = paged(seen, look.whole("start", 0))
    return site.page(look, "jobs.html", title="Jobs", page=page, more=more, is_filtered=bool(wanted))


def _told(value: bytes | None) -> str:
    """What a job wrote, as text of bounded length."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            return str(decode(value or b""))[:400]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return ""
