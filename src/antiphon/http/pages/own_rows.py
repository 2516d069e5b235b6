"""Rows of the cluster's own tables: where groups are, jobs that remember, queries that write. Each look is bounded."""

import asyncio
from collections import Counter
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.errors import AntiphonError, UnavailableError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.http.pages.asking import Asker
from antiphon.model.access import Operation, Resource
from antiphon.model.epochs import EpochHead
from antiphon.model.groups import GetGroups, GroupKind, GroupsReply, GroupState, merged
from antiphon.model.internal import EPOCHS_TABLE, GROUPS_TABLE, JOBS_TABLE
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row
from antiphon.security.authorizer import Rights
from antiphon.transactions.group_offsets import place_of
from antiphon.transactions.share_rows import group_of_key, place_of_key

SCAN_ROWS: Final = 1_000
SCANS_MAX: Final = 10  # of each shard, for one page
JOB_PARTS: Final = b"part/"
EPOCH_HEADS: Final = b"head/"
_HEAD: Final = msgspec.msgpack.Decoder(EpochHead)


class Listed(NamedTuple):
    """A group. Kind, state and members are None where no coordinator told of it.

    `offsets`: of how many shards it has one; of these topics.
    """

    group: str
    kind: GroupKind | None
    state: str | None
    members: int | None
    offsets: int
    topics: list[str]


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


async def groups(gateway: Gateway, asker: Asker) -> tuple[list[Listed], bool]:
    """All groups by name, with how many offsets each has, and of which topics; are there more?

    What coordinators say is put beside the rows, which are there whoever answers.
    """
    (rows, more), (shared, more_shared), (told, more_told) = await asyncio.gather(
        scan_own(gateway, asker, GROUPS_TABLE, b"offset/", values=False),
        scan_own(gateway, asker, GROUPS_TABLE, b"share/", values=False),
        _groups_by_name(asker),
    )
    counts: Counter[str] = Counter()
    topics: dict[str, set[str]] = {}
    places = [place_of(row.key) for row in rows] + [_share_place(gateway, row.key) for row in shared]
    for place in places:
        if place is not None:
            counts[place[0]] += 1
            topics.setdefault(place[0], set()).add(place[1])
    found = []
    for name in sorted(counts.keys() | told.keys()):
        one = told.get(name)
        kind, state, members = (None, None, None) if one is None else (one.kind, one.state, one.member_count)
        found.append(Listed(name, kind, state, members, counts[name], sorted(topics.get(name, ()))))
    return found, more or more_shared or more_told


async def groups_seen(
    gateway: Gateway, asker: Asker, rights: Rights, wanted: str
) -> tuple[list[Listed], bool]:
    """The same of those groups that the client may describe, and that have `wanted` in their names."""
    found, more = await groups(gateway, asker)
    everything = rights.sees(Operation.DESCRIBE, Resource.CLUSTER)
    seen = [
        one
        for one in found
        if wanted.lower() in one.group.lower()
        and (everything or rights.sees(Operation.DESCRIBE, Resource.GROUP, one.group))
    ]
    return seen, more


def _share_place(gateway: Gateway, key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and shard of a share-partition's row; None for a bad one, and where the topic was deleted."""
    try:
        topic_id, shard = place_of_key(key)
        return group_of_key(key), gateway.topic_by_id(topic_id).name, shard
    except (ValueError, UnknownTopicError):
        return None


async def _groups_by_name(asker: Asker) -> tuple[dict[str, GroupState], bool]:
    """What the coordinators say that answer, by name; are there more than are asked for?"""
    found: dict[str, GroupState] = {}
    after, more = "", False
    for _ in range(SCANS_MAX):
        answers = await asker.cluster_each(GetGroups(after=after))
        replies = [one for one in answers.values() if isinstance(one, GroupsReply)]
        ends = [one.groups[-1].group for one in replies if one.more and one.groups]
        for reply in replies:
            for one in reply.groups:
                if not ends or one.group <= min(
                    ends
                ):  # a node that has more says nothing of names behind its last
                    found[one.group] = one
        more = bool(ends)
        if not more:
            break
        after = min(ends)
    return found, more


async def group(asker: Asker, name: str, start: int, limit: int) -> GroupState:
    """One group with a piece of its positions. Raises UnavailableError where no coordinator answers.

    A group that nobody knows is one of no members and no positions.
    """
    answers = await asker.cluster_each(GetGroups(name, start=start, limit=limit))
    replies = [one for one in answers.values() if isinstance(one, GroupsReply)]
    found = merged(replies)
    if found is None and len(replies) < len(answers):
        silent = next(one for one in answers.values() if not isinstance(one, GroupsReply))
        why = silent.message if isinstance(silent, AntiphonError) else "a node answered something else"
        raise UnavailableError(f"the coordinator of group {name!r} does not answer: {why}")
    return found or GroupState(name, GroupKind.CLASSIC, "Dead", 0)


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
            one[what.decode()] = _as_text(row.value)
    return dict(sorted(found.items())), more


def _as_text(value: bytes | None) -> str:
    """What a job wrote, as text of bounded length."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            return str(decode(value or b""))[:400]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return ""


async def queries_told(gateway: Gateway, asker: Asker, wanted: str) -> tuple[list[EpochHead], bool]:
    """The newest epoch of each query and target that have `wanted` in their names; are there more, or unreadable ones?"""
    rows, more = await scan_own(gateway, asker, EPOCHS_TABLE, EPOCH_HEADS, values=True)
    found = []
    for row in rows:
        try:
            one = _HEAD.decode(row.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            more = True
            continue
        if wanted.lower() in f"{one.query} {one.target}".lower():
            found.append(one)
    return found, more


def waits_ms(one: EpochHead, now_ms: int) -> int:
    """How long an epoch has been decided and is not all in its target; 0: it is."""
    return 0 if one.applied_ms else max(0, now_ms - one.decided_ms)
