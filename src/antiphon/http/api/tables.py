"""Rows of tables: as they are, as they were, and as one version of a key was; open sessions."""

import asyncio
from typing import Final

from antiphon.errors import AntiphonError, WrongKindError
from antiphon.http.access import may_see
from antiphon.http.api.answers import Continued, RowInfo, SessionInfo
from antiphon.http.api.asked import KEY_HEX_MAX, ListSessionsOf, ReadRows
from antiphon.http.api.call import Call, data, told
from antiphon.http.api.logs import TOLD_BYTES_MAX, find_shard
from antiphon.http.api.past import KEPT_BYTES_MAX, ShardPast, check_has_past, row_of_version, rows_at
from antiphon.http.api.problems import AskedWronglyError
from antiphon.http.pages.asking import topic_for
from antiphon.http.pages.row_pages import SHARDS_MERGED, end_of, merged_rows
from antiphon.model.access import Operation
from antiphon.model.internal import is_internal
from antiphon.model.metadata import KeyRanges, Kind, ShardMeta, TopicMeta, key_hash
from antiphon.model.past import Wanted, rows_as_of
from antiphon.model.requests import TableGet
from antiphon.model.rows import Row
from antiphon.model.sessions import ListSessions, SessionState

SHARDS_AT_ONCE: Final = 16
SHARDS_ASKED: Final = 256  # for their sessions, for one answer
KEY_BYTES_MAX: Final = KEY_HEX_MAX // 2


async def read_rows(call: Call, asked: ReadRows) -> Continued[RowInfo]:
    """Rows in the order of keys: one key, those with a prefix, or all; also as of an offset, or of a version of a key."""
    topic = topic_for(call.gateway, call.rights, asked.table, Operation.READ)
    if topic.kind is not Kind.TABLE:
        raise WrongKindError(f"{topic.name!r} is a topic, which has records and no rows: read its records")
    key = _key(asked)
    if key is not None:
        row = await _one(call, asked, topic, key)
        found, more = ([] if row is None else [row]), False
    else:
        found, more = await _several(call, asked, topic)
    kept: list[RowInfo] = []
    size_bytes = 0
    for row in found:
        size_bytes += min(len(row.key), asked.max_bytes) + min(len(row.value), asked.max_bytes)
        if kept and size_bytes > TOLD_BYTES_MAX:
            more = True
            break
        kept.append(_row(row, asked.max_bytes))
    return Continued(items=kept, after=kept[-1].after if kept and more else None)


def _row(row: Row, max_bytes: int) -> RowInfo:
    return RowInfo(
        key=data(row.key, max_bytes),
        value=data(row.value, max_bytes),
        version=row.version.id,
        modifications=row.version.modifications,
        created_ms=row.version.created_ms,
        modified_ms=row.version.modified_ms,
        session=None if row.session_id is None else str(row.session_id),
        after=_after(row.key).hex(),
    )


def _after(key: bytes) -> bytes:
    """What the next piece begins behind: the key, or where it is longer than a request takes, all that begin as it does."""
    return key if len(key) <= KEY_BYTES_MAX else key[: KEY_BYTES_MAX - 1] + b"\xff"


def _key(asked: ReadRows) -> bytes | None:
    if asked.key is not None and asked.key_hex is not None:
        raise AskedWronglyError("give key or key_hex, not both", parameter="key_hex")
    if asked.key_hex is not None:
        return _bytes("key_hex", asked.key_hex)
    if asked.version is not None and asked.key is None:
        raise AskedWronglyError("a version is one of a key: give key or key_hex too", parameter="version")
    return None if asked.key is None else asked.key.encode()


def _bytes(name: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise AskedWronglyError(
            f"{name} is bytes in hexadecimal, two digits each",
            parameter=name,
            asked=text,
            do="as 6b31 for k1",
        ) from None


async def _one(call: Call, asked: ReadRows, topic: TopicMeta, key: bytes) -> Row | None:
    place = KeyRanges(topic.shards).shard_of(key)
    if asked.as_of is not None and asked.version is not None:
        raise AskedWronglyError("give as_of or version, not both", parameter="version")
    if asked.as_of is not None:
        check_has_past(topic)
        source = ShardPast(call, topic, place, (key, key + b"\x00"))
        found = await rows_as_of(source, place.index, asked.as_of, Wanted(key.__eq__, KEPT_BYTES_MAX))
        if not found.hashes[0] <= key_hash(key) <= found.hashes[1]:
            raise AskedWronglyError(
                f"the key was another shard's than {place.index} as of offset {asked.as_of}: the table was split",
                parameter="as_of",
                do="an offset of the shard that has the key now, from its own start on",
            )
        return found.rows.get(key)
    row = (await call.asker.rows(TableGet(place.shard_id, (key,), consistency="leader"))).rows[0]
    if asked.version is None or (row is not None and row.version.id == asked.version):
        return row
    return await row_of_version(call, topic, place, key, asked.version)


async def _several(call: Call, asked: ReadRows, topic: TopicMeta) -> tuple[list[Row], bool]:
    prefix, after = asked.prefix.encode(), _bytes("after", asked.after)
    start, end = max(prefix, after + b"\x00") if after else prefix, end_of(prefix)
    shards = list(topic.shards)
    if asked.shard is not None:
        shards = [find_shard(topic, asked.shard)]
    elif len(shards) > (SHARDS_MERGED if asked.as_of is None else 1):
        most = (
            f"up to {SHARDS_MERGED} shards are read at once"
            if asked.as_of is None
            else "an offset is of one shard"
        )
        raise AskedWronglyError(
            f"{topic.name!r} has {len(shards)} shards, and {most}: name one with shard", parameter="shard"
        )
    if asked.as_of is None:
        return await merged_rows(call.asker, [one.shard_id for one in shards], start, end, asked.limit)
    rows = await rows_at(call, topic, shards[0], (start, end), asked.as_of)
    return rows[: asked.limit], len(rows) > asked.limit


# -- sessions -----------------------------------------------------------------------------------------------------


async def list_sessions(call: Call, asked: ListSessionsOf) -> Continued[SessionInfo]:
    """Open sessions of the tables that you may describe, by shard and id: their time-outs, rows and ages."""
    shard_id, _, session_id = asked.after.partition("-")
    first, after = int(shard_id or 0), int(session_id or 0)
    found, silent, place = await sessions_of(call, asked.table, (first, after), asked.limit)
    some = [_session(*one) for one in found]
    following = None if place is None else f"{place[0]}-{place[1]}"
    return Continued(items=some, after=following, is_partial=bool(silent))


Found = tuple[TopicMeta, ShardMeta, SessionState]


async def sessions_of(
    call: Call, table: str, after: tuple[int, int], limit: int
) -> tuple[list[Found], list[int], tuple[int, int] | None]:
    """Sessions behind (shard id, session id), shards whose leaders do not answer, and behind which place there may be more.

    A bounded number of shards is asked, so there may be more where few or none are found.
    """
    places = sorted(
        (
            (shard.shard_id, topic, shard)
            for topic in call.gateway.metadata.topics
            if topic.kind is Kind.TABLE
            and topic.config.get("writers") != "multi"
            and (not table or topic.name == table)
            and not is_internal(topic)
            and may_see(call.rights, topic)
            for shard in topic.shards
            if shard.shard_id >= after[0]
        ),
        key=lambda one: one[0],
    )
    found: list[Found] = []
    silent: list[int] = []
    for at in range(0, min(len(places), SHARDS_ASKED), SHARDS_AT_ONCE):
        some = places[at : at + SHARDS_AT_ONCE]
        asks = (_sessions(call, shard_id, after, limit) for shard_id, _, _ in some)
        for (shard_id, topic, shard), states in zip(some, await asyncio.gather(*asks), strict=True):
            if states is None:
                silent.append(shard_id)
            else:
                found += [(topic, shard, one) for one in states]
        if len(found) > limit:
            break
    if len(found) > limit:
        _, shard, state = found[limit - 1]
        return found[:limit], silent, (shard.shard_id, state.session_id)
    return found, silent, (places[SHARDS_ASKED][0], 0) if len(places) > SHARDS_ASKED else None


async def _sessions(
    call: Call, shard_id: int, after: tuple[int, int], limit: int
) -> tuple[SessionState, ...] | None:
    behind = after[1] if shard_id == after[0] else 0
    try:
        return (await call.asker.sessions(ListSessions(shard_id, behind, limit + 1))).rows
    except AntiphonError:
        return None


def _session(topic: TopicMeta, shard: ShardMeta, state: SessionState) -> SessionInfo:
    return told(
        SessionInfo,
        state,
        session=str(state.session_id),
        table=topic.name,
        shard=shard.index,
        keys=None if state.keys < 0 else state.keys,
    )
