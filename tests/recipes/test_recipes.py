"""Locks, elections, counters, queues and registries, against whole nodes in virtual time."""

import asyncio

import pytest

from antiphon.client.aio import AsyncClient, connect
from antiphon.errors import (
    InvalidRequestError,
    SessionNotFoundError,
    TimedOutError,
    VersionMismatchError,
)
from antiphon.model.requests import TableGet, TableWrite
from antiphon.recipes import (
    AsyncCounter,
    AsyncLeaderElection,
    AsyncLock,
    AsyncQueue,
    AsyncServiceRegistry,
    Leader,
)
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, SILENT, FailingNodes


@in_a_cluster
async def test_a_lock_is_held_by_one_and_its_tokens_rise(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("locks", shards=1)
    one, two = AsyncLock(db, "locks", "l"), AsyncLock(db, "locks", "l")
    first = await one.acquire()
    assert one.is_held
    assert not await two.try_acquire()
    with pytest.raises(TimedOutError, match="lock 'l' was not free in time"):
        await two.acquire(timeout_s=1)
    with pytest.raises(InvalidRequestError, match="held by this object"):
        await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(1)
    assert not waiting.done()
    assert await one.release()
    assert await waiting > first
    assert (one.token, one.is_held, two.is_held) == (-1, False, True)
    assert not await one.release()
    await two.release()
    async with AsyncLock(db, "locks", "l") as again:
        assert again.is_held


@in_a_cluster
async def test_a_holder_that_dies_loses_the_lock_and_its_writes_are_refused(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table("locks", shards=1)
    other = await connect(cluster.servers)
    lost, lock = AsyncLock(other, "locks", "l", session_timeout_s=2), AsyncLock(db, "locks", "l")
    first = await lost.acquire()
    assert lost.session is not None
    lost.session.abandon()
    assert await lock.acquire() > first
    stale = db.table("locks").transaction()
    lost.guard(stale)
    stale.put("result", b"stale")
    with pytest.raises(VersionMismatchError):
        await stale.commit()
    async with db.table("locks").transaction() as good:
        lock.guard(good)
        good.put("result", b"good")
    assert not await lost.release()
    assert lock.is_held
    assert (await db.table("locks").get("result")).value == b"good"
    await other.close()
    with pytest.raises(InvalidRequestError, match="not held"):
        lost.guard(db.table("locks").transaction())


@in_a_cluster
async def test_a_put_without_an_answer_is_found(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("locks", shards=1)
    lock = AsyncLock(db, "locks", "l")
    cluster.fail(TableWrite, DROP_AFTER)
    token = await lock.acquire()
    assert (await db.table("locks").get("l")).version.id == token


@in_a_cluster
async def test_locks_share_a_session(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("locks", shards=4)
    async with db.session() as session:
        locks = [AsyncLock(db, "locks", f"l{i}", session=session) for i in range(8)]
        for lock in locks:
            await lock.acquire()
        await locks[0].release()
        assert not session.is_lost
        assert await AsyncLock(db, "locks", "l0").try_acquire()
        assert not await AsyncLock(db, "locks", "l1").try_acquire()
    assert not locks[1].is_held or locks[1].session is not None
    with pytest.raises(SessionNotFoundError):
        await AsyncLock(db, "locks", "l1", session=session).acquire()


@in_a_cluster
async def test_work_is_cancelled_with_its_term_and_another_candidate_leads(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table("e", shards=1)
    ran: list[tuple[str, int, str]] = []

    async def work(name: str, term: int) -> str:
        ran.append((name, term, "begins"))
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ran.append((name, term, "is stopped"))
            raise
        return name

    elections = {
        name: AsyncLeaderElection(db, "e", "chair", candidate=name, session_timeout_s=2) for name in "ab"
    }
    tasks = {
        name: asyncio.create_task(one.run(lambda term, name=name: work(name, term)))  # type: ignore[misc]
        for name, one in elections.items()
    }
    await asyncio.sleep(1)
    leader = await elections["a"].leader()
    assert leader == Leader(ran[0][0], ran[0][1])
    mine = elections[leader.candidate]._lock.session
    assert mine is not None
    mine.refused(SessionNotFoundError("gone"))
    assert {await tasks["a"], await tasks["b"]} == {"a", "b"}
    assert ran[1][2] == "is stopped"
    assert sorted(term for _, term, what in ran if what == "begins") == [
        term for _, term, what in ran if what == "begins"
    ]
    assert len([what for _, _, what in ran if what == "begins"]) == 3
    assert await elections["a"].leader() is None


@in_a_cluster
async def test_a_candidate_that_is_cancelled_resigns(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("e", shards=1)
    election = AsyncLeaderElection(db, "e", "chair", candidate="a")
    task = asyncio.create_task(election.run(lambda _term: asyncio.sleep(100)))
    await asyncio.sleep(1)
    assert election.is_leader
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await election.leader() is None
    failing = asyncio.create_task(election.run(lambda term: asyncio.wait_for(asyncio.sleep(9), 0.1)))
    with pytest.raises(TimeoutError):
        await failing
    assert await election.leader() is None


@in_a_cluster
async def test_counters_count_each_addition_once(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("c", shards=1)
    counters = [AsyncCounter(db, "c", "n", start=100) for _ in range(5)]
    assert await counters[0].value() == 100
    cluster.fail(TableWrite, DROP_AFTER, None, DROP_AFTER)
    numbers = await asyncio.gather(*(counter.add() for counter in counters for _ in range(4)))
    assert sorted(numbers) == list(range(101, 121))
    assert await counters[0].add(-20) == 100
    await table.put("n", b"no number")
    with pytest.raises(InvalidRequestError, match="holds no number"):
        await counters[0].value()


@in_a_cluster
async def test_a_queue_offers_in_order_until_it_is_done(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("q", shards=1)
    queue = AsyncQueue(db, "q", "jobs")
    assert [await queue.put(b"%d" % i) for i in range(3)] == [1, 2, 3]
    one, two = db.session(timeout_s=2), db.session(timeout_s=10)
    first, second = await queue.take(one), await queue.take(two)
    assert (first.item, second.item) == (b"0", b"1")
    await second.give_back()
    async with await queue.take(two) as again:
        assert (again.item, again.token > second.token) == (b"1", True)
    assert await queue.size() == 2
    one.abandon()
    await asyncio.sleep(4)
    taken_over = await queue.take(two)
    assert taken_over.item == b"0"
    with pytest.raises(SessionNotFoundError, match="was lost before"):
        await first.done()
    await taken_over.done()
    with pytest.raises(ZeroDivisionError):
        async with await queue.take(two) as third:
            raise ZeroDivisionError
    assert (await queue.take(two)).item == third.item
    assert await queue.try_take(two) is None
    with pytest.raises(TimedOutError, match="nothing to take"):
        await queue.take(two, timeout_s=0.2)
    await db.create_table("many", shards=2)
    with pytest.raises(InvalidRequestError, match="one shard, 'many' has 2"):
        await AsyncQueue(db, "many", "jobs").put(b"")


@in_a_cluster
async def test_a_registry_lists_who_lives(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("s", shards=4)
    registry = AsyncServiceRegistry(db, "s")
    one, two = db.session(timeout_s=2), db.session(timeout_s=2)
    await registry.register("mail", "a", b"1", one)
    await registry.register("mail", "b", b"2", two)
    await registry.register("mailing", "c", b"3", two)
    assert await registry.instances("mail") == {"a": b"1", "b": b"2"}
    await registry.register("mail", "a", b"9", one)
    one.abandon()
    await asyncio.sleep(4)
    assert await registry.instances("mail") == {"b": b"2"}
    await registry.deregister("mail", "b")
    await registry.deregister("mail", "b")
    assert await registry.instances("mail") == {}
    assert await registry.instances("mailing") == {"c": b"3"}
    with pytest.raises(InvalidRequestError, match="no slash"):
        await registry.register("a/b", "c", b"", two)


@in_a_cluster
async def test_a_lock_that_nobody_answered_for_is_given_back(cluster: FailingNodes, db: AsyncClient) -> None:
    """The put has no known outcome, and was carried out: the release finds it."""
    await db.create_table("locks", shards=1)
    short = await connect(cluster.servers, timeout_s=1)
    session = short.session()
    await short.table("locks").put("warm", b"", session=session)
    lock = AsyncLock(short, "locks", "l", session=session)
    cluster.fail(TableWrite, lambda _answer: None)
    cluster.fail(TableGet, SILENT)
    assert not await lock.try_acquire()
    assert await db.table("locks").find("l") is not None
    assert await lock.release()
    assert await db.table("locks").find("l") is None
    await short.close()
