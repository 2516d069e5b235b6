"""Sessions of the asynchronous client against whole nodes: rows go when a client falls silent, and not before."""

import asyncio
import contextlib
from unittest.mock import patch

import pytest

from antiphon.client.aio import AsyncClient, connect
from antiphon.client.session import AsyncSession
from antiphon.client.table import ABSENT, AsyncTable
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    LimitReachedError,
    NotReadyError,
    SessionNotFoundError,
    VersionMismatchError,
)
from antiphon.model.sessions import CloseSession, KeepSession, OpenSession
from antiphon.records.changes import ChangeKind
from antiphon.security.session import Session
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, FailingNodes
from tests.node.in_process import eventually


async def keys_of(table: AsyncTable) -> list[bytes]:
    return await table.list()


async def until_gone(table: AsyncTable, key: str) -> None:
    async with asyncio.timeout(60):
        while await table.find(key) is not None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


def silence(session: AsyncSession) -> None:
    """From now on nothing is heard of the session."""
    session.abandon()


@in_a_cluster
async def test_rows_go_when_the_session_is_closed(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=4)
    await table.put("stays", b"1")
    async with db.session(timeout_s=10) as session:
        versions = [await table.put(f"k{i}", b"v", session=session) for i in range(20)]
        assert len(await keys_of(table)) == 21
        row = await table.get("k3")
        assert (row.value, row.version, row.session_id) == (b"v", versions[3], session.id)
        assert (await table.get("stays")).session_id is None
        assert not session.is_lost
    assert await keys_of(table) == [b"stays"]
    with pytest.raises(SessionNotFoundError, match="is closed"):
        await table.put("k", b"v", session=session)
    await session.close()


@in_a_cluster
async def test_rows_go_when_the_client_is_silent_and_stay_while_it_is_not(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=1)
    kept, silent = db.session(timeout_s=2), db.session(timeout_s=2)
    await table.put("kept", b"v", session=kept)
    await table.put("silent", b"v", session=silent)
    silence(silent)
    began = asyncio.get_running_loop().time()
    await until_gone(table, "silent")
    assert 1.9 < asyncio.get_running_loop().time() - began < 3.0
    await asyncio.sleep(20)
    assert await keys_of(table) == [b"kept"]
    assert not kept.is_lost
    assert cluster.host("t").services.metrics.sessions_expired == 1
    await kept.close()
    assert await keys_of(table) == []


@in_a_cluster
async def test_whoever_puts_again_owns_the_row(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    one, two = db.session(), db.session()
    for key in ("plain", "other", "mine", "removed", "removed and put"):
        await table.put(key, b"1", session=one)
    await table.put("plain", b"2")
    await table.put("other", b"2", session=two)
    await table.put("mine", b"2", session=one)
    await table.delete("removed")
    await table.delete("removed and put")
    await table.put("removed and put", b"2")
    await one.close()
    assert await keys_of(table) == [b"other", b"plain", b"removed and put"]
    await two.close()
    assert await keys_of(table) == [b"plain", b"removed and put"]


@in_a_cluster
async def test_conditions_hold_under_a_session_too(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    async with db.session() as session:
        version = await table.put("k", b"1", expected_version=ABSENT, session=session)
        with pytest.raises(VersionMismatchError):
            await table.put("k", b"2", expected_version=ABSENT, session=session)
        again = await table.put("k", b"2", expected_version=version.id, session=session)
        assert again.modifications == 1
        assert again.id > version.id
        async with table.transaction() as t:
            t.check("k", again.id)
            t.put("guarded", b"1")
    t = table.transaction()
    t.check("k", again.id)
    t.put("guarded", b"2")
    with pytest.raises(VersionMismatchError):
        await t.commit()


@in_a_cluster
async def test_watchers_see_the_rows_go(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    async with table.watch(start=-2) as watch:
        async with db.session() as session:
            await table.put("a", b"1", session=session)
            await table.put("b", b"2", session=session)
        changes = [await anext(watch) for _ in range(4)]
    assert [(c.key, c.value, c.kind) for c in changes] == [
        (b"a", b"1", ChangeKind.CREATED),
        (b"b", b"2", ChangeKind.CREATED),
        (b"a", None, ChangeKind.DELETED),
        (b"b", None, ChangeKind.DELETED),
    ]
    assert {change.session_id for change in changes} == {session.id}
    assert changes[2].offset + 1 == changes[3].offset


@in_a_cluster
async def test_a_new_leader_counts_in_full(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    session, gone = db.session(timeout_s=3), db.session(timeout_s=3)
    await table.put("k", b"v", session=session)
    await table.put("gone", b"v", session=gone)
    silence(gone)
    for _ in range(4):
        await asyncio.sleep(2)
        await db.elect_leader("t", 0, node=next(n for n in range(3) if n != leader_id(cluster)))
    assert await table.find("gone") is not None, "no leader led for as long as its time-out"
    assert not session.is_lost
    await until_gone(table, "gone")
    assert await keys_of(table) == [b"k"]
    await session.close()


def leader_id(cluster: FailingNodes) -> int:
    return cluster.leader("t")


@in_a_cluster
async def test_a_lost_session_is_told_and_ends_everywhere(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=8)
    told: list[SessionNotFoundError] = []
    session = db.session(timeout_s=2, on_lost=told.append)
    for i in range(30):
        await table.put(f"k{i}", b"v", session=session)
    cluster.fail(KeepSession, SessionNotFoundError("gone"))
    await eventually(lambda: bool(told))
    assert session.is_lost
    with pytest.raises(SessionNotFoundError, match="is lost"):
        await table.put("k", b"v", session=session)
    await asyncio.sleep(1)
    assert await keys_of(table) == []
    later: list[SessionNotFoundError] = []
    session.when_lost(later.append)
    await asyncio.sleep(0)
    assert (len(told), len(later)) == (1, 1)
    await session.close()


@in_a_cluster
async def test_a_client_that_stood_still_takes_the_session_for_lost(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    """It does not wait for an answer: by its own clock the session may have ended."""
    table = await db.create_table("t", shards=1)
    session = db.session(timeout_s=2)
    await table.put("k", b"v", session=session)
    session._places[next(iter(session._places))].kept_s -= 2.1
    assert session.is_lost
    with pytest.raises(SessionNotFoundError, match="has not answered"):
        await table.put("k", b"v", session=session)
    await until_gone(table, "k")


@in_a_cluster
async def test_an_answer_that_is_read_after_the_loss_does_not_count(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=1)
    session = db.session(timeout_s=2)
    await table.put("k", b"v", session=session)
    place = session._places[next(iter(session._places))]

    async def answer_late(*_: object, **__: object) -> None:
        place.kept_s -= 2.1
        assert session.is_lost

    kept_s = place.kept_s
    with patch.object(session._cluster, "call_shard", answer_late):
        await session._heartbeat(place, 1)
    assert session.kept_s == kept_s - 2.1


@pytest.mark.parametrize("fault", [DROP_BEFORE, DROP_AFTER, NotReadyError("not now")])
@in_a_cluster
async def test_lost_answers_do_no_harm(
    cluster: FailingNodes, db: AsyncClient, fault: str | AntiphonError
) -> None:
    table = await db.create_table("t", shards=1)
    session = db.session(timeout_s=5)
    cluster.fail(OpenSession, fault, fault)
    await table.put("k", b"v", session=session)
    cluster.fail(KeepSession, fault, fault, fault)
    await asyncio.sleep(12)
    assert not session.is_lost
    assert await keys_of(table) == [b"k"]
    cluster.fail(CloseSession, fault, fault)
    await session.close()
    assert await keys_of(table) == []


@in_a_cluster
async def test_bounds_are_told(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    for timeout_s in (0.1, 1000):
        with pytest.raises(InvalidRequestError, match=r"from 1000 to 300000 ms .*\[sessions\]"):
            await table.put("k", b"v", session=db.session(timeout_s=timeout_s))
    with pytest.raises(InvalidRequestError, match="above 0 s"):
        db.session(timeout_s=0)
    for node in cluster.nodes.nodes.values():
        node.session_bounds.per_shard = 3
    sessions = [db.session() for _ in range(3)]
    for i, session in enumerate(sessions[:2]):
        await table.put(f"k{i}", b"v", session=session)
    with pytest.raises(LimitReachedError, match=r"has 2 open sessions of 2 of shard .*\[sessions\]"):
        await table.put("k2", b"v", session=sessions[2])
    await sessions[0].close()
    await table.put("k2", b"v", session=sessions[2])


@in_a_cluster
async def test_one_client_leaves_sessions_for_others(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    for node in cluster.nodes.nodes.values():
        node.session_bounds.per_shard = 6
    sessions = [db.session() for _ in range(8)]

    async def opened(first: int = 0) -> list[int]:
        found = []
        for i, session in enumerate(sessions[first:], first):
            with contextlib.suppress(LimitReachedError):
                await table.put(f"k{i}", b"v", session=session)
                found.append(i)
        return found

    with patch.object(Session, "client", lambda *_: "greedy"):
        assert await opened() == [0, 1, 2]
        with pytest.raises(LimitReachedError, match="this client has 3 open sessions of 3 of shard"):
            await table.put("k3", b"v", session=sessions[3])
    with patch.object(Session, "client", lambda *_: "other"):
        assert await opened() == [0, 1, 2, 3, 4], "who is there stays"
    with patch.object(Session, "client", lambda *_: "greedy"):
        for session in sessions[:3]:
            await session.close()
        assert await opened(3) == [3, 4, 5, 6], "the sessions that were closed are nobody's"


@in_a_cluster
async def test_a_session_has_so_many_keys(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    session = db.session()
    await asyncio.gather(*(table.put(f"{i}", b"v", session=session) for i in range(1000)))
    await table.put("7", b"again", session=session)
    plain = table.put("plain", b"v")
    with pytest.raises(InvalidRequestError, match="at most 1000 keys"):
        await table.put("one too many", b"v", session=session)
    await plain
    await session.close()
    assert await keys_of(table) == [b"plain"]


@in_a_cluster
async def test_a_table_that_all_replicas_write_has_no_sessions(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=1, config={"writers": "multi"})
    with pytest.raises(InvalidRequestError, match="writers=multi"):
        await table.put("k", b"v", session=db.session())


@in_a_cluster
async def test_a_split_takes_sessions_over(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    session, silent, idle = db.session(timeout_s=3), db.session(timeout_s=3), db.session(timeout_s=3)
    for i in range(20):
        await table.put(f"k{i}", b"v", session=session)
        await table.put(f"s{i}", b"v", session=silent)
    await table.put("k0", b"plain now")
    await table.put("idle", b"v", session=idle)
    silence(silent)
    await db.split_shard("t", 0)
    await asyncio.sleep(10)
    kept = sorted([b"idle", *(b"k%d" % i for i in range(20))])
    assert await keys_of(table) == kept
    assert not session.is_lost
    for i in range(20):
        await table.put(f"n{i}", b"v", session=idle)
    assert not idle.is_lost
    async with connect(cluster.servers) as other:
        rows = [row async for row in (await other.table("t")).scan()]
        assert {row.session_id for row in rows if row.key != b"k0"} == {session.id, idle.id}
    await idle.close()
    await session.close()
    assert await keys_of(table) == [b"k0"]


@in_a_cluster
async def test_a_session_that_was_opened_before_a_split_is_closed_everywhere(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=1)
    session = db.session(timeout_s=60)
    for i in range(20):
        await table.put(f"k{i}", b"v", session=session)
    async with connect(cluster.servers) as other:
        await other.split_shard("t", 0)
    await session.close()
    assert await keys_of(table) == []


@in_a_cluster
async def test_a_deleted_table_loses_nobody_their_session(cluster: FailingNodes, db: AsyncClient) -> None:
    gone, stays = await db.create_table("gone", shards=1), await db.create_table("stays", shards=1)
    session = db.session(timeout_s=2)
    await gone.put("k", b"v", session=session)
    await stays.put("k", b"v", session=session)
    await db.delete_table("gone")
    await asyncio.sleep(12)
    assert not session.is_lost
    assert await keys_of(stays) == [b"k"]
    await session.close()


@in_a_cluster
async def test_a_transaction_puts_under_sessions(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    session = db.session()
    async with table.transaction() as t:
        t.put("own", b"1", session=session, expected_version=ABSENT)
        t.put("plain", b"1")
    assert await keys_of(table) == [b"own", b"plain"]
    await session.close()
    assert await keys_of(table) == [b"plain"]
    t = table.transaction()
    t.put("own", b"1", session=session)
    t.put("plain", b"2")
    with pytest.raises(SessionNotFoundError):
        await t.commit()
    assert (await table.get("plain")).value == b"1"
